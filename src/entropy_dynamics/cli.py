"""The command line: `entropy-dynamics <stage> --help`. The rules of the workflow run exactly these commands."""

import argparse
import atexit
import gc
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from entropy_dynamics.config import Config, RunConfig, StageConfig, load_config, to_yaml
from entropy_dynamics.distributed.devices import claim_devices
from entropy_dynamics.distributed.launch import end_with_parent, launched, run_on_ranks
from entropy_dynamics.errors import Unfinished, UserError
from entropy_dynamics.results.layout import Layout

if TYPE_CHECKING:
    from entropy_dynamics.analysis.results import Results
    from entropy_dynamics.distributed.ranks import Ranks

# Stages import their modules when they run: torch and transformers take seconds, and tables and figures need neither.


def program() -> None:
    """The command itself: `main`, then exit at once, since tearing down an interpreter with torch in it takes 0.6 s.

    Handlers that libraries registered with atexit still run, and an exception that `main` raises ends the process.
    """
    codes: list[int] = []
    atexit.register(_leave, codes)  # registered first, so it runs last
    try:
        codes.append(main())
    except SystemExit as end:  # argparse's, with a code
        codes.append(int(end.code or 0))
    sys.exit(codes[0])


def _leave(codes: list[int]) -> None:
    if codes:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(codes[0])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one stage.

    Returns:
        0; 1 if `verify` found something; 2 for the user's mistakes; 75 if a run ended at a checkpoint, to be resumed by
        the same command; 130 after Ctrl-C.
    """
    options = _parser().parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else list(arguments)
    if launched():
        end_with_parent()
    try:
        return options.run(options) or 0
    except UserError as error:
        print("error:", *str(error).splitlines(), file=sys.stderr)  # it may quote a value of several lines
        return 2
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in ("", "entropy_dynamics"):
            raise
        extra = "trackers" if error.name in ("tensorboard", "wandb") else "harness"
        print(f"error: {error.name} is not installed; it comes with this project's extra {extra!r}", file=sys.stderr)
        return 2
    except Unfinished:  # its first rank has said so
        return Unfinished.EXIT_CODE
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which is not imported here for its sake
            raise
        print(
            f"error: the GPU is out of memory ({str(error).splitlines()[0]}); lower training.tokens_per_micro_batch or "
            "sampling.batch_size, set training.activation_checkpointing=full, or raise hardware.ranks",
            file=sys.stderr,
        )
        return 2
    except OSError as error:  # a full disk, a read-only folder
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        if not launched():  # the process that started the ranks reports it
            print("interrupted; no half-written file is left", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="entropy-dynamics", description=__doc__.split("\n")[0])
    stages = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    def command(name: str, run, about: str, more: str = "") -> argparse.ArgumentParser:
        sub = stages.add_parser(name, help=about, description=f"{about}{more}")
        sub.set_defaults(run=run)
        return sub

    def stage(name: str, run, about: str, *needs: str) -> argparse.ArgumentParser:
        sub = command(name, run, about)
        sub.add_argument("--scale", default="laptop", help="a file of configs/scale (default: laptop)")
        sub.add_argument("--results", default="results", help="the results folder (default: results)")
        sub.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a config value")
        if "model" in needs:
            sub.add_argument("--model", required=True, help="a file of configs/model")
        if "method" in needs:
            sub.add_argument("--method", required=True, help="a file of configs/method, or name@parameter=value,...")
            sub.add_argument("--seed", type=_seed, required=True, help="0 or more")
        return sub

    problems = stage("problems", _problems, "Generate or read, clean and split the problem sets.")
    problems.add_argument("--train", metavar="FILE", help="training problems, JSONL or parquet, instead of the scale's")
    problems.add_argument("--evaluation", action="append", default=[], metavar="NAME=FILE", help="an evaluation set")
    problems.add_argument(
        "--split", action="append", default=[], metavar="NAME=SIZE", help="a set split off the training set"
    )
    problems.add_argument("--task", default="math", help="the task that grades problems from files (default: math)")
    problems.add_argument("--out", metavar="DIR", help="output folder (default: <results>/<scale>/data)")
    problems.add_argument("--prompts", metavar="MODEL", help="also write the prompts that the real MODEL would get")
    stage("model", _model, "Prepare a base model: download it, or build and warm-start a toy model.", "model")
    stage("pass_rates", _pass_rates, "Measure pass rates and filter the training problems.")
    stage("train", _train, "Train one model with one method and one seed.", "model", "method")
    evaluate = stage("evaluate", _evaluate, "Sample the evaluation sets from a policy.", "model", "method")
    evaluate.add_argument("--datasets", nargs="+", help="which sets (default: all of the scale's config)")
    stage("theory", _theory, "Theorems 1 and 2 on the base model: predicted and realized entropy change.", "model")
    draw = stage("draw", _draw, "Write tables and figures.")
    draw.add_argument("names", nargs="+", metavar="NAME", help="table1, figure1, ..., data_filter")
    stage("claims", _claims, "Judge the paper's claims by the results so far.")
    stage("report", _report, "Write report.html, one page with all tables, figures and claims that are there.")
    compare = command("compare", _compare, "Compare the effects and verdicts of two complete runs.")
    compare.add_argument("runs", nargs=2, type=Path, metavar="RUN", help="claims.json, or the folder that contains it")

    archive = command("archive", _archive, "Write results into a zip file, as an RO-Crate.")
    archive.add_argument("folder", type=Path, metavar="FOLDER", help="<results>/<scale>")
    archive.add_argument("--out", type=Path, metavar="FILE", help="default: FOLDER.zip")
    archive.add_argument("--policies", action="store_true", help="with the weights and tokenizers of all models")

    def diagnostic(name: str, run, about: str, operand: str, nargs: str | None = None) -> argparse.ArgumentParser:
        sub = command(name, run, about, " Formats: docs/diagnostics.md.")
        sub.add_argument("files", type=Path, metavar=operand, nargs=nargs)
        return sub

    passes = diagnostic("pass-at-k", _pass_at_k, "Unbiased Pass@k of graded samples, for all k.", "FILE", nargs="+")
    passes.add_argument("--problem", metavar="COLUMN", help="what identifies a problem")
    passes.add_argument("--correct", metavar="COLUMN", help="grade of a sample; above 0: correct, none: left out")
    lens = diagnostic("lens", _lens, "What each method would drop of a batch, and where it pushes entropy.", "FILE")
    lens.add_argument("--methods", nargs="+", metavar="METHOD", help="name or name@parameter=value,...")
    lens.add_argument("--temperature", type=float, default=1.0, help="that logits are divided by (default: 1)")
    watch = diagnostic("entropy-watch", _entropy_watch, "When and why the entropy of a run fell.", "RUN")
    for sub in (lens, watch):
        sub.add_argument("--figure", type=_figure, metavar="FILE", help="also draw it: .png, .svg or .pdf")

    prompt = stage("prompt", _prompt, "Print the prompt of one problem, and its number of tokens.", "model")
    prompt.add_argument("--problem", metavar="ID", help="of any problem set (default: the first training problem)")
    verify = stage("verify", _verify, "Check results against their hashes, their samples and the configs.")
    verify.add_argument("folder", nargs="?", metavar="FOLDER", help="<results>/<scale>, instead of both options")
    plan = stage("plan", _plan, "Memory, tokens, hours and disk that a scale needs; nothing is started.")
    plan.add_argument("--markdown", action="store_true", help="tables in Markdown")
    plan.add_argument("--target", choices=("extras", "methods"), help="the runs of this target, not the default ones")
    config = stage("config", _config, "Print the resolved config of a run.")
    config.add_argument("--model", help="a file of configs/model")
    config.add_argument("--method", help="a file of configs/method, or name@parameter=value,...")
    config.add_argument("--schema", action="store_true", help="print the JSON schema of a run's config instead")
    return parser


def _seed(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text!r} is not an integer of 0 or more, with at most 18 digits")
    return int(text)


def _figure(text: str) -> Path:
    if (path := Path(text)).suffix not in (".png", ".svg", ".pdf"):
        raise argparse.ArgumentTypeError(f"{text!r} does not end in .png, .svg or .pdf")
    return path


def _layout(options: argparse.Namespace) -> Layout:
    return Layout.of(options.scale, options.results)


def _results(options: argparse.Namespace) -> "Results":
    from entropy_dynamics.analysis.results import Results

    seeds = dict(load_config(options.scale, overrides=options.set).seeds)
    return Results(_layout(options).root, options.scale, seeds)


def _quieten(threads: int) -> None:
    """Before transformers is imported: the number of threads, and none of its messages."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _load_torch(config: Config) -> None:
    """Import torch and transformers, set up for this config."""
    _quieten(config.threads)
    if config.hardware.device == "cuda" and "PYTORCH_ALLOC_CONF" not in os.environ:  # torch's newer name for it
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # less fragmentation
    import_torch()
    import torch

    torch.set_num_threads(config.threads)


