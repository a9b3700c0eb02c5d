"""Experiments: the runs and the content of each table and figure, from one YAML file each below experiments/.

Snakemake imports this module to find the input files of its rules, so it imports nothing heavy.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import filter as filter_names
from fnmatch import fnmatchcase
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

from entropy_dynamics.config import (
    BASE,
    CONFIGS,
    Config,
    known_names,
    load_config,
    read_yaml,
    scale_names,
    split_method,
    stored_as,
)
from entropy_dynamics.config.schema import FIRST_PILOT_SEED
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.experiments import specs
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.sections import parse

EXPERIMENTS = Path("experiments")
PAPER, FURTHER = "paper", "further"  # the folder itself, and other views of the same runs: built by default
TARGETS = ("extras", "methods", "ladder", "controls")  # folders that train more, each built by the target of its name
FIRST = ("learning", "table1", "figure6", "figure1")  # to be made first; the page opens with the first picture
THEORY = "theory_check"  # the theorems are checked on its untrained model
NOT_EXPERIMENTS = {"paper_values", "claims"}
Seeds = Mapping[str, int]
"""The `seeds` section of the scale's config: group -> number, and the `first` seed."""


@dataclass(frozen=True)
class Run:
    """One training run, or an untrained model. `method` may carry parameters: clip_b@mu=1.2."""

    model: str
    method: str
    seed: int
    stored: str | None = field(default=None, compare=False)
    """The method in its paths, if it is another name of the same run; see `stored_as`."""

    @property
    def path(self) -> tuple[str, str, int]:
        return self.model, self.stored or self.method, self.seed

    def metrics_file(self, results: Path) -> Path:
        return Layout(results).metrics(*self.path)

    def evaluation_file(self, results: Path, dataset: str, temperature: float | None = None) -> Path:
        """`temperature`: None means that of the tables."""
        return Layout(results).evaluation_file(*self.path, dataset, temperature)


S = TypeVar("S", bound=specs.Spec, covariant=True)


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """An experiment at one scale: the content of its file, and its runs."""

    name: str
    spec: S
    runs: tuple[Run, ...]
    untrained: Mapping[str, int]
    """Model -> the seed of the untrained model whose model.json says what ran."""
    temperatures: tuple[float, ...] = ()
    """Temperatures of the evaluations that are read, in addition to that of the tables."""
    folder: str = PAPER
    """PAPER, FURTHER or one of TARGETS."""
    planned: int | None = None
    """The number of seeds of the whole experiment, if this is a part of it; see `so_far`."""

    @property
    def heading(self) -> str:
        """'Table 1' for table1; the name itself if it has no number, such as `lens`."""
        numbered = re.fullmatch(r"([a-z]+)(\d+)", self.name)
        return f"{numbered[1].capitalize()} {numbered[2]}" if numbered else self.name

    @property
    def is_numbered(self) -> bool:
        return self.heading != self.name

    @property
    def by_default(self) -> bool:
        return self.folder not in TARGETS

    @property
    def models(self) -> list[str]:
        return list(dict.fromkeys(run.model for run in self.runs))

    @property
    def evaluations(self) -> list[str]:
        return self.spec.sets

    @property
    def dataset_weights(self) -> dict[str, float]:
        """The weight of each data set in a mean over all."""
        return dict.fromkeys(self.evaluations, 1 / len(self.evaluations))

    def methods(self, model: str, patterns: Iterable[str] = ("*",)) -> list[str]:
        """The methods that run on this model and match a pattern, in the order of the file."""
        methods = dict.fromkeys(run.method for run in self.runs if run.model == model)
        return [method for method in methods if any(fnmatchcase(method, pattern) for pattern in patterns)]

    def of(self, model: str, method: str) -> list[Run]:
        """One run per seed."""
        return [run for run in self.runs if (run.model, run.method) == (model, method)]

    @property
    def seeds_in_words(self) -> str:
        """'one seed', '3 seeds', '1 of 3 seeds' or '1 to 3 seeds per method'; untrained models are not counted."""
        least, most = min(counts := self._seeds_per_method), max(counts)
        number = f"{least} to {most}" if least < most else f"{most}"
        if self.planned:
            return f"{number} of {self.planned} seeds"
        return "one seed" if number == "1" else f"{number} seeds" + " per method" * (least < most)

    @property
    def has_one_seed(self) -> bool:
        return self._seeds_per_method == {1}

    @property
    def _seeds_per_method(self) -> set[int]:
        return {len(self.of(run.model, run.method)) for run in self.runs if run.method != BASE} or {1}

    def model_of(self, panel: specs.Panel) -> str:
        return panel.model or self.models[0]

    def so_far(self, results: Path) -> Self:
        """The experiment without the seeds that lack a file in results/<scale>.

        With all seeds if a method would be left without any.
        """
        single = [model for model in self.models if len(self.of(model, BASE)) == 1]  # serves all seeds
        bound = [run for run in self.runs if run.method != BASE or run.model not in single]
        lacking = {run.seed for run in bound if not all(file.is_file() for file in self.run_files(results, run))}
        runs = tuple(run for run in self.runs if run.seed not in lacking or run not in bound)
        kept, every = ({(run.model, run.method) for run in these} for these in (runs, self.runs))
        return replace(self, runs=runs, planned=len({run.seed for run in bound})) if lacking and kept == every else self

    def temperatures_of(self, method: str) -> tuple[float, ...]:
        """`temperatures`, if it is read at them."""
        return self.temperatures if self.spec.reads_further(method) else ()

    def run_files(self, results: Path, run: Run) -> list[Path]:
        """The files of a run that the experiment reads."""
        read = product(self.evaluations, [None, *self.temperatures_of(run.method)])
        files = [run.evaluation_file(results, dataset, temperature) for dataset, temperature in read]
        if run.method != BASE and self.spec.reads_curves:
            files.append(run.metrics_file(results))
        return files

    def input_files(self, results: Path) -> list[Path]:
        """The files in results/<scale> that the experiment reads."""
        layout = Layout(results)
        files = [file for run in self.runs for file in self.run_files(results, run)]
        files += [layout.facts(model, BASE, seed) for model, seed in self.untrained.items()]
        if isinstance(self.spec, specs.DataFilter):
            files += [layout.pass_rates(seed) for seed in self.untrained.values()]
        files += [layout.logit_steps] if isinstance(self.spec, specs.TheorySpec) else []
        return list(dict.fromkeys(files))


