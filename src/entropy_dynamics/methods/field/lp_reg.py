"""Lp-Reg: unlikely tokens of wrong answers are tied to a denoised policy (Huang et al., arXiv 2510.03222).

    q    the old policy restricted to tokens with p >= min_p max p:  log q = log p - log M, M their total mass
    loss = -A r + beta k3,   k3 = e^d - d - 1,  d = log q - log p,

for the least likely `share` of the tokens with A < 0, if log p < log q; all other tokens have PPO's loss. k3, capped at
10, estimates KL(p, q). Strictly on-policy, the penalty adds beta (1 - 1/M) to the derivative of the loss with respect
to log p. M needs a second pass over the vocabulary (`token_stats`, min_p).

The official code ranks the tokens of a micro-batch under the policy at each update, and ties none if the share amounts
to fewer than two tokens; here the ranking is over the whole batch, under the policy before the first update on it.

Source: CarlanLark/Lp-Reg-dev (33b27e2), verl/trainer/ppo/core_algos.py:648 (compute_policy_loss_lp_reg) and :868 (k3),
verl/workers/actor/dp_actor.py:76 (apply_min_p) and :644, verl/workers/fsdp_workers.py:737 (compute_minp_log_prob),
recipe/lp_reg/Qwen3_14b_lp_reg_onpolicy_64gpu.sh; of the paper, only the abstract was read. Not implemented: a fixed
threshold on p (`regular_type: fixed`), and the share of positive samples, which is 0 in all scripts.
"""

from typing import Any

import torch
from pydantic import NonNegativeFloat

from entropy_dynamics.core.objective import importance_ratio
from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method
from entropy_dynamics.methods.common import largest, rounded_down
from entropy_dynamics.sections import Share

MAX_K3 = 10.0


@method("lp_reg")
class LpReg(Method):
    """Every token keeps its weight; neither PPO clipping nor dual clip applies to penalized tokens."""

    min_p: Share = 0.02
    """q drops tokens below this fraction of the largest probability."""
    share: Share = 0.01
    """Share of the tokens with A < 0 that are tied to q; rounded down."""
    beta: NonNegativeFloat = 1.0
    """Strength of the penalty; 0 is GRPO without clipping of these tokens."""

    def second_pass(self) -> dict[str, Any]:
        return {"min_p": self.min_p}

    def loss_coefficients(self, stats: TokenStats, advantages: PerToken, mask: Mask) -> PerToken:
        """log q of the tokens that are tied to q; -inf for the others, 0 on padding."""
        assert stats.proxy_logp is not None
        candidates = mask.bool() & (advantages < 0)
        chosen = largest(-stats.logp.detach(), candidates, rounded_down(self.share, int(candidates.sum())))
        return torch.where(chosen, stats.proxy_logp.detach(), -torch.inf).where(mask.bool(), 0.0)

    def token_loss(self, logp: PerToken, *arguments: Any, coefficients: Any = None, **more: Any) -> PerToken:
        logp_old, advantages, mask = arguments
        tied = mask.bool() & (advantages < 0) & (logp.detach() < coefficients)
        d = torch.where(tied, coefficients - logp, 0.0)
        k3 = (d.exp() - d - 1).clamp_max(MAX_K3)
        penalized = -advantages * importance_ratio(logp, logp_old, mask) + self.beta * k3
        return torch.where(tied, penalized, super().token_loss(logp, *arguments, **more))

    def metrics(self, stats: TokenStats, advantages: PerToken, weights: PerToken, mask: Mask) -> dict[str, float]:
        """`lp_reg_tied`: the share of response tokens that are penalized at the first update."""
        tied = stats.logp < self.loss_coefficients(stats, advantages, mask)
        return {"lp_reg_tied": float(tied[mask.bool()].float().mean())}
