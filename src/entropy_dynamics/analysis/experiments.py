"""Experiments: the runs of each table and figure, and what it shows; one YAML file each in experiments/.

Snakemake asks this module for the input files of its rules, so it imports nothing heavy.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, Self, TypeVar, get_args

from pydantic import AfterValidator, Field, RootModel, model_validator

from entropy_dynamics.config import BASE, CONFIGS, Config, known_names, load_config, read_yaml, split_method
from entropy_dynamics.config.schema import FIRST_PILOT_SEED
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.validation import OneOf, Section, parse

EXPERIMENTS = Path("experiments")
FIRST = ("table1", "figure6", "figure1")  # to be made and shown, in this order
NOT_EXPERIMENTS = {"paper_values", "claims"}
METRICS: dict[Literal["avg", "pass"], str] = {"avg": "Avg", "pass": "Pass"}  # a table's metrics and their headings


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError(f"{names} has an entry twice")
    return names


def _no_step(columns: list[str]) -> list[str]:
    if "step" in columns:
        raise ValueError("step is the x axis")
    return columns


Names = Annotated[list[str], Field(min_length=1), AfterValidator(_distinct)]
Columns = Annotated[Names, AfterValidator(_no_step)]
"""Columns of metrics.parquet, or of `analysis.results.DERIVED`."""
SeedGroup = Literal["tables", "extras", "pilot"]
"""A key of the scale's `seeds`."""
Seeds = Mapping[str, int]
"""The `seeds` section of the scale's config: group -> number, and the `first` seed."""


@dataclass(frozen=True)
class Run:
    """One training run, or an untrained model. `method` may carry parameters: clip_b@mu=1.2."""

    model: str
    method: str
    seed: int

    def metrics_file(self, results: Path) -> Path:
        return Layout(results).metrics(self.model, self.method, self.seed)

    def evaluation_file(self, results: Path, dataset: str, temperature: float | None = None) -> Path:
        """`temperature`: null is that of all tables."""
        return Layout(results).samples(self.model, self.method, self.seed, dataset, temperature)


class RunGroup(Section):
    """Every method on every model."""

    models: Names
    methods: Names
    seeds: SeedGroup | None = None
    """null: the experiment's own."""


class Sweep(Section):
    """One method with several values of one parameter."""

    models: Names
    method: str
    parameter: str
    values: dict[str, Annotated[list[int | float], Field(min_length=1)]]
    """By scale; `default` for all others."""

    @model_validator(mode="after")
    def _has_default(self) -> Self:
        if "default" not in self.values:
            raise ValueError("values should have an entry `default`")
        return self

    def methods(self, scale: str) -> dict[str, int | float]:
        """{'clip_b@mu=1.2': 1.2, ...}"""
        values = self.values.get(scale, self.values["default"])
        return {f"{self.method}@{self.parameter}={value}": value for value in values}


class Panel(Section):
    """One axes of a figure, with a line per method and column."""

    columns: Columns
    x: str = "step"
    """The column on the x axis. Any other than step gives trajectories over training: the mean over seeds of both
    columns at each step where both are finite, without a band, from a marker at the first step on."""
    model: str | None = None
    """One of the models of the runs; optional if there is only one."""
    methods: Names = Field(default_factory=lambda: ["*"])
    """Methods of the runs, or patterns such as clip_b@*."""
    title: str = ""
    """{model} is replaced by the model that ran."""
    points: str | None = None
    """A second column, drawn as separate points."""
    log: bool = False

    @model_validator(mode="after")
    def _axes_differ(self) -> Self:
        if self.x in self.columns:
            raise ValueError(f"x is {self.x!r}; it should be none of columns")
        if self.points in ("step", *self.columns):
            raise ValueError(f"points is {self.points!r}; it should be none of columns, nor step")
        if self.points and self.x != "step":
            raise ValueError(f"points are drawn over steps; x is {self.x!r}")
        return self


class Spec(Section):
    """The keys that every experiment has."""

    kind: str
    title: str
    shows: str
    """Its caption in the report, with what to look for."""
    target: Literal["extras", "methods", "ladder"] | None = None
    """The target that builds it; null: built by default."""


class DataFilter(Spec):
    """Histogram of the training problems by pass rate, with those that were dropped."""

    kind: Literal["data_filter"]


