"""Pass@k training: the advantages of groups of k rollouts, in closed form (Chen et al., arXiv 2508.10751).

A group has n rollouts, of which c are correct. k of them, drawn without replacement, include a correct one with
probability rho. A rollout's advantage is its mean over the draws that contain it:

    rho = 1 - C(n - c, k) / C(n, k),   sigma = sqrt(rho (1 - rho))
    A = (1 - rho) / sigma if correct, else (1 - rho - C(n - c - 1, k - 1) / C(n - 1, k - 1)) / sigma

Hard problems count more than in GRPO; problems with fewer than k wrong answers do not count at all. Correct means a
reward above 0.

Source: RUCAIBox/Passk_Training (c3ba575), code/passk_adv.py:11 (calc_adv). Neither a value of k nor a script has been
released.
"""

import math

import torch

from entropy_dynamics.core.advantages import STD_EPS
from entropy_dynamics.errors import UserError
from entropy_dynamics.methods import method
from entropy_dynamics.methods.common import PerGroup, PerMember
from entropy_dynamics.sections import PositiveInt


@method("pass_at_k")
class PassAtK(PerGroup):
    """Only the advantages differ from GRPO's."""

    k: PositiveInt = 4
    """Less than the group size. 1 gives GRPO's advantages of binary rewards, but with the biased std."""

    def group_advantages(self, rewards: PerMember) -> PerMember:
        """Raises UserError for k >= n: every group with a correct rollout would then have rho = 1."""
        correct, k = rewards > 0, self.k
        n, c = len(correct), int(correct.sum())
        if k >= n:
            raise UserError(f"method pass_at_k: k is {k}; it should be below the group's size, {n}")
        if c == n:
            return torch.zeros_like(rewards)
        fails = math.comb(n - c, k) / math.comb(n, k)  # 1 - rho
        others_fail = math.comb(n - c - 1, k - 1) / math.comb(n - 1, k - 1)
        sigma = math.sqrt(fails * (1 - fails)) + STD_EPS
        return torch.where(correct, fails / sigma, (fails - others_fail) / sigma)
