"""Verifiers and generators of other packages, run in a process of their own with limits of CPU time and memory.

An answer over a limit is wrong. The limit is one of CPU time, so that a grade does not depend on how busy a machine is.
The seed of Python's hashes is fixed, so that the order of a set is the same in every process.
"""

import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from subprocess import DEVNULL, PIPE, Popen
from threading import Lock
from typing import Any

from entropy_dynamics.errors import UserError

SECONDS = 3.0  # CPU time per answer
MEMORY = 4 << 30  # bytes of address space


class Verifier:
    """Calls functions of a module in another process, which is started on first use."""

    def __init__(self, module: str):
        self.module, self.lock, self.owner = module, Lock(), 0  # id of the process that started it; 0: not started

    def call(self, function: str, *arguments: Any) -> Any:
        """The JSON that a function of the module returns; None if it or the process fails.

        Raises its UserError.
        """
        with self.lock:
            if self.owner != os.getpid():  # a fork would share the pipes of its parent
                self.process, self.owner = self._start(), os.getpid()
            process = self.process
            try:
                print(json.dumps([function, *arguments]), file=process.stdin, flush=True)
                reply = process.stdout.readline()
            except BrokenPipeError:
                reply = ""
            if not reply:
                self.owner = 0
                if process.wait() in (-signal.SIGKILL, -signal.SIGTERM):  # not by a limit, so it says nothing
                    raise RuntimeError(f"the process that grades answers by {self.module} was killed")
                return None
        value, error = json.loads(reply)
        if error:
            raise UserError(error)
        return value

    def _start(self) -> Popen[str]:
        command = [sys.executable, "-m", __name__, self.module]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
        process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True, env=environment)
        if not process.stdout.readline():
            raise RuntimeError(f"{' '.join(command)} ended with exit status {process.wait()}")
        return process


verifier = cache(Verifier)


@contextmanager
def unlimited() -> Iterator[None]:
    """Without the limit of CPU time, for what is no answer of a model."""
    left, _ = signal.setitimer(signal.ITIMER_PROF, 0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, left)


def serve(module: str) -> None:
    functions = import_module(module)
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other packages may print
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends this process
        try:
            function, *arguments = json.loads(line)
            reply = json.dumps([getattr(functions, function)(*arguments), None])
        except UserError as error:
            reply = json.dumps([None, str(error)])
        except Exception:
            reply = json.dumps([None, None])
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(reply, file=replies, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
