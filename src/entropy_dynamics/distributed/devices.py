"""File locks on GPUs, or on slots of a GPU, held by the jobs of one machine. Snakemake counts GPUs, but assigns none.

Each GPU has PARTS lock files, locked by flock (through filelock), which the kernel releases when the process ends. A
job locks all of them, or its slot's, so jobs with different numbers of slots can share a machine.
"""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import product, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from entropy_dynamics.errors import UserError

if TYPE_CHECKING:
    import torch

PARTS = 8  # lock files per GPU, divisible by any number of slots
PAUSE = 2.0  # mean seconds between two attempts
_VARIABLE = "CUDA_VISIBLE_DEVICES"
_CGROUPS, _OWN_CGROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


@contextmanager
def claim_devices(device: str, count: int, slots: int = 1) -> Iterator[list[str]]:
    """Context manager: hold `count` GPUs, with CUDA_VISIBLE_DEVICES set to them. A no-op for the device "cpu".

    With several `slots` per GPU, a single slot is held, on the GPU that the fewest jobs share; `count` must be 1.

    Waits, with one message, while other jobs of this user hold too many. Takes all or none, so that waiting jobs cannot
    block each other. Chooses among the GPUs in CUDA_VISIBLE_DEVICES if it is set, else among those of the SLURM job or
    the machine. Yields the names of the GPUs. Raises UserError if there are fewer than `count`.
    """
    if device != "cuda":
        yield []
        return
    known = visible_devices()
    if count > len(known):
        where = f"{_VARIABLE} names" if _VARIABLE in os.environ else "this machine has"
        remedy = "lower hardware.ranks, or set hardware.device to cpu"
        raise UserError(f"GPUs needed: {count}, but {where} {len(known) or 'none'}: {remedy}")
    before = os.environ.get(_VARIABLE)
    with ExitStack() as locks:
        if not (held := _try_claim(known, count, slots, locks)):
            what = f"{count} of {len(known)} GPUs" if slots == 1 else f"a slot of {len(known)} GPUs"
            print(f"waiting for {what}; other jobs hold them", file=sys.stderr, flush=True)
        while not held:
            time.sleep(PAUSE * random.uniform(0.5, 1.5))  # random, so that waiting jobs do not collide repeatedly
            held = _try_claim(known, count, slots, locks)
        os.environ[_VARIABLE] = ",".join(held)
        try:
            yield held
        finally:
            os.environ.pop(_VARIABLE) if before is None else os.environ.update({_VARIABLE: before})


def visible_devices() -> list[str]:
    """The GPUs in CUDA_VISIBLE_DEVICES or, by nvidia-smi, of the machine, so that this process never opens a GPU."""
    if _VARIABLE in os.environ:
        names = (name.strip() for name in os.environ[_VARIABLE].split(","))
        return list(takewhile(lambda name: name not in ("", "-1"), names))  # CUDA ignores what follows an invalid name
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60).stdout
        return [str(number) for number in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]
    return []


def memory_bytes(device: "torch.device") -> int:
    """Memory of a GPU or, for the CPU, the memory of the machine or the limit of this process's cgroup."""
    if device.type == "cuda":
        import torch

        return torch.cuda.get_device_properties(device).total_memory
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    with suppress(OSError, ValueError):  # not Linux
        own = _CGROUPS / _OWN_CGROUP.read_text().rpartition("::/")[2].strip()
        for folder in (own, *own.parents):  # a job's limit may be set above the group of this process
            with suppress(OSError, ValueError):  # no such file, or "max"
                limits.append(int((folder / "memory.max").read_text()))
    return min(limits)


def _try_claim(known: Sequence[str], count: int, slots: int, locks: ExitStack) -> list[str]:
    """Lock `count` devices, or a slot of one, and move the locks to `locks`; or lock none and return an empty list."""
    from filelock import FileLock, Timeout

    folder, size = _lock_folder(), PARTS // slots
    with ExitStack() as attempt:
        held: list[str] = []
        for slot, name in product(range(slots), known):  # the first slot of every GPU before the second of any
            with suppress(Timeout), ExitStack() as slot_locks:
                for part in range(slot * size, (slot + 1) * size):
                    lock = folder / f"gpu-{name.replace('/', '-')}-{part}.lock"
                    slot_locks.enter_context(FileLock(lock, blocking=False))
                attempt.enter_context(slot_locks.pop_all())
                held.append(name)
            if len(held) == count:
                locks.enter_context(attempt.pop_all())
                return held
    return []


def _lock_folder() -> Path:
    # SLURM numbers each job's GPUs from 0, so equal numbers in two jobs may be different GPUs
    owner = "-".join(filter(None, [str(os.getuid()), os.environ.get("SLURM_JOB_ID")]))
    folder = Path("/tmp", f"entropy-dynamics-gpus-{owner}")  # TMPDIR may differ between a user's logins
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
