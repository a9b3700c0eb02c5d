"""Clip-Cov and KL-Cov: restrain tokens with a high covariance of advantage and log probability (Cui et al. 2025).

    cov_t = (A_t - mean A) (log p_t - mean log p),   means over all response tokens of the batch

Clip-Cov drops some of the tokens; KL-Cov penalizes how far they move from the policy that sampled them. In the
official code, the means, the number of tokens and their selection are per micro-batch of a GPU; here they are over the
batch of an update.

Source: PRIME-RL/Entropy-Mechanism-of-RL (8850579), verl/trainer/ppo/core_algos.py:426 (compute_policy_loss_kl_cov) and
:469 (compute_policy_loss_clip_cov), recipe/dapo/7b_clip_cov.sh and 7b_kl_cov.sh.
"""

import math
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field, NonNegativeFloat, model_validator

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method
from entropy_dynamics.methods.common import batch_mean, largest, number_of, without_some
from entropy_dynamics.sections import Share

Bound = Annotated[float, Field(allow_inf_nan=True)]


@method("clip_cov")
class ClipCov(Method):
    """Drops tokens drawn uniformly among those with lb < cov < ub; the denominator stays all response tokens.

    The official code draws only among tokens that PPO does not clip; here all can be drawn.
    """

    ratio: Share = 2e-4
    """Share of all response tokens to drop; rounded down, but at least one token, and at most all candidates."""
    lb: Bound = 1.0
    """Exclusive lower bound on the candidates' cov."""
    ub: Bound = 5.0
    """Exclusive upper bound; the few tokens above it are kept."""
    per_update: ClassVar[bool] = True

    @model_validator(mode="after")
    def _ordered(self) -> "ClipCov":
        if not self.lb < self.ub:  # also catches NaN
            raise ValueError(f"lb is {self.lb}; it should be below ub ({self.ub})")
        return self

    def token_weights(
        self, stats: TokenStats, advantages: PerToken, mask: Mask, *, generator: torch.Generator | None = None, **_: Any
    ) -> PerToken:
        cov = token_covariance(stats, advantages, mask)
        return without_some(mask, (cov > self.lb) & (cov < self.ub), number_of(self.ratio, mask), generator)


@method("kl_cov")
class KLCov(Method):
    """Adds beta |log p - log p_old| to the loss of the tokens with the largest cov; every token keeps its weight.

    Intended for a loss without PPO clipping, -A r (see its config).
    """

    frac: Share = 2e-3
    """Share of all response tokens to penalize; rounded down, but at least one token."""
    beta: NonNegativeFloat = 1.0
    """Strength of the penalty."""
    per_update: ClassVar[bool] = True
    acts_without_advantage: ClassVar[bool] = True
    on_policy_note: ClassVar[str | None] = (
        "KL-Cov has exactly no effect with training.updates_per_batch = 1: strictly on-policy |log p - log p_old| is 0 "
        "and so is its gradient"
    )

    def loss_coefficients(self, stats: TokenStats, advantages: PerToken, mask: Mask) -> PerToken:
        cov = token_covariance(stats, advantages, mask)
        return self.beta * largest(cov, mask, number_of(self.frac, mask)).float()

    def token_loss(
        self,
        logp: PerToken,
        logp_old: PerToken,
        advantages: PerToken,
        mask: Mask,
        *,
        coefficients: PerToken | None = None,
        **_: Any,
    ) -> PerToken:
        assert coefficients is not None
        return super().token_loss(logp, logp_old, advantages, mask) + coefficients * (logp - logp_old).abs()


def token_covariance(stats: TokenStats, advantages: PerToken, mask: Mask) -> PerToken:
    """cov_t of every token, float64, detached; -inf on padding."""
    logp = stats.logp.detach()
    mean_advantage, mean_logp = (batch_mean(values, mask) for values in (advantages, logp))
    cov = (advantages.double() - mean_advantage) * (logp.double() - mean_logp)
    return torch.where(mask.bool(), cov, -math.inf)
