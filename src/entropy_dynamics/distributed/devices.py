"""Which GPUs a run gets on a machine that several runs share: Snakemake counts GPUs but hands out no numbers.

One lock file per GPU. The kernel drops a lock with the process that holds it, so nothing stays behind after a crash.
"""

import fcntl
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from entropy_dynamics.errors import UserError

_VARIABLE = "CUDA_VISIBLE_DEVICES"


@contextmanager
def claim_devices(
    device: str, count: int, known: Sequence[str] | None = None, folder: Path | None = None, pause: float = 2.0
) -> Iterator[list[str]]:
    """Hold `count` GPUs for as long as the context lasts, with CUDA_VISIBLE_DEVICES set to them; yields their names.

    Waits, and says so once, while other runs of this user hold too many. Takes all or none, so two waiting runs cannot
    block each other. Does nothing for the device "cpu". Under SLURM the choice is among the job's own GPUs.

    Args:
        known: the GPUs to choose from; default: those of CUDA_VISIBLE_DEVICES, or of the machine.
        folder: where the lock files stand; default: one of this user's.
        pause: seconds between two tries, at the mean.

    Raises:
        UserError: the machine has fewer than `count`.
    """
    if device != "cuda":
        yield []
        return
    known = visible_devices() if known is None else list(known)
    if count > len(known):
        where = f"{_VARIABLE} names" if _VARIABLE in os.environ else "this machine shows"
        if not known:
            raise UserError(f"hardware.device is cuda but {where} no GPU: set hardware.device to cpu")
        raise UserError(
            f"hardware.ranks is {count} but {where} {len(known)} GPU{'s' if len(known) > 1 else ''}: "
            f"set hardware.ranks to {len(known)} or fewer"
        )
    folder = _lock_folder() if folder is None else folder
    before = os.environ.get(_VARIABLE)
    with ExitStack() as locks:
        held = _take(known, count, folder, locks)
        if not held:
            print(f"waiting for {count} of {len(known)} GPUs; other runs hold them", file=sys.stderr, flush=True)
        while not held:
            time.sleep(pause * random.uniform(0.5, 1.5))  # two that wait do not keep in step
            held = _take(known, count, folder, locks)
        os.environ[_VARIABLE] = ",".join(held)
        try:
            yield held
        finally:
            os.environ.pop(_VARIABLE) if before is None else os.environ.update({_VARIABLE: before})


def visible_devices() -> list[str]:
    """The GPUs that CUDA would show to this process: names out of CUDA_VISIBLE_DEVICES, or all of the machine's.

    Asks the driver's own tool, so that this process never opens a GPU.
    """
    if _VARIABLE in os.environ:
        names = [name.strip() for name in os.environ[_VARIABLE].split(",")]
        absent = next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))
        return names[:absent]  # as CUDA reads it: what stands behind an invalid name is not seen
    with suppress(OSError, subprocess.SubprocessError):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True, timeout=60).stdout
        return [str(number) for number in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]
    return []


def _take(known: Sequence[str], count: int, folder: Path, locks: ExitStack) -> list[str]:
    """Lock `count` of the devices and leave their locks to `locks`; or lock none and return nothing."""
    with ExitStack() as tried:
        held = []
        for name in known:
            file = tried.enter_context(open(folder / f"gpu-{name.replace('/', '-')}.lock", "w"))
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held.append(name)
            if len(held) == count:
                locks.enter_context(tried.pop_all())
                return held
    return []


def _lock_folder() -> Path:
    # The same for all of a user's sessions, which XDG_RUNTIME_DIR and TMPDIR are not
    parent = Path("/tmp") if os.path.isdir("/tmp") else Path(tempfile.gettempdir())
    # SLURM numbers each job's GPUs from 0, so the same number in two jobs may be two GPUs
    whose = "-".join([str(os.getuid()), *filter(None, [os.environ.get("SLURM_JOB_ID")])])
    folder = parent / f"entropy-dynamics-gpus-{whose}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
