"""A lock that processes on several machines share: files in a folder that all see, without flock, which not all have.

The files are numbered 0, 1, ...; each says who created it. The lock belongs to the creator of the last one, all before
it being those of processes that died. No file replaces another, so of two processes that find the same dead holder only
one can create the next file.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from entropy_dynamics.errors import UserError
from entropy_dynamics.results.slurm import cluster, job_field

_MACHINE = Path("/etc/machine-id")  # virtual machines may share a name
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # process ids start over with a boot
_NAMESPACE = Path("/proc/self/ns/pid")  # and are a container's own
_ATTEMPTS = 1000  # far more than processes that release the lock at the same moment
_MAY_RUN = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING", "SIGNALING", "RESIZING"}  # SLURM's states


@contextmanager
def held(folder: Path) -> Iterator[str | None]:
    """Hold the lock of `folder` while the context lasts; after it the folder and empty parents are removed.

    Yields:
        Who held it before and died without releasing it, or None.

    Raises:
        UserError: another process holds it, or one of which nobody can tell here whether it still runs.
    """
    number, dead = _acquire(folder)
    try:
        yield dead
    finally:
        _release(folder, number)


def _acquire(folder: Path) -> tuple[int, str | None]:
    """As `_create`."""
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):  # its holder has removed the folder meanwhile
            return _attempt(folder)
    return _attempt(folder)  # or it cannot be created, as below /proc


def _attempt(folder: Path) -> tuple[int, str | None]:
    folder.mkdir(parents=True, exist_ok=True)
    number, dead = _create(folder)
    try:
        for before in range(number):
            _dead(folder / f"{before}.json")
    except (FileNotFoundError, UserError):  # they were released meanwhile, and perhaps the first taken again
        (folder / f"{number}.json").unlink()
        raise
    return number, dead


def _create(folder: Path) -> tuple[int, str | None]:
    """Create the first file that is not there, if the creators of all before it are dead.

    Returns:
        Its number, and who created the one before it.
    """
    number, dead, myself = 0, None, _myself()  # before the file is there: SLURM may take its time to answer
    while True:
        file = folder / f"{number}.json"
        try:
            created = file.open("x", encoding="utf-8")
        except FileExistsError:
            with suppress(FileNotFoundError):  # released meanwhile
                dead = _dead(file)
            number += 1
            continue
        try:
            with created:
                json.dump(myself, created)
        except OSError:  # such as a full disk
            file.unlink(missing_ok=True)
            raise
        return number, dead


def _release(folder: Path, number: int) -> None:
    """Remove the file of that number and those before it, the first one first: whoever passes it finds the later ones.

    Files after it are of processes that have taken the lock since the first one was removed.
    """
    for each in range(number + 1):
        (folder / f"{each}.json").unlink(missing_ok=True)
    with suppress(OSError):  # another process has taken it, or there are other runs'
        os.removedirs(folder)


def _myself() -> dict[str, Any]:
    job = os.environ.get("SLURM_JOB_ID")
    return _here() | {
        "pid": os.getpid(),
        "started": _started(os.getpid()),
        "user": os.getuid(),
        "slurm_cluster": cluster() if job else None,
        "slurm_job": job,
        "slurm_restarts": _restarts(job) if job else None,
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _here() -> dict[str, str]:
    """Where this process runs: a process id is of a boot of a machine, and of a container."""
    machine, boot = (file.read_text().strip() if file.exists() else "" for file in (_MACHINE, _BOOT))
    namespace = os.readlink(_NAMESPACE) if _NAMESPACE.exists() else ""
    return {"host": socket.gethostname(), "machine": machine, "boot": boot, "namespace": namespace}


def _restarts(job: str) -> int | None:
    """How often SLURM has requeued a job. A variable says so too, but not to what the executor's `srun` starts."""
    return int(restarts) if (restarts := job_field(job, "Restarts")) else None


def _dead(file: Path) -> str:
    """Who created the file, if that process has ended.

    Raises:
        UserError: it has not, or nobody can tell.
    """
    try:
        holder = json.loads(file.read_text(encoding="utf-8"))
        job, who = holder["slurm_job"], f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (ValueError, KeyError, TypeError):  # it is being created
        holder, job, who = {}, None, "a process that is starting"
    who = f"SLURM job {job}, {who}" if job else who
    running = _running(holder)
    if running is False:
        return who
    unless = "" if running else f"; if that has ended, delete {file.parent}"
    raise UserError(f"another job writes this run: {who}{unless}")


def _running(holder: dict[str, Any]) -> bool | None:
    """None where nobody can tell."""
    here, job = _here(), holder.get("slurm_job")
    same = {key for key in here if holder.get(key) == here[key]}
    if {"host", "boot", "namespace"} <= same:
        return _alive(holder)
    if here["machine"] and {"host", "machine"} <= same and "boot" in holder.keys() - same:
        return False
    if job is None or _another_cluster(holder.get("slurm_cluster")):  # which has other jobs of these numbers
        return None
    if job == os.environ.get("SLURM_JOB_ID"):  # requeued on another node, or another node of the same allocation
        before, now = holder.get("slurm_restarts"), _restarts(job)
        return False if before is not None and now is not None and before < now else None
    state = job_field(job, "JobState")
    if state == "" and holder.get("user") != os.getuid():  # it may only be hidden (PrivateData)
        return None
    return None if state is None else state in _MAY_RUN


def _another_cluster(name: str | None) -> bool:
    """False where one of the names is not known."""
    return name is not None and (here := cluster()) is not None and here != name


def _alive(holder: dict[str, Any]) -> bool:
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    with suppress(OSError):
        if Path(f"/proc/{holder['pid']}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
            return False  # it has ended, and its parent has not asked how
    started = _started(holder["pid"])  # another process may have got the id
    return started is None or holder.get("started", started) == started


def _started(pid: int) -> str | None:
    """When a process began, in clock ticks since the boot; None where /proc does not tell: proc(5)."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    return None
