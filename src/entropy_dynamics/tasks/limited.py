"""Verifiers of other packages, run in a process of their own with limits of CPU time and memory.

An answer over a limit is wrong. The limit is one of CPU time, so that a grade does not depend on how busy a machine is.
"""

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from functools import cache
from importlib import import_module
from subprocess import DEVNULL, PIPE, Popen
from threading import Lock
from typing import Any

from entropy_dynamics.errors import UserError

SECONDS = 3.0  # CPU time per answer
MEMORY = 4 << 30  # bytes of address space


class Verifier:
    """Calls `check(*arguments)` of a module in another process, which is started on first use.

    `check` returns whether an answer is correct, or raises UserError. Any other exception, or the end of the process,
    means that the answer is wrong.
    """

    def __init__(self, module: str):
        self.module, self.lock, self.owner = module, Lock(), 0  # id of the process that started it; 0: not started

    def __call__(self, *arguments: Any) -> bool:
        with self.lock:
            if self.owner != os.getpid():  # a fork would share the pipes of its parent
                self.process, self.owner = self._start(), os.getpid()
            process = self.process
            try:
                print(json.dumps(arguments), file=process.stdin, flush=True)
                reply = process.stdout.readline()
            except BrokenPipeError:
                reply = ""
            if not reply:
                self.owner = 0
                if process.wait() in (-signal.SIGKILL, -signal.SIGTERM):  # not by a limit, so it says nothing
                    raise RuntimeError(f"the process that grades answers by {self.module} was killed")
                return False
        correct, error = json.loads(reply)
        if error:
            raise UserError(error)
        return correct

    def _start(self) -> Popen[str]:
        command = [sys.executable, "-m", __name__, self.module]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        process = Popen(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL, text=True, env=environment)
        if not process.stdout.readline():
            raise RuntimeError(f"{' '.join(command)} ended with exit status {process.wait()}")
        return process


verifier = cache(Verifier)


def serve(module: str) -> None:
    check = import_module(module).check
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # other packages may print
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", file=replies, flush=True)
    for line in sys.stdin:
        signal.setitimer(signal.ITIMER_PROF, SECONDS)  # its signal ends this process
        try:
            reply = bool(check(*json.loads(line))), None
        except UserError as error:
            reply = False, str(error)
        except Exception:
            reply = False, None
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    serve(sys.argv[1])
