"""Metrics of a batch of tokens: one flat dictionary of numbers."""

import math
from functools import partial

import torch

from entropy_dynamics.core.dynamics import batch_entropy_change
from entropy_dynamics.core.shapes import Chosen, PerRollout, PerToken
from entropy_dynamics.core.token_stats import TokenStats

TOP = 0.2  # fraction of tokens that count as high-entropy, as kept by Wang et al. (2025), Section 4.2


def entropy_metrics(
    stats: TokenStats,
    advantages: PerToken,
    weights: PerToken,
    mask: Chosen,
    learning_rate: float,
    ratio: PerToken | None = None,
) -> dict[str, float]:
    """Entropy, discriminator scores, clipping and Corollary 4 of one batch; means over response tokens, in nats.

    `neg_cov` is -Cov_B(A, S_c) of Figure 5, the sum of `neg_cov_positive` and `neg_cov_negative`, which hold the
    tokens' positive and negative terms. `s_centered_positive_top` is the share of tokens with S_c > 0 among the fifth
    (`TOP`) with the highest entropy. `predicted_entropy_change` is Corollary 4 with the weighted advantages w A, for a
    gradient step of size `learning_rate` on the logits. An optimizer's step has another size, so only its sign and
    correlation are comparable.

    `ratio` holds the importance ratios p / p', where a policy p' other than that of `stats` sampled. `s_centered_mean`,
    the three `neg_cov` and `predicted_entropy_change` then have r S_c in place of S_c (Corollaries 2.1 and 4.1);
    `s_centered_std` and `s_centered_positive_top` are of S_c itself. Two more columns show what another sampler
    changes: `s_centered_sampled`, the mean of S_c, which estimates E_p'[S_c]; and `predicted_entropy_change_sampled`,
    Corollary 4 in place of 4.1.
    """
    advantage, weight, s_centered = (x[mask].double() for x in (advantages, weights, stats.s_centered))
    reweighted = s_centered if ratio is None else s_centered * ratio[mask].double()
    terms = -(advantage - advantage.mean()) * (reweighted - reweighted.mean())
    dropped, negative = weight == 0, advantage < 0
    change = partial(batch_entropy_change, advantages * weights, stats.s_centered, mask, learning_rate)
    entropy = stats.entropy[mask].double()
    top = entropy >= entropy.topk(math.ceil(TOP * len(entropy))).values[-1:]
    metrics = {
        "entropy": float(entropy.mean()),
        "s_star_mean": float(stats.s_star[mask].double().mean()),
        "s_centered_mean": float(reweighted.mean()),
        "s_star_std": float(stats.s_star[mask].double().std(correction=0)),
        "s_centered_std": float(s_centered.std(correction=0)),
        "s_centered_positive_top": float((s_centered[top] > 0).double().mean()),
        "neg_cov": float(terms.mean()),
        "neg_cov_positive": float(terms.clamp_min(0).mean()),
        "neg_cov_negative": float(terms.clamp_max(0).mean()),
        "clip_fraction": float(dropped.double().mean()),
        "clip_fraction_neg": float((dropped & negative).sum() / negative.sum().clamp_min(1)),
        "predicted_entropy_change": float(change(ratio)),
        "tokens": int(mask.sum()),
    }
    if ratio is not None:
        metrics |= {"s_centered_sampled": float(s_centered.mean()), "predicted_entropy_change_sampled": float(change())}
    return metrics


def change_metrics(before: TokenStats, after: TokenStats, mask: Chosen) -> dict[str, float]:
    """Changes by a policy update, measured on the tokens that the old policy sampled, nats.

    `entropy_change` is the change of their mean entropy. `s_centered_after` is the mean of S_c under the new policy,
    `s_centered_reweighted` is the mean of r S_c with the importance ratio r; its expectation is zero (Corollary 2.1).
    """
    ratio, s_centered = (after.logp - before.logp)[mask].double().exp(), after.s_centered[mask].double()
    old, new = (stats.entropy[mask].double().mean().item() for stats in (before, after))
    return {
        "entropy_change": new - old,
        "s_centered_after": s_centered.mean().item(),
        "s_centered_reweighted": (ratio * s_centered).mean().item(),
    }


def lens_metrics(stats: TokenStats, advantages: PerRollout, effective: PerToken, mask: Chosen) -> dict[str, float]:
    """The push on the entropy in each quadrant of sign(A) and sign(S*), for GRPO and for the method (Section 4.2).

    `lens_<pos|neg>_<gt|lt>` is -A S* of the tokens in that quadrant, summed and divided by the number of all response
    tokens; positive values raise the entropy (Theorem 1). `..._kept` uses the effective advantage instead of A. Tokens
    with A = 0 are assigned by the sign of the effective advantage.

    `advantages` are GRPO's (A), and `effective` the method's (`effective_advantages`).
    """
    method, s_star = effective[mask].double(), stats.s_star[mask].double()
    grpo = advantages[:, None].expand(mask.shape)[mask].double()
    sign = torch.where(grpo == 0, method, grpo).sign()
    metrics = {}
    for samples, side in (("pos", 1), ("neg", -1)):
        for direction, chosen in (("gt", s_star > 0), ("lt", s_star < 0)):
            push = -s_star * (chosen & (sign == side))
            metrics[f"lens_{samples}_{direction}"] = float((grpo * push).mean())
            metrics[f"lens_{samples}_{direction}_kept"] = float((method * push).mean())
    return metrics
