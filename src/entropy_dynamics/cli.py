"""Reproduce arXiv 2602.03392: train, evaluate, judge.

The command line. Workflow rules run these commands. Options of one: `entropy-dynamics COMMAND --help`.
"""

import argparse
import atexit
import errno
import io
import math
import os
import re
import select
import shlex
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, TypeVar

from entropy_dynamics.distributed.attempts import begin_attempt, end_early
from entropy_dynamics.distributed.launch import STARTER, end_with_parent, launched
from entropy_dynamics.errors import Unfinished, UserError, closest, nearest

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


T = TypeVar("T")


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
        options = _options(arguments)
        if options.version:
            from importlib.metadata import version

            print(f"entropy-dynamics {version('entropy-dynamics')}")
            return 0
        if "command" not in options:
            options.parser.print_help()
            return 0
        options.arguments = sys.argv[1:] if arguments is None else list(arguments)
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


class _Parser(argparse.ArgumentParser):
    """Raises UserError instead of printing the usage too."""

    def error(self, message: str) -> NoReturn:
        if choice := re.fullmatch(r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", message):
            argument, word, known = choice.groups()
            kind = "command" if argument == "COMMAND" else f"value of {argument},"
            message = f"unknown {kind} {word}{nearest(word[1:-1], re.findall('[a-z_-]+', known))}"
        raise UserError(message)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    words, parser = list(sys.argv[1:] if arguments is None else arguments), _parser()
    first = next((place for place, word in enumerate(words) if word in parser.get_default("commands")), 0)
    if first and words[0].startswith("-") and words[0] not in ("--version", "--help", "-h"):
        command = [words[first], *words[:first], *words[first + 1 :]]
        raise UserError(f"options follow their command: {parser.prog} {shlex.join(command)}")
    options, unknown = parser.parse_known_args(words)
    if unknown:
        known = re.findall(r"--([\w-]+)", options.parser.format_usage())
        name, *value = unknown[0].lstrip("-").split("=", 1)
        if (options.parser.get_default("command"), name) == ("pass_rates", "model"):
            hint = "the scale names the model; for another one: --set pass_rates.model=NAME"
        elif meant := closest(name, known):
            hint = f"did you mean '{'='.join([f'--{meant}', *value])}'?"
        elif value and unknown[0][0] != "-" and "set" in known:
            hint = f"did you mean '--set {unknown[0]}'?"
        else:
            hint = f"the options are {', '.join(f'--{option}' for option in known)}" if known else "it has no options"
        raise UserError(f"unrecognized arguments: {' '.join(unknown)}; {hint}")
    return options


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="entropy-dynamics", description="Reproduce arXiv 2602.03392: train, evaluate, judge.")
    parser.set_defaults(parser=parser)
    parser.add_argument("--version", action="store_true", help="print the version")
    stages = parser.add_subparsers(title="commands", metavar="COMMAND")
    parser.set_defaults(commands=stages.choices)

    def command(name: str, about: str) -> argparse.ArgumentParser:
        sub = stages.add_parser(name, help=about, description=about)
        sub.set_defaults(command=name.replace("-", "_"), parser=sub)
        return sub

    def stage(name: str, about: str, *needs: str) -> argparse.ArgumentParser:
        sub = command(name, about)
        sub.add_argument("--scale", default="laptop", help="a scale, by name (default: laptop)")
        sub.add_argument("--results", default="results", help="the results folder (default: results)")
        about = "override a config value"
        sub.add_argument("--set", action="append", default=[], type=_setting, metavar="KEY=VALUE", help=about)
        if "model" in needs:
            sub.add_argument("--model", required=True, help="a model, by name, such as qwen2.5-7b-instruct")
        if "method" in needs:
            sub.add_argument("--method", required=True, help="a method, by name or name@parameter=value,...")
            sub.add_argument("--seed", type=_seed, required=True, help="0 or more")
        if "untrained" in needs:
            sub.add_argument("--seed", type=_seed, default=0, help="which untrained model (default: 0)")
        return sub

    stage("problems", "Generate or read, clean and split the problem sets.")
    stage("model", "Prepare a base model: download it, or build and warm-start a toy model.", "model", "untrained")
    stage("pass_rates", "Measure the untrained model's pass rates on the training problems.", "untrained")
    stage("train", "Train one model with one method and one seed.", "model", "method")
    evaluate = stage("evaluate", "Sample the evaluation sets from a policy.", "model", "method")
    evaluate.add_argument("--datasets", nargs="+", help="evaluation sets (default: all of the scale's config)")
    at = "used instead of the config's; samples of each go to a folder T<temperature>, existing ones are kept"
    evaluate.add_argument("--temperatures", nargs="+", type=_temperature, metavar="T", help=at)
    stage("theory", "Theorems 1 and 2 on the untrained model of theory_check: predicted and realized entropy change.")
    draw = stage("draw", "Write tables and figures.")
    names = "table1, figure1, ..., data_filter; by default all whose runs are there"
    draw.add_argument("names", nargs="*", metavar="NAME", help=names)
    stage("claims", "Evaluate the paper's claims against the results so far.")
    stage("field", "Evaluate the claims of other papers against the results so far.")
    stage("controls", "Evaluate the claims about controls against the results so far.")
    stage("report", "Write report.html, one page with all tables, figures and claims so far.")
    watch = stage("watch", "Serve report.html on this machine only, and rewrite it while runs go on.")
    watch.add_argument("--port", type=_port, default=8000, help="port on 127.0.0.1 (default: 8000)")
    summary = command("summary", "The verdicts and gains of a run in a few lines, and where its page is.")
    summary.add_argument("folder", type=_scale_folder, metavar="FOLDER", help="<results>/<scale>")
    compare = command("compare", "Compare the effects and verdicts of two complete runs.")
    compare.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="claims.json, or the folder that contains it")
    compare.add_argument("--table", action="store_true", help="also print a table of all claims")

    about = "Write a folder for a data repository: counts, metrics, samples, data card, checksums."
    archive = command("archive", about)
    archive.add_argument("folder", type=_scale_folder, metavar="FOLDER", help="<results>/<scale>")
    archive.add_argument("out", type=Path, metavar="OUT", help="a new folder")
    archive.add_argument("--doi", type=_doi, help="the DOI that the repository has reserved for it")

    restore = command("restore", "Recreate results from published counts and metrics, for `claims` and `draw`.")
    restore.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="written by `archive`")
    restore.add_argument("--out", type=_scale_folder, required=True, metavar="OUT", help="a new folder results/<scale>")

    passes = command("pass-at-k", "Unbiased Pass@k of graded samples, for all k.")
    passes.add_argument("files", type=Path, metavar="FILE", nargs="+")
    passes.add_argument("--problem", metavar="COLUMN", help="column that identifies a problem")
    passes.add_argument("--correct", metavar="COLUMN", help="grade of a sample: 1: correct, missing: left out")
    passes.add_argument("--threshold", type=_finite, metavar="GRADE", help="smallest grade of a correct sample")
    power = "number of problems needed to detect a difference of D points, given the rates in one FILE"
    passes.add_argument("--power", type=_points, metavar="D", help=power)
    lens = command("lens", "Which tokens of a batch each method drops, and where it pushes the entropy.")
    lens.add_argument("files", type=Path, metavar="FILE", nargs="?")
    lens.usage = "%(prog)s [-h] FILE [--methods METHOD ...] [--temperature TEMPERATURE] [--figure FILE]"
    lens.add_argument("--methods", nargs="+", metavar="METHOD", help="after FILE: name or name@parameter=value,...")
    lens.add_argument("--temperature", type=_positive, default=1.0, help="divisor of the logits (default: 1)")
    lens.add_argument("--figure", type=_ending(".png", ".svg", ".pdf"), metavar="FILE", help="draw it: png, svg, pdf")
    entropy = command("entropy-watch", "When and why the entropy of a run fell or rose.")
    entropy.add_argument("files", type=Path, metavar="RUN")
    entropy.add_argument("--entropy", metavar="COLUMN", help="name of the entropy metric")
    check = command("entropy-check", "Check the entropy that a trainer logs, on a batch with known entropies.")
    nats = "the trainer's result on the batch, nats"
    check.add_argument("value", type=_finite, nargs="?", metavar="VALUE", help=nats)
    check.add_argument("--write", type=_ending(".npz"), metavar="FILE", help="write the batch as .npz")

    prompt = stage("prompt", "Print the prompt of one problem, and its number of tokens.", "model")
    prompt.add_argument("--problem", metavar="ID", help="id of a problem (default: the first training problem)")
    verify = stage("verify", "Check results against their hashes, their samples and the configs.")
    verify.set_defaults(scale=None, results=None)
    where = "<results>/<scale>, instead of --results; of the scale in its name, or of --scale"
    verify.add_argument("folder", type=_scale_folder, nargs="?", metavar="FOLDER", help=where)
    plan = stage("plan", "Estimate the memory, tokens, hours and disk that a scale needs; nothing is started.")
    plan.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    targets = ("extras", "methods", "ladder", "field", "controls")
    plan.add_argument("--target", choices=targets, help="plan the runs of this target instead of the default")
    config = stage("config", "Print the resolved config of a run.")
    config.add_argument("--model", help="a model, by name, such as qwen2.5-7b-instruct")
    config.add_argument("--method", help="a method, by name or name@parameter=value,...")
    about = "print where this key gets its value, and which values of other files that overrides"
    config.add_argument("--why", metavar="KEY", help=about)
    config.add_argument("--schema", action="store_true", help="print the JSON schema of a run's config instead")
    return parser


