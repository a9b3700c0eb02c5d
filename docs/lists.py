"""Writes what data and code know into the pages, in the root: python docs/lists.py

Each part is between two comments: tables of published verdicts, counts and metrics, published runs, experiments and
their cost, the command line, the keys of the config. A test compares the parts.
"""

import argparse
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from types import NoneType
from typing import Any, get_args

import pandas as pd
from pydantic import BaseModel

from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.published_runs import RUN, PublishedRun, read_run
from entropy_dynamics.analysis.replication import agreeing_had_second_found, detectable_by_unit, replicates
from entropy_dynamics.arguments import command_parser
from entropy_dynamics.config import BASE, RunConfig, load_config, read_yaml
from entropy_dynamics.experiments.claims import JUDGED
from entropy_dynamics.experiments.load import FURTHER, PAPER, TARGETS
from entropy_dynamics.planning.plan import TEMPERATURES, format_plan, make_plan, needed_runs
from entropy_dynamics.publishing.restore import MODELS
from entropy_dynamics.report.fill import markdown
from entropy_dynamics.report.summary import verdict_counts
from entropy_dynamics.results.files import read_json
from tables import doses, effects, length, long, rates, series, smollm2, words
from tables.effects import REFERENCE, table

EXPERIMENTS = Path("experiments")
PART = re.compile(r"(<!-- (\w+): python docs/lists.py -->\n).*?(<!-- end -->)", re.DOTALL)
BESIDE = ("stale", "laptop/controls", "rates", "long", "length", "smollm2-words")
RECORDS = [REFERENCE / name / "README.md" for name in BESIDE]
DOCS = [*sorted(Path("docs").glob("*.md")), *sorted(REFERENCE.glob("*.md")), *RECORDS]
PAGES = [Path("README.md"), EXPERIMENTS / "README.md", *DOCS]
COMMON = ("help", "scale", "results", "set")  # options that the page of the command line names once
LINKED = ("claims.md", "controls.md", "field.md", "ladder.png", "models.json", "controls.json")
CORES = 2  # each runs one job at a time
Runs = dict[str, PublishedRun]  # by path below docs/reference


def main() -> None:
    for page in PAGES:
        page.write_text(written(page), encoding="utf-8")


def written(page: Path) -> str:
    """The page with its lists as they should be."""
    lists: dict[str, Callable[[], str]] = {
        "runs": published_runs,
        "replications": replications,
        "evidence": effects.evidence,
        "targets": targets,
        "files": experiment_titles,
        "gains": effects.gains,
        "controls_laptop": lambda: effects.controls("laptop"),
        "controls_desk": lambda: effects.controls("desk"),
        "left": effects.what_is_left,
        "methods": effects.methods_on_policy,
        "lens": effects.lens,
        "matched": effects.matched_entropy,
        "switches": effects.paper_and_code,
        "stale": effects.stale_rollouts,
        "kl": effects.kl_term,
        "positive": effects.placebo_of_clip_cov,
        "smollm2": lambda: smollm2.means(smollm2.FOLDER),
        "verdicts": smollm2.verdicts,
        "half": smollm2.at_half_the_rate,
        "half_left": smollm2.left,
        "words": lambda: smollm2.means(smollm2.WORDS),
        "words_pilots": words.pilots,
        "words_kept": lambda: words.primary(*series.corrected_p("words")),
        "words_beside": words.beside_primary,
        "rates": lambda: rates.primary(*series.corrected_p("rates")),
        "grids": rates.grids,
        "beside": rates.beside_primary,
        "progress": rates.progress,
        "stopped": rates.early_stopping,
        "symmetric": rates.symmetric,
        "entropies": lambda: rates.entropies("0.1 M"),
        "entropies_large": lambda: rates.entropies("1 M"),
        "long": lambda: long.primary(*series.corrected_p("long")),
        "long_scores": long.late_scores,
        "long_steps": long.over_steps,
        "long_left": long.what_is_left,
        "long_memory": long.memory,
        "long_entropies": long.entropies,
        "long_fall": long.further_fall,
        "length": lambda: length.primary(*series.corrected_p("length")),
        "length_kept": length.what_is_kept,
        "length_arms": length.arms,
        "carried": doses.most_negative,
        "kept": doses.dropped_and_kept,
        "cost": cost_of_the_paper,
        "commands": commands,
        "keys": keys,
    }
    return PART.sub(lambda part: f"{part[1]}\n{lists[part[2]]()}\n\n{part[3]}", page.read_text(encoding="utf-8"))


