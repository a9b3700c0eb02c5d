"""Entrocraft: rejects rollouts by the sign of their advantage while the entropy is outside a band (arXiv 2604.26326).

    m = [H > high] - [H < low],   keep the rollouts with m A >= 0     (Algorithm 1)

with H the mean entropy of the batch. The band moves linearly over the training. Rejected rollouts leave the
denominator (eq. 5). The official code replaces the advantages by those of RAFT++ (above the band) or NSR (below it).
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt, PrivateAttr

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method
from entropy_dynamics.methods.common import batch_mean_and_std


@method("entrocraft")
class Entrocraft(Method):
    """Inside the band it is GRPO."""

    start: NonNegativeFloat = 0.65
    end: NonNegativeFloat = 0.45
    """Middle of the band at the first step and after `steps` steps, nats."""
    width: Annotated[float, Field(ge=0)] = 0.1
    """Width of the band, nats."""
    steps: PositiveInt = 300
    denominator: Literal["kept", "all"] = "kept"

    _step: int = PrivateAttr(0)

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        target = self.start + (self.end - self.start) * min(self._step / self.steps, 1)
        above = float(batch_mean_and_std(stats.entropy.detach(), mask)[0]) - target
        side = (above > self.width / 2) - (above < -self.width / 2)
        return torch.where(side * advantages >= 0, mask.float(), 0.0)

    def observe(self, metrics: Mapping[str, float | int]) -> None:
        self._step = int(metrics["step"]) + 1

    def state_dict(self) -> dict[str, float]:
        return {"step": self._step}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self._step = int(state["step"])