def _type(
    what: str, convert: Callable[[str], T], allowed: Callable[[T], bool] = lambda _: True, pattern: str = "(?s).*"
) -> Callable[[str], T]:
    """An argparse type for texts of a pattern with an `allowed` value; `what` describes them in the error message."""

    def value_of(text: str) -> T:
        with suppress(ValueError):
            if re.fullmatch(pattern, text) and allowed(value := convert(text)):
                return value
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")

    return value_of


_wildcard = "0|[1-9][0-9]{0,17}"  # of seeds in the workflow
_seed = _type("an integer of 0 or more, with at most 18 digits", int, pattern=_wildcard)
_port = _type("a port, 0 to 65535", int, lambda port: port < 2**16, pattern="[0-9]{1,5}")
_doi = _type("a DOI, such as 10.5281/zenodo.1234567", str, pattern=r"10\.\d{4,9}/\S+")
_finite = _type("a finite number", float, math.isfinite)
_positive = _type("a positive number", float, lambda value: 0 < value < math.inf)
_temperature = _type("a temperature: 0, which is greedy, or more", float, lambda value: 0 <= value < math.inf)
_points = _type("a number of points, up to 100", float, lambda value: 0 < value <= 100)


def _setting(text: str) -> str:
    key, *value = re.split(r"[\s:=]+", text, maxsplit=1)
    if "=" not in text:
        raise argparse.ArgumentTypeError(f"{text!r} has no value; write --set {key}={''.join(value) or 'VALUE'}")
    return text


def _ending(*suffixes: str) -> Callable[[str], Path]:
    named = " or ".join(", ".join(suffixes).rsplit(", ", 1))

    def file(text: str) -> Path:
        if (path := Path(text)).suffix not in suffixes:
            raise argparse.ArgumentTypeError(f"{text!r} does not end in {named}")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"there is no folder {path.parent}")
        return path

    return file


def _scale_folder(text: str) -> Path:
    """<results>/<scale>, whose name is the scale. `.` and `..` are resolved first, as they have no name."""
    path = Path(text)
    path = path if path.name.strip(".") else path.resolve()
    if not path.name:
        raise argparse.ArgumentTypeError(f"{text!r} is not the folder of a scale, such as results/laptop")
    return path


if __name__ == "__main__":
    program()
