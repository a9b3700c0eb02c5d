"""A lock on a run, so that two jobs never write it at the same time, not even on two machines with a shared folder."""

import errno
import fcntl
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import TextIO

from entropy_dynamics.errors import UserError

ATTEMPTS = 100  # to create the file
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # a file system without locks


@contextmanager
def held(file: Path) -> Iterator[None]:
    """Context manager: hold the lock `file`. Raises UserError if another process holds it.

    On exit, the file is removed, and folders made for it that are empty. The kernel releases the lock when the process
    ends, however it ends. A shared file system may keep the lock of a node that died for minutes, or until the file is
    deleted.
    """
    new = [folder for folder in file.parents if not folder.exists()]  # nearest first
    for attempt in count(1):
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            lock = file.open("a+", encoding="utf-8")
            _lock(lock)
            if _is_at(file, lock):
                break
        except (FileExistsError, FileNotFoundError):  # another holder has just removed it
            if attempt >= ATTEMPTS:
                raise
    with lock:
        try:
            lock.truncate(0)
            job = f"SLURM job {os.environ['SLURM_JOB_ID']}, " if "SLURM_JOB_ID" in os.environ else ""
            since = time.strftime("%Y-%m-%d %H:%M:%S")
            lock.write(f"{job}process {os.getpid()} on {socket.gethostname()}, since {since}")
            lock.flush()
            yield
        finally:
            with suppress(OSError):
                if _is_at(file, lock):  # and not that of another job, after a user deleted it
                    file.unlink()
                for folder in new:
                    folder.rmdir()


def _is_at(path: Path, file: TextIO) -> bool:
    return os.path.samestat(os.fstat(file.fileno()), path.stat())


def _lock(file: TextIO) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        remedy = f"if that has ended, because its node died, delete {file.name}"
        raise UserError(f"another job is writing this run: {file.read()}; {remedy}") from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        print(f"note: {file.name} cannot be locked; start no second job of this run", file=sys.stderr)
