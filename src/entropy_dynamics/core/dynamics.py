"""First-order entropy dynamics of one softmax policy (paper, Sections 3.1-3.2, Appendices A, C and D).

Conventions: the last axis of `p` is the vocabulary, any leading shape `[...]` goes before it; `p` holds probabilities
(sum 1, zeros allowed); entropies are in nats; results have the dtype of `p`. "First order" means that what is left out
is quadratic in the step. The functions are the theorems, not their use in training: they hold full distributions, so
the training loop takes S* and E[S] from `token_stats` and only the two batch functions from here.
"""

import torch
from torch import Tensor


def discriminator(p: Tensor) -> Tensor:
    """S_i = p_i (H + log p_i) of every vocabulary item (Section 3.1): p [..., V] -> [..., V], nats.

    S_i > 0 exactly for the items with p_i > e^-H; never below -1/e.
    """
    p_log_p = torch.xlogy(p, p)  # 0 where p = 0, the limit
    entropy = -p_log_p.sum(-1, keepdim=True)
    return p * entropy + p_log_p


def expected_discriminator(p: Tensor) -> Tensor:
    """E_{i~p}[S_i] = sum_i p_i S_i (Theorem 2): p [..., V] -> [...], nats."""
    return (p * discriminator(p)).sum(-1)


def probability_change(p: Tensor, token: Tensor, epsilon: float | Tensor) -> Tensor:
    """Lemma 1 (eq. 2): first-order change of all probabilities when the logit of `token` grows by `epsilon`.

    Args:
        p: [..., V].
        token: int64 [...], the item k whose logit is moved.
        epsilon: the move, a number or [...].

    Returns:
        [..., V]: epsilon p_k (1 - p_k) at k and -epsilon p_i p_k elsewhere; sums to zero.
    """
    p_token = _at(p, token)
    onehot = torch.zeros_like(p).scatter_(-1, token[..., None], 1.0)
    return (epsilon * p_token)[..., None] * (onehot - p)


def entropy_change_single_logit(p: Tensor, token: Tensor, epsilon: float | Tensor) -> Tensor:
    """Theorem 1 (eq. 4): -epsilon S_*, the entropy change when the logit of `token` grows by `epsilon`.

    p [..., V], token int64 [...], epsilon a number or [...] -> [...], nats.
    """
    return -epsilon * _at(discriminator(p), token)


def entropy_change_gradient_step(p: Tensor, token: Tensor, alpha: float | Tensor) -> Tensor:
    """Theorem 2 (eq. 10): -alpha (S_* - E[S]), the entropy change under the policy-gradient step on the logits.

    The step is z <- z + alpha (e_k - p), k = `token`; alpha = eta r A (learning rate, importance ratio, advantage).

    p [..., V], token int64 [...], alpha a number or [...] -> [...], nats.
    """
    return -alpha * _at(_centered(p), token)


def expected_centered_score(p: Tensor, behaviour: Tensor | None = None) -> Tensor:
    """Corollary 1 (eq. 11), or 1.1 with `behaviour`: E_{k~p'}[r_k (S_k - E_{i~p}[S_i])] with r = p / p'. It is zero.

    Args:
        p: the current policy [..., V].
        behaviour: the sampling policy p' [..., V]; None is on-policy, p' = p.

    Returns:
        [...], nats: zero up to rounding, given that p' > 0 wherever p > 0. Mass of p that p' cannot sample is left
        out, as it would be in sampling, and the result is then not zero.
    """
    sampling, ratio = _sampling_and_ratio(p, behaviour)
    return (sampling * ratio * _centered(p)).sum(-1)


def expected_entropy_change(p: Tensor, advantages: Tensor, eta: float, behaviour: Tensor | None = None) -> Tensor:
    """Corollary 3 (eq. 13), or 3.1 (eq. 27) with `behaviour`: -eta Cov_{k~p'}(A_k, r_k (S_k - E_{i~p}[S_i])).

    Args:
        p: the current policy [..., V].
        advantages: [..., V], the (latent) advantage of every vocabulary item.
        eta: learning rate on the logits.
        behaviour: the sampling policy p' [..., V]; None is on-policy, p' = p and r = 1.

    Returns:
        [...], nats: the entropy change of Theorem 2, averaged over the sampled item.
    """
    sampling, ratio = _sampling_and_ratio(p, behaviour)
    mean_advantage = (sampling * advantages).sum(-1, keepdim=True)
    return -eta * (sampling * (advantages - mean_advantage) * ratio * _centered(p)).sum(-1)


def batch_centered_mean(s_centered: Tensor, mask: Tensor, ratio: Tensor | None = None) -> Tensor:
    """Corollary 2 (eq. 12), or 2.1 (eq. 25) with `ratio`: the batch mean of r (S_* - E[S]); its expectation is zero.

    Args:
        s_centered: S_* - E[S] of the sampled tokens, any shape.
        mask: the same shape, non-zero on response tokens; what stands elsewhere is never read.
        ratio: importance ratio of the sampled tokens, the same shape; None is on-policy, r = 1.

    Returns:
        A scalar, nats; nan if the mask is empty.
    """
    return _response_factors(s_centered, mask, ratio).mean()


def batch_entropy_change(
    advantages: Tensor, s_centered: Tensor, mask: Tensor, eta: float, ratio: Tensor | None = None
) -> Tensor:
    """Corollary 4 (eq. 14), or 4.1 (eq. 28) with `ratio`: -eta Cov_B(A, r (S_* - E[S])).

    The covariance is that of the batch itself (divided by N). It differs from the plain average of Theorem 2 by
    eta mean(A) mean(r S_c), whose expectation Corollary 2 makes zero.

    Args:
        advantages: of every token, any shape.
        s_centered, mask, ratio: as in `batch_centered_mean`.
        eta: learning rate on the logits.

    Returns:
        A scalar, nats: the mean entropy change of the batch's tokens; nan if the mask is empty.
    """
    factors = _response_factors(s_centered, mask, ratio)
    chosen = advantages[mask.bool()]
    return -eta * ((chosen - chosen.mean()) * factors).mean()


def _centered(p: Tensor) -> Tensor:
    """S_i - E_{j~p}[S_j]: [..., V] -> [..., V]."""
    return discriminator(p) - expected_discriminator(p)[..., None]


def _at(values: Tensor, token: Tensor) -> Tensor:
    return values.gather(-1, token[..., None]).squeeze(-1)


def _sampling_and_ratio(p: Tensor, behaviour: Tensor | None) -> tuple[Tensor, Tensor]:
    """The distribution that tokens are drawn from, and r = p / p' (0 where nothing is drawn)."""
    if behaviour is None:
        return p, torch.ones_like(p)
    return behaviour, torch.where(behaviour > 0, p / behaviour, 0.0)


def _response_factors(s_centered: Tensor, mask: Tensor, ratio: Tensor | None) -> Tensor:
    """r S_c of the response tokens only: [N]."""
    chosen = s_centered[mask.bool()]
    return chosen if ratio is None else chosen * ratio[mask.bool()]
