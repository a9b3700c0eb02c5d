"""Clip_V: vocabulary-normalized entropy-discriminator clipping (paper, Algorithm 2, eq. 16).

A token is an outlier if its centered score S_c = S* - E[S] is too many batch standard deviations away from zero, the
expectation of S_c on-policy (Corollary 2). Eq. 16 as printed subtracts E[S] twice; text and released code do not.
"""

import math
from typing import Any, ClassVar

import torch

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Denominator, Method, method
from entropy_dynamics.methods.common import Deviations, Samples, UpperDeviations, largest, outliers, tokens_of
from entropy_dynamics.sections import Share


@method("clip_v")
class ClipV(Method):
    """As released with Trinity-RFT: one-sided, on negative samples, capped; dropped tokens leave the denominator."""

    mu: Deviations = 8.5
    """Drop tokens with S_c < -mu sigma', where sigma' is the standard deviation of S_c over all response tokens."""
    mu_plus: UpperDeviations | None = math.inf
    """Also drop tokens above +mu_plus sigma'; infinite: one-sided; null: the same as mu."""
    max_frac: Share | None = 1e-4
    """Drop at most this share of all response tokens, the most extreme first, but at least one; null: no cap."""
    apply_to: Samples = "negative"
    """Samples whose tokens may be dropped: negative (A < 0), positive (A > 0) or both."""
    drop_zero_advantage: bool = True
    """Also drop outliers with A = 0, not counted by the cap, as released. This only shrinks the denominator."""
    denominator: Denominator = "kept"
    uses_s_expected: ClassVar[bool] = True

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        outlier = outliers(stats.s_centered, mask, self.mu, self.mu_plus, about="zero") & mask.bool()
        dropped = outlier & tokens_of(advantages, self.apply_to)
        bystanders = outlier & (advantages == 0) & self.drop_zero_advantage
        tokens = int(mask.sum())
        if self.max_frac is not None:
            dropped = largest(stats.s_centered.abs(), dropped, max(math.floor(self.max_frac * tokens), 1))
        return torch.where(dropped | bystanders, 0.0, mask.float())


@method("clip_v_paper")
class ClipVPaper(ClipV):
    """As in Algorithm 2: two-sided, uncapped, only the gradient is masked; on negative samples (Section 5.3)."""

    mu_plus: UpperDeviations | None = None
    max_frac: Share | None = None
    drop_zero_advantage: bool = False
    denominator: Denominator = "all"
