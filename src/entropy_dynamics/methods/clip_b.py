"""Clip_B: batch-normalized entropy-discriminator clipping (paper, Algorithm 1, eq. 15).

A token is an outlier if its S* is too many standard deviations from the mean, over all response tokens of the batch.
"""

import math
from typing import Any

import torch

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Denominator, Method, method
from entropy_dynamics.methods.common import Deviations, Samples, UpperDeviations, outliers, tokens_of


@method("clip_b")
class ClipB(Method):
    """As released with Trinity-RFT: one-sided, on negative samples; dropped tokens leave the denominator too."""

    mu: Deviations = 2.5
    """Drop tokens with S* - mean(S*) < -mu sigma."""
    mu_plus: UpperDeviations | None = math.inf
    """Also drop tokens above +mu_plus sigma; infinite: one-sided; null: the same as mu."""
    apply_to: Samples = "negative"
    """Samples whose tokens may be dropped: negative (A < 0), positive (A > 0) or both."""
    denominator: Denominator = "kept"

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        outlier = outliers(stats.s_star, mask, self.mu, self.mu_plus, about="mean")
        return torch.where(outlier & tokens_of(advantages, self.apply_to), 0.0, mask.float())


@method("clip_b_paper")
class ClipBPaper(ClipB):
    """As in eq. 15: two-sided, only the gradient is masked; on negative samples (Section 5.3)."""

    mu_plus: UpperDeviations | None = None
    denominator: Denominator = "all"
