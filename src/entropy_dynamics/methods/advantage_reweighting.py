"""Advantage reweighting: tokens of low probability count less, whatever the sign of A (Yang et al. 2025).

    weight = alpha p + 1 - alpha,   p the probability of the token under the policy that sampled it.

A weight of the token's loss is the same as one of its advantage: PPO's surrogate is linear in |A|.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, check_number, method


@method("advantage_reweighting")
@dataclass(frozen=True, kw_only=True)
class AdvantageReweighting(Method):
    """The denominator stays all response tokens.

    alpha: weight of a token without any probability is 1 - alpha; 0 is GRPO.
    """

    alpha: float = 0.2
    needs_batch: ClassVar[bool] = False

    def __post_init__(self):
        super().__post_init__()
        check_number("alpha", self.alpha, lambda v: 0 <= v <= 1, "in [0, 1]")

    def token_weights(
        self, stats: TokenStats, advantages: Tensor, mask: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        weights = self.alpha * stats.logp.detach().float().exp() + (1 - self.alpha)
        return torch.where(mask.bool(), weights, 0.0)
