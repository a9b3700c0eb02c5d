"""Group statistics. The rollouts of a prompt share a group number; groups may be in any order and of any size."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from entropy_dynamics.core.shapes import Groups


@dataclass(frozen=True)
class Grouping:
    """The groups of a batch, numbered from 0. `reduce(...)[of]` gives every rollout the value of its group."""

    of: Int[Tensor, " batch"]
    """Index of every rollout's group."""
    sizes: Int[Tensor, " group"]
    """Number of rollouts in each group."""

    @classmethod
    def by(cls, groups: Groups) -> "Grouping":
        _, index, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
        return cls(index, sizes)

    def reduce(self, values: Shaped[Tensor, " batch"], how: str) -> Shaped[Tensor, " group"]:
        """The `sum`, `mean`, `amin` or `amax` of each group's values."""
        start = values.new_zeros(len(self.sizes))
        return start.scatter_reduce(0, self.of, values, how, include_self=False)

    def constant(self, values: Shaped[Tensor, " batch"]) -> Bool[Tensor, " group"]:
        """Whether all values of a group are equal, in which case group-normalized advantages are zero."""
        return self.reduce(values, "amax") == self.reduce(values, "amin")
