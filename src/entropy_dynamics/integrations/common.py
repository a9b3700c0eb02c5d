"""Helpers shared by the integrations: which methods a host trainer can run, and which metrics are reported."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from entropy_dynamics.core.metrics import entropy_metrics
from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.errors import UserError
from entropy_dynamics.methods import Method, load_method

NEEDS_E_S = ("neg_cov", "predicted_entropy_change")
REPORTED = ("entropy", "s_star_mean", "s_star_std", "clip_fraction", "clip_fraction_neg", *NEEDS_E_S)
HOST_SETTINGS = ("loss_scope", "clip_low", "clip_high", "dual_clip")  # set in the host trainer instead
# Hosts do not call these: they have their own equivalents or, for `observe`, none.
HOST_STEPS = ("shape_rewards", "advantages", "loss_coefficients", "token_loss", "divisors", "observe")


def token_weight_method(name: str, params: dict[str, Any], trainer: str, s_expected: bool = True) -> Method:
    """Load the method `name`, which must act through token weights only, as the trainer keeps its advantages and loss.

    Raises UserError if the method does more than that, if it needs E[S] and the trainer has no `s_expected`, if a
    parameter belongs to the trainer, or if a name or value is unknown.
    """
    if taken := [key for key in HOST_SETTINGS if key in params]:
        raise UserError(f"{taken[0]} belongs to the loss, which is {trainer}'s: set it there")
    method = load_method(name, **params)
    if changed := method.overrides(*HOST_STEPS):
        raise UserError(f"{name} is more than token weights (it has its own {changed[0]}), so {trainer} cannot run it")
    if method.uses_s_expected and not s_expected:
        raise UserError(f"{name} needs E[S] of each token, which {trainer} does not compute")
    return method


def reported_metrics(
    stats: TokenStats, advantages: PerToken, weights: PerToken, mask: Mask, learning_rate: float
) -> dict[str, float]:
    """The metrics of a batch for the host to log: none without response tokens, none that need an unknown E[S]."""
    if not mask.any():
        return {}
    metrics = entropy_metrics(stats, advantages, weights, mask.bool(), learning_rate)
    known = stats.s_expected[mask.bool()].isfinite().all()
    return {f"entropy_control/{name}": metrics[name] for name in REPORTED if known or name not in NEEDS_E_S}


def weighting(trainer: str, name: str, **params: Any) -> Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]:
    """A function (advantages, logp, entropy, mask) -> advantages times token weights, for a micro-batch.

    All of its arguments are [batch, token]; log p and entropies are in nats, at the same temperature. It is for
    trainers that compute no more than these, and is called by a line added to their source. Raises UserError as
    `token_weight_method` does.
    """
    method = token_weight_method(name, params, trainer, s_expected=False)
    generator = torch.Generator().manual_seed(0)

    def weighted(advantages: Tensor, logp: Tensor, entropy: Tensor, mask: Tensor) -> Tensor:
        stats = TokenStats.from_logged(logp, entropy)
        return advantages * method.checked_weights(stats, advantages, mask.bool(), generator=generator)

    return weighted