def published_runs() -> str:
    runs = read_runs()
    rows = []
    for name, run in runs.items():
        folder = REFERENCE / name
        linked = next(file for file in LINKED if (folder / file).is_file())
        parts = " and ".join(f"`{runs[part].was[0]}`" for part in parts_of(name, run))
        page = f"README.md{run.page}" if run.page and run.page[0] == "#" else run.page
        shows = f"[{run.shows}]({page})" if page else run.shows
        rows.append(
            [
                f"[{(run.was or [name])[0]}]({name}/{linked})",
                f"{parts} together: {shows}" if parts else shows,
                size_of(name, runs),
                seeds_of(name, runs),
                run.processor or "",
                ", ".join(run.commits),
                ", ".join(run.protocol),
                verdicts(folder),
            ]
        )
    heads = ["run", "what", "parameters", "seeds", "machine", "commits", "protocol", "hold, do not, inconclusive"]
    return table(heads, rows)


def replications() -> str:
    runs = read_runs()
    rows = []
    for first, run in runs.items():
        for second in run.compare_with:
            claims = [claim for claim in replicates(REFERENCE / first, REFERENCE / second) if claim.compared]
            sizes = dict.fromkeys(size_of(name, runs) for name in (first, second))
            changed = sum(claim.changed for claim in claims)
            rows.append(
                [
                    f"`{run.was[0]}`, `{runs[second].was[0]}`",
                    ", ".join(sizes),
                    f"{sum(bool(claim.agrees) for claim in claims)} of {len(claims)}",
                    f"{median(detectable_by_unit(claims)['points']):.2g}",
                    *("{} of {}".format(*agreeing_had_second_found(claims, share)) for share in (0, -1)),
                    f"{changed} ({sum(claim.chance_of_change for claim in claims):.0f})",
                ]
            )
            assert not any(claim.reversed for claim in claims), "docs/reference/runs.md says that none is"
    heads = ["runs", "parameters", "agree", "detected, points", "at the threshold", "opposite sign"]
    return table([*heads, "verdicts changed (predicted)"], rows)


def read_runs() -> Runs:
    """All published runs: the laptop's first, the paper's before others, parts before what is pooled from them."""

    def order(name: str) -> tuple[bool, str, bool, str, bool, str]:
        scale, _, rest = name.partition("/")
        folder, _, last = rest.rpartition("/")
        return scale != "laptop", scale, folder != PAPER, folder, last.startswith("pooled"), last

    names = [str(file.parent.relative_to(REFERENCE)) for file in REFERENCE.rglob(RUN)]
    return {name: run for name in sorted(names, key=order) if (run := read_run(REFERENCE / name))}


def parts_of(name: str, run: PublishedRun) -> list[str]:
    return [str(Path(name).parent / part) for part in run.of]


def size_of(name: str, runs: Runs) -> str:
    """'0.1 M', '0.03 to 2.1 M', '135 M, pretrained'."""
    named = (REFERENCE / other / MODELS for other in (name, *parts_of(name, runs[name]), *runs[name].same_models_as))
    models = read_json(next(file for file in named if file.is_file()))["models"].values()
    least, most = (of(model["parameters"] / 1e6 for model in models) for of in (min, max))
    shown = f"{least:.1g} to {most:.2g}" if most > 2 * least else f"{most:.0f}" if most >= 1 else f"{most:.1g}"
    return f"{shown} M{'' if all(model['toy'] for model in models) else ', pretrained'}"


def seeds_of(name: str, runs: Runs) -> str:
    """'0 to 4', or '0 to 4, 50 to 54', of all trained methods."""
    seeds: set[int] = set()
    for part in parts_of(name, runs[name]) or [name]:
        files = (REFERENCE / part / f"{kind}.parquet" for kind in ("counts", "metrics"))  # nothing may be evaluated
        frame = pd.read_parquet(next(file for file in files if file.is_file()), columns=["method", "seed"])
        seeds |= set(frame.loc[frame["method"] != BASE, "seed"])
    firsts, lasts = sorted(seeds - {seed + 1 for seed in seeds}), sorted(seeds - {seed - 1 for seed in seeds})
    return ", ".join(f"{a} to {b}" if a < b else f"{a}" for a, b in zip(firsts, lasts, strict=True))


