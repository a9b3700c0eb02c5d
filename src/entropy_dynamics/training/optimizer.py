"""Backward passes and optimizer steps, shared by policy and critic."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from entropy_dynamics.config.schema.training import CriticConfig, OptimizerConfig
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import sync_gradients, whole
from entropy_dynamics.errors import NotFiniteError

Trained = dict[str, tuple[nn.Module, torch.optim.Optimizer]]
"""Modules and their optimizers, by name."""


def backward(module: nn.Module, loss: Float[Tensor, ""], ranks: Ranks, *, reduce: bool) -> Float[Tensor, ""]:
    """Accumulate the gradient of a micro-batch's loss; with `reduce`, also sum the gradients over the ranks.

    Returns:
        The loss, detached, float64.
    """
    sync_gradients(module, reduce)
    (loss * ranks.size).backward()  # FSDP averages gradients over ranks
    return loss.detach().double()


def clip_and_step(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Tensor,
    config: OptimizerConfig | CriticConfig,
    where: str,
) -> float:
    """Clip the gradients and take an optimizer step.

    Args:
        where: prefix of the error message, such as "step 3".

    Returns:
        The gradient norm before clipping.

    Raises:
        NotFiniteError: the loss or the norm is not finite; no step was taken.
    """
    norm = float(whole(nn.utils.clip_grad_norm_(module.parameters(), config.max_grad_norm)))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        section = "critic" if isinstance(config, CriticConfig) else "optimizer"
        raise NotFiniteError(
            f"{where}: the loss is {loss.item()} and the gradient norm {norm}, so training stopped; "
            f"a smaller training.{section}.learning_rate may help"
        )
    optimizer.step()
    return norm


def steps_taken(optimizer: torch.optim.Optimizer) -> int:
    """Total number of optimizer steps, including those before a resumed checkpoint."""
    return max((int(state["step"]) for state in optimizer.state.values()), default=0)
