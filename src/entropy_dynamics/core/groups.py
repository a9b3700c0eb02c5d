"""Statistics of groups: rollouts of one prompt share a number. Groups may be in any order and have any sizes."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor

from entropy_dynamics.core.shapes import Groups


@dataclass(frozen=True)
class Grouping:
    """The groups of a batch, numbered from 0: `reduce(...)[of]` gives every rollout the value of its group."""

    of: Int[Tensor, " batch"]
    """Group of every rollout."""
    sizes: Int[Tensor, " group"]

    @classmethod
    def by(cls, groups: Groups) -> "Grouping":
        _, of, sizes = torch.unique(groups, return_inverse=True, return_counts=True)
        return cls(of, sizes)

    def reduce(self, values: Shaped[Tensor, " batch"], how: str) -> Shaped[Tensor, " group"]:
        """The `sum`, `mean`, `amin` or `amax` of each group's values."""
        start = values.new_zeros(len(self.sizes))
        return start.scatter_reduce(0, self.of, values, how, include_self=False)

    def constant(self, values: Shaped[Tensor, " batch"]) -> Bool[Tensor, " group"]:
        """Whether all values of a group are equal, so that group-normalized advantages are zero."""
        return self.reduce(values, "amax") == self.reduce(values, "amin")
