"""Weighted REINFORCE, NSR and PSR: correct and wrong answers with fixed advantages (Zhu et al., arXiv 2506.01347).

    A = positive if the answer is correct, else -negative

without group normalization, so that groups of equal rewards count too. W-REINFORCE weighs correct answers down (their
lambda), NSR learns from wrong answers only, PSR from correct ones only. As in the official code, rollouts with A = 0
leave the batch, and so the denominator. Correct is a reward above 0.
"""

from typing import Any, Literal

import torch
from pydantic import NonNegativeFloat

from entropy_dynamics.core.shapes import Groups, Mask, PerRollout, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method


@method("w_reinforce")
class WReinforce(Method):
    """Advantages by correctness alone."""

    positive: NonNegativeFloat = 0.1
    negative: NonNegativeFloat = 1.0
    denominator: Literal["kept", "all"] = "kept"

    def advantages(self, rewards: PerRollout, groups: Groups) -> PerRollout:
        return torch.where(rewards > 0, self.positive, -self.negative).to(rewards)

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        return torch.where(advantages != 0, mask.float(), 0.0)


@method("nsr")
class NSR(WReinforce):
    """Negative sample reinforcement."""

    positive: NonNegativeFloat = 0.0


@method("psr")
class PSR(WReinforce):
    """Positive sample reinforcement."""

    positive: NonNegativeFloat = 1.0
    negative: NonNegativeFloat = 0.0