class RunsSpec(Spec):
    seeds: SeedGroup
    runs: Annotated[list[RunGroup], Field(min_length=1)]
    sweeps: list[Sweep] = Field(default_factory=list)


class BaselineSpec(RunsSpec):
    baseline: str = "grpo"
    """The method that others are compared with; black, or a line of its own."""


class LabelledSpec(BaselineSpec):
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that replace the methods' own where these are too long."""


class ComparedSpec(BaselineSpec):
    evaluations: Names


class MetricsSpec(ComparedSpec):
    metrics: Annotated[list[Literal["avg", "pass"]], Field(min_length=1), AfterValidator(_distinct)]


class ScoresSpec(MetricsSpec, LabelledSpec):
    """Table of Avg@K and Pass@K, a row per model and method."""

    kind: Literal["scores"]
    entropy: bool = False
    """Also the entropy at the end, and which methods are exactly the baseline."""
    pooled: bool = False
    """Also the mean over the data sets."""


class GainsSpec(MetricsSpec):
    """Gains over the baseline on each data set, beside those that the paper states."""

    kind: Literal["gains"]


class PassSpec(ComparedSpec):
    """Pass@k over k: a row of panels per model, a panel per data set, a line per method."""

    kind: Literal["pass_at_k"]


class FrontierSpec(ComparedSpec, LabelledSpec):
    """Avg@K against Pass@K over the scale's `evaluation.temperatures`, a panel per model, a line per method."""

    kind: Literal["frontier"]


class LadderSpec(ComparedSpec):
    """Scores, entropy and gains over the models' number of parameters, and those that the `fitted` models predict."""

    kind: Literal["ladder"]
    fitted: Annotated[Names, Field(min_length=3)]
    """Models from which the scores of all others are predicted."""

    @model_validator(mode="after")
    def _one_ladder(self) -> Self:
        if len(self.runs) > 1:
            raise ValueError(f"kind {self.kind!r} takes one group of runs: the same methods on every model")
        if unknown := set(self.fitted) - set(self.runs[0].models):
            raise ValueError(f"fitted has {min(unknown)!r}, which is none of the models of the runs")
        return self


class DifficultySpec(ComparedSpec):
    """Gain in Avg@K and Pass@K over the baseline, on thirds of the problems by the untrained models' pass rate."""

    kind: Literal["difficulty"]

    @model_validator(mode="after")
    def _one_group(self) -> Self:
        if len(self.runs) > 1 or self.sweeps or BASE not in self.runs[0].methods:
            raise ValueError(f"kind {self.kind!r} averages over models, so it takes one group of runs, with {BASE!r}")
        return self


class CurvesSpec(LabelledSpec):
    """Training curves: one or more panels."""

    kind: Literal["curves"]
    panels: Annotated[list[Panel], Field(min_length=1)]


class OneModelSpec(RunsSpec):
    @model_validator(mode="after")
    def _one_model(self) -> Self:
        groups: list[RunGroup | Sweep] = [*self.runs, *self.sweeps]
        models = {model for group in groups for model in group.models}
        if len(models) > 1:
            raise ValueError(f"the runs are of {len(models)} models; kind {self.kind!r} shows one")
        return self


class SweepsSpec(BaselineSpec):
    sweeps: Annotated[list[Sweep], Field(min_length=1)]
    evaluations: Names | None = None
    """null: the scale's validation set."""


class StrengthSpec(SweepsSpec):
    """Clipped tokens, entropy and scores over the parameter of each sweep."""

    kind: Literal["strength"]


class MatchedSpec(SweepsSpec, OneModelSpec):
    """Scores over the entropy that each strength ends with, and methods compared at the entropy of one of them."""

    kind: Literal["matched"]
    reference: str = "clip_b"
    """The method whose entropy the others are compared at."""

    @model_validator(mode="after")
    def _one_line_per_method(self) -> Self:
        swept = [sweep.method for sweep in self.sweeps]
        if twice := [method for method in swept if swept.count(method) > 1]:
            raise ValueError(f"sweeps: {twice[0]} has two; kind {self.kind!r} draws one line per method")
        return self


class DistributionSpec(OneModelSpec):
    """Histogram of the problems of one data set by their number of correct samples, per method."""

    kind: Literal["pass_rate_distribution"]
    evaluations: Annotated[list[str], Field(min_length=1, max_length=1)]


