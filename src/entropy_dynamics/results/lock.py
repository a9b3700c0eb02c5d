"""A lock that processes on several machines share: files in a folder that all see, without flock, which not all have.

The files are numbered 0, 1, ...; each says who created it. The lock belongs to the creator of the last one, all before
it being those of processes that died. No file replaces another, so of two processes that find the same dead holder only
one can create the next file.
"""

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from entropy_dynamics.errors import UserError

_BOOT = Path("/proc/sys/kernel/random/boot_id")  # process ids start over with a boot


@contextmanager
def held(folder: Path) -> Iterator[str | None]:
    """Hold the lock of `folder` while the context lasts; after it the folder and empty parents are removed.

    Yields:
        Who held it before and died without releasing it, or None.

    Raises:
        UserError: another process holds it, or one of which nobody can tell here whether it still runs.
    """
    dead = _acquire(folder)
    try:
        yield dead
    finally:
        _release(folder)


def _acquire(folder: Path) -> str | None:
    while True:
        with suppress(FileNotFoundError):  # its holder has removed the folder meanwhile
            folder.mkdir(parents=True, exist_ok=True)
            number, dead = _create(folder)
            if all((folder / f"{before}.json").exists() for before in range(number)):
                return dead
            (folder / f"{number}.json").unlink()  # those before it were released, and perhaps the first taken again


def _create(folder: Path) -> tuple[int, str | None]:
    """Create the first file that is not there, if the creators of all before it are dead.

    Returns:
        Its number, and who created the one before it.
    """
    number, dead = 0, None
    while True:
        file = folder / f"{number}.json"
        try:
            with file.open("x", encoding="utf-8") as created:
                json.dump(_myself(), created)
            return number, dead
        except FileExistsError:
            with suppress(FileNotFoundError):  # released meanwhile
                dead = _dead(file)
        except OSError:  # such as a full disk
            file.unlink(missing_ok=True)
            raise
        number += 1


def _release(folder: Path) -> None:
    """Remove the files, the first one first: until the last one is gone, nobody else has the lock."""
    for number in count():
        try:
            (folder / f"{number}.json").unlink()
        except FileNotFoundError:
            break
    with suppress(OSError):  # another process has taken it, or there are other runs'
        os.removedirs(folder)


def _myself() -> dict[str, Any]:
    return {
        "host": socket.gethostname(),
        "boot": _BOOT.read_text().strip() if _BOOT.exists() else "",
        "pid": os.getpid(),
        "slurm_job": os.environ.get("SLURM_JOB_ID"),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


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
    me = _myself()
    if holder and holder["host"] == me["host"]:
        return holder["boot"] == me["boot"] and _alive(holder["pid"])
    if (job := holder.get("slurm_job")) is None:
        return None
    if job == me["slurm_job"]:
        return False  # SLURM requeued this job, on another node
    with suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(["squeue", "-h", "-j", job, "-o", "%T"], capture_output=True, text=True, timeout=60)
        if asked.returncode == 0:
            return asked.stdout.strip() in ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING")
        if "Invalid job id" in asked.stderr:  # SLURM has forgotten it
            return False
    return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    return True
