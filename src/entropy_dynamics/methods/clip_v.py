"""Clip_V: vocabulary-normalized entropy-discriminator clipping (paper, Algorithm 2, eq. 16).

A token is an outlier if its centered score S_c = S* - E[S] is too many batch standard deviations away from zero, the
expectation of S_c on-policy (Corollary 2), or if `share` is given and it is among that share of the tokens. Eq. 16 as
printed subtracts E[S] twice; text and released code do not.
"""

from typing import Any, ClassVar

import torch

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Denominator, method
from entropy_dynamics.methods.common import (
    Clipping,
    Deviations,
    UpperDeviations,
    largest,
    number_of,
    outliers,
    tokens_of,
)
from entropy_dynamics.sections import Share


@method("clip_v")
class ClipV(Clipping):
    """As released with Trinity-RFT: one-sided, on negative samples, capped; dropped tokens leave the denominator."""

    mu: Deviations | None = 8.5
    """Drop tokens with S_c < -mu sigma', where sigma' is the standard deviation of S_c over all response tokens; null
    with `share`."""
    max_frac: Share | None = 1e-4
    """Drop at most this share of all response tokens, the most extreme first, but at least one; null: no cap."""
    drop_zero_advantage: bool = True
    """Also drop outliers with A = 0, not counted by the cap, as released. This only shrinks the denominator."""
    uses_s_expected: ClassVar[bool] = True

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        samples = tokens_of(advantages, self.apply_to)
        if self.mu is None:
            return torch.where(self.lowest(stats.s_centered, samples, mask), 0.0, mask.float())
        outlier = outliers(stats.s_centered, mask, self.mu, self.mu_plus, about="zero") & mask.bool()
        dropped = outlier & samples
        bystanders = outlier & (advantages == 0) & self.drop_zero_advantage
        if self.max_frac is not None:
            dropped = largest(stats.s_centered.abs(), dropped, number_of(self.max_frac, mask))
        return torch.where(dropped | bystanders, 0.0, mask.float())


@method("clip_v_paper")
class ClipVPaper(ClipV):
    """As in Algorithm 2: two-sided, uncapped, only the gradient is masked; on negative samples (Section 5.3)."""

    mu_plus: UpperDeviations | None = None
    max_frac: Share | None = None
    drop_zero_advantage: bool = False
    denominator: Denominator = "all"
