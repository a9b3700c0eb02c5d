"""The processes that share one step: a single one on a laptop, or the ranks that torchrun starts.

Every rank goes through the same code with the same numbers. What is divided is the sampling of prompts and the forward
and backward passes over micro-batches; what comes out of them is brought together, so that rewards, advantages, masks
and metrics are those of the whole batch on every rank, and no method has to know of ranks.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from entropy_dynamics.config.schema import HardwareConfig
from entropy_dynamics.distributed.launch import MEETING
from entropy_dynamics.errors import UserError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

# A rank that dies ends the others within seconds (launch.py). This bound is for one that hangs; it must exceed the time
# by which one rank may finish its sampling before another.
TIMEOUT = timedelta(hours=1)
CPU = torch.device("cpu")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Ranks:
    """`mesh` is None where there is no process group: one plain process, whose parameters are ordinary tensors."""

    rank: int = 0
    size: int = 1
    device: torch.device = CPU
    mesh: "DeviceMesh | None" = None

    @classmethod
    def join(cls, hardware: HardwareConfig) -> "Ranks":
        """One plain process, or this rank of those that torchrun started (`hardware.ranks` of them).

        Raises UserError if the device is not there or the number of ranks is another one.
        """
        device = device_of(hardware)
        if hardware.ranks is None:
            return cls(device=device)
        if "WORLD_SIZE" not in os.environ:
            raise UserError(f"hardware.ranks is {hardware.ranks}: this step is started by torchrun")
        size = int(os.environ["WORLD_SIZE"])
        if size != hardware.ranks:
            raise UserError(f"torchrun started {size} ranks, but hardware.ranks is {hardware.ranks}")
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        meeting = {}  # torchrun's own, where that started the ranks
        if MEETING in os.environ:
            place = f"file://{os.environ[MEETING]}"
            meeting = {"init_method": place, "rank": int(os.environ["RANK"]), "world_size": size}
        torch.distributed.init_process_group(backend, timeout=TIMEOUT, **meeting)
        mesh = torch.distributed.init_device_mesh(device.type, (size,))
        return cls(torch.distributed.get_rank(), size, device, mesh)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """This rank's part: every `size`-th item."""
        return items[self.rank :: self.size]

    def sum(self, values: Tensor) -> Tensor:
        """`values`, added up over the ranks in place."""
        if self.size > 1:
            torch.distributed.all_reduce(values)
        return values

    def gather(self, values: Tensor) -> list[Tensor]:
        """The ranks' tensors [n_r], whose lengths may differ."""
        if self.size == 1:
            return [values]
        lengths = self.sum(torch.eye(self.size, dtype=torch.long)[self.rank] * len(values)).tolist()
        padded = values.new_zeros(max(lengths))
        padded[: len(values)] = values
        parts = [torch.empty_like(padded) for _ in lengths]
        torch.distributed.all_gather(parts, padded)
        return [part[:length] for part, length in zip(parts, lengths, strict=True)]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.sum(torch.zeros(1))

    def close(self) -> None:
        """Leave the process group, if there still is one: a vLLM engine takes it along when it shuts down."""
        if self.mesh is not None and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def device_of(hardware: HardwareConfig) -> torch.device:
    """Raises UserError for a GPU that is not there."""
    if hardware.device == "cuda" and not torch.cuda.is_available():
        raise UserError("hardware.device is cuda, but torch sees no GPU here: set hardware.device=cpu")
    return torch.device(hardware.device)
