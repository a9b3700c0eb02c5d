"""The server of `entropy_dynamics.preload` for all commands of the tests: for Snakemake and other Python programs too.

`start()` starts it, and `program` gives `python`, `snakemake` and `entropy-dynamics`, to be used like those of an
environment.

Whatever opens a file once there is one that matches PAUSE_FROM, a glob, waits for the file PAUSE_UNTIL: so a test can
end a command at that moment however busy the machine is.

Importing it, as conftest.py does, turns off `os.fsync`, in the commands too.
"""

import atexit
import gc
import os
import runpy
import sys
import time
import traceback
from functools import cache
from glob import glob
from importlib import import_module
from pathlib import Path

from entropy_dynamics import preload
from entropy_dynamics.client import SERVER
from entropy_dynamics.distributed.launch import STARTER

os.fsync = lambda descriptor: None  # no test cuts the power, and some spent a tenth of their time on it
BIN = Path(sys.executable).parent
NAMES = ("python", "snakemake", "entropy-dynamics")
# The shell starts Python, as pip's scripts do, because a shebang cannot name a path with blanks.
CLIENT = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import os, sys
from entropy_dynamics.client import hand_over
code = hand_over({address!r}, [{name!r}, *sys.argv[1:]])
if code is None:
    os.execv({program!r}, [{program!r}, *sys.argv[1:]])
os._exit(code)
"""


def start() -> None:
    """Start the server, unless this pytest was started by a test. Nothing is imported before a command needs it."""
    if SERVER in os.environ:
        return
    preload.start(__file__)
    for name in NAMES:
        client = CLIENT.format(python=sys.executable, name=name, address=os.environ[SERVER], program=str(BIN / name))
        Path(program(name)).write_text(client)
        Path(program(name)).chmod(0o700)


def program(name: str) -> str:
    """`python`, `snakemake` or `entropy-dynamics` of this test run (conftest.py)."""
    return str(Path(os.environ[SERVER]).with_name(name))


def load(command: list[str]) -> None:
    """Import what a command needs."""
    if command[0] == "entropy-dynamics":
        preload.load(command)
    elif command[0] == "snakemake":
        load_snakemake()
    else:
        preload.load(["", "train"])  # most of these programs are ranks


@cache
def load_snakemake() -> None:
    for name in ("snakemake.cli", "entropy_dynamics.experiments.claims", "entropy_dynamics.planning.plan"):
        import_module(name)
    gc.freeze()  # what is not visited is not copied in the forks


def pause(event: str, _: tuple) -> None:
    if event == "open" and glob(os.environ["PAUSE_FROM"]):
        while not os.path.exists(os.environ["PAUSE_UNTIL"]):
            time.sleep(0.01)


def leave(arguments: list[str]) -> None:
    """Run `python <arguments>` in this process, and end it."""
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


def main() -> None:
    sys.executable = str(Path(sys.argv[1], "python"))
    preload.serve(load)
    if STARTER in os.environ:
        os.environ[STARTER] = str(os.getppid())  # which ends this process with its client, the starter's child
    if "PAUSE_FROM" in os.environ:
        sys.addaudithook(pause)
    name, *arguments = sys.argv
    if name == "python":
        leave(arguments)
    elif name == "snakemake":
        leave([str(BIN / name), *arguments])
    else:
        from entropy_dynamics.cli import program

        program()


if __name__ == "__main__":
    main()