def experiment_files(experiments: Path = EXPERIMENTS) -> dict[str, Path]:
    """Name -> YAML file of all tables and figures, by name: those in that folder, in FURTHER and in TARGETS.

    If none is THEORY, that of the folder above.
    """
    files: dict[str, Path] = {}
    for folder in (experiments, *(experiments / name for name in (FURTHER, *TARGETS))):
        for path in folder.glob("*.yaml"):
            if (other := files.setdefault(path.stem, path)) != path:
                raise UserError(f"{path} has the name of {other}; rename one of them")
    if (above := experiments.parent / f"{THEORY}.yaml").is_file():
        files.setdefault(THEORY, above)
    return {name: files[name] for name in sorted(files.keys() - NOT_EXPERIMENTS)}


def load_experiment(
    name: str, scale: str, seeds: Seeds, experiments: Path | None = None, configs: Path = CONFIGS
) -> Experiment[Any]:
    """<name>.yaml below the scale's folder, for this scale. Raises UserError for a mistake in it, or in `name`."""
    config = config_of(scale, configs)
    experiments = experiments or Path(config.experiments_folder)
    files = experiment_files(experiments)
    if name not in files:
        raise UserError(f"unknown table or figure {name!r}{nearest(name, files)}")
    path = files[name]
    folder = PAPER if path.parent in (experiments, experiments.parent) else path.parent.name
    spec = parse(specs.SpecFile, read_yaml(path), str(path)).root
    if isinstance(spec, specs.SweepsSpec) and spec.evaluations is None:
        spec = spec.model_copy(update={"evaluations": [config.training.validation_set]})
    runs = _runs(spec, config, seeds, scale_names(scale, configs), configs) if isinstance(spec, specs.RunsSpec) else ()
    first = {run.model: run.seed for run in reversed(runs)} if runs else {config.pass_rates.model: first_of(seeds)}
    untrained = {model: config.untrained(model, seed) for model, seed in first.items()}
    at = config.evaluation
    further = [*at.temperatures, *(at.control_temperatures if folder == "controls" else ())]
    experiment = Experiment(name, spec, runs, untrained, spec.temperatures(further), folder)
    _check_names(experiment, str(path), config, configs)
    for i, panel in enumerate(spec.panels if isinstance(spec, specs.CurvesSpec) else ()):
        _check_panel(experiment, panel, f"{path}: panels[{i}]")
    return experiment


