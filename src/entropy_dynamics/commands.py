"""The commands, whose options are in arguments.py. Slow modules are imported when a command runs."""

import argparse
import json
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from entropy_dynamics.config import (
    BASE,
    Config,
    RunConfig,
    check_name,
    known_names,
    load_config,
    origins,
    released_settings,
    to_yaml,
)
from entropy_dynamics.distributed.launch import acts_for_stage, launched
from entropy_dynamics.distributed.lock import held
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.preparation import joined_ranks, on_device, quieten
from entropy_dynamics.results.layout import Layout

if TYPE_CHECKING:
    from entropy_dynamics.analysis.run_data import Results


def _layout(options: argparse.Namespace) -> Layout:
    return Layout.of(options.scale, options.results, options.set)


def _config(options: argparse.Namespace) -> Config:
    scale, model, method = options.scale, getattr(options, "model", None), getattr(options, "method", None)
    config = load_config(scale, model, method, options.set)
    if model and method:
        check_name(scale, model, method, options.set)
    if model in config.toy_models and any(entry.startswith("model.path=") for entry in options.set):
        raise UserError(f"--set model.path: {model} is a toy model at scale {scale}; take another scale, such as paper")
    return config


def _check_chain(options: argparse.Namespace, stage: str, model: str, method: str = BASE, seed: int = 0) -> None:
    from entropy_dynamics.stages.inputs import check_chain

    load = partial(load_config, options.scale, overrides=options.set)
    check_chain(_layout(options), load, stage, model, method, seed)


def _scale_by_name(folder: Path) -> str:
    known = known_names("scale")
    if known and folder.name not in known:
        unknown = f"unknown scale {folder.name!r}{nearest(folder.name, known)}"
        raise UserError(f"{folder}: its last part should name a scale, as in results/laptop: {unknown}")
    return folder.name


def _results(options: argparse.Namespace) -> "Results":
    from entropy_dynamics.analysis.run_data import Results

    return Results(_layout(options).root, options.scale, dict(_config(options).seeds))


def problems(options: argparse.Namespace) -> None:
    from entropy_dynamics.stages.problems import build_problem_sets

    report = build_problem_sets(_config(options).data, _layout(options).data)
    for name, entry in report["sets"].items():
        dropped = [f"{number} {why}" for why, number in entry["dropped"].items() if not why.startswith("taken for")]
        left = entry.get("instructions_left")
        print(
            f"{name}: {entry['kept']} problems"
            + " split off train" * (entry["source"] == "split")
            + f"; dropped: {', '.join(dropped)}" * bool(dropped)
            + f"; {left} still ask for an answer format" * bool(left)
        )


def model(options: argparse.Namespace) -> None:
    config = _config(options)
    _check_chain(options, "model", options.model)
    trained = config.cold_start is not None or options.model in config.toy_models  # others are only downloaded
    with on_device(config, claims=trained):
        from entropy_dynamics.stages.model import prepare_model

        print(prepare_model(config, _layout(options), options.seed))


def pass_rates(options: argparse.Namespace) -> None:
    config = load_config(options.scale, _config(options).pass_rates.model, overrides=options.set)
    _check_chain(options, "pass_rates", config.model.name, seed=options.seed)
    with joined_ranks(config, options.arguments) as ranks:
        if ranks is None:
            return
        from entropy_dynamics.stages.pass_rates import measure_pass_rates

        frame = measure_pass_rates(config, _layout(options), options.seed, ranks)
    if ranks.is_main:
        print(_layout(options).pass_rates(options.seed))
        kept = config.pass_rates.keeps(frame["rate"])
        print(f"{kept.sum()} of {len(frame)} problems kept; mean pass rate {frame['rate'].mean():.3f}")


def train(options: argparse.Namespace) -> None:
    config, layout = _config(options), _layout(options)
    is_plain_toy = options.model in config.toy_models and not any("method.params" in entry for entry in options.set)
    if is_plain_toy and not launched() and (note := released_settings(options.scale, options.method)):
        print(note, file=sys.stderr)
    _check_chain(options, "train", options.model, options.method, options.seed)
    lock = layout.lock(options.model, options.method, options.seed)
    # before torch is imported, so that a run that another job is writing is refused at once
    with held(lock) if acts_for_stage() else nullcontext(), joined_ranks(config, options.arguments) as ranks:
        if ranks is not None:
            from entropy_dynamics.stages.train import train

            run = train(config, layout, options.method, options.seed, ranks)
            if ranks.is_main:
                print(run, layout.evaluation(options.model, options.method, options.seed), sep="\n")


def evaluate(options: argparse.Namespace) -> None:
    config, run = _config(options), (options.method, options.seed, options.datasets)
    _check_chain(options, "evaluate", options.model, options.method, options.seed)
    with joined_ranks(config, options.arguments) as ranks:
        if ranks is not None:
            from entropy_dynamics.stages.evaluate import evaluate

            samples = evaluate(config, _layout(options), *run, ranks, temperatures=options.temperatures)
            if ranks.is_main:
                print(*samples, sep="\n")


