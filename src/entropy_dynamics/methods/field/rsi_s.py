"""RSI-S: only tokens whose relative surprisal is within an interval are updated (arXiv 2606.31575).

    keep low <= RSI <= high,   RSI = -log p / H

RSI > 1 exactly where S* < 0, so the interval is a band around S* = 0: RSI-S drops likely tokens of nearly
deterministic distributions, and the least likely ones.

Source: the abstract of arXiv 2606.31575, which mentions "a stable RSI interval" and gives no formula. Formula and
bounds come from a third party; no official code was found.
"""

from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat, model_validator

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method
from entropy_dynamics.sections import Threshold


@method("rsi_s")
class RSIS(Method):
    """The denominator stays all response tokens."""

    low: NonNegativeFloat = 0.1
    high: Threshold = 3.0
    per_update: ClassVar[bool] = True

    @model_validator(mode="after")
    def _ordered(self) -> "RSIS":
        if not self.low < self.high:
            raise ValueError(f"low is {self.low}; it should be below high ({self.high})")
        return self

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        surprisal, entropy = -stats.logp.detach(), stats.entropy.detach()
        kept = (surprisal >= self.low * entropy) & (surprisal <= self.high * entropy)
        return torch.where(kept, mask.float(), 0.0)
