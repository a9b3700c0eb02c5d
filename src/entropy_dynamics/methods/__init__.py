"""Entropy-control methods: per-token scalars of a batch in, per-token weights, loss and advantages out.

A method is a subclass of `Method` whose fields are its hyper-parameters; `@method("name")` registers it, and its module
is imported when a method is first needed. So a new method is one file here, one YAML in configs/method and one test.
Methods that others published, and the paper does not train, are in `field`.

Importing this module does not import torch, since configs name methods; importing a method does.
"""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import Field

from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.sections import Section, Threshold, parse

if TYPE_CHECKING:
    import torch

    from entropy_dynamics.core.shapes import Divisors, Groups, Mask, PerRollout, PerToken
    from entropy_dynamics.core.token_stats import TokenStats

M = TypeVar("M", bound="type[Method]")
# Types of parameters for which some methods have another default.
Denominator = Literal["kept", "all"]
LossScope = Literal["global_token", "per_group", "per_sequence"]
ClipLow = Annotated[float, Field(gt=0, le=1)]
DualClip = Annotated[float, Field(gt=1, allow_inf_nan=True)]
# The parameters that `share` of a clipping method replaces, with the values that have no effect.
SHARE_REPLACES: Mapping[str, Any] = {"mu": None, "mu_plus": math.inf, "max_frac": None, "drop_zero_advantage": False}

_METHODS: dict[str, type[Method]] = {}


