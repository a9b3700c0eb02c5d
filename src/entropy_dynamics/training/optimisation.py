"""One optimizer step, the same for policy and critic."""

import math

import torch
from torch import nn

from entropy_dynamics.errors import NotFiniteError
from entropy_dynamics.training.policy import whole


def clip_and_step(
    module: nn.Module, optimizer: torch.optim.Optimizer, loss: float, *, max_grad_norm: float, where: str, knob: str
) -> float:
    """Clip the gradient, take the step, return the gradient's norm.

    Raises NotFiniteError, before the step, if the loss or the norm is not finite; `where` and `knob` are for its
    message.
    """
    norm = float(whole(nn.utils.clip_grad_norm_(module.parameters(), max_grad_norm)))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise NotFiniteError(
            f"{where}: the loss is {loss} and the gradient norm {norm}, so training stopped; a smaller {knob} may help"
        )
    optimizer.step()
    return norm
