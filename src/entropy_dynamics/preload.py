"""A process that imports torch and transformers once and runs each `entropy-dynamics` command in a fork of itself.

Imports take longer than most jobs of a CPU scale. The workflow starts this process when it begins to execute jobs, and
the process ends with the workflow. Its client is client.py. It listens only on a Unix socket in a folder of mode 0700.
Modules are imported when a command first needs them. It stays single-threaded, so that it can fork: once for a
supervisor of the command, which forks again for the command.
"""

import atexit
import fcntl
import gc
import json
import os
import pkgutil
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, get_args

from entropy_dynamics.client import MESSAGE_BYTES, SERVER, python
from entropy_dynamics.distributed.launch import end_with_parent
from entropy_dynamics.errors import UserError

PACKAGE = Path(__file__).parent
DRAWING = ("draw", "claims", "field", "report")
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}  # torch's, pyarrow's
STAGES = ("evaluate", "model", "pass_rates", "problems", "theory", "train")
SECONDS_UNREAPED = 1.0  # until the processor time of a command that has ended is counted

_started: list[subprocess.Popen[bytes]] = []  # they end when their standard input closes, i.e. with this process


def start(*server: str | Path) -> None:
    """Start a server for the future commands of this process and its children.

    Does nothing if there is one already, or if it is not possible (Linux only).

    Args:
        server: Python's arguments for a different program that calls `serve`.
    """
    if sys.platform != "linux" or SERVER in os.environ:
        return
    folder = tempfile.mkdtemp(prefix="entropy-dynamics-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    fcntl.flock(os.open(folder, os.O_RDONLY), fcntl.LOCK_EX)  # until this process ends (client.end_with_starter)
    address = str(Path(folder, "socket"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        try:
            listener.bind(address)
        except OSError:  # the path of the temporary folder is too long
            return
        listener.listen(1024)  # clients queue here until the server is up
        process = subprocess.Popen(
            [sys.executable, *(server or ("-P", "-m", "entropy_dynamics.preload")), folder, str(listener.fileno())],
            stdin=subprocess.PIPE,
            env=os.environ | SINGLE_THREADED,
            pass_fds=[listener.fileno()],
            start_new_session=True,  # Ctrl-C goes to the clients, which forward it
        )
    atexit.register(process.communicate)  # closes its standard input and waits for its end
    _started.append(process)
    os.environ[SERVER] = address


def processor_seconds() -> float:
    """Processor time of the started servers and of the commands they have run, seconds."""
    total = 0
    for process in _started:
        with suppress(OSError):
            fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime
    return total / os.sysconf("SC_CLK_TCK")


def _sources() -> list[tuple[str, int]]:
    """Names and modification times of the package's source files."""
    return sorted((str(path), path.stat().st_mtime_ns) for path in PACKAGE.rglob("*.py"))


def load(command: list[str]) -> None:
    """Import the modules that an `entropy-dynamics` command needs."""
    _import_for(command[1] if len(command) > 1 else "")


@cache
def _import_for(command: str) -> None:
    with suppress(ImportError, UserError):  # the command itself reports it
        import_module("entropy_dynamics.commands")
        from entropy_dynamics.config import CONFIGS, read_yaml

        for path in CONFIGS.rglob("*.yaml"):
            with suppress(UserError):
                read_yaml(path)  # cached, until a file changes
        if command in DRAWING:
            package = import_module("entropy_dynamics.reporting")
            for module in pkgutil.iter_modules(package.__path__):
                import_module(f"{package.__name__}.{module.name}")
        elif command in STAGES:
            from entropy_dynamics.commands import import_torch

            import_torch()
            import transformers
            from transformers.conversion_mapping import get_checkpoint_conversion_mapping
            from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

            from entropy_dynamics.config.schema.model import Architecture
            from entropy_dynamics.config.schema.training import method_sections
            from entropy_dynamics.results.provenance import code_hash, packages
            from entropy_dynamics.tasks import set_sources

            for architecture in get_args(Architecture):
                getattr(transformers, CLASSES[architecture])
                get_checkpoint_conversion_mapping(architecture)
            for same_for_all in (method_sections, set_sources, code_hash, packages):
                same_for_all()
            import_module(f"entropy_dynamics.stages.{command}")
    gc.freeze()  # memory that the collector does not visit is not copied in the forks


def serve(load: Callable[[list[str]], object]) -> None:
    """Main function of the process that `start` starts. Returns only in the forks, with `sys.argv` etc. set up.

    Args:
        load: called with each command before the fork, to import the modules it needs.
    """
    folder, listener = sys.argv[1], socket.socket(fileno=int(sys.argv[2]))
    server, sources = os.getpid(), _sources()
    while sys.stdin not in (ready := select.select([listener, sys.stdin], [], [], SECONDS_UNREAPED)[0]):
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not ready:
            continue
        client, _ = listener.accept()
        request, files = _received(client, load if _sources() == sources else None)  # None: the code was edited
        if request is not None and os.fork() == 0:
            end_with_parent(server)
            listener.close()
            _supervise(client, files)
            return _become(request, files)
        client.close()
        for file in files:
            os.close(file)
    with suppress(ChildProcessError):  # the process that started this one has ended, so all commands are killed
        while True:
            os.wait()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(0)


def _received(
    client: socket.socket, load: Callable[[list[str]], object] | None
) -> tuple[dict[str, Any] | None, list[int]]:
    """The client's request, None if this process cannot run it as it would be run alone; and its standard files."""
    files: list[int] = []
    with suppress(Exception):  # whatever it is, the client then runs the command itself and reports a real error
        client.settimeout(1)  # the client may be stopped
        message, files, *_ = socket.recv_fds(client, MESSAGE_BYTES, 3)
        request = json.loads(message)
        if load is not None and request["python"] == python():  # the same modules
            load(request["command"])
            if len(os.listdir("/proc/self/task")) == 1:  # a fork would keep only one thread, but all locks
                return request, files
    return None, files


def _supervise(client: socket.socket, files: list[int]) -> None:
    """Return in a fork, which leads a process group of its own. Report its end to the client.

    The fork is killed if its client or the process that started the server ends. Clients send nothing more, so a
    readable socket means that.
    """
    supervisor, pid = os.getpid(), os.fork()
    os.setpgid(pid, pid)  # in both processes, whichever comes first
    if pid == 0:
        end_with_parent(supervisor)
        client.close()
        return
    for file in files:
        os.close(file)
    command = os.pidfd_open(pid)
    with suppress(OSError):  # the client is gone, as `select` will show
        socket.send_fds(client, [b"started"], [command])
    if command not in select.select([command, client, sys.stdin], [], [])[0]:
        os.killpg(pid, signal.SIGKILL)
    _, status = os.waitpid(pid, 0)
    with suppress(OSError):
        client.send(str(status).encode())
    os._exit(0)


def _become(request: dict[str, Any], files: list[int]) -> None:
    """Take over the client's standard files, folder, environment and arguments."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    # The streams of the server know whether its own files can seek, which may differ.
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = request["command"]


if __name__ == "__main__":
    serve(load)
    from entropy_dynamics.cli import program

    program()