def verdicts(folder: Path) -> str:
    """'46, 7, 23 (4 without a value)', of each file of verdicts."""
    cells = []
    for kind in ("claims", *JUDGED):
        if (file := folder / f"{kind}.json").is_file():
            entries = verdicts_of(file).values()
            without = sum(entry["effect"] is None for entry in entries)
            counts = ", ".join(map(str, verdict_counts(entries))) + (f" ({without} without a value)" if without else "")
            link = file.with_suffix(".md") if file.with_suffix(".md").is_file() else file
            cells.append(f"[{kind}]({link.relative_to(REFERENCE)}): {counts}")
    return "; ".join(cells)


def targets() -> str:
    """What each folder of experiments/ trains beyond the default, and its hours."""
    default = Cost("laptop", None)
    rows = [["the paper's", "`snakemake`", f"{default.trained} in all", default.hours()]]
    rows.append([f"`{FURTHER}/`", "`snakemake`", "none", ""])
    for name in (*TARGETS, "field"):
        cost = Cost("laptop", name)
        rows.append([f"`{name}/`", f"`snakemake {name}`", f"{cost.beyond(default)}", cost.hours(default)])
    others = {path.name for path in EXPERIMENTS.iterdir() if path.is_dir()} - {FURTHER, *TARGETS, *JUDGED}
    for name in sorted(others):
        cost = Cost(name, None)
        rows.append([f"`{name}/`", f"`snakemake --config scale={name}`", f"{cost.trained} in all", cost.hours()])
    return table(["folder of experiments", "built by", "training runs beyond the default", "hours on two cores"], rows)


class Cost:
    """The training runs of a target, and the seconds of its jobs on one core by workflow/costs.yaml."""

    def __init__(self, scale: str, target: str | None):
        self.config = load_config(scale)
        self.stages = {stage: {run.path for run in runs} for stage, runs in needed_runs(self.config, target).items()}
        every = self.stages["train"]
        longer = {run: (run[0], run[1].partition("@training.steps=")[0], run[2]) for run in every}
        # The policy of a longer run's earlier steps is left by that run.
        self.stages["train"] = {run for run in every if longer[run] == run or longer[run] not in every}
        self.stages["model"] = {(model, self.config.untrained(model, seed)) for model, _, seed in every}
        self.stages["pass_rates"] = {run for run in self.stages["model"] if run[0] == self.config.pass_rates.model}
        costs = read_yaml(Path("workflow/costs.yaml"))
        self.measured = scale
        while self.measured not in costs:
            self.measured = read_yaml(Path(f"configs/scale/{self.measured}.yaml"))["extends"]
        self.seconds = costs[self.measured] | dict.fromkeys(TEMPERATURES, costs[self.measured]["temperatures"])

    @property
    def trained(self) -> int:
        return len(self.stages["train"])

    def beyond(self, default: "Cost") -> int:
        return len(self.stages["train"] - default.stages["train"])

    def hours(self, default: "Cost | None" = None) -> str:
        known = default.stages if default else {}
        seconds = 0.0
        for stage, jobs in self.stages.items():
            for job in jobs - known.get(stage, set()):
                seconds += self.seconds[stage] * (self.length(*job[:2]) if stage == "train" else 1)
        return f"{seconds / CORES / 3600:.1g}"

    def length(self, model: str, method: str) -> float:
        """The number of steps over that of the scale whose costs are used."""
        if self.config.scale == self.measured:
            return 1
        steps = load_config(self.config.scale, model, method).training.steps
        return steps / load_config(self.measured).training.steps


def cost_of_the_paper() -> str:
    """The jobs of the scale paper, as `plan --markdown` lists them, and the hours of other GPUs."""
    plans = {gpu: make_plan("paper", [f"plan.gpu={gpu}"]) for gpu in ("A100", "H100", "H200")}
    jobs = [line for line in format_plan(plans["A100"], markdown=True).splitlines() if line.startswith("|")]
    hours = [[f"`--set plan.gpu={gpu}`", f"{plan.gpu_hours:,.0f}"] for gpu, plan in plans.items()]
    return "\n".join([*jobs, "", table(["", "GPU-hours in all"], hours)])


