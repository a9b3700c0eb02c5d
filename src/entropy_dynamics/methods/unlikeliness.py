"""Rewarding the unlikely: among right answers the less likely ones earn more (He et al. 2025).

    R' = R (1 - beta rank / G),   rank 0 for the least likely of a group's G responses, G - 1 for the most likely,

by the mean log-probability of a response's tokens. Advantages are then those of R': both the reward in the numerator
and the group's mean and standard deviation.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from entropy_dynamics.errors import UserError
from entropy_dynamics.methods import Method, check_number, method


@method("unlikeliness")
@dataclass(frozen=True, kw_only=True)
class Unlikeliness(Method):
    """Only rewards above 0 are scaled: a factor below 1 on a negative one would favour the likely wrong answers.

    beta: the share of the reward that the most likely response loses, but for 1/G of it.
    shape_constant_groups: also scale the rewards of a group in which all are equal. A group that is all right then has
        advantages by rank alone; the official recipe drops it, which `false` comes to.
    """

    beta: float = 0.25
    shape_constant_groups: bool = False

    def __post_init__(self):
        super().__post_init__()
        check_number("beta", self.beta, lambda v: 0 <= v <= 1, "a share of the reward, in [0, 1]")
        if not isinstance(self.shape_constant_groups, bool):
            raise UserError(f"shape_constant_groups is {self.shape_constant_groups!r}; it is true or false")

    def shape_rewards(self, rewards: Tensor, groups: Tensor, mean_logp: Tensor) -> Tensor:
        ranks, sizes = ranks_in_groups(mean_logp, groups)
        shaped = torch.where(rewards > 0, rewards * (1 - self.beta * ranks.to(rewards) / sizes), rewards)
        if self.shape_constant_groups:
            return shaped
        _, group_of = torch.unique(groups, return_inverse=True)
        low, high = (
            rewards.new_zeros(len(rewards)).scatter_reduce(0, group_of, rewards, reduce, include_self=False)
            for reduce in ("amin", "amax")
        )
        return torch.where((low == high)[group_of], rewards, shaped)


def ranks_in_groups(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Rank of each value in its group, 0 = smallest, of equal values the first is smaller; and the group's size.

    Args:
        values: [B].
        groups: integers [B]; any order, any sizes.

    Returns:
        (ranks, sizes), each int64 [B].
    """
    _, group_of, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
    order = values.argsort(stable=True)
    order = order[group_of[order].argsort(stable=True)]  # by group and, inside a group, by value
    start = sizes.cumsum(0) - sizes
    ranks = torch.empty_like(order)
    ranks[order] = torch.arange(len(order), device=order.device) - start[group_of[order]]
    return ranks, sizes[group_of]
