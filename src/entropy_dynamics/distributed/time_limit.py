"""Early end of a run, because of the time limit of its SLURM job or on SIGURG.

`sbatch --signal` does not help: SLURM signals only the processes that it started itself (proctrack/cgroup), and
neither Snakemake nor torchrun forwards the signal. But every process can find out when the job ends.
"""

import os
import re
import signal
import subprocess
import time
from contextlib import suppress

import torch

from entropy_dynamics.distributed.ranks import Ranks

MARGIN = 120.0  # seconds, in addition to a checkpoint and a step twice as long as any so far [ours]
BYTES_PER_SECOND = 0.3e9  # to write, flush and hash a checkpoint; 0.33e9 beside an H200 (benchmarks/results/README.md)


class TimeLimit:
    """Detects that another step would exceed the time limit. Create before the first step; call after every step.

    `checkpoint_bytes` is the size of a checkpoint, over all ranks.
    """

    def __init__(self, ranks: Ranks, checkpoint_bytes: float = 0.0):
        self.ranks, self.requested = ranks, False
        end = job_end() if ranks.is_main else float("inf")
        self.last_start = end - MARGIN - checkpoint_bytes / BYTES_PER_SECOND
        self.asked, self.longest_step = time.time(), 0.0
        signal.signal(signal.SIGURG, self._request)  # by default a process ignores SIGURG

    def _request(self, *_: object) -> None:
        self.requested = True

    def reached(self) -> bool:
        """True on all ranks if any rank should not begin another step. A collective: all ranks must call it."""
        now = time.time()
        self.asked, self.longest_step = now, max(self.longest_step, now - self.asked)
        due = self.requested or now + 2 * self.longest_step > self.last_start
        return self.ranks.sum(torch.tensor(float(due))).item() > 0


def job_end() -> float:
    """When this SLURM job reaches its time limit, in Unix time (s); infinity without a job or a limit."""
    if (end := os.environ.get("SLURM_JOB_END_TIME")) is not None:  # SLURM 23.02 or newer
        return float(end)
    if (job := os.environ.get("SLURM_JOB_ID")) is not None:
        environment = os.environ | {"SLURM_TIME_FORMAT": "%s"}
        environment.pop("SLURM_CLUSTERS", None)  # where the user submits to, not where this process runs
        command = ["scontrol", "--all", "--oneliner", "show", "job", job]
        with suppress(OSError, subprocess.TimeoutExpired):
            shown = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60).stdout
            # The id of a job array is also the id of one of its tasks, so there may be lines of other tasks.
            if found := re.search(rf"^JobId={job} .*?\bEndTime=(\d+)", shown, re.MULTILINE):
                return float(found[1])
    return float("inf")
