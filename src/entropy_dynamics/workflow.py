"""The jobs of a scale: what the rules in workflow/ take from configs and experiments.

Snakemake imports this module at every call, so it imports neither torch nor pandas.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from entropy_dynamics import config as configs
from entropy_dynamics.config import BASE, Config, Selection, load_config
from entropy_dynamics.errors import UserError, closest, nearest
from entropy_dynamics.experiments.claims import JUDGED, input_files, load_claims
from entropy_dynamics.experiments.load import FIRST, PAPER, THEORY, experiment_files, load_experiment
from entropy_dynamics.planning.plan import TEMPERATURES, resources
from entropy_dynamics.results.layout import CONFIG, PROBLEMS_REPORT, Layout
from entropy_dynamics.results.provenance import fingerprint
from entropy_dynamics.sections import parse
from entropy_dynamics.stages.inputs import new_settings

RULES = {
    *("problems", "model", "pass_rates", "train", "evaluate", "theory", *TEMPERATURES),
    *("tables", "figures", "claims", "report", "paper", "all", "default"),
    *("further", "extras", "methods", *JUDGED),
}
"""The rules that are not named after a table or figure."""
# The file that stands for all of a table or figure; the others; the one in Snakemake's report.
SUFFIXES = {"table": ("csv", ["csv", "tex"], "md"), "figure": ("png", ["csv", "svg", "pdf"], "png")}
Wildcards = Any  # Snakemake's: the attributes model, method and seed, as far as a rule has them


@contextmanager
def one_line() -> Iterator[None]:
    """Exit with a one-line message on a UserError, for which Snakemake would print a traceback."""
    try:
        yield
    except UserError as error:
        sys.exit(f"error: {error}")


@cache
@one_line()
def config_of(scale: str, *run: str) -> Any:
    return load_config(scale, *run)


@cache
def resources_of(scale: str, stage: str, *run: str) -> dict[str, Any]:
    return resources(config_of(scale, *run), stage)


@cache
def hashed_settings(scale: str, stage: str, *run: str) -> tuple[str, dict[str, Any]]:
    settings = configs.settings_of(stage, config_of(scale, *run))
    return fingerprint(settings), settings


def named(wildcards: Wildcards) -> list[str]:
    """The model and the method in a job's wildcards."""
    return [getattr(wildcards, key) for key in ("model", "method") if hasattr(wildcards, key)]


