"""Weighted REINFORCE, NSR and PSR: fixed advantages for correct and wrong answers (Zhu et al., arXiv 2506.01347).

    A = positive if the answer is correct, else -negative

without group normalization, so that groups of equal rewards count too. NSR learns only from wrong answers, PSR only
from correct ones. As in the official code, rollouts with A = 0 leave the denominator. Correct means a reward above 0.

Source: TianHongZXY/RLVR-Decomposed (a5d4e7c), verl/trainer/ppo/core_algos.py:111 (compute_psr_nsr_outcome_advantage)
and :319 (compute_policy_loss), verl/trainer/ppo/ray_trainer.py:1192, run_qwen2.5-math-7b_psr_nsr.sh and the defaults
of verl/trainer/config/ppo_trainer.yaml. The `..._authors` methods also have the entropy bonus of 0.001 of these
settings, and no dual clip. The official code drops A = 0 before it divides a batch into updates, and so takes fewer of
them; here the number of updates is fixed.
"""

import math
from typing import Any

import torch
from pydantic import NonNegativeFloat

from entropy_dynamics.core.shapes import Groups, Mask, PerRollout, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Denominator, DualClip, Method, method
from entropy_dynamics.methods.field.entropy_bonus import EntropyBonus


@method("w_reinforce")
class WReinforce(Method):
    """Advantages by correctness alone."""

    positive: NonNegativeFloat = 0.1
    negative: NonNegativeFloat = 1.0
    denominator: Denominator = "kept"

    def advantages(self, rewards: PerRollout, groups: Groups) -> PerRollout:
        fixed = torch.where(rewards > 0, self.positive, -self.negative)
        return fixed.to(torch.promote_types(rewards.dtype, torch.float32))

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


@method("w_reinforce_authors")
class WReinforceAuthors(WReinforce, EntropyBonus):
    """W-REINFORCE with the released entropy bonus and without dual clip."""

    dual_clip: DualClip = math.inf


@method("nsr_authors")
class NSRAuthors(WReinforceAuthors):
    """NSR with the released entropy bonus and without dual clip."""

    positive: NonNegativeFloat = 0.0


@method("psr_authors")
class PSRAuthors(WReinforceAuthors):
    """PSR with the released entropy bonus and without dual clip."""

    positive: NonNegativeFloat = 1.0
    negative: NonNegativeFloat = 0.0
