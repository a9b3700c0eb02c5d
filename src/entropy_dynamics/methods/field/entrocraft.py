"""Entrocraft: reject rollouts by the sign of their advantage while the entropy is outside a band (arXiv 2604.26326).

    m = [H > high] - [H < low],   keep the rollouts with m A >= 0     (Algorithm 1)

with H the mean entropy of the batch. The band moves linearly during training. Rejected rollouts leave the denominator
(eq. 5). The released code replaces the advantages outside the band instead (`entrocraft_authors`).

Source: lblaoke/entrocraft (26165bd), verl/trainer/ppo/core_algos.py:343 and :383 (compute_grpo_range[_linear]_outcome_
advantage), :244 and :456 (RAFT++, NSR), README. Not implemented: its KL loss to the untrained model (0.001).
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat, PrivateAttr

from entropy_dynamics.core.shapes import Groups, Mask, PerRollout, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Denominator, Method, method
from entropy_dynamics.methods.common import batch_mean
from entropy_dynamics.sections import PositiveInt


@method("entrocraft")
class Entrocraft(Method):
    """GRPO inside the band."""

    start: NonNegativeFloat = 0.65
    """Center of the band at the first step, nats."""
    end: NonNegativeFloat = 0.45
    """Center of the band from step `steps` on, nats."""
    width: NonNegativeFloat = 0.1
    """Width of the band, nats."""
    steps: PositiveInt = 300
    denominator: Denominator = "kept"

    _step: int = PrivateAttr(0)

    def side(self, stats: TokenStats, mask: Mask) -> int:
        """1 above the band, -1 below it, 0 inside."""
        target = self.start + (self.end - self.start) * min(self._step / self.steps, 1)
        above = float(batch_mean(stats.entropy.detach(), mask)) - target
        return (above > self.width / 2) - (above < -self.width / 2)

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        return torch.where(self.side(stats, mask) * advantages >= 0, mask.float(), 0.0)

    def observe(self, metrics: Mapping[str, float | int]) -> None:
        self._step = int(metrics["step"]) + 1


@method("entrocraft_authors")
class EntrocraftAuthors(Entrocraft):
    """The released code: outside the band the advantages are replaced; every token keeps its weight.

    Above the band A = 1 for correct rollouts and 0 for the others (RAFT++); below it A = -1 for wrong rollouts and 0
    for the others (NSR). Correct means a reward above 0 or, if advantages are computed elsewhere, A > 0.
    """

    denominator: Denominator = "all"
    acts_without_advantage: ClassVar[bool] = True

    _correct: torch.Tensor | None = PrivateAttr(None)

    def advantages(self, rewards: PerRollout, groups: Groups) -> PerRollout:
        self._correct = rewards > 0
        return super().advantages(rewards, groups)

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        return mask.float()

    def loss_coefficients(self, stats: TokenStats, advantages: PerToken, mask: Mask) -> PerToken:
        """The advantages used in the loss."""
        side = self.side(stats, mask)
        correct = (advantages > 0 if self._correct is None else self._correct[:, None]).float()
        used = advantages if side == 0 else (correct if side > 0 else correct - 1).expand(mask.shape)
        return torch.where(mask.bool(), used, 0.0)

    def token_loss(self, *arguments: Any, coefficients: Any = None, **more: Any) -> PerToken:
        logp, logp_old, _, mask = arguments
        return super().token_loss(logp, logp_old, coefficients, mask, **more)
