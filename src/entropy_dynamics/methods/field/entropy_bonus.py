"""Entropy bonus: the classic regularizer, -c H in the loss of every response token (Williams and Peng 1991)."""

from typing import Any, ClassVar

from pydantic import NonNegativeFloat

from entropy_dynamics.core.shapes import PerToken
from entropy_dynamics.methods import Method, method


@method("entropy_bonus")
class EntropyBonus(Method):
    """Every token keeps its weight, so the bonus is c times the mean entropy of the response tokens."""

    coefficient: NonNegativeFloat = 1e-3
    """c, in units of loss per nat. Common values are 1e-4 to 5e-3; with larger ones the entropy tends to run away."""
    acts_without_advantage: ClassVar[bool] = True

    def token_loss(self, *arguments: Any, entropy: PerToken | None = None, **more: Any) -> PerToken:
        assert entropy is not None
        return super().token_loss(*arguments, **more) - self.coefficient * entropy