class Jobs:
    """The jobs of `snakemake --config scale=smoke seeds=5`, whose entries are the `selection`.

    Below, `run` is the model and the method of a job if they are not among its wildcards.
    Raises UserError for an invalid selection, scale or experiment.
    """

    def __init__(self, selection: Mapping[str, Any]):
        chosen = parse(Selection, selection, "--config")
        self.config: Config = load_config(chosen.scale, overrides=chosen.overrides)
        self.scale, self.layout = chosen.scale, Layout.of(chosen.scale)
        self.seeds = dict(self.config.seeds)
        self.set_seeds = " ".join(f"--set seeds.{group}={n}" for group, n in self.seeds.items())
        self.filtering = self.config.pass_rates.model
        temperatures = {name: getattr(self.config.evaluation, name) for name in TEMPERATURES}
        self.temperatures = {name: at for name, at in temperatures.items() if at}
        self.folder = Path(self.config.experiments_folder)
        self.paper_values = [path for path in [self.folder / "paper_values.yaml"] if path.is_file()]
        self.files = experiment_files(self.folder)
        listed = self.config.experiments or []
        if taken := RULES & {*self.files, *listed}:
            where = self.files.get(min(taken), min(taken))
            raise UserError(f"{where}: the workflow has a rule of that name; rename the file")
        self.experiments = {
            name: load_experiment(name, self.scale, self.seeds)
            for name in dict.fromkeys([*self.files, *listed, THEORY])
        }
        # built by `all`; every name is a target at every scale
        self.wanted = listed or [name for name, of in self.experiments.items() if of.by_default]
        ((self.theory_model, self.theory_seed),) = self.experiments[THEORY].untrained.items()
        self._settings: dict[str, tuple[str, dict[str, Any]]] = {}  # by fingerprint, with the stage
        self._urgency = self._priorities()
        for model in (self.filtering, self.theory_model):
            config_of(self.scale, model)

    @property
    def local_cpu(self) -> bool:
        return self.config.hardware.device == "cpu" and self.config.hardware.ranks is None

    @property
    def downloads_models(self) -> bool:
        """Compute nodes often have no network for that; a warm or cold start is a training."""
        return not self.config.toy_models and self.config.cold_start is None

    def _priorities(self) -> dict[tuple[str, ...], int]:
        """Jobs run in the order of the tables and figures that need them."""
        urgency: dict[tuple[str, ...], int] = {}
        order = [*(name for name in FIRST if name in self.experiments), *self.wanted]
        for position, name in enumerate(reversed(order)):
            for run in self.experiments[name].runs:
                key = tuple(map(str, run.path))
                urgency[key] = position
                if self.experiments[name].temperatures:
                    urgency["temperatures", *key] = position
                for model in (run.model, self.filtering):
                    untrained = str(self.config.untrained(model, run.seed))
                    urgency[model, untrained] = urgency[(untrained,)] = position
        self.most_urgent = len(order)  # of jobs that only draw, or that all runs need
        return urgency

    def urgency(self, wildcards: Wildcards, *of: str) -> int:
        """The priority of a job for a model or a run, or `of` its temperatures, which few results need."""
        return self._urgency.get((*of, *wildcards), 0)

    def settings(self, stage: str, *run: str) -> Callable[[Wildcards], str]:
        """A parameter: a hash of the settings that a job uses, by which Snakemake reruns it."""

        def hashed(wildcards: Wildcards) -> str:
            name, used = hashed_settings(self.scale, stage, *named(wildcards), *run)
            self._settings[name] = stage, used
            return name

        return hashed

    def changes(self, name: str, outputs: Iterable[str]) -> list[str]:
        """'key old -> new' for each new setting of a job, if `name` is their fingerprint."""
        if name not in self._settings:
            return []
        files = [Path(file) for file in outputs]
        records = [file for file in files if file.name in (CONFIG, PROBLEMS_REPORT)]
        stage, own = self._settings[name]
        return new_settings(self.layout, (records or files)[0], own) or [f"settings of {stage}"]

    def of_job(self, resource: str, stage: str, *run: str) -> Callable[[Wildcards], Any]:
        """A resource that depends on a job's model and method; None leaves it unset."""
        return lambda wildcards: resources_of(self.scale, stage, *named(wildcards), *run).get(resource)

    def needs(self, stage: str, *run: str) -> dict[str, Callable[[Wildcards], Any]]:
        """The resources of a rule's jobs, as `entropy-dynamics plan` estimates them."""
        names = ("gpu", "mem_mb", "runtime", "nodes", "mpi", "tasks", "tasks_per_gpu", "slurm_extra")
        return {name: self.of_job(name, stage, *run) for name in names}

    def checked(self, wildcards: Wildcards) -> list[Path]:
        """No input files, but the workflow ends before anything runs if a setting is invalid."""
        config_of(self.scale, *named(wildcards))
        return []

    def untrained(self, wildcards: Wildcards) -> list[Path]:
        """The inputs of a run: the untrained model and the pass rates of its seed."""
        seed = int(wildcards.seed)
        models = wildcards.model, self.filtering
        own, filtering = (self.config.untrained(model, seed) for model in models)
        return [self.layout.facts(wildcards.model, BASE, own), self.layout.pass_rates(filtering)]

    @one_line()
    def longer(self, wildcards: Wildcards) -> list[Path]:
        """The metrics of the run that leaves its policy to this one, if any (`keep_steps`).

        The config of a finished run tells what it left, so that other `keep_steps` rerun nothing.
        """
        run = (wildcards.model, configs.split_method(wildcards.method)[0], wildcards.seed)
        if "@training.steps=" not in wildcards.method:
            return []
        if (file := self.layout.run(*run) / CONFIG).is_file():
            training = configs.read_yaml(file, resolve=True)["training"]
            shorter = configs.shorter_runs(run[1], training)
        else:
            shorter = configs.configured_shorter_runs(self.scale, *run[:2])
        return [self.layout.metrics(*run)] * (wildcards.method in shorter)

    def problem_files(self, _: Wildcards) -> list[Path]:
        """The files of problems: those named by the sets, and those in `data.folder`."""
        data = self.config.data
        files = [Path(source.path) for source in data.sets.values() if source.source == "file"]
        return files + [file for name in data.sets for file in data.files_in_folder(name)]

    def kind(self, name: str) -> str:
        return "table" if self.experiments[name].spec.is_table else "figure"

    def drawn(self, name: str) -> tuple[list[Path], Path]:
        """The files of a table or figure, and the one in Snakemake's report."""
        path = getattr(self.layout, self.kind(name))
        _, suffixes, shown = SUFFIXES[self.kind(name)]
        return [path(name, suffix) for suffix in suffixes], path(name, shown)

    def files_of(self, names: Iterable[str]) -> list[Path]:
        """One file of each table and figure, as a rule makes all of its files."""
        kinds = {name: self.kind(name) for name in names}
        return [getattr(self.layout, kind)(name, SUFFIXES[kind][0]) for name, kind in kinds.items()]

    def of_kind(self, kind: str) -> list[Path]:
        """A file of each `table` or `figure` that is built by default."""
        wanted = (name for name in self.experiments if name in self.wanted)
        return self.files_of(name for name in wanted if self.kind(name) == kind)

    def of_target(self, folder: str) -> list[Path]:
        """A file of each table and figure in a folder of experiments/."""
        return self.files_of(name for name, of in self.experiments.items() if of.folder == folder)

    def inputs_of(self, name: str) -> list[Path]:
        """The inputs of a table or figure."""
        read = self.experiments[name].input_files(self.layout.root)
        return [self.files[name], *self.paper_values, *read]

    @one_line()
    def labels_in(self, name: str) -> list[str]:
        """The labels of its methods, from their configs."""
        methods = {configs.split_method(run.method)[0] for run in self.experiments[name].runs}
        return [configs.method_label(method) for method in sorted(methods)]

    def in_report(self, name: str) -> dict[str, Any]:
        """Category and label in the report, which sorts categories by name."""
        experiment, kind = self.experiments[name], self.kind(name)
        title = experiment.spec.title
        label = f"{experiment.heading}. {title}" if experiment.is_numbered else title
        paper = {"table": "2 Tables", "figure": "3 Figures"}[kind]
        category = paper if experiment.folder == PAPER else "4 Further"
        return {"category": category, "labels": {kind: label}}

    def bounds(self, name: str) -> list[float] | None:
        """The bounds of the pass-rate filter, where a figure shows them."""
        rates, kind = self.config.pass_rates, self.experiments[name].spec.kind
        return [rates.low, rates.high] if kind == "data_filter" else None

    @one_line()
    def claim_inputs(self, _: Wildcards) -> list[Path]:
        """The results that the claims read: all, or what the scale's list of experiments makes."""
        files = input_files(self.layout.root, load_claims(self.scale, self.seeds))
        if self.config.experiments is None:
            return files
        wanted = (self.experiments[name].input_files(self.layout.root) for name in self.wanted)
        made = {file for files in wanted for file in files}
        return [file for file in files if file in made]

    @one_line()
    def inputs_of_claims(self, folder: str) -> list[Path]:
        """The results that the claims of a target read, and its tables and figures."""
        judged = load_claims(self.scale, self.seeds, folder=folder)
        return input_files(self.layout.root, judged) + self.of_target(folder)

    def costs(self) -> dict[str, float]:
        """Rule -> expected seconds, from workflow/costs.yaml."""
        costs = configs.read_yaml(Path("workflow/costs.yaml")).get(self.scale, {})
        return costs | {name: costs["draw"] for name in self.experiments if costs}

    def no_rule_for(self, target: str, rules: Iterable[Any]) -> str:
        """The message about a target that none of Snakemake's rules makes."""
        results, scale, *_ = *Path(target).parts, "", ""
        if results == "results" and scale != self.scale and scale in configs.known_names("scale"):
            return f"{target} is of another scale than {self.scale}: add --config scale={scale}"
        name, _, value = target.partition("=")
        if value and name in Selection.model_fields:
            return f"no rule makes {target!r}; did you mean --config {target}?"
        if "/" not in target:
            names = [rule.name for rule in rules if not rule.has_wildcards()]
            return f"no rule makes {target!r}{nearest(target, names)}"
        files = [str(file) for rule in rules for file in rule.output]
        run = self.layout.metrics("{model}", "{method}", "{seed}").as_posix()
        return f"no rule makes {target!r}; did you mean {closest(target, files) or run!r}?"
