"""report.html: all results of a scale on one page, the most important first."""

import base64
from collections import Counter
from pathlib import Path
from typing import Any

from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.finding import VERDICTS
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.scores import scores_frame
from entropy_dynamics.config import TRAIN
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.load import FIRST, PAPER, experiment_files
from entropy_dynamics.report.comparison import write_comparison
from entropy_dynamics.report.fill import fill
from entropy_dynamics.report.live import busy_seconds, progress, token_samples, unfinished_runs
from entropy_dynamics.report.summary import topics, verdict_counts
from entropy_dynamics.report.tables import table_values
from entropy_dynamics.report.verdicts import headlines
from entropy_dynamics.results.files import read_jobs, read_json, write_text
from entropy_dynamics.results.layout import PROVENANCE, Layout
from entropy_dynamics.tasks.countdown.problems import CountdownSet

TUNED = "left"  # the figure of tuned baselines stands second
# Scale -> a published run with other seeds, to compare with.
REFERENCES = {"laptop": Path("docs/reference/laptop/paper/seeds-50-54")}


def write_report(results: Results) -> Path:
    """Write report.html from everything in results/<scale>: verdicts, tables, figures, samples, unfinished runs.

    Raises UserError if there is no such folder, or if a file of the results is missing or damaged.
    """
    layout = results.layout
    if not layout.root.is_dir():
        raise UserError(f"no folder {layout.root}; make it with: snakemake --config scale={results.scale}")
    judged = layout.judged("claims", "json").is_file()
    claims = list(verdicts_of(layout.judged("claims", "json")).values()) if judged else []
    by_name: dict[str, dict[str, Any]] = {}
    known = experiment_files(results.folder)
    for name in known:
        table, figure = layout.table(name, "csv"), layout.figure(name, "svg")
        if not (table.is_file() or figure.is_file()):
            continue
        experiment = results.experiment(name).so_far(layout.root)
        by_name[name] = {
            "experiment": experiment,
            "claims": [claim for claim in claims if name in claim["figures"]],
            "table": table_values(experiment, results, scores_frame(experiment, results)) if table.is_file() else None,
            "picture": _picture(figure),
        }
    top = [claim["id"] for claim in headlines(claims)]
    claims.sort(key=lambda claim: top.index(claim["id"]) if claim["id"] in top else len(top))
    for claim in claims:
        claim["link"] = next((name for name in claim["figures"] if name in by_name), None)
    first = [name for name in FIRST if name in by_name]
    lead = next((name for name in first if by_name[name]["picture"]), None)
    shown = [lead, TUNED, *(name for name in first if by_name[name]["table"])]
    opened = [by_name[name] for name in shown if name in by_name]
    folded = [section for section in by_name.values() if section not in opened]
    folded.sort(key=lambda section: section["experiment"].folder != PAPER)
    models, unfinished = results.models.values(), unfinished_runs(layout)
    parameters = [model.parameters for model in models]
    sizes = [f"{of(parameters, default=0) / 1e6:.2g}" for of in (min, max)]
    opening = [run for name in FIRST if name in known for run in results.experiment(name).runs]
    page = fill(
        "report.html",
        scale=results.scale,
        counts=dict(zip(VERDICTS, verdict_counts(claims), strict=True)),
        claims=claims,
        topics=topics(claims),
        claims_figure=_picture(layout.judged("claims", "svg")),
        comparison=_comparison(REFERENCES.get(results.scale), layout.root) if judged else None,
        unfinished=unfinished,
        progress=progress(results) if any(run["now"] for run in unfinished) else None,
        samples=token_samples(layout, dict.fromkeys(run.path[:2] for run in opening)),
        asks=isinstance(results.config.data.sets[TRAIN], CountdownSet),
        opened=opened,
        folded=folded,
        gates=[read_json(path) for path in sorted(layout.root.glob("pass_rates/*.gate.json"))],
        ran=what_ran(layout),
        independent=sum((claim["verdict"], claim["rests_on"]) == ("holds", "independent") for claim in claims),
        one_seed=all(section["experiment"].has_one_seed for section in by_name.values()),
        sizes=f"{' to '.join(dict.fromkeys(sizes))} M",
        toy=any(model.toy for model in models),
    )
    write_text(layout.report, page)
    return layout.report


def _picture(path: Path) -> str | None:
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}" if path.is_file() else None


def _comparison(first: Path | None, second: Path) -> dict[str, Any] | None:
    """The lines of `compare`, or why there are none, as early in a run."""
    if first is None or not first.is_dir():
        return None
    try:
        lines = write_comparison(first, second).splitlines()
    except UserError as error:
        lines = [str(error)]
    lines.sort(key=lambda line: not line.startswith(("Effects", "Verdicts")))  # these two are shown, others folded
    return {"with": first, "lines": lines}


def what_ran(layout: Layout) -> list[str]:
    """The number of runs, their machines, commits and time."""
    lines = []
    if records := [read_json(path) for path in sorted(layout.root.glob(f"runs/*/*/*/{PROVENANCE}"))]:
        lines.append(f"{len(records)} training runs on {', '.join(dict.fromkeys(map(_machine, records)))}")
        git = [record["git"] for record in records]
        commits = [str(of["commit"])[:7] + " with uncommitted changes" * bool(of["changed"]) for of in git]
        lines.append(f"commit {', '.join(dict.fromkeys(commits))}")
    if jobs := read_jobs(layout.jobs):
        lines.append(f"took {busy_seconds(jobs) / 60:.0f} min")
    return lines


def _machine(record: dict[str, Any]) -> str:
    hardware = record["hardware"]
    gpus = [f"{count} × {name}" for name, count in Counter(hardware["gpus"]).items()]
    return " and ".join([*gpus, f"{hardware['cores']} cores of {hardware['processor']}"])