def experiment_titles() -> str:
    """The titles of all tables and figures, and the papers whose claims are judged, by folder."""
    parts = []
    folders = [EXPERIMENTS, EXPERIMENTS / FURTHER, *(EXPERIMENTS / name for name in TARGETS)]
    folders += sorted(path.parent for path in EXPERIMENTS.rglob("*.yaml") if path.parent not in folders)
    for folder in dict.fromkeys(folders):
        rows = []
        for file in sorted(folder.glob("*.yaml"), key=by_number):
            content = read_yaml(file)
            what = content.get("title") or content.get("paper")
            if isinstance(what, str):  # not in claims.yaml and paper_values.yaml
                rows.append([f"[{file.stem}]({file.relative_to(EXPERIMENTS)})", markdown(what)])
        name = f"`{folder.relative_to(EXPERIMENTS)}/`" if folder != EXPERIMENTS else "This level"
        parts.append(f"### {name}\n\n{table(['file', 'what it shows'], rows)}")
    return "\n\n".join(parts)


def by_number(file: Path) -> tuple[str, int]:
    """losses_stale_8 before losses_stale_10."""
    stem, number = re.fullmatch(r"(.*?)(\d*)", file.stem).groups()
    return stem, int(number or 0)


def commands() -> str:
    """The command line, as `--help` says it, by group."""
    parts = []
    for group, names in command_parser().get_default("groups").items():
        parts.append(f"## {group}")
        for name, parser in names.items():
            usage = re.sub(r"\s+", " ", parser.format_usage().removeprefix("usage: ")).strip()
            actions = [action for action in parser._actions if action.dest not in COMMON]
            rows = [[f"`{option_of(action)}`", escaped(about_of(action))] for action in actions]
            text = [f"### {name}", escaped(parser.description), f"    {usage}", table(["", ""], rows) if rows else ""]
            parts += [part for part in (*text, parser.epilog and indented(parser.epilog)) if part]
    return "\n\n".join(parts)


def option_of(action: argparse.Action) -> str:
    metavar = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    return " ".join(filter(None, [*action.option_strings[:1], str(metavar)]))


def about_of(action: argparse.Action) -> str:
    choices = f"one of {', '.join(map(str, action.choices))}" if action.choices else ""
    return "; ".join(filter(None, [action.help, choices]))


def escaped(text: str) -> str:
    """A text of the code in one line of Markdown; what is between backticks stays."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    return "".join(part if part[:1] == "`" else re.sub(r"([*|<])", r"\\\1", part) for part in parts)


def indented(text: str) -> str:
    return "\n".join(f"    {line.strip()}" for line in text.splitlines() if line.strip())


def keys() -> str:
    """All keys of a config but a method's parameters, with base.yaml's value."""
    base = read_yaml(Path("configs/base.yaml"))
    parts = []
    for section, field in RunConfig.model_fields.items():
        kinds = [kind for kind in sections_in(field.annotation) if section != "method"]
        rows = list(key_rows(kinds[0], "", base.get(section) or {})) if kinds else []
        if rows:
            parts.append(f"## {section}\n\n{table(['key', 'in base.yaml', 'meaning'], rows)}")
    return "\n\n".join(parts)


def sections_in(annotation: Any) -> list[type[BaseModel]]:
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return [annotation]
    return [kind for part in get_args(annotation) if part is not NoneType for kind in sections_in(part)]


def key_rows(kind: type[BaseModel], prefix: str, base: dict[str, Any]) -> Iterator[list[str]]:
    for name, field in kind.model_fields.items():
        inner, value = sections_in(field.annotation), base.get(name)
        if inner and len(inner) == 1 and not prefix.count("."):
            yield from key_rows(inner[0], f"{prefix}{name}.", value if isinstance(value, dict) else {})
        else:
            told = f"`{'null' if value is None else value}`" if name in base and not isinstance(value, dict) else ""
            yield [f"`{prefix}{name}`", told, escaped(field.description or "")]


if __name__ == "__main__":
    main()
