"""The end of a run before its last step, for the time limit of its SLURM job or on SIGURG.

`sbatch --signal` would not do: SLURM signals only the processes that it started itself (proctrack/cgroup), and neither
Snakemake nor torchrun passes a signal on. But it tells every process when the job ends.
"""

import os
import signal
import time
from contextlib import suppress

import torch

from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.results.slurm import job_field

MARGIN = 120.0  # seconds besides a checkpoint and a step twice as long as any so far [ours]
BYTES_PER_SECOND = 0.5e9  # writing, flushing and hashing a checkpoint [ours]


class TimeLimit:
    """Created before the first step, asked after each."""

    def __init__(self, ranks: Ranks, checkpoint_bytes: float = 0.0):
        """checkpoint_bytes: size of a checkpoint, over all ranks."""
        self.ranks, self.requested = ranks, False
        end = job_end() if ranks.is_main else float("inf")
        self.last_start = end - MARGIN - checkpoint_bytes / BYTES_PER_SECOND
        self.asked, self.longest_step = time.time(), 0.0
        signal.signal(signal.SIGURG, self._request)  # a process without a handler ignores it

    def _request(self, *_: object) -> None:
        self.requested = True

    def reached(self) -> bool:
        """True on all ranks if any of them should not begin another step. A collective."""
        now = time.time()
        self.asked, self.longest_step = now, max(self.longest_step, now - self.asked)
        due = self.requested or now + 2 * self.longest_step > self.last_start
        return self.ranks.sum(torch.tensor(float(due))).item() > 0


def job_end() -> float:
    """When this SLURM job reaches its time limit, in seconds since 1970; infinity without a job or a limit."""
    if (end := os.environ.get("SLURM_JOB_END_TIME")) is not None:  # from SLURM 23.02 on
        return float(end)
    if (job := os.environ.get("SLURM_JOB_ID")) is not None:
        with suppress(ValueError):  # no limit: Unknown
            return float(job_field(job, "EndTime") or "inf")
    return float("inf")
