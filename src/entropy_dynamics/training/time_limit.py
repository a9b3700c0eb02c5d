"""The end of a run before its last step, for the time limit of its SLURM job or on SIGURG.

`sbatch --signal` would not do: SLURM signals only the processes that it started itself (proctrack/cgroup), and neither
Snakemake nor torchrun passes a signal on. But it tells every process when the job ends.
"""

import os
import signal
import time

import torch

from entropy_dynamics.distributed.ranks import Ranks

MARGIN = 300.0  # seconds for the checkpoint, besides a step twice as long as any so far


class TimeLimit:
    """Created before the first step, asked after each."""

    def __init__(self, ranks: Ranks):
        self.ranks, self.requested = ranks, False
        self.end = float(os.environ.get("SLURM_JOB_END_TIME", "inf"))  # seconds since 1970; from SLURM 23.02 on
        self.asked, self.longest_step = time.time(), 0.0
        signal.signal(signal.SIGURG, self._request)  # a process without a handler ignores it

    def _request(self, *_: object) -> None:
        self.requested = True

    def reached(self) -> bool:
        """True on all ranks if any of them should not begin another step. A collective."""
        now = time.time()
        self.asked, self.longest_step = now, max(self.longest_step, now - self.asked)
        due = self.requested or now + 2 * self.longest_step + MARGIN > self.end
        return self.ranks.sum(torch.tensor(float(due))).item() > 0
