"""Metrics of a batch of tokens: one flat dictionary of numbers."""

from entropy_dynamics.core.dynamics import batch_entropy_change
from entropy_dynamics.core.shapes import Chosen, PerToken
from entropy_dynamics.core.token_stats import TokenStats


def entropy_metrics(
    stats: TokenStats, advantages: PerToken, weights: PerToken, mask: Chosen, learning_rate: float
) -> dict[str, float]:
    """Entropy, discriminator scores, clipping and Corollary 4 of one batch; means over response tokens, in nats.

    `neg_cov` is -Cov_B(A, S_c) of Figure 5, split into the sums over tokens whose own term is positive and negative.
    `predicted_entropy_change` is Corollary 4 with the weighted advantages w A: the change per unit of
    the step that a plain gradient step of size `learning_rate` on the logits would make. An optimizer's step has
    another size, so it is to be compared with the measured change by its sign and correlation.
    `lens_<samples>_<direction>` is the mean over all response tokens of the positive (up) or negative (down) part of
    -A S_c on positive or negative samples: the entropy increase and decrease that GRPO would cause there (Section 4.2);
    `..._kept` is what remains of it under the method's token weights.
    """
    advantage, weight, s_centered = (x[mask].double() for x in (advantages, weights, stats.s_centered))
    terms = -(advantage - advantage.mean()) * (s_centered - s_centered.mean())
    dropped, positive, negative = weight == 0, advantage > 0, advantage < 0
    change = -advantage * s_centered
    lens = {
        f"lens_{samples}_{direction}": part * chosen
        for samples, chosen in (("pos", positive), ("neg", negative))
        for direction, part in (("up", change.clamp_min(0)), ("down", change.clamp_max(0)))
    }
    return {
        "entropy": float(stats.entropy[mask].double().mean()),
        "s_star_mean": float(stats.s_star[mask].double().mean()),
        "s_centered_mean": float(s_centered.mean()),
        "s_star_std": float(stats.s_star[mask].double().std(correction=0)),
        "s_centered_std": float(s_centered.std(correction=0)),
        "neg_cov": float(terms.mean()),
        "neg_cov_positive": float(terms.clamp_min(0).mean()),
        "neg_cov_negative": float(terms.clamp_max(0).mean()),
        "clip_fraction": float(dropped.double().mean()),
        "clip_fraction_neg": float((dropped & negative).sum() / negative.sum().clamp_min(1)),
        "predicted_entropy_change": float(
            batch_entropy_change(advantages * weights, stats.s_centered, mask, learning_rate)
        ),
        "tokens": int(mask.sum()),
        **{name: float(part.mean()) for name, part in lens.items()},
        **{f"{name}_kept": float((weight * part).mean()) for name, part in lens.items()},
    }
