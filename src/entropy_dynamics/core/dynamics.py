"""First-order entropy dynamics of a softmax policy (paper, Sections 3.1-3.2, Appendices A, C and D).

Conventions: `p` holds probabilities (sum 1, zeros allowed) along its last axis; entropies are in nats; results have the
dtype of `p`. The training loop computes S* and E[S] with `token_stats` and uses only `batch_entropy_change`.
"""

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from entropy_dynamics.core.shapes import PerPosition, Scalar

Distribution = Float[Tensor, "*position vocab"]
Token = Int[Tensor, "*position"]


def discriminator(p: Distribution) -> Distribution:
    """S_i = p_i (H + log p_i) of every vocabulary item (Section 3.1), nats.

    S_i > 0 exactly for the items with p_i > e^-H, and S_i >= -1/e.
    """
    p_log_p = torch.xlogy(p, p)  # 0 where p = 0, the limit
    entropy = -p_log_p.sum(-1, keepdim=True)
    return p * entropy + p_log_p


def expected_discriminator(p: Distribution) -> PerPosition:
    """E_{i~p}[S_i] = sum_i p_i S_i (Theorem 2), nats."""
    return (p * discriminator(p)).sum(-1)


def entropy_change_single_logit(p: Distribution, token: Token, epsilon: float | PerPosition) -> PerPosition:
    """Theorem 1 (eq. 4): -epsilon S_*, the entropy change when the logit of `token` grows by `epsilon`, nats."""
    return -epsilon * _at(discriminator(p), token)


def entropy_change_gradient_step(p: Distribution, token: Token, alpha: float | PerPosition) -> PerPosition:
    """Theorem 2 (eq. 10): -alpha (S_* - E[S]), the entropy change under a policy-gradient step on the logits, nats.

    The step is z <- z + alpha (e_k - p), k = `token`; alpha = eta r A (learning rate, importance ratio, advantage).
    """
    return -alpha * _at(_centered(p), token)


def expected_centered_score(p: Distribution, behavior: Distribution | None = None) -> PerPosition:
    """Corollary 1 (eq. 11), or 1.1 with `behavior`: E_{k~p'}[r_k (S_k - E_{i~p}[S_i])] = 0, r = p / p', nats.

    `behavior` is the sampling policy p'; None is on-policy, p' = p. The result is zero up to rounding, provided that
    p' > 0 wherever p > 0. Otherwise the items that p' cannot sample are left out, and it is not zero.
    """
    sampling, ratio = _sampling_and_ratio(p, behavior)
    return (sampling * ratio * _centered(p)).sum(-1)


def expected_entropy_change(
    p: Distribution, advantages: Distribution, eta: float, behavior: Distribution | None = None
) -> PerPosition:
    """Corollary 3 (eq. 13), or 3.1 (eq. 27) with `behavior`: -eta Cov_{k~p'}(A_k, r_k (S_k - E_{i~p}[S_i])), nats.

    It is the expectation over the sampled item of Theorem 2's entropy change. `advantages` are the (latent) ones of all
    vocabulary items, `eta` is the learning rate on the logits, and `behavior` as in `expected_centered_score`.
    """
    sampling, ratio = _sampling_and_ratio(p, behavior)
    mean_advantage = (sampling * advantages).sum(-1, keepdim=True)
    return -eta * (sampling * (advantages - mean_advantage) * ratio * _centered(p)).sum(-1)


def batch_entropy_change(
    advantages: PerPosition,
    s_centered: PerPosition,
    mask: Shaped[Tensor, "*position"],
    eta: float,
    ratio: PerPosition | None = None,
) -> Scalar:
    """Corollary 4 (eq. 14), or 4.1 (eq. 28) with `ratio`: -eta Cov_B(A, r (S_* - E[S])).

    It is the mean entropy change over the batch's tokens, nats; NaN if the mask is empty. The covariance is the
    population covariance over these N tokens (divisor N). It differs from the plain mean of Theorem 2 by
    eta mean(A) mean(r S_c), whose expectation is zero (Corollary 2, eq. 12; 2.1, eq. 25).

    `s_centered` is S_* - E[S] of the sampled tokens, nats, and `ratio` their importance ratio; None is on-policy,
    r = 1. Positions outside the mask are never read. `eta` is the learning rate on the logits.
    """
    response = mask.bool()
    factors = s_centered[response] if ratio is None else s_centered[response] * ratio[response]
    chosen = advantages[response]
    return -eta * ((chosen - chosen.mean()) * factors).mean()


def _centered(p: Distribution) -> Distribution:
    """S_i - E_{j~p}[S_j]."""
    return discriminator(p) - expected_discriminator(p)[..., None]


def _at(values: Distribution, token: Token) -> PerPosition:
    return values.gather(-1, token[..., None]).squeeze(-1)


def _sampling_and_ratio(p: Distribution, behavior: Distribution | None) -> tuple[Distribution, Distribution]:
    """The distribution p' that tokens are sampled from, and r = p / p' (0 where p' = 0)."""
    if behavior is None:
        return p, torch.ones_like(p)
    return behavior, torch.where(behavior > 0, p / behavior, 0.0)
