"""Dr.GRPO: no division by the group's standard deviation or by response length (Liu et al., arXiv 2503.20783).

    A = R - mean of the group,   loss = sum of the token losses / (rollouts * max_tokens)

Source: sail-sg/understand-r1-zero, train_zero_math.py:286 (the normalizer), examples/qwen2.5-math-7b.sh.
"""

import torch

from entropy_dynamics.core.advantages import group_advantages
from entropy_dynamics.core.shapes import Divisors, Groups, Mask, PerRollout, PerToken
from entropy_dynamics.methods import Method, method
from entropy_dynamics.sections import PositiveInt


@method("dr_grpo")
class DrGRPO(Method):
    """Every token counts equally, in every batch and response. `loss_scope` and `denominator` are not used."""

    max_tokens: PositiveInt = 7168
    """Maximum length of a response, tokens."""

    def advantages(self, rewards: PerRollout, groups: Groups) -> PerRollout:
        return group_advantages(rewards, groups, scale=False)

    def divisors(self, weights: PerToken, mask: Mask, groups: Groups) -> Divisors:
        return torch.full((len(mask), 1), float(len(mask) * self.max_tokens), device=mask.device)
