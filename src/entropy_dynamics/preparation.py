"""What a command does before its work: torch and transformers imported, a device claimed, ranks started or joined."""

import gc
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING

from entropy_dynamics.config import Config, StageConfig
from entropy_dynamics.distributed.devices import claim_devices
from entropy_dynamics.distributed.launch import launched, run_on_ranks

if TYPE_CHECKING:
    from entropy_dynamics.distributed.ranks import Ranks


def quieten(threads: int) -> None:
    """Set the number of threads and silence transformers; to be called before it is imported."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def load_torch(config: Config) -> None:
    """Import torch and transformers, set up for this config."""
    quieten(config.threads)
    if config.hardware.device == "cuda" and "PYTORCH_ALLOC_CONF" not in os.environ:  # torch's newer name for the same
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # less fragmentation
    import_torch()
    import torch

    torch.set_num_threads(config.threads)


def import_torch() -> None:
    """Import torch, and the slow part of transformers."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    gc.disable()  # garbage collection is a quarter of the import time
    try:
        from transformers.modeling_utils import logging  # the slow module, which imports torch
    finally:
        gc.enable()
    logging.disable_progress_bar()


@contextmanager
def on_device(config: StageConfig, claims: bool = True) -> Iterator[None]:
    """Claim a device and load torch. The devices of ranks are claimed by the process that launched them."""
    hardware, claims = config.hardware, claims and not launched()
    with claim_devices(hardware.device, 1, hardware.runs_per_gpu) if claims else nullcontext():
        load_torch(config)
        yield


@contextmanager
def joined_ranks(config: StageConfig, arguments: Sequence[str]) -> Iterator["Ranks | None"]:
    """This process as one of the stage's ranks, or None in the process that started them, after they have finished."""
    if config.hardware.ranks is not None and not launched():
        run_on_ranks(config, arguments)
        yield None
        return
    with on_device(config):
        from entropy_dynamics.distributed.ranks import Ranks

        ranks = Ranks.join(config.hardware)
        try:
            yield ranks
        finally:
            ranks.close()