def import_torch() -> None:
    """Import torch, and the part of transformers that takes long."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    enabled = gc.isenabled()
    gc.disable()  # garbage collection is a quarter of the import time
    try:
        import torch  # noqa: F401
        from transformers.modeling_utils import logging  # from the module that takes long
    finally:
        if enabled:
            gc.enable()
    logging.disable_progress_bar()


def _device(config: StageConfig) -> AbstractContextManager[object]:
    """The claim of one device for this process; a rank's is held by the process that launched it."""
    return nullcontext() if launched() else claim_devices(config.hardware.device, 1, config.hardware.runs_per_gpu)


@contextmanager
def _ranks(config: StageConfig, options: argparse.Namespace) -> Iterator["Ranks | None"]:
    """This process as one of the ranks that share the stage; None in the one that started them, once they are done."""
    if config.hardware.ranks is not None and not launched():
        run_on_ranks(config, options.arguments)
        yield None
        return
    with _device(config):
        _load_torch(config)
        from entropy_dynamics.distributed.ranks import Ranks

        ranks = Ranks.join(config.hardware)
        try:
            yield ranks
        finally:
            ranks.close()


def _problems(options: argparse.Namespace) -> None:
    from entropy_dynamics.stages.problems import build_problem_sets, sources_from_files
    from entropy_dynamics.tasks.prompts import write_prompts

    data = load_config(options.scale, overrides=options.set).data
    out = Path(options.out) if options.out else _layout(options).data
    if options.train and not options.out:
        raise UserError(f"--train needs --out DIR: {out} is for the scale's own problems")
    prompt_format = load_config(options.scale, options.prompts).model.prompt_format if options.prompts else None
    if options.train or options.evaluation or options.split:
        data = sources_from_files(data.seed, options.task, options.train, options.evaluation, options.split)
    report = build_problem_sets(data, out)
    for name, entry in report["sets"].items():
        print(f"{name}: {entry['kept']} problems{' split off train' if entry['source'] == 'split' else ''}")
    if prompt_format is not None:
        write_prompts(out, report["sets"], prompt_format)


