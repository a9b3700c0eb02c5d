"""The command line: `entropy-dynamics <step> --help`. The rules of the workflow run exactly these commands."""

import argparse
import atexit
import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from entropy_dynamics.config import Config, DataConfig, ProblemSetConfig, load_config
from entropy_dynamics.distributed.devices import claim_devices
from entropy_dynamics.distributed.launch import end_with_parent, launched, run_on_ranks
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.tasks.grading import MAX_DIGITS

if TYPE_CHECKING:
    from entropy_dynamics.distributed.ranks import Ranks

# What a step needs is imported when it runs: torch and transformers take seconds, and tables and figures need neither.


def program() -> None:
    """The command itself: `main`, then out at once, as taking an interpreter with torch in it apart takes 0.6 s.

    What libraries do at exit is still done, and an exception that `main` lets through ends the process as ever.
    """
    codes: list[int] = []
    atexit.register(_leave, codes)  # registered first, so it runs last
    codes.append(main())
    sys.exit(codes[0])


def _leave(codes: list[int]) -> None:
    if codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(codes[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one step. Returns 0, 1 if `verify` found something, 2 for what the user can mend, 130 after Ctrl-C."""
    options = _parser().parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else list(arguments)
    if launched():
        end_with_parent()
    try:
        with ExitStack() as options.until_done:
            code = options.run(options)
    except UserError as error:
        print("error:", *str(error).splitlines(), file=sys.stderr)  # it may quote a value of several lines
        return 2
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here for its sake
            raise
        print(
            f"error: the GPU is out of memory ({str(error).splitlines()[0]}); lower training.tokens_per_micro_batch or "
            "sampling.batch_size, set training.activation_checkpointing, or raise hardware.ranks",
            file=sys.stderr,
        )
        return 2
    except OSError as error:  # a full disk, a folder that may not be written
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if not launched():  # whoever started the ranks says it
            print("interrupted; no half-written file is left", file=sys.stderr)
        return 130
    return code or 0


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
    prompt = step("prompt", _prompt, "Print one problem as the model gets it, and its number of tokens.", "model")
    prompt.add_argument("--problem", metavar="ID", help="of any problem set (default: the first training problem)")
    step("model", _model, "Make a base model ready: build and warm-start its stand-in.", "model")
    step("pass-rates", _pass_rates, "Measure pass rates and filter the training problems.")
    step("train", _train, "Train one model with one method and one seed.", "model", "method")
    evaluate = step("evaluate", _evaluate, "Sample the evaluation sets from a policy.", "model", "method")
    evaluate.add_argument("--datasets", nargs="+", help="which sets (default: all of the scale's config)")
    step("theory", _theory, "Theorems 1 and 2 on the base model: predicted against realised entropy change.", "model")
    report = step("report", _report, "Draw tables and figures.")
    report.add_argument("names", nargs="+", metavar="NAME", help="table1, figure1, ..., pass_rates")
    step("claims", _claims, "Judge the paper's claims by the results that are there.")
    check = step("verify", _verify, "Check results against their hashes, their samples and the configs.")
    check.add_argument("folder", nargs="?", metavar="FOLDER", help="<results>/<scale>, in place of both options")
    plan = step("plan", _plan, "Say what a scale needs before anything is started: memory, tokens, hours, disk.")
    plan.add_argument("--markdown", action="store_true", help="tables in Markdown")
    show = step("config", _config, "Print the resolved config of a run.", "model")
    show.add_argument("--method", required=True)
    return parser


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > MAX_DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 0 or more, with at most {MAX_DIGITS} digits")
    return int(text)


def _load(options: argparse.Namespace, model: str | None = None, method: str | None = None) -> tuple[Config, Layout]:
    config = load_config(options.scale, model, method, options.set)
    return config, Layout.of(options.scale, options.results)


def _quieten(config: Config) -> None:
    """Before transformers is imported: the configured number of threads, and nothing of what it has to say."""
    os.environ.setdefault("OMP_NUM_THREADS", str(config.threads))
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _load_torch(config: Config) -> None:
    """Import torch and what all of transformers' models need."""
    _quieten(config)
    gc.disable()  # it would go through all that these modules define again and again: a quarter of their time
    try:
        import torch
        from transformers.modeling_utils import logging  # from there, as the module is what takes long
    finally:
        gc.enable()
    torch.set_num_threads(config.threads)
    logging.disable_progress_bar()


def _left_to_ranks(config: Config, options: argparse.Namespace) -> bool:
    """True where ranks did this step, started here and waited for; else this process is to do it."""
    if launched():
        return False
    if config.hardware.ranks is None:
        options.until_done.enter_context(claim_devices(config.hardware.device, 1))
        return False
    run_on_ranks(config, options.arguments)
    return True


@contextmanager
def _ranks(config: Config) -> Iterator["Ranks"]:
    """This process among those that share the step."""
    from entropy_dynamics.distributed.ranks import Ranks

    ranks = Ranks.join(config.hardware)
    try:
        yield ranks
    finally:
        ranks.close()


def _data(options: argparse.Namespace) -> None:
    from entropy_dynamics.stages.problems import build_problem_sets
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
        if not size.isdecimal() or len(size) > MAX_DIGITS:
            raise UserError(f"--split {entry}: {size!r} is not a number of problems")
        evaluation[name] = ProblemSetConfig(source="split", size=int(size))
    train = ProblemSetConfig(source="file", path=options.train)
    return DataConfig(seed=data.seed, folder=None, train=train, evaluation=evaluation)


def _name_and_value(option: str, entry: str) -> tuple[str, str]:
    name, equals, value = entry.partition("=")
    if not (name.isidentifier() and equals and value):
        raise UserError(f"{option} {entry!r} is not of the form NAME=VALUE")
    return name, value


def _prompt(options: argparse.Namespace) -> None:
    """The prompt goes to stdout, all else to stderr, so that a file or a pipe gets the prompt alone."""
    from entropy_dynamics.tasks.prompts import find_problem, preview_messages, prompt_tokens, render_prompt

    config, layout = _load(options, options.model)
    name, problem = find_problem(layout.data, ["train", *config.data.evaluation], options.problem)
    directory, prompt_format = layout.model(options.model), config.model.prompt_format
    if (directory / "tokenizer_config.json").is_file():
        _quieten(config)
        from entropy_dynamics.models.loading import load_tokenizer

        tokenizer = load_tokenizer(directory)
        text = render_prompt(tokenizer, problem.problem, prompt_format)
        count = len(prompt_tokens(tokenizer, problem.problem, prompt_format))
        about = f"{count} tokens (limit {config.sampling.max_prompt_tokens})"
    else:
        text = preview_messages(problem.problem, prompt_format)
        about = f"a preview, since there is no tokenizer in {directory}"
    print(f"{problem.id} of {name}: {about}", file=sys.stderr, flush=True)
    print(text, end="" if text.endswith("\n") else "\n")


def _model(options: argparse.Namespace) -> None:
    config, layout = _load(options, options.model)
    _load_torch(config)
    from entropy_dynamics.stages.model import prepare_model

    prepare_model(config, layout)


def _pass_rates(options: argparse.Namespace) -> None:
    model = load_config(options.scale, overrides=options.set).pass_rates.model
    config, layout = _load(options, model)
    if _left_to_ranks(config, options):
        return
    _load_torch(config)
    from entropy_dynamics.stages.pass_rates import measure_pass_rates

    with _ranks(config) as ranks:
        frame = measure_pass_rates(config, layout, ranks)
    if ranks.is_main:
        print(f"{frame['kept'].sum()} of {len(frame)} problems kept; mean pass rate {frame['rate'].mean():.3f}")


def _train(options: argparse.Namespace) -> None:
    config, layout = _load(options, options.model, options.method)
    if _left_to_ranks(config, options):
        return
    _load_torch(config)
    from entropy_dynamics.stages.train import run_training

    with _ranks(config) as ranks:
        run_training(config, layout, options.method, options.seed, ranks)


def _evaluate(options: argparse.Namespace) -> None:
    config, layout = _load(options, options.model, options.method)
    if _left_to_ranks(config, options):
        return
    _load_torch(config)
    from entropy_dynamics.stages.evaluate import evaluate

    datasets = options.datasets or list(config.data.evaluation)
    with _ranks(config) as ranks:
        evaluate(config, layout, options.method, options.seed, datasets, ranks)


def _theory(options: argparse.Namespace) -> None:
    config, layout = _load(options, options.model)
    options.until_done.enter_context(claim_devices(config.hardware.device, 1))
    _load_torch(config)
    from entropy_dynamics.stages.theory import check_logit_steps

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
    if not layout.root.is_dir():  # files that are missing are part of a verdict, a folder that is missing is a mistake
        raise UserError(f"no folder {layout.root}; make it with: snakemake --config scale={options.scale}")
    for path in write_claims(layout.root, options.scale, dict(config.seeds)):
        print(path)


def _verify(options: argparse.Namespace) -> int:
    from entropy_dynamics.verification import verify

    if options.folder:
        options.results, options.scale = Path(options.folder).parent, Path(options.folder).name
    verification = verify(Layout.of(options.scale, options.results), options.scale, options.set)
    for line in (*verification.findings, verification.summary):
        print(line)
    return 0 if verification.sound else 1


def _plan(options: argparse.Namespace) -> None:
    from entropy_dynamics.planning.plan import check_fits, make_plan, write_plan

    plan = make_plan(options.scale, options.set)
    print(write_plan(plan, options.markdown))
    check_fits(plan, options.scale, options.set)


def _config(options: argparse.Namespace) -> None:
    from entropy_dynamics.config import to_yaml

    print(to_yaml(_load(options, options.model, options.method)[0]), end="")


if __name__ == "__main__":
    program()
