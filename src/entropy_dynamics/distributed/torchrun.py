"""torchrun as a task of srun, which ends with the exit code of the rank that failed first, not a traceback and 1."""

import os
import re
import socket
import subprocess
import sys
from contextlib import suppress

from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.run import main

from entropy_dynamics.distributed.launch import STARTER

FIRST_PORT, PORTS = 20_000, 10_000  # ports of the rendezvous, by job id; below Linux's ephemeral ports


def first_node(nodes: str) -> str:
    """The first node of a SLURM host list: node[01-04,07],other9 -> node01."""
    return re.sub(r"\[(\w+)[^]]*]", r"\1", nodes).partition(",")[0]


def address(node: str) -> str:
    """The address by which SLURM reaches a node, NodeAddr: its name unless the cluster's administrator says otherwise.

    The node's own name would do only where all others resolve it: on itself it does, to 127.0.1.1 on Debian.

    Raises:
        SystemExit: with one line, if it does not resolve.
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
    """On the first node of this srun, which under salloc may have been called on the login node."""
    port = FIRST_PORT + int(os.environ["SLURM_JOB_ID"]) % PORTS
    return f"{address(first_node(os.environ['SLURM_STEP_NODELIST']))}:{port}"


if __name__ == "__main__":
    os.environ[STARTER] = str(os.getpid())
    try:
        own = os.environ.get("SLURMD_NODENAME")
        meet = [f"--rdzv-endpoint={endpoint()}", *([f"--local-addr={address(own)}"] if own else [])]
        main([*meet, *sys.argv[1:]])
    except ChildFailedError as error:
        _, failure = error.get_first_failure()
        sys.exit(failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode)  # by a signal: as a shell's
