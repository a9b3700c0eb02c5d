"""Advantage reweighting: tokens of low probability count less, whatever the sign of A (Yang et al. 2025).

    weight = alpha p + 1 - alpha,   p the probability of the token under the policy that sampled it

PPO's objective is linear in |A|, so weighting a token's loss is equivalent to weighting its advantage.

Source: zhyang2226/AR-Lopti (cbeb333), verl/trainer/ppo/ray_trainer.py:318 (compute_reweight_advantage,
"both_linear_normal"), scripts/train_kklogic_AR_4x80GB.sh. Not implemented: Lopti, and the script's KL loss to the
untrained model (0.001).
"""

from typing import Any

import torch

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method
from entropy_dynamics.sections import ZeroToOne


@method("advantage_reweighting")
class AdvantageReweighting(Method):
    """The denominator stays all response tokens."""

    alpha: ZeroToOne = 0.2
    """A token of probability 0 has weight 1 - alpha; alpha = 0 is GRPO."""

    def token_weights(
        self, stats: TokenStats, advantages: PerToken, mask: Mask, *, logp_old: PerToken | None = None, **_: Any
    ) -> PerToken:
        logp = stats.logp if logp_old is None else logp_old
        weights = self.alpha * logp.detach().float().exp() + (1 - self.alpha)
        return torch.where(mask.bool(), weights, 0.0)
