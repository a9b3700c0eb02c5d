"""Entropy-control methods: each turns per-token scalars of a batch into per-token weights of the loss.

A method is a frozen dataclass whose fields are its hyper-parameters and whose `token_weights` is a pure function.
`@method("name")` above the class is all that makes it known; every module of this package is imported when a
method is first asked for, so a new method is one new file here (and its YAML under `configs/method/`).

The statistics that decide a mask are those of the whole batch of an optimizer step: `token_weights` gets the tokens of
all its micro-batches at once, so a mask never depends on how the batch was cut.
"""

import dataclasses
import importlib
import math
import pkgutil
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.errors import UserError, nearest

# Below this a batch has no spread to speak of and nothing is an outlier (the released code's value).
SIGMA_FLOOR = 1e-12

_METHODS: dict[str, Callable[..., "Method"]] = {}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Method:
    """Base of all methods; on its own it changes nothing, which is plain GRPO.

    denominator: which tokens the token mean divides by: `all` response tokens, or only those `kept` (weight > 0).
    """

    denominator: Literal["kept", "all"] = "all"

    def __post_init__(self):
        if self.denominator not in ("kept", "all"):
            raise UserError(f"denominator is {self.denominator!r}; it can be 'kept' or 'all'")

    # True: with several updates a batch, weigh anew before each, on its own tokens under the current policy.
    every_update: ClassVar[bool] = False
    # False: what a token weighs depends on its own statistics and advantage alone, and rewards are not reshaped. The
    # trainer then needs no scores of the whole batch before it begins to update.
    needs_batch: ClassVar[bool] = True
    # True: all that it needs of the batch is two bounds, which `training.bounds_from` may take from the step before.
    has_bounds: ClassVar[bool] = False

    def shape_rewards(self, rewards: Tensor, groups: Tensor, mean_logp: Tensor) -> Tensor:
        """Rewards [B] as they enter the group normalisation.

        Args:
            rewards: [B].
            groups: integers [B], rollouts of one prompt share a number.
            mean_logp: [B], mean log-probability of each response's tokens under the policy that sampled it, nats.
        """
        return rewards

    def token_weights(
        self, stats: TokenStats, advantages: Tensor, mask: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        """Weight of every token's loss: 1 = as in GRPO, 0 = dropped.

        Args:
            stats: TokenStats of the whole batch, each [B, T], under the policy that is about to be updated.
            advantages: [B, T].
            mask: [B, T], 1 on response tokens, 0 on padding; values under a 0 are arbitrary.
            generator: for methods that choose at random; seeded by run and step.

        Returns:
            [B, T] fp32, 0 wherever the mask is.
        """
        return mask.float()

    def bounds(self, stats: TokenStats, advantages: Tensor, mask: Tensor) -> tuple[float, float]:
        """The lowest and the highest score that is kept of a whole batch [B, T]; for methods that have bounds."""
        raise NotImplementedError

    def weights_within(
        self, bounds: tuple[float, float], stats: TokenStats, advantages: Tensor, mask: Tensor
    ) -> Tensor:
        """Like `token_weights`, with these bounds, for any part of a batch."""
        raise NotImplementedError

    def drift_penalty(self, stats: TokenStats, advantages: Tensor, mask: Tensor) -> Tensor | None:
        """Coefficient [B, T] of |log p - log p_old| in every token's loss; None = no such term. Arguments as above."""
        return None

    def entropy_bonus(self) -> float:
        """Coefficient c of -c H in every token's loss; its gradient goes through the entropy H."""
        return 0.0

    def notes(self, updates_per_batch: int) -> str | None:
        """What a reader of a run in this mode has to know, in one line; None = nothing."""
        return None


def method(name: str, **fixed) -> Callable[[type[Method]], type[Method]]:
    """Class decorator: make `load_method(name)` build this class, with `fixed` fields already set."""

    def register(cls: type[Method]) -> type[Method]:
        _METHODS[name] = partial(cls, **fixed) if fixed else cls
        return cls

    return register


def load_method(name: str, /, **params) -> Method:
    """Build the method `name` with its hyper-parameters.

    Raises:
        UserError: unknown name or parameter (the nearest known one is named), or a value out of range.
    """
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    if name not in _METHODS:
        raise UserError(f"unknown method {name!r}{nearest(name, _METHODS)}")
    build = _METHODS[name]
    cls = build.func if isinstance(build, partial) else build
    known = {field.name for field in dataclasses.fields(cls)} - set(getattr(build, "keywords", ()))
    for key in params:
        if key not in known:
            raise UserError(f"method {name} has no parameter {key!r}{nearest(key, known)}")
    return build(**params)


def check_number(name: str, value, test: Callable[[float], bool], right: str) -> None:
    """Raise UserError unless `value` is a number that passes `test`; `right` says in words which ones do."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (number and test(value)):  # NaN compares false, so a comparison catches it too
        raise UserError(f"{name} is {value!r}; it has to be {right}")


def check_clipping(mu: float, mu_plus: float | None, apply_to: str) -> None:
    """Raise UserError unless mu and mu_plus (if given) are at least 0 and `chosen_samples` knows apply_to.

    Without a bound, mu would make the method GRPO under another name; an infinite mu_plus makes it one-sided.
    """
    check_number("mu", mu, lambda mu: 0 <= mu < math.inf, "a finite number of standard deviations, 0 or more")
    if mu_plus is not None:
        check_number("mu_plus", mu_plus, lambda mu: mu >= 0, "a number of standard deviations, 0 or more")
    if apply_to not in ("negative", "positive", "both"):
        raise UserError(f"apply_to is {apply_to!r}; it can be 'negative', 'positive' or 'both'")


def chosen_samples(advantages: Tensor, apply_to: str) -> Tensor:
    """Bool, shape of `advantages`: the tokens of negative (A < 0), positive (A > 0) or both kinds of samples."""
    match apply_to:
        case "negative":
            return advantages < 0
        case "positive":
            return advantages > 0
        case _:
            return advantages != 0


def batch_mean_and_std(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and population standard deviation of `values` [B, T] over all tokens with mask 1, in float64.

    float64 so that the thresholds, and with them the masks, do not depend on the order of the sum.
    """
    chosen = values[mask.bool()].double()
    if chosen.numel() == 0:
        zero = torch.zeros((), dtype=torch.float64, device=values.device)
        return zero, zero
    return chosen.mean(), chosen.std(correction=0)
