"""Clip_B: batch-normalised entropy-discriminator clipping (paper, Algorithm 1, eq. 15).

A token is an outlier when its S* lies too many standard deviations from the mean S* of the batch. Mean and
standard deviation are over all response tokens of the batch, whatever their advantage.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import SIGMA_FLOOR, Method, batch_mean_and_std, check_clipping, chosen_samples, method


@method("clip_b")
@dataclass(frozen=True, kw_only=True)
class ClipB(Method):
    """As released with Trinity-RFT: one-sided, on negative samples; clipped tokens leave the denominator too.

    mu: drop tokens with S* - mean(S*) < -mu sigma.
    mu_plus: also drop those above +mu_plus sigma; infinite = one-sided, None = the same as mu.
    apply_to: samples whose tokens may be dropped: negative (A < 0), positive (A > 0) or both.
    """

    mu: float = 2.5
    mu_plus: float | None = math.inf
    apply_to: str = "negative"
    denominator: str = "kept"
    has_bounds: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        check_clipping(self.mu, self.mu_plus, self.apply_to)

    def token_weights(
        self, stats: TokenStats, advantages: Tensor, mask: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        mean, sigma = batch_mean_and_std(stats.s_star, mask)
        if sigma < SIGMA_FLOOR:
            return mask.float()
        deviation = (stats.s_star.double() - mean) / sigma
        upper = self.mu if self.mu_plus is None else self.mu_plus
        outlier = (deviation < -self.mu) | (deviation > upper)
        return torch.where(outlier & chosen_samples(advantages, self.apply_to), 0.0, mask.float())

    def bounds(self, stats: TokenStats, advantages: Tensor, mask: Tensor) -> tuple[float, float]:
        mean, sigma = (float(one) for one in batch_mean_and_std(stats.s_star, mask))
        if sigma < SIGMA_FLOOR:
            return -math.inf, math.inf
        return mean - self.mu * sigma, mean + (self.mu if self.mu_plus is None else self.mu_plus) * sigma

    def weights_within(
        self, bounds: tuple[float, float], stats: TokenStats, advantages: Tensor, mask: Tensor
    ) -> Tensor:
        outlier = (stats.s_star < bounds[0]) | (stats.s_star > bounds[1])
        return torch.where(outlier & chosen_samples(advantages, self.apply_to), 0.0, mask.float())


@method("clip_b_paper")
@dataclass(frozen=True, kw_only=True)
class ClipBPaper(ClipB):
    """As eq. 15 has it: two-sided, the gradient alone is masked; on negative samples (Section 5.3)."""

    mu_plus: float | None = None
    denominator: str = "all"