def theory(options: argparse.Namespace) -> None:
    from entropy_dynamics.experiments.load import THEORY

    ((model, seed),) = _results(options).experiment(THEORY).untrained.items()
    config = load_config(options.scale, model, overrides=options.set)
    _check_chain(options, "theory", model, seed=seed)
    with on_device(config):
        from entropy_dynamics.stages.theory import check_logit_steps

        print(check_logit_steps(config, _layout(options), seed))


def draw(options: argparse.Namespace) -> None:
    from entropy_dynamics.report import render

    results = _results(options)
    names = options.names or results.names
    # Raises for an unknown name before anything is written.
    experiments = {name: results.experiment(name).so_far(results.root) for name in names}
    files = {name: experiment.input_files(results.root) for name, experiment in experiments.items()}
    ready = options.names or [name for name in names if all(file.is_file() for file in files[name])]
    if not ready:
        remedy = f"make them with: snakemake --config scale={options.scale}"
        raise UserError(f"{results.root} has no seed with all runs of a table or figure; {remedy}")
    for name in ready:
        if experiments[name].planned:
            print(f"{name}: {experiments[name].seeds_in_words}, as the others lack runs", file=sys.stderr)
        print(*render(name, results), sep="\n")
    if left_out := [name for name in names if name not in ready]:
        print(f"left out, as runs are missing: {', '.join(left_out)}", file=sys.stderr)


def claims(options: argparse.Namespace) -> None:
    """The commands `claims`, `field` and `controls`."""
    from entropy_dynamics.report.verdicts import write_claims, write_field

    results, folder = _results(options), options.command
    if not results.root.is_dir():  # missing files are part of a verdict, but a missing folder is a mistake
        raise UserError(f"no folder {results.root}; make it with: snakemake --config scale={options.scale}")
    for path in write_claims(results) if folder == "claims" else write_field(results, folder):
        print(path)


field = controls = claims


def report(options: argparse.Namespace) -> None:
    from entropy_dynamics.report.page import write_report

    print(write_report(_results(options)))


def watch(options: argparse.Namespace) -> None:
    from entropy_dynamics.report.live import responses
    from entropy_dynamics.report.watch import HOST, open_server

    def answered(query: dict[str, str]) -> list[dict[str, Any]]:
        """See `stages.answers`; imports torch at the first call."""
        if missing := [name for name in ("model", "method", "seed", "problem") if not query.get(name)]:
            raise UserError(f"no {missing[0]} is given")
        if not query["seed"].isdecimal():
            raise UserError(f"seed {query['seed']!r} is not a number")
        run = query["model"], query["method"], int(query["seed"])
        config = load_config(options.scale, *run[:2], options.set)
        _check_chain(options, "ask", *run)
        quieten(config.threads)
        from entropy_dynamics.stages.answers import answer

        with TemporaryDirectory() as folder:
            file = answer(config, _layout(options), *run[1:], query["problem"], Path(folder))
            return responses(file, file.stat().st_mtime_ns)

    with open_server(_results(options), options.port, answered) as server:
        print(f"http://{HOST}:{server.server_port}/{_layout(options).report.name}", flush=True)
        server.serve_forever()


def summary(options: argparse.Namespace) -> None:
    from entropy_dynamics.report.summary import summary

    print("\n".join(summary(options.folder)))


def compare(options: argparse.Namespace) -> None:
    from entropy_dynamics.report.comparison import write_comparison

    print(write_comparison(*options.runs, table=options.table), end="")


def archive(options: argparse.Namespace) -> None:
    from entropy_dynamics.analysis.run_data import Results
    from entropy_dynamics.publishing.archive import publish

    folder = options.folder
    if not folder.is_dir():
        raise UserError(f"no folder {folder}; pass the folder of a scale, such as results/laptop")
    print(*publish(Results(folder, folder.name, {}), options.out, options.doi), sep="\n")
    if not options.doi:
        print("no DOI yet: reserve one where you upload the folder, and write a new one with --doi DOI")


def restore(options: argparse.Namespace) -> None:
    from entropy_dynamics.publishing.restore import restore

    if options.out.exists():
        raise UserError(f"{options.out} already exists; name a new folder, such as results/laptop in a fresh clone")
    scale = _scale_by_name(options.out)
    seeds = restore(options.folders, options.out, load_config(scale))
    counts = " ".join(f"--set seeds.{group}={count}" for group, count in seeds.items())
    print(f"{options.out} has up to {max(seeds.values())} seeds per method. To judge them, run:")
    print(f"{Layout(options.out).command('claims')} --set seeds.first=0 {counts}")


