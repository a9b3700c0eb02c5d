"""Python in forks of one process that has imported torch and Snakemake, which takes longer than most commands.

`preloaded()` gives a folder with `python`, `snakemake` and `entropy-dynamics`, to be used like those of an environment.
Each is a small client: its arguments, folder, environment and output become those of a fork, its signals reach the
fork, its end ends the fork, and it ends with the fork's exit code (128 + n for a signal, as a shell does).

Whatever opens a file once there is one that matches PAUSE_FROM, a glob, waits for the file PAUSE_UNTIL: so a test can
end a command at that moment however busy the machine is.
"""

import atexit
import gc
import os
import runpy
import select
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import glob
from importlib import import_module
from pathlib import Path
from socketserver import BaseRequestHandler, ForkingMixIn, UnixStreamServer

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
CLIENT = """
import os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    words = [os.getcwd(), str(len(os.environ)), *(f"{key}={value}" for key, value in os.environ.items()), *sys.argv[2:]]
    socket.send_fds(server, ["\\0".join(words).encode()], [1, 2])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGURG):
        signal.signal(number, lambda number, _: server.send(bytes([number])))
    sys.exit((server.recv(1) or b"\\1")[0])
"""


@contextmanager
def preloaded() -> Iterator[Path]:
    """The folder of the programs. Nothing is imported before the first of them runs."""
    with tempfile.TemporaryDirectory(prefix="preloaded-") as folder:
        client, address = Path(folder, "client.py"), Path(folder, "socket")
        client.write_text(CLIENT)
        for name, words in (("python", []), *((name, [BIN / name]) for name in ("snakemake", "entropy-dynamics"))):
            command = shlex.join(str(word) for word in (sys.executable, "-IS", client, address, *words))
            Path(folder, name).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
            Path(folder, name).chmod(0o755)
        server = subprocess.Popen([sys.executable, __file__, address], cwd=ROOT, stdout=subprocess.PIPE)
        try:
            assert server.stdout.readline(), "the server has ended"
            yield Path(folder)
        finally:
            server.kill()  # and thereby all forks
            server.wait()
            server.stdout.close()


def program(name: str) -> str:
    """`python`, `snakemake` or `entropy-dynamics` of this test run (conftest.py)."""
    return str(Path(os.environ["PRELOADED"], name))


class Command(BaseRequestHandler):
    """One command, in a fork of the server: it runs in another, which this one watches together with the client."""

    def handle(self) -> None:
        from entropy_dynamics.distributed.launch import end_with_parent

        end_with_parent()
        message, output, *_ = socket.recv_fds(self.request, 2**17, 2)
        folder, count, *words = message.decode().split("\0")
        variables, arguments = words[: int(count)], words[int(count) :]
        process = os.fork()
        if process == 0:
            os.setpgid(0, 0)
            end_with_parent()
            for number, file in enumerate(output, start=1):
                os.dup2(file, number)
            self.request.close()
            os.environ.clear()
            os.environ.update(variable.split("=", 1) for variable in variables)
            os.chdir(folder)
            leave(arguments)
        end = os.pidfd_open(process)
        while end not in select.select([end, self.request], [], [])[0]:
            if sent := self.request.recv(1):
                os.kill(process, sent[0])
            else:
                os.killpg(process, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        with suppress(BrokenPipeError):
            self.request.send(bytes([code if code >= 0 else 128 - code]))


def pause(event: str, _: tuple) -> None:
    if event == "open" and glob(os.environ["PAUSE_FROM"]):
        while not os.path.exists(os.environ["PAUSE_UNTIL"]):
            time.sleep(0.01)


def leave(arguments: list[str]) -> None:
    """Run `python <arguments>` in this process, and end it."""
    if "PAUSE_FROM" in os.environ:
        sys.addaudithook(pause)
    if arguments[0] == "-u":
        sys.stdout.reconfigure(write_through=True)
        del arguments[0]
    code = 0
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            if not hasattr(sys.modules.get(sys.argv[0]), "__path__"):  # a package's __main__ is run instead
                sys.modules.pop(sys.argv[0], None)
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = arguments
            sys.path.insert(0, str(Path(arguments[0]).parent))
            runpy.run_path(arguments[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        code = 1
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Server(ForkingMixIn, UnixStreamServer):
    """It stays single-threaded, so that it can fork."""

    max_children = 400
    loaded = False

    def verify_request(self, request, client_address) -> bool:
        if not self.loaded:
            load()
            self.loaded = True
        return True


def load() -> None:
    """Import what commands and Snakemake do, without a computation: that would start threads."""
    from entropy_dynamics.commands import load_torch
    from entropy_dynamics.config import load_config

    load_torch(load_config("smoke", "qwen2.5-7b-instruct", "grpo"))
    import transformers
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping

    for name in ("reporting", *(f"stages.{stage}" for stage in ("evaluate", "model", "pass_rates", "theory", "train"))):
        import_module(f"entropy_dynamics.{name}")
    for name in ("Qwen2", "Qwen3", "Llama"):
        getattr(transformers, f"{name}ForCausalLM")
    get_checkpoint_conversion_mapping("qwen2")
    import_module("snakemake.cli")
    gc.freeze()  # or collections in forks would copy all of this


if __name__ == "__main__":
    sys.executable = str(Path(sys.argv[1]).with_name("python"))
    with Server(sys.argv[1], Command) as server:
        print("ready", flush=True)
        server.serve_forever()
