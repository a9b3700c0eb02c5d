"""Starts the ranks of a stage: copies of a command on this machine, as child processes with a file-based rendezvous.

torchrun is used only for several nodes: its ranks meet through a TCP store that listens on all interfaces, they outlive
it if it is killed, and if one hangs it takes half a minute to report a failure.
"""

import ctypes
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from entropy_dynamics.distributed.devices import claim_devices
from entropy_dynamics.errors import Unfinished, UserError

if TYPE_CHECKING:  # `entropy-dynamics --help` needs no config
    from entropy_dynamics.config import Config

RENDEZVOUS = "ENTROPY_DYNAMICS_RENDEZVOUS"  # path of the rendezvous file of a launch
STARTER = "ENTROPY_DYNAMICS_STARTER"  # process id of a rank's parent, unless a user's torchrun started it
GRACE = 5.0  # seconds between SIGTERM and SIGKILL [ours]; a computing rank ends at once, a hanging one never
NODE_GRACE = 30  # seconds for all nodes to end after the first [ours]
SHOWN_LINES = 40  # last lines of a failed rank's stderr to show
_LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def launched() -> bool:
    """Whether this process is a rank, started by `run_on_ranks` or by torchrun."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def acts_for_stage() -> bool:
    """Whether this process acts for the whole stage: it is no rank, or rank 0 under a user's torchrun."""
    return not launched() or (os.environ["RANK"] == "0" and STARTER not in os.environ)


def run_on_ranks(config: "Config", arguments: Sequence[str]) -> None:
    """Run `entropy-dynamics <arguments>` on `hardware.ranks` ranks and wait for them.

    Raises Unfinished if a rank does, and UserError if the machine has too few GPUs, if this is not a SLURM job (several
    nodes), or if a rank failed.
    """
    hardware = config.hardware
    if hardware.nodes > 1:
        _run_on_nodes(hardware.nodes, hardware.ranks // hardware.nodes, arguments)
        return
    with claim_devices(hardware.device, hardware.ranks, hardware.runs_per_gpu):
        start_ranks(hardware.ranks, [sys.executable, "-m", "entropy_dynamics.cli", *arguments])


def start_ranks(count: int, command: Sequence[str]) -> None:
    """Run `command` on `count` ranks and wait for them. All have ended when this returns or raises.

    Rank 0 writes to this terminal. Of the others, only the first to fail shows the end of its stderr. SIGURG is
    forwarded to all ranks. Raises Unfinished if a rank does, UserError with its number and its exit code or signal if a
    rank failed, KeyboardInterrupt on Ctrl-C, and SystemExit on SIGTERM.
    """
    ranks: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory(prefix="entropy-dynamics-ranks-") as folder:
        logs = [Path(folder, f"rank{rank}.log") for rank in range(count)]
        with _supervised(ranks, GRACE):
            for rank, log in enumerate(logs):
                ranks.append(_start(rank, count, command, log))
            failed = _first_failure(ranks)
        if failed is not None:
            if ranks[failed].returncode == Unfinished.EXIT_CODE:
                raise Unfinished
            if failed > 0:
                for line in logs[failed].read_text(encoding="utf-8", errors="replace").splitlines()[-SHOWN_LINES:]:
                    print(f"rank {failed}: {line}", file=sys.stderr)
            raise UserError(_describe(failed, count, ranks[failed].returncode))


def _run_on_nodes(nodes: int, ranks_per_node: int, arguments: Sequence[str]) -> None:
    """Run `entropy-dynamics <arguments>` under one torchrun per node of this SLURM job.

    They meet at a port of the first node (torchrun.py). SIGURG is not forwarded beyond srun. Raises like
    `run_on_ranks`, and SystemExit on SIGTERM, after all have ended.
    """
    if (job := os.environ.get("SLURM_JOB_ID")) is None:
        raise UserError(f"hardware.nodes is {nodes}, but this is no SLURM job: submit it, or start it by torchrun")
    command = [
        *("srun", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--cpu-bind=none"),
        *("--kill-on-bad-exit=0", f"--wait={NODE_GRACE}"),  # killing nodes at once would change srun's exit code
        *(sys.executable, "-m", "entropy_dynamics.distributed.torchrun"),
        *(f"--nnodes={nodes}", f"--nproc-per-node={ranks_per_node}"),
        *("--rdzv-backend=c10d", f"--rdzv-id={job}"),
        *("-m", "entropy_dynamics.cli", *arguments),
    ]
    started: list[subprocess.Popen[bytes]] = []
    with _supervised(started, NODE_GRACE):
        parent = os.getpid()
        started.append(subprocess.Popen(command, preexec_fn=lambda: end_with_parent(parent, signal.SIGTERM)))
        code = started[0].wait()
    if code == Unfinished.EXIT_CODE:
        raise Unfinished
    if code:
        raise UserError(f"srun ended with exit code {code} (the messages of the ranks are above)")


def end_with_parent(parent: int | None = None, by: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel end this process when its parent dies, even by SIGKILL. Linux only.

    With the parent's process id, this process ends at once if the parent has already died.
    """
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def _start(rank: int, count: int, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    environment = {
        RENDEZVOUS: str(log.with_name("rendezvous")),
        STARTER: str(os.getpid()),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(count),
        # Gloo and NCCL do not authenticate connections, so they must not accept any from other machines.
        "GLOO_SOCKET_IFNAME": _LOOPBACK,
        "NCCL_SOCKET_IFNAME": _LOOPBACK,
    }
    if rank == 0:
        return subprocess.Popen(command, env=os.environ | environment)
    with log.open("wb") as stderr:
        return subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=stderr)


def _first_failure(ranks: Sequence[subprocess.Popen[bytes]]) -> int | None:
    """Wait until all ranks succeed or one fails. The first failure is the cause; others fail as a consequence."""
    waits = ThreadPoolExecutor(len(ranks))  # not as a context manager, which would wait for all ranks after Ctrl-C
    ends = {waits.submit(process.wait): rank for rank, process in enumerate(ranks)}
    return next((ends[end] for end in as_completed(ends) if end.result() != 0), None)


@contextmanager
def _supervised(ranks: Sequence[subprocess.Popen[bytes]], grace: float) -> Iterator[None]:
    """Context manager: exit on SIGTERM, forward SIGURG to `ranks`, end them by SIGTERM, after `grace` s by SIGKILL."""

    def end(*_: object) -> None:
        print("ended by SIGTERM; the ranks were stopped", file=sys.stderr)
        raise SystemExit(128 + signal.SIGTERM)

    def pass_on(*_: object) -> None:
        for process in ranks:
            process.send_signal(signal.SIGURG)

    handlers = {signal.SIGTERM: end, signal.SIGURG: pass_on}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for process in ranks:
            process.terminate()
        for process in ranks:
            try:
                process.wait(grace)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for number, handler in before.items():
            signal.signal(number, handler)


def _describe(rank: int, count: int, code: int) -> str:
    if code > 0:
        return f"rank {rank} of {count} ended with exit code {code} (its message is above)"
    name = signal.Signals(-code).name
    guess = " (out of memory, or killed)" if name == "SIGKILL" else ""
    others = "; the other ranks were stopped" if count > 1 else ""
    return f"rank {rank} of {count} was ended by {name}{guess}{others}"