class TheorySpec(OneModelSpec):
    """Predicted against measured entropy changes of single tokens."""

    kind: Literal["theory"]


class LinksSpec(OneModelSpec):
    """How columns go together over the steps of one method: each with the next, and the first with the last."""

    kind: Literal["links"]
    runs: Annotated[list[RunGroup], Field(min_length=1, max_length=1)]
    columns: Annotated[Columns, Field(min_length=2)]


class LensSpec(OneModelSpec, LabelledSpec):
    """Share of GRPO's push on the entropy that each method keeps in the quadrants of sign(A) and sign(S*)."""

    kind: Literal["lens"]


_SPECS: list[type[Spec]] = [ScoresSpec, GainsSpec, PassSpec, DifficultySpec, CurvesSpec, StrengthSpec, MatchedSpec]
_SPECS += [FrontierSpec, LadderSpec, DistributionSpec, DataFilter, TheorySpec, LinksSpec, LensSpec]
KINDS = {get_args(spec.model_fields["kind"].annotation)[0]: spec for spec in _SPECS}


_File = RootModel[Annotated[Spec, OneOf("kind", lambda: KINDS)]]

S = TypeVar("S", bound=Spec, covariant=True)


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """An experiment at one scale: the content of its file, and its runs."""

    name: str
    spec: S
    runs: tuple[Run, ...]
    untrained: Mapping[str, int]
    """Model -> the seed of the untrained model whose model.json says what ran."""
    temperatures: tuple[float, ...] = ()
    """At which evaluations are read, besides that of all tables."""

    @property
    def heading(self) -> str:
        """'Table 1' for table1; the name itself if it has no number, such as `lens`."""
        numbered = re.fullmatch(r"([a-z]+)(\d+)", self.name)
        return f"{numbered[1].capitalize()} {numbered[2]}" if numbered else self.name

    @property
    def is_numbered(self) -> bool:
        return self.heading != self.name

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(run.model for run in self.runs))

    @property
    def evaluations(self) -> list[str]:
        return getattr(self.spec, "evaluations", None) or []

    def methods(self, model: str, patterns: Iterable[str] = ("*",)) -> list[str]:
        """The methods that run on this model and match a pattern, in the order of the file."""
        methods = dict.fromkeys(run.method for run in self.runs if run.model == model)
        return [method for method in methods if any(fnmatchcase(method, pattern) for pattern in patterns)]

    def of(self, model: str, method: str) -> list[Run]:
        """One run per seed."""
        return [run for run in self.runs if (run.model, run.method) == (model, method)]

    @property
    def seeds(self) -> str:
        """'one seed', '3 seeds', or '1 to 3 seeds per method'; untrained models are not counted."""
        counts = {len(self.of(run.model, run.method)) for run in self.runs if run.method != BASE} or {1}
        if len(counts) > 1:
            return f"{min(counts)} to {max(counts)} seeds per method"
        return "one seed" if counts == {1} else f"{counts.pop()} seeds"

    def model_of(self, panel: Panel) -> str:
        return panel.model or self.models[0]

    def input_files(self, results: Path) -> list[Path]:
        """The files in results/<scale> that the experiment reads."""
        layout = Layout(results)
        at = [None, *self.temperatures]
        evaluations = [
            run.evaluation_file(results, dataset, temperature)
            for run, dataset, temperature in product(self.runs, self.evaluations, at)
        ]
        both = isinstance(self.spec, SweepsSpec | LadderSpec) or getattr(self.spec, "entropy", False)
        trained = [run for run in self.runs if run.method != BASE]
        files = evaluations + [run.metrics_file(results) for run in trained if both or not evaluations]
        files += [layout.facts(model, BASE, seed) for model, seed in self.untrained.items()]
        if isinstance(self.spec, DataFilter):
            files += [layout.pass_rates(seed) for seed in self.untrained.values()]
        return files + ([layout.logit_steps] if isinstance(self.spec, TheorySpec) else [])


def known_experiments(experiments: Path = EXPERIMENTS) -> list[str]:
    """Names of all tables and figures: the YAML files in that folder."""
    return sorted(path.stem for path in experiments.glob("*.yaml") if path.stem not in NOT_EXPERIMENTS)


