"""Backward passes and optimizer steps, shared by policy and critic."""

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from entropy_dynamics.config.schema.training import CriticConfig, OptimizerConfig, TrainingConfig
from entropy_dynamics.core.shapes import Scalar
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import sync_gradients, whole
from entropy_dynamics.errors import NotFiniteError

Trained = dict[str, tuple[nn.Module, Optimizer]]
"""Modules and their optimizers, by name."""
Part = TypeVar("Part")


def backward(
    module: nn.Module, parts: Sequence[Part], loss_of: Callable[[Part], Scalar], config: TrainingConfig, ranks: Ranks
) -> Scalar:
    """Compute the gradient of the sum of `loss_of` over this rank's micro-batches, `parts`, and those of other ranks.

    Returns that sum, detached, float64.
    """
    total = torch.zeros((), dtype=torch.float64, device=ranks.device)
    module.zero_grad(set_to_none=True)
    for number, part in enumerate(parts, 1):
        loss = loss_of(part)
        sync_gradients(module, number == len(parts) or config.reduce_every_micro_batch)
        (loss * ranks.size).backward()  # FSDP averages gradients over ranks
        total += loss.detach().double()
    return ranks.sum(total)


def clip_and_step(
    module: nn.Module, optimizer: Optimizer, loss: Tensor, config: OptimizerConfig | CriticConfig, where: str
) -> float:
    """Clip the gradients and take an optimizer step; returns the gradient norm before clipping.

    Raises NotFiniteError, which begins with `where`, if the loss or the norm is not finite; no step is then taken.
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


def steps_taken(optimizer: Optimizer) -> int:
    """Total number of optimizer steps, including those before a resumed checkpoint."""
    return max((int(state["step"]) for state in optimizer.state.values()), default=0)