def _model(options: argparse.Namespace) -> None:
    config = load_config(options.scale, options.model, overrides=options.set)
    with _device(config) if options.model in config.toy_models else nullcontext():  # others are only downloaded
        _load_torch(config)
        from entropy_dynamics.stages.model import prepare_model

        prepare_model(config, _layout(options))


def _pass_rates(options: argparse.Namespace) -> None:
    model = load_config(options.scale, overrides=options.set).pass_rates.model
    config = load_config(options.scale, model, overrides=options.set)
    with _ranks(config, options) as ranks:
        if ranks is None:
            return
        from entropy_dynamics.stages.pass_rates import measure_pass_rates

        frame = measure_pass_rates(config, _layout(options), ranks)
    if ranks.is_main:
        print(f"{frame['kept'].sum()} of {len(frame)} problems kept; mean pass rate {frame['rate'].mean():.3f}")


def _train(options: argparse.Namespace) -> None:
    config = load_config(options.scale, options.model, options.method, options.set)
    with _ranks(config, options) as ranks:
        if ranks is not None:
            from entropy_dynamics.stages.train import train

            train(config, _layout(options), options.method, options.seed, ranks)


def _evaluate(options: argparse.Namespace) -> None:
    config = load_config(options.scale, options.model, options.method, options.set)
    with _ranks(config, options) as ranks:
        if ranks is not None:
            from entropy_dynamics.stages.evaluate import evaluate

            evaluate(config, _layout(options), options.method, options.seed, options.datasets, ranks)


def _theory(options: argparse.Namespace) -> None:
    config = load_config(options.scale, options.model, overrides=options.set)
    with _device(config):
        _load_torch(config)
        from entropy_dynamics.stages.theory import check_logit_steps

        print(check_logit_steps(config, _layout(options)))


def _draw(options: argparse.Namespace) -> None:
    from entropy_dynamics.reporting import render

    results = _results(options)
    for name in options.names:
        for path in render(name, results):
            print(path)


