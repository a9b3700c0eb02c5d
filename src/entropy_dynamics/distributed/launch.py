"""Starts the ranks of a step: so many copies of one command, under torch's elastic agent, on this machine.

The agent gives every rank its RANK, LOCAL_RANK and WORLD_SIZE, and stops all when one fails. What is added here: one
line that says which rank failed and how, no rank that outlives the process it belongs to, no port open to the network.
"""

import ctypes
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from entropy_dynamics.config import Config
from entropy_dynamics.distributed.devices import claim_devices
from entropy_dynamics.errors import UserError

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

MEETING = "ENTROPY_DYNAMICS_MEETING"  # names the file through which the ranks of one start find each other
# None of torch's servers asks who connects to it, so none may be reached from another machine.
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_ON_THIS_MACHINE = {
    "GLOO_SOCKET_IFNAME": _LOOPBACK,
    "NCCL_SOCKET_IFNAME": _LOOPBACK,
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # the agent's store for ranks, which listens to everybody
}
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_GRACE = 30  # seconds between the agent's SIGTERM to the other ranks and its SIGKILL: fixed, in torch
_SHOWN_LINES = 40  # of what a failed rank wrote


def launched() -> bool:
    """Whether this process is a rank, started by `run_on_ranks` or by torchrun."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def run_on_ranks(config: Config, arguments: Sequence[str]) -> None:
    """Run `entropy-dynamics <arguments>` on `hardware.ranks` ranks and wait for them.

    Raises:
        UserError: the machine has too few GPUs, or a rank failed; the other ranks are gone by then.
    """
    hardware = config.hardware
    with claim_devices(hardware.device, hardware.ranks):
        start_ranks(hardware.ranks, [sys.executable, "-m", "entropy_dynamics.cli", *arguments])


def start_ranks(count: int, command: Sequence[str]) -> None:
    """Run `command` on `count` ranks. Rank 0 writes to this terminal; of another rank only a failure is shown.

    When one rank fails the agent sends the others SIGTERM, and SIGKILL 30 s later.

    Raises:
        UserError: a rank failed: which, and its exit code or signal.
        KeyboardInterrupt: Ctrl-C; SystemExit: another signal. The ranks were stopped.
    """
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.CRITICAL)  # the agent's own log, which repeats with a table what the error below says
    try:
        with tempfile.TemporaryDirectory(prefix="entropy-dynamics-ranks-") as logs:
            os.environ |= {**_ON_THIS_MACHINE, MEETING: str(Path(logs, "ranks"))}
            launch = LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=count,
                run_id=uuid.uuid4().hex,
                rdzv_backend="c10d",
                # A file in a folder that only this user may enter, as agents pickle what they tell each other.
                rdzv_endpoint=str(Path(logs, "agent")),
                rdzv_configs={"store_type": "file"},
                local_addr="127.0.0.1",
                max_restarts=0,
                logs_specs=DefaultLogsSpecs(log_dir=logs, redirects=dict.fromkeys(range(1, count), Std.ALL)),
            )
            try:
                elastic_launch(launch, command[0])(*command[1:])
            except ChildFailedError as error:
                failure = _first_cause(error.failures.values())
                _show(failure.local_rank, Path(logs))
                raise UserError(_said(failure.local_rank, count, failure.exitcode)) from None
            except SignalException as ended:
                if ended.sigval == signal.SIGINT:
                    raise KeyboardInterrupt from None
                print(f"ended by {ended.sigval.name}; the ranks were stopped", file=sys.stderr)
                raise SystemExit(128 + ended.sigval) from None
    finally:
        os.environ.pop(MEETING, None)
        logging.disable(logging.NOTSET)


def end_with_parent() -> None:
    """Let the kernel end this rank when its parent is gone, however that ended. Linux only; elsewhere it does nothing.

    The agent does so when it is stopped by a signal, but nobody can when it is ended by SIGKILL.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _first_cause(failures: Collection["ProcessFailure"]) -> "ProcessFailure":
    """Which rank failed first. The others fail for the want of it, by the agent's SIGTERM, or later by its SIGKILL."""
    late = min(failure.timestamp for failure in failures) + _GRACE / 2
    return min(failures, key=lambda one: (one.timestamp > late, _likelihood(one.exitcode), one.local_rank))


def _likelihood(exitcode: int) -> int:
    """0 for the likeliest first cause among exit codes of one moment."""
    order = [exitcode == -signal.SIGKILL, exitcode == 2, exitcode not in (1, -signal.SIGTERM), exitcode == 1, True]
    return order.index(True)


def _said(rank: int, count: int, exitcode: int) -> str:
    who = f"rank {rank} of {count}"
    if exitcode > 0:
        return f"{who} ended with exit code {exitcode} (its message stands above)"
    name = signal.Signals(-exitcode).name
    guess = " (out of memory, or killed)" if name == "SIGKILL" else ""
    return f"{who} was ended by {name}{guess}" + ("; the other ranks were stopped" if count > 1 else "")


def _show(rank: int, logs: Path) -> None:
    """The end of what a rank other than 0 wrote to its stderr."""
    for file in logs.glob(f"*/attempt_0/{rank}/stderr.log"):
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines()[-_SHOWN_LINES:]:
            print(f"rank {rank}: {line}", file=sys.stderr)
