"""Gradients and optimizer steps of policy and critic alike."""

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from entropy_dynamics.config.schema import CriticConfig, OptimizerConfig
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import sync_gradients
from entropy_dynamics.errors import NotFiniteError
from entropy_dynamics.training.policy import whole

Trained = dict[str, tuple[nn.Module, torch.optim.Optimizer]]
"""Modules and their optimizers, by name."""


def backward(
    module: nn.Module, losses: Iterable[Tensor], count: int, ranks: Ranks, *, reduce_every_micro_batch: bool
) -> Float[Tensor, ""]:
    """Accumulate the gradients of the losses of all micro-batches and ranks; those of the last update are dropped.

    Args:
        losses: of this rank's `count` micro-batches, computed one at a time, each just before its backward pass.

    Returns:
        The sum of the losses over micro-batches and ranks, float64.
    """
    module.zero_grad(set_to_none=True)
    total = torch.zeros((), dtype=torch.float64, device=ranks.device)
    for number, loss in enumerate(losses, 1):
        sync_gradients(module, number == count or reduce_every_micro_batch)
        (loss * ranks.size).backward()  # FSDP averages gradients over ranks
        total += loss.detach()
    return ranks.sum(total)


def clip_and_step(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    loss: Tensor,
    config: OptimizerConfig | CriticConfig,
    where: str,
) -> float:
    """Clip the gradients and take an optimizer step.

    Args:
        where: what failed, for the error message.

    Returns:
        The gradient norm before clipping.

    Raises:
        NotFiniteError: the loss or the norm is not finite; the step was not taken.
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
    """Optimizer steps since the first, those before a checkpoint included."""
    return max((int(state["step"]) for state in optimizer.state.values()), default=0)
