"""Adaptive entropy control: an entropy bonus whose coefficient follows a target (Skywork-OR1, arXiv 2505.22312).

    loss = clipped objective - alpha H,   alpha = c 1[h < target]
    after each step:  c += delta if h < target else -delta,  kept within [0, max_coefficient]

h, the controller's input, is the mean of -log p_old over the sampled tokens of the previous step, as in the official
code; H in the bonus is the entropy of the distributions. The bonus is on before the first step.

Source: SkyworkAI/Skywork-OR1 (64e96af), verl/trainer/ppo/core_algos.py:56 (EntController),
verl/workers/actor/dp_actor.py:203 (get_entropy_metric), or1_scripts/train/7b_8k.sh.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from pydantic import NonNegativeFloat, PositiveFloat, PrivateAttr

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method
from entropy_dynamics.methods.common import batch_mean


@method("adaptive_entropy")
class AdaptiveEntropy(Method):
    """Every token keeps its weight."""

    target: PositiveFloat = 0.2
    """Entropy below which the bonus acts, nats."""
    delta: PositiveFloat = 5e-3
    """Change of the coefficient c per training step."""
    initial_coefficient: NonNegativeFloat = 0.0
    max_coefficient: PositiveFloat = 1.0
    acts_without_advantage: ClassVar[bool] = True

    _coefficient: float = PrivateAttr(0.0)
    _active: bool = PrivateAttr(True)

    def model_post_init(self, context: Any, /) -> None:
        self._coefficient = self.initial_coefficient

    def token_loss(self, *arguments: Any, entropy: PerToken | None = None, **more: Any) -> PerToken:
        assert entropy is not None
        return super().token_loss(*arguments, **more) - self._coefficient * self._active * entropy

    def metrics(self, stats: TokenStats, advantages: PerToken, weights: PerToken, mask: Mask) -> dict[str, float]:
        sampled = -float(batch_mean(stats.logp, mask))
        return {"entropy_coefficient": self._coefficient * self._active, "sampled_entropy": sampled}

    def observe(self, metrics: Mapping[str, float | int]) -> None:
        self._active = metrics["sampled_entropy"] < self.target
        change = self.delta if self._active else -self.delta
        self._coefficient = min(max(self._coefficient + change, 0.0), self.max_coefficient)
