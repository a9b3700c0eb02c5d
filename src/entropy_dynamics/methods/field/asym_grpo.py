"""AsymGRPO: advantages of correct and of wrong answers grow differently with the group's pass rate (arXiv 2604.04894).

    A = ((1 - p) / p)^beta_plus if the answer is correct, else -(p / (1 - p))^beta_minus,   p the share of correct ones

With both exponents at 0.5 these are GRPO's advantages of binary rewards. A group whose answers are all correct, or all
wrong, has A = 0. Correct means a reward above 0.

Source: a secondary one, with 0.9 and 0.4 as the values of the paper.
"""

import torch
from pydantic import NonNegativeFloat

from entropy_dynamics.methods import method
from entropy_dynamics.methods.common import PerGroup, PerMember


@method("asym_grpo")
class AsymGRPO(PerGroup):
    """Only the advantages differ from GRPO's."""

    beta_plus: NonNegativeFloat = 0.9
    beta_minus: NonNegativeFloat = 0.4

    def group_advantages(self, rewards: PerMember) -> PerMember:
        correct = rewards > 0
        rate = correct.double().mean()
        if rate in (0, 1):
            return torch.zeros_like(rewards)
        odds = (1 - rate) / rate
        return torch.where(correct, odds**self.beta_plus, -((1 / odds) ** self.beta_minus))