def _claims(options: argparse.Namespace) -> None:
    from entropy_dynamics.reporting.claims import write_claims

    results = _results(options)
    if not results.root.is_dir():  # missing files are part of a verdict, a missing folder is a mistake
        raise UserError(f"no folder {results.root}; make it with: snakemake --config scale={options.scale}")
    for path in write_claims(results):
        print(path)


def _report(options: argparse.Namespace) -> None:
    from entropy_dynamics.reporting.report import write_report

    print(write_report(_results(options)))


def _compare(options: argparse.Namespace) -> None:
    from entropy_dynamics.reporting.comparison import write_comparison

    print(write_comparison(*options.runs), end="")


def _archive(options: argparse.Namespace) -> None:
    from entropy_dynamics.results.archive import write_archive

    folder = options.folder if options.folder.name else options.folder.resolve()  # `.` has no name
    print(write_archive(Layout(folder), options.out or folder.with_name(f"{folder.name}.zip"), options.policies))


def _pass_at_k(options: argparse.Namespace) -> None:
    from entropy_dynamics.diagnostics.pass_at_k import pass_at_k_table

    table, notes = pass_at_k_table(options.files, options.problem, options.correct)
    for note in notes:
        print(note, file=sys.stderr)
    print(table.to_string(index=False, float_format=lambda value: f"{value:.1f}"))


def _lens(options: argparse.Namespace) -> None:
    from entropy_dynamics.diagnostics.lens import METHODS, draw, lens_table

    table, about = lens_table(options.files, options.methods or METHODS, options.temperature)
    print(about)
    print(table.to_string(index=False, float_format=lambda value: f"{value:.4g}", na_rep="-"))
    if options.figure:
        draw(table, options.figure)


def _entropy_watch(options: argparse.Namespace) -> None:
    from entropy_dynamics.diagnostics.entropy_watch import describe, draw, read_metrics

    metrics = read_metrics(options.files)
    print(describe(metrics, options.files))
    if options.figure:
        draw(metrics, options.figure)


def _prompt(options: argparse.Namespace) -> None:
    """Print the prompt to stdout and all else to stderr, so that a file or a pipe gets only the prompt."""
    from entropy_dynamics.tasks.prompts import find_problem, preview_prompt, prompt_tokens, render_prompt

    config, layout = load_config(options.scale, options.model, overrides=options.set), _layout(options)
    name, problem = find_problem(layout.data, config.data.sets, options.problem)
    directory, prompt_format = layout.model(options.model), config.model.prompt_format
    if (directory / "tokenizer_config.json").is_file():
        _quieten(config.threads)
        from entropy_dynamics.models.loading import load_tokenizer

        tokenizer = load_tokenizer(directory)
        text = render_prompt(tokenizer, problem, prompt_format)
        count = len(prompt_tokens(tokenizer, problem, prompt_format))
        about = f"{count} tokens (limit {config.sampling.max_prompt_tokens})"
    else:
        text = preview_prompt(problem, prompt_format)
        about = f"a preview, since there is no tokenizer in {directory}"
    print(f"{problem.id} of {name}: {about}", file=sys.stderr, flush=True)
    print(text, end="" if text.endswith("\n") else "\n")


def _verify(options: argparse.Namespace) -> int:
    from entropy_dynamics.verification import verify

    if options.folder:
        options.results, options.scale = Path(options.folder).parent, Path(options.folder).name
    verification = verify(_layout(options), options.scale, options.set)
    for line in (*verification.findings, verification.summary):
        print(line)
    return 1 if verification.errors else 0


def _plan(options: argparse.Namespace) -> None:
    from entropy_dynamics.planning.plan import check_fits, make_plan
    from entropy_dynamics.planning.tables import format_plan

    plan = make_plan(options.scale, options.set, target=options.target)
    print(format_plan(plan, options.markdown))
    check_fits(plan)


def _config(options: argparse.Namespace) -> None:
    if options.schema:
        # JSON has no infinity, which is the default of some bounds.
        schema = json.loads(json.dumps(RunConfig.model_json_schema()), parse_constant=str)
        print(json.dumps(schema, indent=2, ensure_ascii=False))
    elif options.method and not options.model:
        raise UserError("--method needs --model: a run has both")
    else:
        print(to_yaml(load_config(options.scale, options.model, options.method, options.set)), end="")


if __name__ == "__main__":
    program()
