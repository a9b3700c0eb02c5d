"""DPPO: a trust region on the change of a token's probability, not on its ratio (Qi et al., arXiv 2602.04879).

    loss = -sg[min(r, truncation)] A log p,   r = p / p_old, sg = stop gradient
    no gradient where p - p_old > clip_high and A > 0, or p - p_old < -clip_low and A < 0

|p - p_old| is the total variation between the two policies, reduced to the token versus all others (DPPO-Binary-TV).
Strictly on-policy it is the plain policy gradient.

Source: sail-sg/Stable-RL (c6af1d1), verl/trainer/ppo/core_algos.py:1160 (compute_policy_loss_with_mask) and :1241
(_compute_token_mask_for_policy_loss), and the authors' example in verl (8f11888),
examples/dppo_trainer/run_qwen30b_dppo.sh. Their DPPO-Binary-TV takes p_old from the rollout engine, for mask and ratio
alike (`training.old_logp: engine`); with p_old from the trainer it is their variant `dppo_binary_tv_recompute`.
"""

from typing import Annotated, Any

import torch
from pydantic import Field

from entropy_dynamics.core.objective import importance_ratio
from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.methods import ClipLow, Method, method
from entropy_dynamics.methods.field.dr_grpo import DrGRPO
from entropy_dynamics.sections import Share


@method("dppo")
class DPPO(Method):
    """`dual_clip` is not used."""

    clip_low: ClipLow = 0.15
    """Largest decrease of a token's probability."""
    clip_high: Share = 0.15
    """Largest increase of a token's probability."""
    truncation: Annotated[float, Field(ge=1, allow_inf_nan=True)] = 10.0

    def token_loss(self, logp: PerToken, logp_old: PerToken, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        moved = logp.detach().exp() - logp_old.exp()
        outside = torch.where(advantages > 0, moved > self.clip_high, moved < -self.clip_low)
        ratio = importance_ratio(logp, logp_old, mask).detach().clamp_max(self.truncation)
        return torch.where(mask.bool() & ~outside, -ratio * advantages * logp, 0.0)


@method("dppo_authors")
class DPPOAuthors(DPPO, DrGRPO):
    """With Dr.GRPO's advantages and divisor, as the authors' example recommends, and almost no truncation."""

    truncation: Annotated[float, Field(ge=1, allow_inf_nan=True)] = 1e4