def load_experiment(
    name: str, scale: str, seeds: Seeds, experiments: Path = EXPERIMENTS, configs: Path = CONFIGS
) -> Experiment[Any]:
    """experiments/<name>.yaml for one scale. Raises UserError for a mistake in it, or in `name`."""
    path, known = experiments / f"{name}.yaml", known_experiments(experiments)
    if name not in known:
        raise UserError(f"unknown table or figure {name!r}{nearest(name, known)}")
    spec, config = parse(_File, read_yaml(path), str(path)).root, config_of(scale, configs)
    if isinstance(spec, SweepsSpec) and spec.evaluations is None:
        spec = spec.model_copy(update={"evaluations": [config.training.validation_set]})
    runs = _runs(spec, config, seeds) if isinstance(spec, RunsSpec) else ()
    first = {run.model: run.seed for run in reversed(runs)} if runs else {config.pass_rates.model: first_of(seeds)}
    untrained = {model: config.untrained(model, seed) for model, seed in first.items()}
    temperatures = tuple(config.evaluation.temperatures) if isinstance(spec, FrontierSpec | LadderSpec) else ()
    experiment = Experiment(name, spec, runs, untrained, temperatures)
    _check_names(experiment, str(path), config, configs)
    for i, panel in enumerate(spec.panels if isinstance(spec, CurvesSpec) else ()):
        _check_panel(experiment, panel, f"{path}: panels[{i}]")
    return experiment


@cache  # a config takes 50 ms, and Snakemake loads all experiments
def config_of(scale: str, configs: Path) -> Config:
    return load_config(scale, configs=configs)


def _runs(spec: RunsSpec, config: Config, seeds: Seeds) -> tuple[Run, ...]:
    groups: dict[tuple[str, str], SeedGroup] = {}
    for group in spec.runs:
        groups |= dict.fromkeys(product(group.models, group.methods), group.seeds or spec.seeds)
    for sweep in spec.sweeps:
        groups |= dict.fromkeys(product(sweep.models, sweep.methods(config.scale)), spec.seeds)
    named = ((*method, seed) for method, group in groups.items() for seed in seeds_of(group, seeds))
    return runs_of(named, config)


def runs_of(named: Iterable[tuple[str, str, int]], config: Config) -> tuple[Run, ...]:
    """Runs of (model, method, seed): of `base` the untrained models from which the runs of these seeds start."""
    runs = (
        Run(model, method, config.untrained(model, seed) if method == BASE else seed) for model, method, seed in named
    )
    return tuple(dict.fromkeys(runs))


def seeds_of(group: SeedGroup, seeds: Seeds) -> range:
    first = FIRST_PILOT_SEED if group == "pilot" else first_of(seeds)
    return range(first, first + seeds[group])


def first_of(seeds: Seeds) -> int:
    return seeds.get("first", 0)


def _check_names(experiment: Experiment[Spec], where: str, config: Config, configs: Path) -> None:
    """Unknown names of models, methods and evaluation sets: Snakemake would call their files missing."""
    spec, methods = experiment.spec, {run.method for run in experiment.runs}
    compared = [(key, [getattr(spec, key)], methods) for key in ("baseline", "reference") if hasattr(spec, key)]
    for kind, names, known in (
        ("model", experiment.models, known_names("model", configs)),
        ("method", sorted(split_method(method)[0] for method in methods), known_names("method", configs)),
        ("evaluation set", experiment.evaluations, list(config.data.evaluation)),
        ("method in labels", getattr(spec, "labels", ()), methods),
        *compared,
    ):
        for name in names:
            if name not in known:
                raise UserError(f"{where}: unknown {kind} {name!r}{nearest(name, known)}")


def _check_panel(experiment: Experiment[Spec], panel: Panel, where: str) -> None:
    models = experiment.models
    if panel.model not in (models if len(models) > 1 else [None, *models]):
        raise UserError(f"{where}.model is {panel.model!r}; it should be one of {', '.join(models)}")
    known = experiment.methods(experiment.model_of(panel))
    for pattern in panel.methods:
        if not experiment.methods(experiment.model_of(panel), [pattern]):
            raise UserError(f"{where}.methods: no run of method {pattern!r}{nearest(pattern, known)}")
