"""Helpers shared by several methods: parameter types, selection of samples, batch statistics, groups."""

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field, NonNegativeFloat, model_validator
from torch import Tensor

from entropy_dynamics.core.shapes import Chosen, Groups, Mask, PerRollout, PerToken, Scalar
from entropy_dynamics.methods import SHARE_REPLACES, Denominator, Method
from entropy_dynamics.sections import Share

PerMember = Float[Tensor, " member"]
"""Values of the rollouts of one group."""
Deviations = NonNegativeFloat
"""Number of standard deviations; finite, as an infinite mu would turn a clipping method into GRPO."""
UpperDeviations = Annotated[float, Field(ge=0, allow_inf_nan=True)]
Samples = Literal["negative", "positive", "both"]
ROUNDING = 1e-6  # 0.29 * 100 is slightly below 29, and 0.07 * 100 slightly above 7


def tokens_of(advantages: PerToken, apply_to: Samples) -> Chosen:
    """The tokens of negative samples (A < 0), of positive samples (A > 0) or of both."""
    return {"negative": advantages < 0, "positive": advantages > 0, "both": advantages != 0}[apply_to]


def batch_mean(values: PerToken, mask: Mask) -> Scalar:
    """Mean over response tokens (0 without any), in float64, so that masks do not depend on summation order."""
    chosen = values[mask.bool()].double()
    return chosen.mean() if len(chosen) else chosen.new_zeros(())


def outliers(
    values: PerToken, mask: Mask, mu: float, mu_plus: float | None, *, about: Literal["mean", "zero"]
) -> Chosen:
    """Values more than `mu` batch standard deviations below the mean (or zero), or `mu_plus` (None: `mu`) above it."""
    values, response = values.double(), mask.bool()
    chosen = values[response]
    # Without a spread there are no outliers; the released code has the same bound.
    if not len(chosen) or (sigma := chosen.std(correction=0)) < 1e-12:
        return torch.zeros_like(response)
    deviation = (values - chosen.mean() if about == "mean" else values) / sigma
    return (deviation < -mu) | (deviation > (mu if mu_plus is None else mu_plus))


def largest(values: PerToken, candidates: Mask, count: int) -> Chosen:
    """The `count` candidates with the largest values (all, if there are fewer); ties go to the first."""
    order = torch.where(candidates.bool(), values, -math.inf).flatten().argsort(descending=True, stable=True)
    chosen = order[: min(count, int(candidates.bool().sum()))]
    return torch.zeros_like(order, dtype=torch.bool).index_fill(0, chosen, True).view(candidates.shape)


def rounded_down(share: float, count: int) -> int:
    return math.floor(share * count + ROUNDING)


def rounded_up(share: float, count: int) -> int:
    """At least one."""
    return max(math.ceil(share * count - ROUNDING), 1)


def number_of(share: float, mask: Mask) -> int:
    """`share` of all response tokens, rounded down, but at least one."""
    return max(rounded_down(share, int(mask.sum())), 1)


def permutation(count: int, generator: torch.Generator | None) -> Int[Tensor, " count"]:
    """A random order of the numbers below `count`, on the generator's device, as it only draws there."""
    return torch.randperm(count, generator=generator, device=None if generator is None else generator.device)


def without_some(mask: Mask, candidates: Chosen, count: int, generator: torch.Generator | None) -> PerToken:
    """Weight 1 on response tokens but `count` of the candidates (all, if there are fewer), drawn uniformly."""
    places = candidates.flatten().nonzero().squeeze(-1)
    drawn = permutation(len(places), generator)[:count].to(mask.device)
    return mask.float().flatten().index_fill(0, places[drawn], 0.0).view(mask.shape)


class Clipping(Method):
    """A method that drops the outliers of a statistic of the batch: those beyond `mu`, or a `share` of the tokens."""

    mu: Deviations | None
    mu_plus: UpperDeviations | None = math.inf
    """Also drop tokens that many standard deviations above the mean (Clip_V: above zero); infinite: one-sided;
    null: the same as mu."""
    share: Share | None = None
    """Instead of mu and of all other bounds: drop this share of all response tokens, those with the lowest values of
    the statistic among the samples of `apply_to`. The share is rounded down, but at least one token; no token at or
    above the batch's mean is dropped; of equal tokens the first ones are."""
    apply_to: Samples = "negative"
    """Samples whose tokens may be dropped: negative (A < 0), positive (A > 0) or both."""
    denominator: Denominator = "kept"

    @model_validator(mode="before")
    @classmethod
    def _share_replaces_bounds(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return data
        if data.get("share") is None:
            if "mu" in data and data["mu"] is None:
                raise ValueError("mu is null; it should be a number, unless share is given")
            return data
        bounds = {name: value for name, value in SHARE_REPLACES.items() if name in cls.model_fields}
        if given := [name for name, value in bounds.items() if data.get(name, value) != value]:
            raise ValueError(f"give share or {given[0]}, not both: share replaces {', '.join(bounds)}")
        return {**data, **bounds}

    def lowest(self, values: PerToken, candidates: Mask, mask: Mask) -> Chosen:
        """The `share` of the response tokens with the lowest values among the candidates below the batch's mean."""
        assert self.share is not None
        below = outliers(values, mask, 0.0, math.inf, about="mean") & mask.bool()
        return largest(-values, candidates & below, number_of(self.share, mask))


class PerGroup(Method):
    """A method whose advantages are those of each group by itself, which may be in any order and of any size."""

    def advantages(self, rewards: PerRollout, groups: Groups) -> PerRollout:
        result = torch.empty_like(rewards, dtype=torch.double)
        for group in groups.unique():
            members = groups == group
            result[members] = self.group_advantages(rewards[members].double()).to(result)
        return result.to(torch.promote_types(rewards.dtype, torch.float32))

    @abstractmethod
    def group_advantages(self, rewards: PerMember) -> PerMember:
        """Advantages of the rollouts of one group, float64."""
