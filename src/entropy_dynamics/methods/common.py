"""Shared by several methods: parameter types, the choice of samples, batch statistics."""

import math
from collections.abc import Callable
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from entropy_dynamics.core.shapes import Chosen, Groups, Mask, PerRollout, PerToken

# A batch with less spread has no outliers (the released code's value).
SIGMA_FLOOR = 1e-12

Share = Annotated[float, Field(gt=0, le=1)]
Deviations = Annotated[float, Field(ge=0)]
"""A number of standard deviations; an infinite mu would make a clipping method GRPO under another name."""
UpperDeviations = Annotated[float, Field(ge=0, allow_inf_nan=True)]
Samples = Literal["negative", "positive", "both"]


def chosen_samples(advantages: PerToken, apply_to: Samples) -> Chosen:
    """The tokens of negative (A < 0), positive (A > 0) or both kinds of samples."""
    match apply_to:
        case "negative":
            return advantages < 0
        case "positive":
            return advantages > 0
        case "both":
            return advantages != 0


def batch_mean_and_std(values: PerToken, mask: Mask) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Mean and population standard deviation over all tokens with mask 1, in float64.

    float64 so that thresholds, and with them masks, do not depend on the order of the sum.
    """
    chosen = values[mask.bool()].double()
    if chosen.numel() == 0:
        zero = torch.zeros((), dtype=torch.float64, device=values.device)
        return zero, zero
    return chosen.mean(), chosen.std(correction=0)


def largest(values: PerToken, candidates: Mask, count: int) -> Chosen:
    """The `count` candidates with the largest values (all, if there are fewer); of equal ones the first."""
    order = torch.where(candidates.bool(), values, -math.inf).flatten().argsort(descending=True, stable=True)
    chosen = torch.zeros(candidates.numel(), dtype=torch.bool, device=candidates.device)
    chosen[order[: min(count, int(candidates.bool().sum()))]] = True
    return chosen.view(candidates.shape)


def in_each_group(
    function: Callable[[Float[Tensor, " member"]], Float[Tensor, " member"]], values: PerRollout, groups: Groups
) -> PerRollout:
    """`function` of the values of each group, in float64; groups may be in any order and have any sizes."""
    result = torch.empty_like(values)
    for group in groups.unique():
        members = groups == group
        result[members] = function(values[members].double()).to(values)
    return result
