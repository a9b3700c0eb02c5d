"""The log of a job on a cluster: when it began, and the logs of the attempts before it."""

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
    """Note on standard error which SLURM job this is, if it is one whose errors go to a log.

    The log gets a second name with the number of the attempt: the next one's Snakemake deletes the first name.
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
    """When the job that writes `log` began, in seconds since 1970, if it is a SLURM job."""
    with suppress(OSError), open(log, encoding="utf-8", errors="replace") as lines:
        if match := _BEGAN.match(lines.readline()):
            return datetime.fromisoformat(match[1]).timestamp()
    return None


def planned_end(log: str) -> str | None:
    """The last line of `log`, if it says that a run ended early, at a checkpoint."""
    with suppress(OSError):
        *_, last = Path(log).read_text(encoding="utf-8", errors="replace").splitlines() or [""]
        if last.startswith("note: ends early"):
            return last.removeprefix("note: ")
    return None
