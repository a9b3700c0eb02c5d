"""torchrun as an srun task that exits with the code of the first rank to fail, instead of a traceback and code 1."""

import os
import re
import socket
import subprocess
import sys
from contextlib import suppress

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

from entropy_dynamics.distributed.launch import STARTER

FIRST_PORT, PORTS = 20_000, 10_000  # range of rendezvous ports, chosen by job id; below Linux's ephemeral ports


def address(node: str) -> str:
    """The address by which SLURM reaches a node (NodeAddr), which is its name unless configured otherwise.

    The name alone is not enough: other nodes may not resolve it, and the node itself may resolve it to 127.0.1.1
    (Debian). Raises SystemExit, with one line, if no address resolves.
    """
    names = [node]
    with suppress(OSError, subprocess.SubprocessError):
        shown = subprocess.run(["scontrol", "show", "node", node], capture_output=True, text=True, timeout=60).stdout
        names = [*re.findall(r"NodeAddr=(\S+)", shown), node]
    for name in names:
        with suppress(OSError):
            socket.getaddrinfo(name, None)
            return name
    sys.exit(
        f"error: the name of this job's first node, {node}, does not resolve on {socket.gethostname()}, nor does its "
        f"NodeAddr in SLURM: add it to /etc/hosts on all nodes"
    )


def endpoint() -> str:
    """The rendezvous endpoint on the first node of this srun step; under salloc, srun may run on the login node."""
    port = FIRST_PORT + int(os.environ["SLURM_JOB_ID"]) % PORTS
    first = re.sub(r"\[(\w+)[^]]*]", r"\1", os.environ["SLURM_STEP_NODELIST"]).partition(",")[0]  # of node[01-04],node9
    return f"{address(first)}:{port}"


if __name__ == "__main__":
    os.environ[STARTER] = str(os.getpid())
    try:
        own = os.environ.get("SLURMD_NODENAME")
        meet = [f"--rdzv-endpoint={endpoint()}", *([f"--local-addr={address(own)}"] if own else [])]
        main([*meet, *sys.argv[1:]])
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)  # 128 + signal, as in a shell