class Method(Section):
    """Base class of all methods. By itself it is GRPO: every response token has weight 1 in PPO's clipped objective."""

    denominator: Denominator = "all"
    """Tokens counted by a token mean: all response tokens, or only those with a weight above 0."""
    loss_scope: LossScope = "global_token"
    """Mean over all tokens of the update, or mean over groups or sequences of the token mean within each."""
    clip_low: ClipLow = 0.2
    """PPO clips the importance ratio from below at 1 - clip_low."""
    clip_high: Threshold = 0.2
    """PPO clips the importance ratio from above at 1 + clip_high."""
    dual_clip: DualClip = 3.0
    """Upper bound on the loss of a token with A < 0, in units of |A|."""

    per_update: ClassVar[bool] = False
    """With several updates per batch: True computes weights and coefficients before each update, on its own tokens
    under the current policy; False computes them once, for the whole batch under the policy before its first update."""
    acts_without_advantage: ClassVar[bool] = False
    """Whether a token's loss can have a gradient at A = 0, as with a penalty. If not, rows in which no token has both a
    weight and an advantage are left out of the backward pass."""
    uses_s_expected: ClassVar[bool] = False
    """Whether weights or coefficients read E[S]. It needs the logits; other trainers keep only log p and entropy."""

    on_policy_note: ClassVar[str | None] = None
    """A one-line caveat about runs in which every importance ratio is exactly 1."""

    @classmethod
    def overrides(cls, *names: str) -> list[str]:
        """The subset of `names` that the class overrides, i.e. where it differs from GRPO."""
        return [name for name in names if getattr(cls, name) is not getattr(Method, name)]

    @classmethod
    def needs_scores(cls, updates_per_batch: int) -> bool:
        """Whether a batch has to be scored before its first update, for the method's decisions or for later updates."""
        return updates_per_batch > 1 or bool(cls.overrides("shape_rewards", "token_weights", "loss_coefficients"))

    @classmethod
    def uses_entropy(cls) -> bool:
        """Whether a `token_loss` of the class takes the argument `entropy`, and so needs the entropy's gradient."""
        losses = [vars(kind)["token_loss"] for kind in cls.__mro__ if kind is not Method and "token_loss" in vars(kind)]
        return any("entropy" in inspect.signature(loss).parameters for loss in losses)

    def second_pass(self) -> dict[str, Any]:
        """Options of `token_stats` (`top`, `min_p`) for statistics that need a second pass over the vocabulary.

        Two more are for the trainer, which then also passes `top_logq` to `token_loss`: `engine_top`, the number of the
        engine's most likely tokens (None: the whole vocabulary), for log p of the engine, and `reference`, whatever its
        value, for log p of the policy before training over the whole vocabulary.
        """
        return {}

    def shape_rewards(self, rewards: PerRollout, groups: Groups, mean_logp: PerRollout) -> PerRollout:
        """The rewards from which advantages are computed; unchanged by default.

        `mean_logp` is the mean over each response's tokens under the policy that sampled it, nats.
        """
        return rewards

    def advantages(self, rewards: PerRollout, groups: Groups) -> PerRollout:
        """Advantage of every rollout; group-normalized rewards by default. Not called with PPO's critic."""
        from entropy_dynamics.core.advantages import group_advantages

        return group_advantages(rewards, groups)

    def token_weights(
        self,
        stats: TokenStats,
        advantages: PerToken,
        mask: Mask,
        *,
        generator: torch.Generator | None = None,
        logp_old: PerToken | None = None,
    ) -> PerToken:
        """Weight of every token's loss, fp32: 1 = as in GRPO, 0 = dropped and wherever the mask is 0.

        Thresholds and other batch statistics are computed over the whole batch of an update, across micro-batches and
        ranks, so that a mask never depends on how the batch was split.

        Args:
            stats: of the whole batch, each [batch, token], under the policy to be updated.
            mask: non-zero on response tokens; other tensors are arbitrary where it is 0.
            generator: for methods that draw tokens at random; seeded by run and step.
            logp_old: log p under the policy that sampled the tokens, nats; None: `stats.logp`.
        """
        return mask.float()

    def checked_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **given: Any) -> PerToken:
        """The result of `token_weights`. Raises UserError if it is not one weight per token."""
        import torch

        weights: PerToken = self.token_weights(stats, advantages, mask, **given)
        if not isinstance(weights, torch.Tensor) or weights.shape != mask.shape:
            got = list(weights.shape) if isinstance(weights, torch.Tensor) else type(weights).__name__
            raise UserError(f"token_weights of {type(self).__name__} returned {got}, not a tensor {list(mask.shape)}")
        return weights

    def loss_coefficients(self, stats: TokenStats, advantages: PerToken, mask: Mask) -> PerToken | None:
        """Per-token inputs of `token_loss` that depend on the whole batch. Arguments as in `token_weights`."""
        return None

    def token_loss(
        self,
        logp: PerToken,
        logp_old: PerToken,
        advantages: PerToken,
        mask: Mask,
        *,
        entropy: PerToken | None = None,
        coefficients: PerToken | None = None,
    ) -> PerToken:
        """Loss of every token; PPO's clipped objective by default.

        The trainer multiplies it by the token's weight and, with importance_truncation, by the truncated
        p(trainer) / p(engine).

        Args:
            logp: log probability of the sampled tokens under the policy being trained, nats; carries the gradient.
            logp_old: the same under the policy that sampled them, detached. Strictly on-policy the two are equal.
            mask: non-zero on response tokens; the result is not used elsewhere.
            entropy: of the policy being trained, nats, with gradient; passed if the method's `token_loss` names it.
            coefficients: the rows of `loss_coefficients`' result that belong to `logp`.

        A method whose `second_pass` requests `top` also gets `top_logp`, [batch, token, top], with gradient.
        """
        from entropy_dynamics.core.objective import clipped_loss

        return clipped_loss(
            logp, logp_old, advantages, mask, clip_low=self.clip_low, clip_high=self.clip_high, dual_clip=self.dual_clip
        )

    def divisors(self, weights: PerToken, mask: Mask, groups: Groups) -> Divisors:
        """Loss divisor of each row's tokens, which defines how tokens are averaged, given all rows of the update."""
        from entropy_dynamics.core.objective import token_divisors

        return token_divisors(weights, mask, groups, scope=self.loss_scope, denominator=self.denominator)

    def metrics(self, stats: TokenStats, advantages: PerToken, weights: PerToken, mask: Mask) -> dict[str, float]:
        """The method's own columns of metrics.parquet, given the batch and the weights that were used."""
        return {}

    def observe(self, metrics: Mapping[str, float | int]) -> None:
        """Update the private attributes of a stateful method from the metrics of the step that just ended."""

    def state_dict(self) -> dict[str, float]:
        """The private attributes that are numbers, for checkpoints."""
        state = self.__pydantic_private__ or {}
        return {name[1:]: +value for name, value in state.items() if isinstance(value, int | float)}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        """Restore the state that `state_dict` returned."""
        for name, value in state.items():
            setattr(self, f"_{name}", type(getattr(self, f"_{name}"))(value))


def method(name: str) -> Callable[[M], M]:
    """Class decorator that registers a method under `name`. Raises UserError if another module has registered it."""

    def register(kind: M) -> M:
        other = _METHODS.get(name, kind)
        if other.__module__ != kind.__module__:
            raise UserError(f"method {name!r} is registered twice: in {other.__module__} and in {kind.__module__}")
        _METHODS[name] = kind
        return kind

    return register


def method_types(name: str | None = None) -> Mapping[str, type[Method]]:
    """Every method by name, or at least the method `name`. Imports them, and therefore torch.

    The modules of `field` come last, and only if `name` is of none of the others.
    """
    for package in (__name__, f"{__name__}.field"):
        for info in pkgutil.iter_modules(importlib.import_module(package).__path__):
            importlib.import_module(f"{package}.{info.name}")  # registers its methods
        if name in _METHODS:
            break
    return _METHODS


def load_method(name: str, /, **params: Any) -> Method:
    """Build the method `name` with its hyper-parameters.

    Raises UserError for an unknown name or parameter, with the nearest known one, or a value out of bounds.
    """
    kinds = method_types(name)
    if name not in kinds:
        raise UserError(f"unknown method {name!r}{nearest(name, kinds)}")
    return parse(kinds[name], params, f"method {name}")
