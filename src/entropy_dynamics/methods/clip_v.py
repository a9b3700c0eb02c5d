"""Clip_V: vocabulary-normalised entropy-discriminator clipping (paper, Algorithm 2, eq. 16).

A token is an outlier when its centred score S_c = S* - E[S] is too many batch standard deviations from zero, which
is the mean of S_c on-policy (Corollary 2). Eq. 16 as printed subtracts E[S] from S_c once more; algorithm text and
released code do not, and neither does this.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.errors import UserError
from entropy_dynamics.methods import (
    SIGMA_FLOOR,
    Method,
    batch_mean_and_std,
    check_clipping,
    check_number,
    chosen_samples,
    method,
)


@method("clip_v")
@dataclass(frozen=True, kw_only=True)
class ClipV(Method):
    """As released with Trinity-RFT: one-sided, on negative samples, under a cap; clipped tokens leave the denominator.

    mu: drop tokens with S_c < -mu sigma', sigma' the standard deviation of S_c over all response tokens.
    mu_plus: also drop those above +mu_plus sigma'; infinite = one-sided, None = the same as mu.
    max_frac: drop at most this share of all response tokens, the most extreme first, but never fewer than one;
        None = no cap.
    drop_zero_advantage: the released code also drops outliers with A = 0, outside the cap. They have no gradient,
        so this only shrinks the denominator.
    """

    mu: float = 8.5
    mu_plus: float | None = math.inf
    max_frac: float | None = 1e-4
    apply_to: str = "negative"
    drop_zero_advantage: bool = True
    denominator: str = "kept"
    has_bounds: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        check_clipping(self.mu, self.mu_plus, self.apply_to)
        if self.max_frac is not None:
            check_number("max_frac", self.max_frac, lambda v: 0 < v <= 1, "a share of all tokens, in (0, 1], or null")
        if not isinstance(self.drop_zero_advantage, bool):
            raise UserError(f"drop_zero_advantage is {self.drop_zero_advantage!r}; it is true or false")

    def token_weights(
        self, stats: TokenStats, advantages: Tensor, mask: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        _, sigma = batch_mean_and_std(stats.s_centered, mask)
        if sigma < SIGMA_FLOOR:
            return mask.float()
        score = stats.s_centered.double() / sigma
        upper = self.mu if self.mu_plus is None else self.mu_plus
        outlier = ((score < -self.mu) | (score > upper)) & mask.bool()
        dropped = outlier & chosen_samples(advantages, self.apply_to)
        bystanders = outlier & (advantages == 0) & self.drop_zero_advantage
        tokens = int(mask.sum())
        if self.max_frac is not None and int((dropped | bystanders).sum()) > self.max_frac * tokens:
            dropped = _most_extreme(score.abs(), dropped, max(math.floor(self.max_frac * tokens), 1))
        return torch.where(dropped | bystanders, 0.0, mask.float())

    def bounds(self, stats: TokenStats, advantages: Tensor, mask: Tensor) -> tuple[float, float]:
        """Where the cap holds, the smallest score that it lets go, so that as many tokens are outside."""
        _, sigma = batch_mean_and_std(stats.s_centered, mask)
        if sigma < SIGMA_FLOOR:
            return -math.inf, math.inf
        low, high = -self.mu * float(sigma), (self.mu if self.mu_plus is None else self.mu_plus) * float(sigma)
        score, eligible = stats.s_centered, mask.bool() & chosen_samples(advantages, self.apply_to)
        outlier = eligible & ((score < low) | (score > high))
        dropped = eligible & (self.token_weights(stats, advantages, mask) == 0)
        if dropped.sum() < outlier.sum():
            edge = float(score[dropped].abs().min())
            low, high = min(low, -edge), max(high, edge)
        return low, high

    def weights_within(
        self, bounds: tuple[float, float], stats: TokenStats, advantages: Tensor, mask: Tensor
    ) -> Tensor:
        outlier = (stats.s_centered < bounds[0]) | (stats.s_centered > bounds[1])
        dropped = chosen_samples(advantages, self.apply_to) | ((advantages == 0) & self.drop_zero_advantage)
        return torch.where(outlier & dropped, 0.0, mask.float())


def _most_extreme(size: Tensor, candidates: Tensor, count: int) -> Tensor:
    """Of the `candidates` (bool [B, T]) the `count` with the largest `size`."""
    order = torch.where(candidates, size, -math.inf).flatten().argsort(descending=True, stable=True)
    chosen = torch.zeros_like(candidates).flatten()
    chosen[order[: min(count, int(candidates.sum()))]] = True
    return chosen.view_as(candidates)


@method("clip_v_paper")
@dataclass(frozen=True, kw_only=True)
class ClipVPaper(ClipV):
    """As Algorithm 2 has it: two-sided, no cap, the gradient alone is masked; on negative samples (Section 5.3)."""

    mu_plus: float | None = None
    max_frac: float | None = None
    drop_zero_advantage: bool = False
    denominator: str = "all"
