"""The entropy change of a batch under optimizer steps, to first order in the step, and what each part of AdamW adds.

A step from theta to theta' changes H, the mean entropy of the batch's positions, by grad H . (theta' - theta). A single
gradient of H serves all directions.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from entropy_dynamics.distributed.sharding import whole

COLUMNS = ("entropy_change_sgd", "entropy_change_adam_no_momentum", "entropy_change_first_order")
NOT_MEASURED = dict.fromkeys(COLUMNS, math.nan)


class FirstOrderChange:
    """Compares three steps with the same gradients: plain SGD, AdamW without momentum, and the actual AdamW step.

    Construct it before a batch's first update, and call `add_update` after each update. `gradient` is grad H, one
    tensor per parameter of `optimizer`, sharded like the parameters.
    """

    def __init__(self, gradient: Sequence[Tensor], optimizer: torch.optim.AdamW):
        self.gradient, self.optimizer = gradient, optimizer
        (self.group,) = optimizer.param_groups
        self.start = self.now = self._dot(self.group["params"])
        self.sgd = self.no_momentum = 0.0

    @torch.no_grad()
    def add_update(self) -> None:
        """Account for an update; its clipped gradients must still be in the parameters."""
        parameters, rate = self.group["params"], self.group["lr"]
        self.sgd -= rate * self._dot(parameter.grad for parameter in parameters)
        scaled = (self._scaled(parameter) for parameter in parameters)
        self.no_momentum -= rate * (self._dot(scaled) + self.group["weight_decay"] * self.now)
        self.now = self._dot(parameters)

    def _scaled(self, parameter: Tensor) -> Tensor:
        """The direction of an AdamW step without momentum."""
        state = self.optimizer.state[parameter]
        variance = state["exp_avg_sq"] / (1 - self.group["betas"][1] ** int(state["step"]))
        return parameter.grad / (variance.sqrt() + self.group["eps"])

    def metrics(self) -> dict[str, float]:
        """`COLUMNS`, summed over the updates, nats."""
        return dict(zip(COLUMNS, (self.sgd, self.no_momentum, self.now - self.start), strict=True))

    @torch.no_grad()
    def _dot(self, direction: Iterable[Tensor]) -> float:
        """grad H . `direction`, in float64: the change is a small difference of two large products."""
        pairs = zip(self.gradient, direction, strict=True)
        return sum(float(whole((gradient.double() * part.double()).sum())) for gradient, part in pairs)
