"""The command line: `entropy-dynamics <step> --help`. The rules of the workflow run exactly these commands."""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from entropy_dynamics.config import Config, DataConfig, ProblemSetConfig, load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.layout import Layout

# What a step needs is imported when it runs: torch and transformers take seconds, and tables and figures need neither.


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step. Returns 0, 2 for a mistake that the user can mend, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; no half-written file is left", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="entropy-dynamics", description=__doc__.split("\n")[0])
    steps = parser.add_subparsers(title="steps", required=True, metavar="STEP")

    def step(name: str, run, about: str, *needs: str) -> argparse.ArgumentParser:
        sub = steps.add_parser(name, help=about, description=about)
        sub.set_defaults(run=run)
        sub.add_argument("--scale", default="laptop", help="a file of configs/scale (default: laptop)")
        sub.add_argument("--results", default="results", help="where results stand (default: results)")
        sub.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a config value")
        if "model" in needs:
            sub.add_argument("--model", required=True, help="a file of configs/model")
        if "method" in needs:
            sub.add_argument("--method", required=True, help="a file of configs/method, or name@parameter=value,...")
            sub.add_argument("--seed", type=_seed, required=True, help="0 or more")
        return sub

    data = step("data", _data, "Build or read, check and split the problem sets.")
    data.add_argument("--train", metavar="FILE", help="training problems, JSONL or parquet, instead of the scale's")
    data.add_argument("--evaluation", action="append", default=[], metavar="NAME=FILE", help="an evaluation set")
    data.add_argument(
        "--split", action="append", default=[], metavar="NAME=SIZE", help="a set split off the training set"
    )
    data.add_argument("--out", metavar="DIR", help="where to write (default: <results>/<scale>/data)")
    data.add_argument("--prompts", metavar="MODEL", help="also write the prompts that the real MODEL would get")
    step("model", _model, "Make a base model ready: build and warm-start its stand-in.", "model")
    step("pass-rates", _pass_rates, "Measure pass rates and filter the training problems.")
    step("train", _train, "Train one model with one method and one seed.", "model", "method")
    evaluate = step("evaluate", _evaluate, "Sample the evaluation sets from a policy.", "model", "method")
    evaluate.add_argument("--datasets", nargs="+", help="which sets (default: all of the scale's config)")
    step("theory", _theory, "Theorems 1 and 2 on the base model: predicted against realised entropy change.", "model")
    report = step("report", _report, "Draw tables and figures.")
    report.add_argument("names", nargs="+", metavar="NAME", help="table1, figure1, ..., pass_rates")
    step("claims", _claims, "Judge the paper's claims by the results that are there.")
    show = step("config", _config, "Print the resolved config of a run.", "model")
    show.add_argument("--method", required=True)
    return parser


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 0 or more")
    return int(text)


def _load(options: argparse.Namespace, model: str | None = None, method: str | None = None) -> tuple[Config, Layout]:
    config = load_config(options.scale, model, method, options.set)
    return config, Layout.of(options.scale, options.results)


def _load_torch(config: Config) -> None:
    """Import torch with the configured number of threads; whatever the libraries have to say is left out."""
    os.environ.setdefault("OMP_NUM_THREADS", str(config.threads))
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import torch
    from transformers.utils import logging

    torch.set_num_threads(config.threads)
    logging.disable_progress_bar()


def _data(options: argparse.Namespace) -> None:
    from entropy_dynamics.tasks.problem_sets import build_problem_sets
    from entropy_dynamics.tasks.prompts import write_prompts

    config, layout = _load(options, options.prompts)
    out = Path(options.out) if options.out else layout.data
    if options.train and not options.out:
        raise UserError(f"--train goes with --out DIR: {out} is for the scale's own problems")
    report = build_problem_sets(_problem_sources(config.data, options), out)
    for name, entry in report["sets"].items():
        print(f"{name}: {entry['kept']} problems{' split off train' if entry['source'] == 'split' else ''}")
    if options.prompts:
        write_prompts(out, list(report["sets"]), config.model.prompt_format)


def _problem_sources(data: DataConfig, options: argparse.Namespace) -> DataConfig:
    """The scale's problem sets, or those named on the command line when any is."""
    if not (options.train or options.evaluation or options.split):
        return data
    if not options.train:
        raise UserError("--evaluation and --split go with --train FILE")
    evaluation = {}
    for entry in options.evaluation:
        name, path = _name_and_value("--evaluation", entry)
        evaluation[name] = ProblemSetConfig(source="file", path=path)
    for entry in options.split:
        name, size = _name_and_value("--split", entry)
        if not size.isdecimal():
            raise UserError(f"--split {entry}: {size!r} is not a number of problems")
        evaluation[name] = ProblemSetConfig(source="split", size=int(size))
    return DataConfig(seed=data.seed, train=ProblemSetConfig(source="file", path=options.train), evaluation=evaluation)


def _name_and_value(option: str, entry: str) -> tuple[str, str]:
    name, equals, value = entry.partition("=")
    if not (name.isidentifier() and equals and value):
        raise UserError(f"{option} {entry!r} is not of the form NAME=VALUE")
    return name, value


def _model(options: argparse.Namespace) -> None:
    config, layout = _load(options, options.model)
    _load_torch(config)
    from entropy_dynamics.models.preparation import prepare_model

    prepare_model(config, layout)


def _pass_rates(options: argparse.Namespace) -> None:
    model = load_config(options.scale, overrides=options.set).pass_rates.model
    config, layout = _load(options, model)
    _load_torch(config)
    from entropy_dynamics.pass_rates import measure_pass_rates

    frame = measure_pass_rates(config, layout)
    print(f"{frame['kept'].sum()} of {len(frame)} problems kept; mean pass rate {frame['rate'].mean():.3f}")


def _train(options: argparse.Namespace) -> None:
    config, layout = _load(options, options.model, options.method)
    _load_torch(config)
    from entropy_dynamics.training.run import run_training

    run_training(config, layout, options.method, options.seed)


def _evaluate(options: argparse.Namespace) -> None:
    config, layout = _load(options, options.model, options.method)
    _load_torch(config)
    from entropy_dynamics.evaluation import evaluate

    evaluate(config, layout, options.method, options.seed, options.datasets or list(config.data.evaluation))


def _theory(options: argparse.Namespace) -> None:
    config, layout = _load(options, options.model)
    _load_torch(config)
    from entropy_dynamics.theory_check import check_logit_steps

    print(check_logit_steps(config, layout))


def _report(options: argparse.Namespace) -> None:
    from entropy_dynamics.reporting import render

    config, layout = _load(options)
    for name in options.names:
        for path in render(name, layout.root, options.scale, dict(config.seeds)):
            print(path)


def _claims(options: argparse.Namespace) -> None:
    from entropy_dynamics.reporting.claims import write_claims

    config, layout = _load(options)
    for path in write_claims(layout.root, options.scale, dict(config.seeds)):
        print(path)


def _config(options: argparse.Namespace) -> None:
    from entropy_dynamics.config import to_yaml

    print(to_yaml(_load(options, options.model, options.method)[0]), end="")


if __name__ == "__main__":
    sys.exit(main())