def pass_at_k(options: argparse.Namespace) -> None:
    from entropy_dynamics.diagnostics.graded_samples import pass_at_k_table, power_table

    columns = options.problem, options.correct, options.threshold
    if options.power:
        if len(options.files) > 1:
            raise UserError("--power needs the rates of one file")
        table, notes = power_table(options.files[0], options.power, *columns)
        print(f"problems that show a difference of {options.power:g} points of Pass@k with 90 % power, at least:")
    else:
        table, notes = pass_at_k_table(options.files, *columns)
    for note in notes:
        print(note, file=sys.stderr)
    decimals = 0 if options.power else 1
    print(table.to_string(index=False, float_format=lambda value: f"{value:.{decimals}f}", na_rep="-"))


def lens(options: argparse.Namespace) -> None:
    from entropy_dynamics.diagnostics.lens import METHODS, draw, lens_table

    if options.files is None:  # argparse counts all words after --methods among them
        raise UserError("lens takes its FILE first: lens FILE --methods METHOD ...")
    table, about = lens_table(options.files, options.methods or METHODS, options.temperature)
    print(about)
    print(table.to_string(index=False, float_format=lambda value: f"{value:z.4g}", na_rep="-"))
    if options.figure:
        draw(table, options.figure)


def entropy_watch(options: argparse.Namespace) -> None:
    from entropy_dynamics.diagnostics.entropy_watch import describe
    from entropy_dynamics.diagnostics.logs import read_metrics

    metrics, source, notes = read_metrics(options.files, options.entropy)
    for note in notes:
        print(note, file=sys.stderr)
    print(describe(metrics, source, options.entropy))


def entropy_check(options: argparse.Namespace) -> None:
    from entropy_dynamics.diagnostics.entropy_check import diagnose, write_golden

    if (options.value is None) == (options.write is None):
        raise UserError("entropy-check needs --write FILE, for the batch, or the VALUE that a trainer got on it")
    print(diagnose(options.value) if options.write is None else write_golden(options.write))


def prompt(options: argparse.Namespace) -> None:
    """Print the prompt to stdout and everything else to stderr, so that a file or a pipe gets only the prompt."""
    from entropy_dynamics.tasks.prompts import find_problem, preview_prompt, prompt_tokens, render_prompt, turn_end_note

    config, layout = _config(options), _layout(options)
    name, problem = find_problem(layout.data, config.data.sets, options.problem)
    directory = layout.model(options.model, config.untrained(options.model, config.seeds.first))
    settings = config.model.prompt_format, config.model.chat_template_kwargs
    if (directory / "tokenizer_config.json").is_file():
        quieten(config.threads)
        from entropy_dynamics.models.storage import load_tokenizer

        tokenizer = load_tokenizer(directory)
        text = render_prompt(tokenizer, problem, *settings)
        count = len(prompt_tokens(tokenizer, problem, *settings))
        about = f"{count} tokens (limit {config.sampling.max_prompt_tokens})"
        if note := turn_end_note(tokenizer, config.model.prompt_format):
            about += f"\nnote: {note}"
    else:
        text = preview_prompt(problem, config.model.prompt_format)
        made = layout.command(f"model --model {options.model} --seed {directory.name.removeprefix('seed')}")
        about = f"a preview, since there is no tokenizer in {directory}; make it with: {made}"
    print(f"{problem.id} of {name}: {about}", file=sys.stderr, flush=True)
    print(text, end="" if text.endswith("\n") else "\n")


def verify(options: argparse.Namespace) -> int:
    from entropy_dynamics.verification import verify

    folder = options.folder
    if folder and options.results:
        raise UserError(f"verify takes the folder {folder} or --results {options.results}, not both")
    scale = options.scale or (_scale_by_name(folder) if folder else "laptop")
    layout = Layout(folder) if folder else Layout.of(scale, options.results or "results")
    verification = verify(layout, scale, options.set)
    print(*verification.findings, verification.summary, sep="\n")
    return 1 if verification.errors else 0


def plan(options: argparse.Namespace) -> None:
    from entropy_dynamics.planning.plan import check_fits, format_plan, make_plan

    plan = make_plan(options.scale, options.set, target=options.target)
    print(format_plan(plan, options.markdown))
    check_fits(plan)


def config(options: argparse.Namespace) -> None:
    if options.schema:
        # JSON has no infinity, which is the default of some bounds.
        schema = json.loads(json.dumps(RunConfig.model_json_schema()), parse_constant=str)
        print(json.dumps(schema, indent=2, ensure_ascii=False))
    elif options.method and not options.model:
        raise UserError("--method needs --model: a run has both")
    elif options.why is not None:
        print(*origins(options.why, options.scale, options.model, options.method, options.set), sep="\n")
    else:
        print(to_yaml(_config(options)), end="")
