"""REPO-R: advantages rescaled by the centered log probability (Petrenko et al., arXiv 2603.11682, Appendix D.2).

    A' = A - zeta |A| L,   L = log p - E[log p] = log p + H,   set to 0 where the sign would flip

As S* = p L, zeta > 0 pushes the entropy up in all four quadrants of sign(A) and sign(S*). An optional controller halves
or doubles zeta after each step, towards a target entropy. PPO's objective is linear in |A|, so A' is a token weight.

Source: arXiv 2603.11682, Appendix D.2 (formula, bounds and initial value of zeta); there is no official code. SkyRL's
pull request 1896 uses log p instead of L, which is a different method.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat, PositiveFloat, PrivateAttr

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method


@method("repo_r")
class RepoR(Method):
    """The denominator stays all response tokens."""

    zeta: float = 1e-3
    """Initial strength; negative values push the entropy down."""
    target: NonNegativeFloat | None = None
    """Target entropy of the controller, nats; null: zeta is constant."""
    zeta_min: PositiveFloat = 1e-4
    """Lower bound on |zeta| for the controller; zeta changes sign instead of falling below it."""
    zeta_max: PositiveFloat = 0.05
    """Upper bound on |zeta| for the controller."""
    per_update: ClassVar[bool] = True

    _zeta: float = PrivateAttr(0.0)

    def model_post_init(self, context: Any, /) -> None:
        self._zeta = self.zeta

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        centered = stats.logp.detach() + stats.entropy.detach()
        weights = (1 - self._zeta * advantages.sign() * centered).clamp_min(0)
        return torch.where(mask.bool(), weights, 0.0)

    def metrics(self, *arguments: Any) -> dict[str, float]:
        return {"repo_zeta": self._zeta}

    def observe(self, metrics: Mapping[str, float | int]) -> None:
        if self.target is None:
            return
        wanted = 1 if metrics["entropy"] < self.target else -1  # sign of zeta that moves the entropy towards the target
        if self._zeta * wanted > 0:
            self._zeta = wanted * min(2 * abs(self._zeta), self.zeta_max)
        elif abs(self._zeta) / 2 >= self.zeta_min:
            self._zeta /= 2
        else:
            self._zeta = wanted * self.zeta_min
