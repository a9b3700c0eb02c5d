"""Clip_B: batch-normalized entropy-discriminator clipping (paper, Algorithm 1, eq. 15).

A token is an outlier if its S* is too many standard deviations from the mean, over all response tokens of the batch, or
if `share` is given and it is among that share of the tokens.
"""

from typing import Any

import torch

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Denominator, method
from entropy_dynamics.methods.common import Clipping, Deviations, UpperDeviations, outliers, tokens_of


@method("clip_b")
class ClipB(Clipping):
    """As released with Trinity-RFT: one-sided, on negative samples; dropped tokens leave the denominator too."""

    mu: Deviations | None = 2.5
    """Drop tokens with S* - mean(S*) < -mu sigma; null with `share`."""

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        samples = tokens_of(advantages, self.apply_to)
        if self.mu is None:
            dropped = self.lowest(stats.s_star, samples, mask)
        else:
            dropped = samples & outliers(stats.s_star, mask, self.mu, self.mu_plus, about="mean")
        return torch.where(dropped, 0.0, mask.float())


@method("clip_b_paper")
class ClipBPaper(ClipB):
    """As in eq. 15: two-sided, only the gradient is masked; on negative samples (Section 5.3)."""

    mu_plus: UpperDeviations | None = None
    denominator: Denominator = "all"
