"""The processes of a stage: a single one, or the ranks of a process group.

Every rank runs the same code on the same data. Sampling, grading and the passes over micro-batches are divided, and
their results gathered: every rank has the rewards, advantages, masks and metrics of the whole batch.
"""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
from jaxtyping import Shaped
from torch import Tensor

from entropy_dynamics.config.schema.hardware import HardwareConfig
from entropy_dynamics.distributed.launch import RENDEZVOUS
from entropy_dynamics.errors import UserError

# If a rank dies, the others end within seconds (launch.py). This limit is for a rank that hangs; it must exceed the
# difference between the sampling times of ranks.
TIMEOUT = timedelta(hours=1)
CPU = torch.device("cpu")
Item = TypeVar("Item")


@dataclass(frozen=True)
class Ranks:
    """This process among the ranks of a stage.

    `mesh` is None without a process group, i.e. in a single process with ordinary tensors as parameters. With several
    nodes it has the shape [node, rank within the node].
    """

    rank: int = 0
    size: int = 1
    device: torch.device = CPU
    mesh: torch.distributed.DeviceMesh | None = None

    @classmethod
    def join(cls, hardware: HardwareConfig) -> "Ranks":
        """This process: the only one, or one of `hardware.ranks` that launch.py or torchrun started.

        Raises UserError if the device does not exist, or if the number of ranks differs from the config.
        """
        device, size = device_of(hardware), int(os.environ.get("WORLD_SIZE", 0))
        if size != hardware.ranks and (size > 1 or hardware.ranks is not None):
            raise UserError(f"torchrun started {size} ranks, but hardware.ranks is {hardware.ranks or 'null'}")
        if hardware.ranks is None:
            return cls(device=device)
        rank = int(os.environ["RANK"])
        per_node = size // hardware.nodes
        if (local := int(os.environ.get("LOCAL_WORLD_SIZE", per_node))) != per_node:
            raise UserError(f"torchrun started {local} ranks on this node, but hardware.ranks / nodes is {per_node}")
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
            torch.cuda.set_device(device)
        backend = "gloo" if device.type == "cpu" else "cpu:gloo,cuda:nccl"
        rendezvous = f"file://{os.environ[RENDEZVOUS]}" if RENDEZVOUS in os.environ else "env://"  # torchrun's
        torch.distributed.init_process_group(backend, rendezvous, rank=rank, world_size=size, timeout=TIMEOUT)
        shape, names = (size,), ("shard",)
        if hardware.nodes > 1:
            shape, names = (hardware.nodes, per_node), ("replicate", "shard")  # torchrun numbers ranks node by node
        mesh = torch.distributed.init_device_mesh(device.type, shape, mesh_dim_names=names)
        return cls(rank, size, device, mesh)

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and shows progress."""
        return self.rank == 0

    def share(self, items: Sequence[Item]) -> Sequence[Item]:
        """This rank's share of `items`: every `size`-th one."""
        return items[self.rank :: self.size]

    def sum(self, values: Tensor) -> Tensor:
        """The sum of `values` over the ranks, which leaves `values` as they are."""
        if self.size > 1:
            values = values.clone()
            torch.distributed.all_reduce(values)
        return values

    def gather(self, value: Any) -> list[Any]:
        """The values of all ranks, exchanged as JSON (not pickle, which runs code). For small records."""
        if self.size == 1:
            return [value]
        data = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
        return [json.loads(sent.numpy().tobytes()) for sent in self.gather_flat(data)]

    def gather_flat(self, values: Shaped[Tensor, " length"]) -> list[Shaped[Tensor, " length_of_rank"]]:
        """The one-dimensional CPU tensors of all ranks, which may differ in length."""
        if self.size == 1:
            return [values]
        lengths = self.sum(torch.eye(self.size, dtype=torch.long)[self.rank] * len(values)).tolist()
        padded = torch.nn.functional.pad(values, (0, max(lengths) - len(values)))
        gathered = [torch.empty_like(padded) for _ in lengths]
        torch.distributed.all_gather(gathered, padded)
        return [sent[:length] for sent, length in zip(gathered, lengths, strict=True)]

    def map(self, function: Callable[[Item], Any], items: Sequence[Item]) -> list[Any]:
        """Apply `function` to every item, each on one rank, and gather the results.

        If it raises on one rank, so does this on all: its own exception there, RuntimeError on the others.
        """
        share, error = [], None
        try:
            share = [function(item) for item in self.share(items)]
        except Exception as caught:  # raised later: the other ranks wait for the results
            error = caught
        shares = self.gather([share, None if error is None else repr(error)])
        if error is not None:
            raise error
        results: list[Any] = [None] * len(items)
        for rank, (share, fault) in enumerate(shares):
            if fault is not None:
                raise RuntimeError(f"rank {rank}: {fault}")
            results[rank :: self.size] = share
        return results

    def on_main(self, function: Callable[[], Any]) -> Any:
        """The result of `function` on rank 0, sent as JSON: a shared folder may look stale on other nodes."""
        return self.map(lambda _: function(), [None])[0]

    def note(self, text: str) -> None:
        """Print a note on standard error, on rank 0 only."""
        if self.is_main:
            print(f"note: {text}", file=sys.stderr)

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.sum(torch.zeros(1))

    def close(self) -> None:
        """Leave the process group, unless a vLLM engine has destroyed it at shutdown."""
        if self.mesh is not None and torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def device_of(hardware: HardwareConfig) -> torch.device:
    """The configured device. Raises UserError if it is a GPU and torch sees none."""
    if hardware.device == "cuda" and not torch.cuda.is_available():
        raise UserError("hardware.device is cuda, but torch sees no GPU here: set hardware.device=cpu")
    return torch.device(hardware.device)
