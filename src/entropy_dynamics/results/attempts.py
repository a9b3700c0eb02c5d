"""Logs of cluster jobs: when a job began, and the logs of earlier attempts."""

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

    The log gets a second name with the number of the attempt, as Snakemake deletes the first one at the next attempt.
    """
    job, log = os.environ.get("SLURM_JOB_ID"), Path(os.path.realpath("/proc/self/fd/2"))
    if job is None or log.suffix != ".log":
        return
    for number in count(1):
        try:
            os.link(log, f"{log}.{number}")
        except FileExistsError:
            continue
        except OSError:  # a file system without links
            pass
        break
    began = datetime.now().astimezone().isoformat(timespec="seconds")
    print(f"note: SLURM job {job} on {socket.gethostname()}, from {began}", file=sys.stderr, flush=True)


def began(log: str) -> float | None:
    """When the job that writes `log` began, in Unix time (s); None if it is not a SLURM job."""
    with suppress(OSError), open(log, encoding="utf-8", errors="replace") as lines:
        if match := _BEGAN.match(lines.readline()):
            return datetime.fromisoformat(match[1]).timestamp()
    return None


def planned_end(log: str) -> str | None:
    """The last line of `log` if it reports that a run ended early at a checkpoint, else None."""
    with suppress(OSError):
        *_, last = Path(log).read_text(encoding="utf-8", errors="replace").splitlines() or [""]
        if last.startswith("note: ends early"):
            return last.removeprefix("note: ")
    return None
