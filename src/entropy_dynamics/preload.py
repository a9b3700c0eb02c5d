"""A process that imports torch and transformers once and runs each `entropy-dynamics` command in a fork of itself.

Imports take longer than most jobs of a CPU scale. The workflow starts this process when it begins to execute jobs, and
the process ends with the workflow. Its client is client.py. It listens only on a Unix socket in a folder of mode 0700.
Modules are imported when a command first needs them. It stays single-threaded, so that it can fork.
"""

import atexit
import fcntl
import gc
import json
import os
import pkgutil
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from entropy_dynamics.client import MESSAGE_BYTES, SERVER, python
from entropy_dynamics.distributed.launch import end_with_parent
from entropy_dynamics.errors import UserError

PACKAGE = Path(__file__).parent
DRAWING = ("draw", "claims", "field", "controls", "report")
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "JE_ARROW_MALLOC_CONF": "background_thread:false"}  # torch's, pyarrow's
STAGES = ("evaluate", "model", "pass_rates", "problems", "theory", "train")


def start(*server: str | Path) -> None:
    """Start a server for the future commands of this process and its children.

    Does nothing if there is one already, or if it is not possible (Linux only). `server` are Python's arguments for a
    different program that calls `serve`.
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
    atexit.register(process.communicate)  # closes its standard input, at which it ends, and waits for that
    os.environ[SERVER] = address


class Server:
    """Runs each client's command in a fork, which leads a process group of its own."""

    def __init__(self, listener: socket.socket, folder: str, load: Callable[[list[str]], object]):
        self.listener, self.folder, self.load, self.sources = listener, folder, load, _sources()
        self.events = selectors.DefaultSelector()
        self.clients: dict[int, socket.socket] = {}  # by process id of the command
        self.events.register(listener, selectors.EVENT_READ, self.accept)
        self.events.register(sys.stdin, selectors.EVENT_READ, self.finish)

    def run(self) -> tuple[dict[str, Any], list[int]]:
        """Serve clients. Returns only in the forks, with the request and the client's standard files."""
        while True:
            for key, _ in self.events.select():
                registered = key in self.events.get_map().values()  # an earlier event may have unregistered it
                if registered and (command := key.data()) is not None:
                    return command

    def finish(self) -> NoReturn:
        """End all commands and their clients, because the process that started this one has ended."""
        for pid, client in self.clients.items():
            os.killpg(pid, signal.SIGKILL)
            _send(client, signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(0)

    def accept(self) -> tuple[dict[str, Any], list[int]] | None:
        client, _ = self.listener.accept()
        files: list[int] = []
        try:
            client.settimeout(10)  # the client may be stopped, or wait for a processor
            message, files, *_ = socket.recv_fds(client, MESSAGE_BYTES, 3)
            request = json.loads(message)
            serves = request["python"] == python() and _sources() == self.sources  # the same modules
            if serves:
                self.load(request["command"])
                serves = len(os.listdir("/proc/self/task")) == 1  # a fork would keep only one thread, but all locks
        except Exception:  # whatever it is, the client then runs the command itself and reports a real error
            serves = False
        if serves:
            pid = os.fork()
            os.setpgid(pid, pid)  # in both processes, whichever comes first
            if pid == 0:
                for other in (self.events, self.listener, client, *self.clients.values()):
                    other.close()
                return request, files
            self.watch(pid, client)
        else:
            client.close()
        for file in files:
            os.close(file)
        return None

    def watch(self, pid: int, client: socket.socket) -> None:
        pidfd = os.pidfd_open(pid)
        self.clients[pid] = client
        self.events.register(pidfd, selectors.EVENT_READ, partial(self.ended, pid, pidfd))
        self.events.register(client, selectors.EVENT_READ, partial(self.left, pid))
        with suppress(OSError):  # the client is gone, which will be the next event
            socket.send_fds(client, [b"started"], [pidfd])

    def ended(self, pid: int, pidfd: int) -> None:
        """Report the end of a command to its client."""
        self.events.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        if client := self.clients.pop(pid, None):
            self.events.unregister(client)
            _send(client, status)
            client.close()

    def left(self, pid: int) -> None:
        """Kill the command of a client that was killed. Clients send nothing more, so a readable socket means that."""
        client = self.clients.pop(pid)
        self.events.unregister(client)
        client.close()
        os.killpg(pid, signal.SIGKILL)


def _send(client: socket.socket, number: int) -> None:
    with suppress(OSError):  # the client is gone, which will be the next event
        client.send(str(number).encode())


def _sources() -> list[tuple[str, int]]:
    return sorted((str(path), path.stat().st_mtime_ns) for path in PACKAGE.rglob("*.py"))


def load(command: list[str]) -> None:
    """Import the modules that an `entropy-dynamics` command needs."""
    _import_for(command[1] if len(command) > 1 else "")


@cache
def _import_for(command: str) -> None:
    """Import the modules that a command needs; the command itself reports any that are missing or faulty."""
    with suppress(ImportError, UserError):
        from entropy_dynamics.config import CONFIGS, read_yaml
        from entropy_dynamics.preparation import import_torch

        for path in CONFIGS.rglob("*.yaml"):  # parsed once for all forks
            with suppress(UserError):  # the command reports it, if it needs that file
                read_yaml(path)
        if command in DRAWING:
            for room in ("figures", "report"):
                package = import_module(f"entropy_dynamics.{room}")
                for module in pkgutil.iter_modules(package.__path__):
                    import_module(f"{package.__name__}.{module.name}")
        elif command in STAGES:
            import_torch()
            import transformers
            from transformers.conversion_mapping import get_checkpoint_conversion_mapping
            from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CLASSES

            from entropy_dynamics.config.schema.training import method_sections
            from entropy_dynamics.results.provenance import code_hash, packages
            from entropy_dynamics.tasks import set_sources

            for architecture in ("llama", "qwen2", "qwen3"):  # those of configs/; others are imported when used
                getattr(transformers, CLASSES[architecture])
                get_checkpoint_conversion_mapping(architecture)
            for same_for_all in (method_sections, set_sources, code_hash, packages):
                same_for_all()
            import_module(f"entropy_dynamics.stages.{command}")
    gc.freeze()  # memory that the collector does not visit is not copied in the forks


def serve(load: Callable[[list[str]], object]) -> None:
    """Main function of the process that `start` starts. Returns only in the forks, with `sys.argv` etc. set up.

    `load` is called with each command before the fork, to import the modules it needs.
    """
    server = os.getpid()
    request, files = Server(socket.socket(fileno=int(sys.argv[2])), sys.argv[1], load).run()
    end_with_parent(server)
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
