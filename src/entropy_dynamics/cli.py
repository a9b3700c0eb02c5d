"""Reproduce arXiv 2602.03392: train, evaluate, judge.

The command line. Workflow rules run these commands. Options of one: `entropy-dynamics COMMAND --help`.
"""

import atexit
import errno
import io
import os
import select
import signal
import sys
from collections.abc import Sequence

from entropy_dynamics.arguments import parse
from entropy_dynamics.distributed.attempts import begin_attempt, end_early
from entropy_dynamics.distributed.launch import STARTER, end_with_parent, launched
from entropy_dynamics.errors import Unfinished, UserError

EXTRAS = {  # extra of this project -> packages that come with it
    "harness": "transformers snakemake datasets safetensors jinja2 markupsafe filelock tabulate",
    "trackers": "tensorboard wandb trackio",
    "plot": "matplotlib",
    "vllm": "vllm",
    "internlm3": "sentencepiece google",  # google: protobuf
    "reasoning-gym": "reasoning_gym",
}

REMEDIES = {  # error number of a system call -> what to do
    errno.EACCES: "change its permissions or name another folder, for results with --results FOLDER",
    errno.EROFS: "name another folder, for results with --results FOLDER",
    errno.ENOSPC: "free some space, and run the same command again",
    errno.ENOTDIR: "a part of this path is a file; name a folder",
    errno.EISDIR: "name a file",
}
REMEDIES |= {errno.EPERM: REMEDIES[errno.EACCES], errno.EDQUOT: REMEDIES[errno.ENOSPC]}


def program() -> None:
    """Run `main` and exit at once, since tearing down an interpreter that has imported torch takes 0.6 s.

    Handlers that libraries have registered with atexit still run; an exception from `main` ends the process as usual.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal may lack characters such as an arrow
    os.environ.pop("MPLBACKEND", None)  # figures are files, and a notebook's backend may be unknown here
    codes: list[int] = []

    @atexit.register  # first, so it runs last
    def leave() -> None:
        if codes:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(codes[0])

    try:
        codes.append(main())
    except SystemExit as end:  # argparse's, with a code
        codes.append(int(end.code or 0))
    sys.exit(codes[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command, and return its exit code.

    It is 0 on success; 1 if `verify` found errors; 2 for a user error; 75 if a run ended at a checkpoint, to be resumed
    by the same command; 130 after Ctrl-C; 141 if nobody reads its output to the end.
    """
    try:
        options = parse(arguments)
        if options.version:
            from importlib.metadata import version

            print(f"entropy-dynamics {version('entropy-dynamics')}")
            return 0
        if "command" not in options:
            options.parser.print_help()
            return 0
        if launched():
            end_with_parent(int(os.environ[STARTER]) if STARTER in os.environ else None)
        else:
            begin_attempt()
        from entropy_dynamics import commands  # imported late, as --help does not need its half second

        code = getattr(commands, options.command)(options) or 0
        print(end="", flush=True)  # here, where an error is caught
        return code
    except UserError as error:
        return _failed(" ".join(str(error).splitlines()))  # it may quote a multi-line value
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = next((extra for extra, packages in EXTRAS.items() if package in packages.split()), None)
        if extra is None:
            raise
        return _failed(f"{package} is not installed; it comes with this project's extra {extra!r}")
    except Unfinished:  # rank 0 has printed a note
        end_early()
        return Unfinished.EXIT_CODE
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's; torch is not imported just for this check
            raise
        return _failed(
            f"the GPU is out of memory ({str(error).splitlines()[0]}); lower training.tokens_per_micro_batch or "
            "sampling.batch_size, set training.activation_checkpointing=full, or raise hardware.ranks"
        )
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _nobody_reads():
            return 128 + signal.SIGPIPE
        return _failed(_described(error))
    except KeyboardInterrupt:
        if not launched():  # the process that started the ranks reports it
            print("interrupted; no partial file was left behind", file=sys.stderr)
        return 130


def _failed(error: object) -> int:
    print("error:", error, file=sys.stderr)
    return 2


def _described(error: OSError) -> str:
    """What is wrong with which file, and what would be right."""
    reason = error.strerror or str(error) or type(error).__name__
    file = f": {os.fsdecode(error.filename)!r}" if error.filename is not None else ""
    remedy = REMEDIES.get(error.errno or 0)
    return f"{reason}{file}" + f"; {remedy}" * bool(remedy)


def _nobody_reads() -> bool:
    """Whether standard output is a pipe that was closed, as by `| head`; if so, further output is dropped."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    closed = any(event & select.POLLERR for _, event in poll.poll(0))
    if closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return closed


if __name__ == "__main__":
    program()
