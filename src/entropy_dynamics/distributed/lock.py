"""A lock for processes on several machines: files in a shared folder, without flock, which not all file systems have.

The files are numbered 0, 1, ..., and each names its creator. The creator of the last file holds the lock; those of all
earlier files have died. No file replaces another, so of two processes that find the same dead holder only one can
create the next file.
"""

import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from entropy_dynamics.distributed.slurm import cluster, job_field
from entropy_dynamics.errors import UserError

_MACHINE = Path("/etc/machine-id")  # virtual machines may share a host name
_BOOT = Path("/proc/sys/kernel/random/boot_id")  # process ids start over at each boot
_NAMESPACE = Path("/proc/self/ns/pid")  # and are specific to a container
_ATTEMPTS = 1000  # far more than the number of processes that release the lock at the same time
_MAY_RUN = {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING", "SIGNALING", "RESIZING"}  # SLURM job states


@contextmanager
def held(folder: Path) -> Iterator[str | None]:
    """Context manager: hold the lock of `folder`; on exit the folder and its empty parents are removed.

    Yields:
        The previous holder, if it died without releasing the lock, or None.

    Raises:
        UserError: another process holds the lock, or it is unknown whether its holder still runs.
    """
    number, dead = _acquire(folder)
    try:
        yield dead
    finally:
        _release(folder, number)


def _acquire(folder: Path) -> tuple[int, str | None]:
    """Returns the same as `_create`."""
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):  # the holder has removed the folder meanwhile
            return _attempt(folder)
    return _attempt(folder)  # raises if the folder cannot be created, as below /proc


def _attempt(folder: Path) -> tuple[int, str | None]:
    folder.mkdir(parents=True, exist_ok=True)
    number, dead = _create(folder)
    try:
        for before in range(number):
            _dead(folder / f"{before}.json")
    except (FileNotFoundError, UserError):  # they were released meanwhile, and the first perhaps taken again
        (folder / f"{number}.json").unlink()
        raise
    return number, dead


def _create(folder: Path) -> tuple[int, str | None]:
    """Create the first missing file, if the creators of all files before it are dead.

    Returns:
        Its number, and the creator of the file before it.
    """
    number, dead, myself = 0, None, _myself()  # before creating the file, as SLURM may take long to answer
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
    """Remove the files up to that number, starting with the first: a process that gets past it still finds the others.

    Later files belong to processes that have taken the lock since the first one was removed.
    """
    for each in range(number + 1):
        (folder / f"{each}.json").unlink(missing_ok=True)
    with suppress(OSError):  # another process has taken it, or there are locks of other runs
        os.removedirs(folder)


def _myself() -> dict[str, Any]:
    job = os.environ.get("SLURM_JOB_ID")
    return _location() | {
        "pid": os.getpid(),
        "started": _stat(os.getpid())[1],
        "user": os.getuid(),
        "slurm_cluster": cluster() if job else None,
        "slurm_job": job,
        "slurm_restarts": _restarts(job) if job else None,
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def _location() -> dict[str, str]:
    """Where this process runs. A process id is only valid within a container and a boot of a machine."""
    machine, boot = (file.read_text().strip() if file.exists() else "" for file in (_MACHINE, _BOOT))
    namespace = os.readlink(_NAMESPACE) if _NAMESPACE.exists() else ""
    return {"host": socket.gethostname(), "machine": machine, "boot": boot, "namespace": namespace}


def _restarts(job: str) -> int | None:
    """How often SLURM has requeued a job. The executor's srun does not pass on the variable that says so."""
    return int(restarts) if (restarts := job_field(job, "Restarts")) else None


def _dead(file: Path) -> str:
    """Description of the process that created the file, if it has ended.

    Raises:
        UserError: it has not ended, or this is unknown.
    """
    try:
        holder = json.loads(file.read_text(encoding="utf-8"))
        job, who = holder["slurm_job"], f"process {holder['pid']} on {holder['host']}, since {holder['since']}"
    except (ValueError, KeyError, TypeError):  # the file is just being created
        holder, job, who = {}, None, "a process that is starting"
    who = f"SLURM job {job}, {who}" if job else who
    running = _running(holder)
    if running is False:
        return who
    unless = "" if running else f"; if that has ended, delete {file.parent}"
    raise UserError(f"another job writes this run: {who}{unless}")


def _running(holder: dict[str, Any]) -> bool | None:
    """Whether the holder still runs; None if unknown."""
    here, job = _location(), holder.get("slurm_job")
    same = {key for key in here if holder.get(key) == here[key]}
    if {"host", "boot", "namespace"} <= same:
        return _alive(holder)
    if here["machine"] and {"host", "machine"} <= same and "boot" in holder.keys() - same:
        return False
    if job is None or _another_cluster(holder.get("slurm_cluster")):  # job ids of another cluster mean nothing here
        return None
    if job == os.environ.get("SLURM_JOB_ID"):  # requeued on another node, or another node of the same allocation
        before, now = holder.get("slurm_restarts"), _restarts(job)
        return False if before is not None and now is not None and before < now else None
    state = job_field(job, "JobState")
    if state == "" and holder.get("user") != os.getuid():  # it may only be hidden (PrivateData)
        return None
    return None if state is None else state in _MAY_RUN


def _another_cluster(name: str | None) -> bool:
    """Whether `name` is a different cluster; False if either name is unknown."""
    return name is not None and (here := cluster()) is not None and here != name


def _alive(holder: dict[str, Any]) -> bool:
    try:
        os.kill(holder["pid"], 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # a process of another user
        pass
    state, started = _stat(holder["pid"])
    if state in ("Z", "X"):  # a zombie has ended, but its parent has not waited for it
        return False
    return started is None or holder.get("started", started) == started  # the id may have been reused


def _stat(pid: int) -> tuple[str | None, str | None]:
    """State and start time (clock ticks since boot) of a process by proc(5); None if /proc does not have it."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    return None, None
