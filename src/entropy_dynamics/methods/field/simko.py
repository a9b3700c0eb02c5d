"""SimKO: correct answers raise all K most likely tokens, wrong answers lower the top one more (arXiv 2510.14807).

For tokens whose entropy is above the `quantile` of their response:

    A > 0:  PPO's loss with r' in place of r,   r' = (1 - alpha) r + alpha/K sum_k sg[r / r_k] r_k
    A < 0:  PPO's loss times `top1_weight` if the token is the most likely one

r = p / p_old of the sampled token, r_k of the k-th most likely token, sg = stop gradient. r' has the value of r and the
gradient r ((1 - alpha) grad log p + alpha mean_k grad log p_k), independent of p_old of the top K. It is therefore
computed from the log p of the K most likely tokens alone (`token_stats`, top). The official code divides by r_k + 1e-8.

Source: CLR-Lab/SimKO (306f4ff), verl/trainer/ppo/core_algos.py:329 (compute_policy_loss_simko) and :317
(row_quantile_masked), verl/workers/actor/dp_actor.py:66 (_forward_micro_batch), run_qwen2.5-math-7b_SimKO.sh; of the
paper, only the abstract was read. Correct means a reward of 1 there, and A > 0 here.
"""

from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field

from entropy_dynamics.core.shapes import Chosen, Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method
from entropy_dynamics.sections import PositiveInt, ZeroToOne


@method("simko")
class SimKO(Method):
    """The denominator stays all response tokens."""

    top: PositiveInt = 3
    """K, the number of most likely tokens that share the gradient of a correct answer's token."""
    alpha: ZeroToOne = 0.01
    """Share of the gradient that goes to these K tokens."""
    top1_weight: Annotated[float, Field(ge=1)] = 1.1
    """Weight of a wrong answer's token that is the most likely one."""
    quantile: ZeroToOne = 0.8
    """Only tokens above this quantile of their response's entropies are affected; 1 is GRPO."""
    per_update: ClassVar[bool] = True

    def second_pass(self) -> dict[str, Any]:
        return {"top": self.top}

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        assert stats.top_logp is not None
        top1 = stats.logp.detach() == stats.top_logp.detach()[..., 0]
        heavier = self._uncertain(stats, mask) & (advantages < 0) & top1
        return torch.where(heavier, self.top1_weight, mask.float())

    def loss_coefficients(self, stats: TokenStats, advantages: PerToken, mask: Mask) -> PerToken:
        """Share of each token's gradient that goes to the K most likely tokens."""
        return self.alpha * (self._uncertain(stats, mask) & (advantages > 0))

    def _uncertain(self, stats: TokenStats, mask: Mask) -> Chosen:
        entropy = torch.where(mask.bool(), stats.entropy.detach(), torch.nan)
        # Row by row, because nanquantile limits the size of its input.
        threshold = torch.stack([response.nanquantile(self.quantile) for response in entropy])
        return mask.bool() & (entropy > threshold[:, None])

    def token_loss(
        self, logp: PerToken, *arguments: Any, coefficients: Any = None, top_logp: Any = None, **more: Any
    ) -> PerToken:
        towards = torch.where(coefficients > 0, top_logp.mean(-1) - logp, 0.0)
        mixed = coefficients * towards
        return super().token_loss(logp + (mixed - mixed.detach()), *arguments, **more)

    def metrics(self, stats: TokenStats, advantages: PerToken, weights: PerToken, mask: Mask) -> dict[str, float]:
        """`simko_acting`: the share of response tokens whose loss differs from PPO's at the first update."""
        acting = (self.loss_coefficients(stats, advantages, mask) > 0) | (weights > 1)
        return {"simko_acting": float(acting[mask.bool()].float().mean())}
