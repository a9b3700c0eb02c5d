"""Logs of jobs: when a cluster job began, the logs of its earlier attempts, and whether a run ended early."""

import os
import re
import socket
import sys
from contextlib import suppress
from datetime import datetime
from itertools import count
from pathlib import Path

_BEGAN = re.compile(r"note: SLURM job \w+ on \S+, from (\S+)")


def begin_attempt() -> None:
    """Print the SLURM job on standard error, if this is a SLURM job whose standard error is a log file.

    Removes the mark of `end_early` that an earlier attempt left. The log gets a second name with the number of the
    attempt, as Snakemake deletes the first one at the next attempt.
    """
    job, log = os.environ.get("SLURM_JOB_ID"), _log()
    if log is not None:
        _mark(log).unlink(missing_ok=True)
    if job is None or log is None:
        return
    number = next(number for number in count(1) if not Path(f"{log}.{number}").exists())
    with suppress(OSError):  # a file system without links
        os.link(log, f"{log}.{number}")
    began = datetime.now().astimezone().isoformat(timespec="seconds")
    print(f"note: SLURM job {job} on {socket.gethostname()}, from {began}", file=sys.stderr, flush=True)


def began(log: str) -> float | None:
    """When the job that writes `log` began, in Unix time (s); None if it is not a SLURM job."""
    with suppress(OSError), open(log, encoding="utf-8", errors="replace") as lines:
        if match := _BEGAN.match(lines.readline()):
            return datetime.fromisoformat(match[1]).timestamp()
    return None


def end_early() -> None:
    """If standard error is a log, mark it: its run ended early, at a checkpoint."""
    if log := _log():
        _mark(log).touch()


def ended_early(log: str) -> bool:
    return _mark(log).exists()


def _mark(log: str | Path) -> Path:
    return Path(f"{log}.ended_early")


def _log() -> Path | None:
    log = Path(os.path.realpath("/proc/self/fd/2"))
    return log if log.suffix == ".log" else None
