"""The words of the command line: all commands with their options, and what a misspelled one may mean."""

import argparse
import math
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from textwrap import fill
from typing import NoReturn, TypeVar

from entropy_dynamics.errors import UserError, closest, nearest

GROUPS = {  # title -> commands
    "make a run, in this order": ("problems", "model", "pass_rates", "train", "evaluate", "theory"),
    "read results": ("draw", "claims", "field", "controls", "report", "watch", "summary", "compare"),
    "check and publish": ("verify", "archive", "restore"),
    "look up": ("plan", "config", "prompt"),
    "files of any trainer": ("pass-at-k", "lens", "entropy-watch", "entropy-check"),
}
WIDTH = 88  # of descriptions
MODEL = "a model, by name, such as qwen2.5-7b-instruct"
METHOD = "a method, by name or name@parameter=value,..."
OF_MODEL = "--model qwen2.5-7b-instruct"  # in examples

T = TypeVar("T")
Adds = Callable[..., argparse.ArgumentParser]  # a command


class _Parser(argparse.ArgumentParser):
    """Raises UserError instead of printing the usage too."""

    def error(self, message: str) -> NoReturn:
        if choice := re.fullmatch(r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", message):
            argument, word, known = choice.groups()
            kind = "command" if argument == "COMMAND" else f"value of {argument},"
            message = f"unknown {kind} {word}{nearest(word[1:-1], re.findall('[a-z_-]+', known))}"
        raise UserError(message)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options in the words of a command line, by default of this process; the words are its `arguments`.

    Raises UserError for a word that is not known, and says which one is meant.
    """
    words, parser = list(sys.argv[1:] if arguments is None else arguments), command_parser()
    commands = parser.get_default("commands")
    first = next((place for place, word in enumerate(words) if word in commands), 0)
    if first and words[0].startswith("-") and words[0] not in ("--version", "--help", "-h"):
        command = [words[first], *words[:first], *words[first + 1 :]]
        raise UserError(f"options follow their command: {parser.prog} {shlex.join(command)}")
    try:
        options, unknown = parser.parse_known_args(words)
    except UserError as error:  # a misspelled option is then missing
        sub = commands.get(words[first]) if words else None
        known = re.findall(r"--([\w-]+)", sub.format_usage()) if sub else []
        for word in words if "are required: --" in str(error) else ():
            name = word.removeprefix("--").partition("=")[0]
            if word.startswith("--") and name not in known and (meant := closest(name, known)):
                raise UserError(f"unrecognized arguments: {word}; did you mean '--{meant}'?") from None
        raise
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
    options.arguments = words
    return options


def command_parser() -> argparse.ArgumentParser:
    """All commands. The defaults `commands` and `groups` have their parsers: by name, and by title and name."""
    layout = argparse.RawDescriptionHelpFormatter
    groups: dict[str, dict[str, argparse.ArgumentParser]] = {title: {} for title in GROUPS}
    about = "Reproduce arXiv 2602.03392: train, evaluate, judge."
    parser = _Parser(prog="entropy-dynamics", description=about, formatter_class=layout)
    parser.usage = "%(prog)s [-h] [--version] COMMAND ..."
    parser.add_argument("--version", action="store_true", help="print the version")
    stages = parser.add_subparsers(prog=parser.prog, metavar="COMMAND", help=argparse.SUPPRESS)
    parser.set_defaults(parser=parser, commands=stages.choices, groups=groups)

    def command(name: str, about: str, files: str, example: str) -> argparse.ArgumentParser:
        """`about`: a sentence, for the list of commands; `files`: what must exist and is written."""
        text = fill(f"{about} {files}", WIDTH)
        example = f"example:\n  {parser.prog} {name} {example}"
        sub = stages.add_parser(name, description=text, epilog=example, formatter_class=layout)
        sub.set_defaults(command=name.replace("-", "_"), parser=sub, about=about)
        title = next(title for title, names in GROUPS.items() if name in names)
        groups[title][name] = sub
        return sub

    def stage(name: str, about: str, files: str, example: str, *needs: str) -> argparse.ArgumentParser:
        sub = command(name, about, files, example)
        sub.add_argument("--scale", default="laptop", help="a scale, by name (default: laptop)")
        sub.add_argument("--results", default="results", help="the results folder (default: results)")
        about = "override a config value"
        sub.add_argument("--set", action="append", default=[], type=_setting, metavar="KEY=VALUE", help=about)
        if "model" in needs:
            sub.add_argument("--model", required=True, help=MODEL)
        if "method" in needs:
            sub.add_argument("--method", required=True, help=METHOD)
            sub.add_argument("--seed", type=_seed, required=True, help="0 or more")
        if "untrained" in needs:
            sub.add_argument("--seed", type=_seed, default=0, help="which untrained model (default: 0)")
        return sub

    _run_commands(stage)
    _result_commands(stage, command)
    _publishing_commands(stage, command)
    _reference_commands(stage)
    _file_commands(command)
    parser.epilog = _listed(groups)
    return parser


def _run_commands(stage: Adds) -> None:
    about = "Generate or read, clean and split the problem sets."
    stage("problems", about, "Needs nothing; writes <results>/<scale>/data.", "--scale smoke")
    about = "Prepare a base model: download it, or build and warm-start a toy model."
    files = "Needs the problems; writes <results>/<scale>/models."
    stage("model", about, files, f"{OF_MODEL} --seed 0", "model", "untrained")
    about = "Measure the untrained model's pass rates on the training problems."
    files = "Needs the problems and the model; writes <results>/<scale>/pass_rates."
    stage("pass_rates", about, files, "--seed 0", "untrained")
    about = "Train one model with one method and one seed, and evaluate the policy."
    files = (
        "Needs the problems, the model and the pass rates of the seed, which `snakemake` or the commands before this "
        "one make; writes <results>/<scale>/runs and evaluations. At the scales smoke, laptop and desk all models are "
        "toy models. The same command resumes a run."
    )
    example = f"{OF_MODEL} --method clip_b@mu=1.2 --seed 0"
    stage("train", about, files, example, "model", "method")
    files = "Needs the policy, or for the method 'base' the untrained model; writes <results>/<scale>/evaluations."
    about = "Sample the evaluation sets from a policy."
    example = f"{OF_MODEL} --method clip_b --seed 0 --temperatures 0 1.0"
    evaluate = stage("evaluate", about, files, example, "model", "method")
    evaluate.add_argument("--datasets", nargs="+", help="evaluation sets (default: all of the scale's config)")
    at = "used instead of the config's; samples of each go to a folder T<temperature>, existing ones are kept"
    evaluate.add_argument("--temperatures", nargs="+", type=_temperature, metavar="T", help=at)
    about = "Theorems 1 and 2 on the untrained model of theory_check: predicted and realized entropy change."
    stage("theory", about, "Needs that model; writes <results>/<scale>/theory.", "--scale laptop")


def _result_commands(stage: Adds, command: Adds) -> None:
    files = "Needs their runs; writes <results>/<scale>/tables and figures."
    draw = stage("draw", "Write tables and figures.", files, "table1 figure1")
    names = "table1, figure1, ..., data_filter; by default all whose runs are there"
    draw.add_argument("names", nargs="*", metavar="NAME", help=names)
    whose = {"claims": "the paper's claims", "field": "the claims of other papers", "controls": "controls and placebos"}
    for name, what in whose.items():
        files = f"Needs some runs; a claim without its runs is inconclusive. Writes <results>/<scale>/{name}.md, .json."
        stage(name, f"Judge {what} by the results so far.", files, "--scale laptop")
    about = "Write report.html, one page with all tables, figures and claims so far."
    stage("report", about, "Needs what it shows; writes <results>/<scale>/report.html.", "--scale laptop")
    about = "Serve report.html on this machine only, and rewrite it while runs go on."
    watch = stage("watch", about, "Writes nothing else.", "--scale laptop --port 8000")
    watch.add_argument("--port", type=_port, default=8000, help="port on 127.0.0.1 (default: 8000)")
    about = "Print the verdicts and gains of a run in a few lines, and where its page is."
    summary = command("summary", about, "Needs claims.json there.", "results/laptop")
    summary.add_argument("folder", type=_scale_folder, metavar="FOLDER", help="<results>/<scale>")
    about, files = "Compare the effects and verdicts of two complete runs.", "Needs both claims.json; writes nothing."
    compare = command("compare", about, files, "results/laptop ../second/results/laptop --table")
    compare.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="claims.json, or the folder that contains it")
    compare.add_argument("--table", action="store_true", help="also print a table of all claims")


def _publishing_commands(stage: Adds, command: Adds) -> None:
    about, files = "Check results against their hashes, their samples and the configs.", "Writes nothing."
    verify = stage("verify", about, files, "results/laptop")
    verify.set_defaults(scale=None, results=None)
    where = "folder of a scale, <results>/<scale>; the scale is taken from its name, or is that of --scale"
    verify.add_argument("folder", type=_scale_folder, nargs="?", metavar="FOLDER", help=where)
    about = "Write a folder for a data repository: counts, metrics, samples, data card, checksums."
    archive = command("archive", about, "Needs a finished scale; uploads nothing.", "results/laptop ../published")
    archive.add_argument("folder", type=_scale_folder, metavar="FOLDER", help="<results>/<scale>")
    archive.add_argument("out", type=Path, metavar="OUT", help="a new folder")
    archive.add_argument("--doi", type=_doi, help="the DOI that the repository has reserved for it")
    about = "Recreate results from published counts and metrics, for `claims` and `draw`."
    files = "Needs folders written by archive; prints the command that judges them."
    restore = command("restore", about, files, "../published --out results/laptop")
    restore.add_argument("folders", type=Path, nargs="+", metavar="FOLDER", help="written by archive")
    restore.add_argument("--out", type=_scale_folder, required=True, metavar="OUT", help="a new folder results/<scale>")


def _reference_commands(stage: Adds) -> None:
    about = "Estimate the memory, tokens, hours and disk that a scale needs."
    plan = stage("plan", about, "Starts and writes nothing.", "--scale paper")
    plan.add_argument("--markdown", action="store_true", help="print tables in Markdown")
    targets = ("extras", "methods", "ladder", "field", "controls")
    plan.add_argument("--target", choices=targets, help="plan the runs of this target instead of the default")
    example = f"{OF_MODEL} --method clip_b --why method.params.mu"
    config = stage("config", "Print the resolved config of a run.", "Writes nothing.", example)
    config.add_argument("--model", help=MODEL)
    config.add_argument("--method", help=METHOD)
    about = "print where this key gets its value, and which values of other files that overrides"
    config.add_argument("--why", metavar="KEY", help=about)
    config.add_argument("--schema", action="store_true", help="print the JSON schema of a run's config instead")
    about = "Print the prompt of one problem, and its number of tokens."
    files = "Needs the problems; without the model, it is a preview."
    prompt = stage("prompt", about, files, OF_MODEL, "model")
    prompt.add_argument("--problem", metavar="ID", help="id of a problem (default: the first training problem)")


def _file_commands(command: Adds) -> None:
    about, files = "Unbiased Pass@k of graded samples, for all k.", "Needs parquet, JSONL or CSV of any trainer."
    passes = command("pass-at-k", about, files, "grpo.parquet clip_b.parquet")
    passes.add_argument("files", type=Path, metavar="FILE", nargs="+", help="one, or two to compare, or folders")
    passes.add_argument("--problem", metavar="COLUMN", help="column that identifies a problem")
    passes.add_argument("--correct", metavar="COLUMN", help="grade of a sample: 1: correct, missing: left out")
    passes.add_argument("--threshold", type=_finite, metavar="GRADE", help="smallest grade of a correct sample")
    power = "number of problems needed to detect a difference of D points, given the rates in one FILE"
    passes.add_argument("--power", type=_points, metavar="D", help=power)
    about = "Which tokens of a batch each method drops, and where it pushes the entropy."
    files = "Needs a file with log p, entropy and advantage of each token, of any trainer."
    lens = command("lens", about, files, "samples/step50.parquet --methods clip_b@share=0.02 clip_cov")
    lens.add_argument("files", type=Path, metavar="FILE", nargs="?", help="parquet, JSONL or CSV")
    lens.usage = "%(prog)s [-h] FILE [--methods METHOD ...] [--temperature TEMPERATURE] [--figure FILE]"
    of_lens = "methods to compare, after FILE: name or name@parameter=value,..."
    lens.add_argument("--methods", nargs="+", metavar="METHOD", help=of_lens)
    lens.add_argument("--temperature", type=_positive, default=1.0, help="divisor of the logits (default: 1)")
    lens.add_argument("--figure", type=_ending(".png", ".svg", ".pdf"), metavar="FILE", help="draw it: png, svg, pdf")
    about, files = "When and why the entropy of a run fell or rose.", "Needs a trainer's log of one run."
    entropy = command("entropy-watch", about, files, "checkpoints/trainer_state.json")
    entropy.add_argument("files", type=Path, metavar="RUN", help="a log, or the folder of a run")
    entropy.add_argument("--entropy", metavar="COLUMN", help="name of the entropy metric")
    about = "Check the entropy that a trainer logs, on a batch with known entropies."
    check = command("entropy-check", about, "Needs the trainer's result on the batch that --write writes.", "1.2345")
    nats = "the trainer's result on the batch, nats"
    check.add_argument("value", type=_finite, nargs="?", metavar="VALUE", help=nats)
    check.add_argument("--write", type=_ending(".npz"), metavar="FILE", help="write the batch as .npz")


def _listed(groups: dict[str, dict[str, argparse.ArgumentParser]]) -> str:
    lines = []
    for title, commands in groups.items():
        lines += [f"{title}:", *(f"    {name:<13} {sub.get_default('about')}" for name, sub in commands.items()), ""]
    return "\n".join([*lines, "needs, files and an example of one: entropy-dynamics COMMAND --help"])


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
