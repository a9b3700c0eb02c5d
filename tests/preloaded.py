"""`entropy-dynamics` in forks of one process that has imported torch, which takes longer than most stages of a test."""

import os
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from socketserver import BaseRequestHandler, ForkingMixIn, UnixStreamServer

ROOT = Path(__file__).parents[1]
CLIENT = """
import os, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    socket.send_fds(server, ["\\0".join([os.getcwd(), *sys.argv[2:]]).encode()], [1, 2])
    sys.exit((server.recv(1) or b"\\1")[0])
"""


@contextmanager
def preloaded() -> Iterator[dict[str, str]]:
    """The environment for a `snakemake` whose rules have their commands run so.

    Bash reads BASH_ENV first, and the function that it finds there precedes the program of the same name.
    """
    with tempfile.TemporaryDirectory() as folder:
        address, client, functions = (Path(folder, name) for name in ("socket", "client.py", "functions.sh"))
        client.write_text(CLIENT)
        command = shlex.join([sys.executable, "-IS", str(client), str(address)])
        functions.write_text(f'entropy-dynamics() {{ {command} "$@"; }}\n')
        server = subprocess.Popen([sys.executable, __file__, address], cwd=ROOT, stdout=subprocess.PIPE)
        try:
            assert server.stdout.readline(), "the server has ended"
            yield os.environ | {"BASH_ENV": str(functions)}
        finally:
            server.terminate()
            server.communicate()


class Command(BaseRequestHandler):
    def handle(self) -> None:
        """In a fork: one command with the arguments, the working directory and the output of the client."""
        from entropy_dynamics.cli import main

        message, output, *_ = socket.recv_fds(self.request, 2**16, 2)
        folder, *arguments = message.decode().split("\0")
        os.chdir(folder)
        for number, file in enumerate(output, start=1):
            os.dup2(file, number)
        code = main(arguments)
        sys.stdout.flush()
        self.request.send(bytes([code]))


class Server(ForkingMixIn, UnixStreamServer):
    """It stays single-threaded, so that it can fork."""


def serve(address: str) -> None:
    from entropy_dynamics.cli import _load_torch
    from entropy_dynamics.config import load_config

    _load_torch(load_config("smoke"))
    import transformers

    for name in ("reporting", *(f"stages.{stage}" for stage in ("evaluate", "model", "pass_rates", "theory", "train"))):
        import_module(f"entropy_dynamics.{name}")
    for name in ("Qwen2", "Qwen3", "Llama"):
        getattr(transformers, f"{name}ForCausalLM")
    with Server(address, Command) as server:
        print("ready", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    serve(sys.argv[1])
