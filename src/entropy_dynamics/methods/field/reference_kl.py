"""A KL term to the policy before training, GRPO's original regularizer (Shao et al., arXiv 2402.03300), in full.

    loss = clipped objective + beta KL(p || q),   KL(p || q) = sum_v p_v (log p_v - log q_v)

of every response token, v over the whole vocabulary, q the policy before training at the rollouts' temperature. As in
other trainers, only the next token's distribution has a gradient, not how often a prefix is sampled.

TRL's `beta` and verl's `kl_loss_coef` multiply an estimate from the sampled token y alone: k3 = e^d - d - 1 with
d = log q_y - log p_y. In expectation the value of k3 is KL(p || q), but its gradient is that of KL(q || p):
E_p[(1 - q/p) grad log p] = -sum_v q_v grad log p_v. Their beta has the same strength near q, not far from it.

Source: huggingface/trl (000bb3db), trl/trainer/grpo_trainer.py (_compute_loss); verl/trainer/ppo/core_algos.py
(kl_penalty_forward), read in copies: low_var_kl is k3, cut off at 10, and `full` is not implemented. The paper was not
read.
"""

from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat

from entropy_dynamics.core.objective import full_kl
from entropy_dynamics.core.shapes import PerToken
from entropy_dynamics.methods import Method, method


@method("reference_kl")
class ReferenceKL(Method):
    """Every token keeps its weight. Holds numbers per token and entry of the vocabulary: for toy models."""

    beta: NonNegativeFloat = 0.04
    """Strength of the penalty, in units of loss per nat; 0 is GRPO."""
    acts_without_advantage: ClassVar[bool] = True

    def second_pass(self) -> dict[str, Any]:
        return {"reference": None}

    def token_loss(
        self, logp: PerToken, *arguments: Any, top_logp: Any = None, top_logq: Any = None, **more: Any
    ) -> PerToken:
        response = arguments[-1].bool()[..., None]
        p, q = (torch.where(response, values, 0.0) for values in (top_logp, top_logq))
        return super().token_loss(logp, *arguments, **more) + self.beta * full_kl(p, q)
