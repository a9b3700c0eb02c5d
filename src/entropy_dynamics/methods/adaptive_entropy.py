"""Adaptive entropy control: an entropy bonus whose coefficient follows a target (Skywork-OR1, arXiv 2505.22312).

    loss = clipped objective - alpha H,   alpha = c 1[H_batch <= target]
    after each step:  c += delta if H_batch < target else -delta,  kept within [0, max_coefficient]

H_batch is the mean entropy of the step before; TRL's `entropy_coef` controller works the same way.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field, NonNegativeFloat, PositiveFloat, PrivateAttr, model_validator

from entropy_dynamics.core.shapes import PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method


@method("adaptive_entropy")
class AdaptiveEntropy(Method):
    """Every token keeps its weight."""

    target: PositiveFloat = 0.2
    """Entropy below which the bonus acts, nats."""
    delta: PositiveFloat = 5e-3
    """Change of the coefficient per step."""
    initial_coefficient: NonNegativeFloat = 0.0
    max_coefficient: Annotated[float, Field(gt=0)] = 1.0

    _coefficient: float = PrivateAttr(0.0)
    _active: bool = PrivateAttr(False)

    @model_validator(mode="after")
    def _within_bounds(self) -> "AdaptiveEntropy":
        if self.initial_coefficient > self.max_coefficient:
            raise ValueError(
                f"initial_coefficient is {self.initial_coefficient:g}, above max_coefficient ({self.max_coefficient:g})"
            )
        return self

    def model_post_init(self, context: Any, /) -> None:
        self._coefficient = self.initial_coefficient

    def token_loss(self, *arguments: Any, entropy: PerToken | None = None, **more: Any) -> PerToken:
        assert entropy is not None
        return super().token_loss(*arguments, **more) - self._coefficient * self._active * entropy

    def metrics(self, stats: TokenStats, *arguments: Any) -> dict[str, float]:
        return {"entropy_coefficient": self._coefficient * self._active}

    def observe(self, metrics: Mapping[str, float | int]) -> None:
        below = metrics["entropy"] < self.target
        change = self.delta if below else -self.delta
        self._coefficient = min(max(self._coefficient + change, 0.0), self.max_coefficient)
        self._active = metrics["entropy"] <= self.target

    def state_dict(self) -> dict[str, float]:
        return {"coefficient": self._coefficient, "active": float(self._active)}

    def load_state_dict(self, state: Mapping[str, float]) -> None:
        self._coefficient, self._active = state["coefficient"], bool(state["active"])
