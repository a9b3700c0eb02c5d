"""Clip_B: batch-normalized entropy-discriminator clipping (paper, Algorithm 1, eq. 15).

A token is an outlier when its S* lies too many standard deviations from the mean S* of the batch. Mean and standard
deviation are over all response tokens of the batch, whatever their advantage.
"""

import math
from typing import Any, Literal

import torch

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method
from entropy_dynamics.methods.common import (
    SIGMA_FLOOR,
    Deviations,
    Samples,
    UpperDeviations,
    batch_mean_and_std,
    chosen_samples,
)


@method("clip_b")
class ClipB(Method):
    """As released with Trinity-RFT: one-sided, on negative samples; dropped tokens leave the denominator too."""

    mu: Deviations = 2.5
    """Drop tokens with S* - mean(S*) < -mu sigma."""
    mu_plus: UpperDeviations | None = math.inf
    """Also drop those above +mu_plus sigma; infinite: one-sided; null: the same as mu."""
    apply_to: Samples = "negative"
    """Samples whose tokens may be dropped: negative (A < 0), positive (A > 0) or both."""
    denominator: Literal["kept", "all"] = "kept"

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        mean, sigma = batch_mean_and_std(stats.s_star, mask)
        if sigma < SIGMA_FLOOR:
            return mask.float()
        deviation = (stats.s_star.double() - mean) / sigma
        upper = self.mu if self.mu_plus is None else self.mu_plus
        outlier = (deviation < -self.mu) | (deviation > upper)
        return torch.where(outlier & chosen_samples(advantages, self.apply_to), 0.0, mask.float())


@method("clip_b_paper")
class ClipBPaper(ClipB):
    """As eq. 15 states it: two-sided, only the gradient is masked; on negative samples (Section 5.3)."""

    mu_plus: UpperDeviations | None = None
    denominator: Literal["kept", "all"] = "all"