@cache  # a config takes 50 ms, and Snakemake loads all experiments
def config_of(scale: str, configs: Path) -> Config:
    return load_config(scale, configs=configs)


def _runs(spec: specs.RunsSpec, config: Config, seeds: Seeds, scales: list[str], configs: Path) -> tuple[Run, ...]:
    groups: dict[tuple[str, str], specs.SeedGroup] = {}
    for group in spec.runs:
        groups |= dict.fromkeys(product(group.models, group.methods), group.seeds or spec.seeds)
    for sweep in spec.sweeps:
        groups |= dict.fromkeys(product(sweep.models, sweep.methods(scales)), spec.seeds)
    named = ((*method, seed) for method, group in groups.items() for seed in seeds_of(group, seeds))
    return runs_of(named, config, configs)


def runs_of(named: Iterable[tuple[str, str, int]], config: Config, configs: Path) -> tuple[Run, ...]:
    """The runs of (model, method, seed); for `base`, the untrained models from which runs with these seeds start."""
    numbered = ((model, of, config.untrained(model, seed) if of == BASE else seed) for model, of, seed in named)
    runs = (Run(*run, stored_as(config.scale, *run[:2], configs)) for run in numbered)
    return tuple(dict.fromkeys(runs))


def seeds_of(group: specs.SeedGroup, seeds: Seeds) -> range:
    first = FIRST_PILOT_SEED if group == "pilot" else first_of(seeds)
    return range(first, first + seeds[group])


def first_of(seeds: Seeds) -> int:
    return seeds.get("first", 0)


def _check_names(experiment: Experiment[specs.Spec], where: str, config: Config, configs: Path) -> None:
    """Reject unknown models, methods and evaluation sets, whose files Snakemake would report as missing."""
    spec, methods = experiment.spec, {run.method for run in experiment.runs}
    averages = getattr(spec, "averages", {})
    named = {*methods, *averages}
    unmatched = [pattern for pattern in getattr(spec, "edge", ()) if not filter_names(named, pattern)]
    compared = [(key, [getattr(spec, key)], methods) for key in ("baseline", "reference") if hasattr(spec, key)]
    compared += [("method", [BASE], methods)] if isinstance(spec, specs.DifficultySpec) else []
    for kind, names, known in (
        ("model", list(experiment.untrained), known_names("model", configs)),
        ("method", sorted(split_method(method)[0] for method in methods), known_names("method", configs)),
        ("evaluation set", experiment.evaluations, list(config.data.evaluation)),
        ("method in labels", getattr(spec, "labels", ()), methods),
        ("method in compared", getattr(spec, "compared", ()), named),
        ("method in edge", unmatched, methods),
        ("method in averages", [name for of in averages.values() for name in of], methods),
        ("model in fitted", getattr(spec, "fitted", ()), experiment.models),
        ("scale in beyond", [of.scale for of in [getattr(spec, "beyond", None)] if of], known_names("scale", configs)),
        *compared,
    ):
        check_known(where, kind, names, known)


def check_known(where: str, kind: str, names: Iterable[str], known: Collection[str]) -> None:
    """Raise UserError with the nearest known name if a name is unknown."""
    for name in names:
        if name not in known:
            raise UserError(f"{where}: unknown {kind} {name!r}{nearest(name, known)}")


def _check_panel(experiment: Experiment[specs.Spec], panel: specs.Panel, where: str) -> None:
    models = experiment.models
    if panel.model not in (models if len(models) > 1 else [None, *models]):
        raise UserError(f"{where}.model is {panel.model!r}; it should be one of {', '.join(models)}")
    known = experiment.methods(experiment.model_of(panel))
    for pattern in panel.methods:
        if not experiment.methods(experiment.model_of(panel), [pattern]):
            raise UserError(f"{where}.methods: no run of method {pattern!r}{nearest(pattern, known)}")
