"""What a table or figure needs and shows: one YAML file each in experiments/, read into an Experiment.

Snakemake asks this module for the input files of its rules, so it imports nothing heavy.

    kind: scores | curves | pass_rate_distribution | data_filter | theory | lens
    title, shows: what it is called, and what to look for
    seeds: tables | extras            how many seeds, a number of the scale's config
    runs: [{models: [...], methods: [...]}]    an entry may have its own seeds
    sweeps: [{models: [...], method: clip_b, parameter: mu, values: {default: [...], <scale>: [...]}}]
    evaluations: [aime24, ...]        scores, pass_rate_distribution: the data sets
    metrics: [avg, pass]              scores
    baseline: grpo                    what differences are taken to, and which line is black
    panels: [{title, model, methods, columns, points, log}]    curves; methods are names or patterns such as clip_b@*
    labels: {method: label}           where the method's own label would be too long
    beyond_weights: {method: what}    lens: what the method acts through beside the weights of tokens
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from entropy_dynamics.config import read_yaml
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.results.layout import Layout

EXPERIMENTS = Path("experiments")
BASE = "base"  # the untrained model: evaluated, never trained
METRICS = {"avg": "Avg", "pass": "Pass"}  # of a table of scores, and how it writes them
_NOT_EXPERIMENTS = {"paper_values", "claims"}
_OF_ONE_MODEL = ("pass_rate_distribution", "theory", "lens")
_PANEL_KEYS = {"title", "model", "methods", "columns", "points", "log"}
_KEYS = {
    "scores": ({"kind", "title", "shows", "seeds", "runs", "evaluations", "metrics"}, {"sweeps", "baseline"}),
    "curves": ({"kind", "title", "shows", "seeds", "runs", "panels"}, {"sweeps", "labels", "baseline"}),
    "pass_rate_distribution": ({"kind", "title", "shows", "seeds", "runs", "evaluations"}, {"baseline"}),
    "data_filter": ({"kind", "title", "shows"}, set()),
    "theory": ({"kind", "title", "shows", "seeds", "runs"}, set()),
    "lens": ({"kind", "title", "shows", "seeds", "runs"}, {"labels", "baseline", "beyond_weights"}),
}  # kind: (keys it needs, keys it may have)


def _list_of(kind: type, value: Any) -> bool:
    """None of them may be empty: that would be a table without rows, a figure without panels."""
    return isinstance(value, list) and bool(value) and all(isinstance(one, kind) for one in value)


def number(value: Any) -> bool:
    return type(value) in (int, float) and abs(value) < 1e300  # which is false of NaN


def named(kind: type, value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(name, str) and isinstance(value[name], kind) for name in value)


# What the value of a key has to do, in all files of this folder: (test, in words).
Right = tuple[Callable[[Any], bool], str]
TEXT: Right = (lambda value: isinstance(value, str), "be a text")
TEXTS: Right = (lambda value: _list_of(str, value) and len(set(value)) == len(value), "be a list of different texts")
COLUMN_NAMES: Right = (
    lambda value: TEXTS[0](value) and "step" not in value,
    "be a list of different columns beside step",
)
_MAPPINGS: Right = (lambda value: _list_of(dict, value), "be a list of mappings")
_RIGHT = {
    **dict.fromkeys(("evaluations", "metrics", "models", "methods"), TEXTS),
    "columns": COLUMN_NAMES,
    **dict.fromkeys(("runs", "sweeps", "panels"), _MAPPINGS),
    **dict.fromkeys(("labels", "beyond_weights"), (lambda value: named(str, value), "map methods to texts")),
    "values": (lambda value: named(list, value), "map scales, or default, to lists of numbers"),
    "log": (lambda value: isinstance(value, bool), "be true or false"),
}  # of all other keys: TEXT


@dataclass(frozen=True)
class Run:
    """One training run (or the untrained model). `method` may carry parameters: clip_b@mu=1.2."""

    model: str
    method: str
    seed: int

    def metrics_file(self, results: Path) -> Path:
        return Layout(results).run(self.model, self.method, self.seed) / "metrics.parquet"

    def evaluation_file(self, results: Path, dataset: str) -> Path:
        return Layout(results).evaluation(self.model, self.method, self.seed) / f"{dataset}.parquet"


@dataclass(frozen=True)
class Panel:
    """One axes of a figure: the runs of `methods` on `model`, one line for each method and column."""

    model: str
    methods: tuple[str, ...]
    columns: tuple[str, ...]
    title: str = ""
    points: str | None = None  # a second column, drawn as separate points
    log: bool = False


@dataclass(frozen=True)
class Experiment:
    name: str
    kind: str
    title: str
    shows: str
    runs: tuple[Run, ...] = ()
    evaluations: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ()
    baseline: str = "grpo"
    panels: tuple[Panel, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    beyond_weights: dict[str, str] = field(default_factory=dict)

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(run.model for run in self.runs))

    def methods(self, model: str) -> list[str]:
        """The methods that run on this model, in the order of the file."""
        return list(dict.fromkeys(run.method for run in self.runs if run.model == model))

    def seeds(self, model: str, method: str) -> list[int]:
        return [run.seed for run in self.runs if (run.model, run.method) == (model, method)]

    def metrics_files(self, results: Path) -> list[Path]:
        """The training metrics it reads: empty for what only needs evaluations."""
        if self.kind not in ("curves", "theory", "lens"):
            return []
        return [run.metrics_file(results) for run in self.runs]

    def evaluation_files(self, results: Path) -> list[Path]:
        return [run.evaluation_file(results, dataset) for run in self.runs for dataset in self.evaluations]

    def input_files(self, results: Path) -> list[Path]:
        """All that `render` reads from the results of this scale."""
        files = self.metrics_files(results) + self.evaluation_files(results)
        files += [Layout(results).model(model) / "model.json" for model in self.models]
        if self.kind == "data_filter":
            files.append(Layout(results).pass_rates)
        if self.kind == "theory":
            files.append(Layout(results).logit_steps)
        return files


def known_experiments(experiments: Path = EXPERIMENTS) -> list[str]:
    """The names of all tables and figures: the YAML files in that folder."""
    return sorted(path.stem for path in experiments.glob("*.yaml") if path.stem not in _NOT_EXPERIMENTS)


def load_experiment(name: str, scale: str, seeds: Any, experiments: Path = EXPERIMENTS) -> Experiment:
    """Read experiments/<name>.yaml for one scale; `seeds` is the `seeds` section of the scale's config.

    Raises:
        UserError: no such experiment, broken YAML, a key that is unknown or missing, a panel that matches no run.
    """
    path = experiments / f"{name}.yaml"
    if name not in known_experiments(experiments):
        raise UserError(f"unknown table or figure {name!r}{nearest(name, known_experiments(experiments))}")
    content = read_yaml(path)
    kind = content.get("kind") if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in _KEYS:
        raise UserError(f"{path}: unknown kind {kind!r}{nearest(str(kind), _KEYS)}")
    check(content, *_KEYS[kind], str(path))
    for metric in content.get("metrics", ()):
        if metric not in METRICS:
            raise UserError(f"{path}: unknown metric {metric!r}{nearest(metric, METRICS)}")
    runs = _runs(content, scale, seeds, path) if "runs" in content else ()
    if kind in _OF_ONE_MODEL and len({run.model for run in runs}) > 1:
        raise UserError(f"{path}: runs are of several models; one of kind {kind!r} shows one")
    if kind == "pass_rate_distribution" and len(content["evaluations"]) > 1:
        raise UserError(f"{path}: evaluations is {content['evaluations']}; one of kind {kind!r} shows one")
    return Experiment(
        name=name,
        kind=kind,
        title=content["title"],
        shows=content["shows"],
        runs=runs,
        evaluations=tuple(content.get("evaluations", ())),
        metrics=tuple(content.get("metrics", ())),
        baseline=content.get("baseline", "grpo"),
        panels=tuple(_panel(entry, i, runs, path) for i, entry in enumerate(content.get("panels", ()), 1)),
        labels=content.get("labels", {}),
        beyond_weights=content.get("beyond_weights", {}),
    )


def _runs(content: dict, scale: str, seeds: Any, path: Path) -> tuple[Run, ...]:
    counts: dict[tuple[str, str], int] = {}  # seeds of each model and method
    for entry in content["runs"]:
        check(entry, {"models", "methods"}, {"seeds"}, f"{path}: runs")
        count = _count(entry.get("seeds", content["seeds"]), seeds, path)
        counts |= {(model, method): count for model in entry["models"] for method in entry["methods"]}
    for entry in content.get("sweeps", ()):
        check(entry, {"models", "method", "parameter", "values"}, set(), f"{path}: sweeps")
        values = entry["values"].get(scale, entry["values"].get("default"))
        if values is None:
            raise UserError(f"{path}: the sweep of {entry['method']} has no values for {scale!r} and no default")
        if not values or not all(map(number, values)):
            raise UserError(f"{path}: the values of the sweep of {entry['method']} have to be a list of numbers")
        swept = [f"{entry['method']}@{entry['parameter']}={value}" for value in values]
        count = _count(content["seeds"], seeds, path)
        counts |= {(model, method): count for model in entry["models"] for method in swept}
    return tuple(
        Run(model, method, seed)
        for (model, method), count in counts.items()
        for seed in range(1 if method == BASE else count)  # sampling apart, the untrained model has no seeds
    )


def _count(section: str, seeds: Any, path: Path) -> int:
    if section not in ("tables", "extras"):
        raise UserError(f"{path}: seeds is {section!r}; it has to be 'tables' or 'extras'")
    return seeds[section]


def _panel(entry: dict, number: int, runs: tuple[Run, ...], path: Path) -> Panel:
    where = f"{path}: panel {number}"
    check(entry, {"columns"}, _PANEL_KEYS, where)
    models = list(dict.fromkeys(run.model for run in runs))
    model = entry.get("model", models[0])
    if model not in models or ("model" not in entry and len(models) > 1):
        raise UserError(f"{where}: model has to be one of {', '.join(models)}")
    known = list(dict.fromkeys(run.method for run in runs if run.model == model))
    patterns = entry.get("methods", ["*"])
    for pattern in patterns:
        if not any(fnmatchcase(method, pattern) for method in known):
            raise UserError(f"{where}: no run of method {pattern!r}{nearest(pattern, known)}")
    if entry.get("points") in ("step", *entry["columns"]):
        raise UserError(f"{where}: points is {entry['points']!r}; it has to be none of columns, nor step")
    methods = tuple(m for m in known if any(fnmatchcase(m, pattern) for pattern in patterns))
    rest = {key: entry[key] for key in ("title", "points", "log") if key in entry}
    return Panel(model, methods, tuple(entry["columns"]), **rest)


def check(content: Any, needed: set[str], allowed: set[str], where: str, right: Mapping[str, Right] = _RIGHT) -> None:
    """Raise UserError unless all keys are known, none is missing and every value is `right`, else a text."""
    if not isinstance(content, dict):
        raise UserError(f"{where}: {content!r} has to be a mapping of keys to values")
    for key in content:
        if key not in needed | allowed:
            raise UserError(f"{where}: unknown key {key!r}{nearest(str(key), needed | allowed)}")
    for key in sorted(needed - set(content)):
        raise UserError(f"{where}: the key {key!r} is missing")
    for key, value in content.items():
        fits, words = right.get(key, TEXT)
        if not fits(value):
            raise UserError(f"{where}: {key} is {value!r}; it has to {words}")
