"""torchrun as a task of srun, which ends with the exit code of the rank that failed first, not a traceback and 1."""

import os
import re
import sys

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

FIRST_PORT, PORTS = 20_000, 10_000  # ports of the rendezvous, by job id; below Linux's ephemeral ports


def first_host(hosts: str) -> str:
    """The first host of a SLURM host list: node[01-04,07],other9 -> node01."""
    return re.sub(r"\[(\w+)[^]]*]", r"\1", hosts).partition(",")[0]


def endpoint() -> str:
    """The first node of this srun, which may run none of its tasks itself: under salloc it may be on the login node."""
    port = FIRST_PORT + int(os.environ["SLURM_JOB_ID"]) % PORTS
    return f"{first_host(os.environ['SLURM_STEP_NODELIST'])}:{port}"


if __name__ == "__main__":
    try:
        main([f"--rdzv-endpoint={endpoint()}", *sys.argv[1:]])
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)  # by a signal: as a shell's
