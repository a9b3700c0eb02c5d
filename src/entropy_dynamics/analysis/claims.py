"""The paper's claims: the schema of experiments/claims.yaml, and the runs that each claim needs at one scale.

Snakemake imports this module to find the input files of its rule, so it imports nothing heavy.
"""

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain, product
from math import inf
from pathlib import Path
from string import Template
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from entropy_dynamics.analysis.columns import DERIVED, METRICS
from entropy_dynamics.analysis.experiments import (
    EXPERIMENTS,
    Run,
    Seeds,
    check_known,
    config_of,
    load_experiment,
    runs_of,
    seeds_of,
)
from entropy_dynamics.analysis.specs import Columns, Metric, Names, SeedGroup
from entropy_dynamics.config import BASE, CONFIGS, Config, known_names, read_yaml
from entropy_dynamics.errors import UserError, closest
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.sections import OneOf, PositiveInt, Section, parse

Methods = Annotated[dict[str, SeedGroup], Field(min_length=1)]
"""Methods and their seeds."""
Statistic = Literal[
    "mean",
    "log_mean",
    "log_sd",
    "drop",
    "ratio",
    "size_difference",
    "correlation",
    "same_sign",
    "correlation_difference",
    "ratio_difference",
    "steps_to",
    "sum_to",
]
"""mean | log_mean: its logarithm, so that a difference is a log ratio | log_sd: logarithm of the standard deviation of
the column's logarithm, i.e. of its relative fluctuation | drop of the mean from the first to the last
tenth of the steps, as a share | ratio of the means of two columns | size_difference: of the absolute values of two
means, first minus second | correlation of two columns | same_sign: share of the steps at which two have the same sign,
minus the share expected of unrelated ones with as many negative steps | correlation_difference: of the first column's
correlation with the second, minus that with the third | ratio_difference: of two ratios of means, first to second minus
third to fourth | steps_to: number of steps until the column's mean over a tenth of the steps first reaches `target` |
sum_to: sum of the second column until the first has reached it; both are undefined for a run that does not."""
Basis = Annotated[str, Field(pattern=r"^(identity|by construction|independent|facet of [\w.]+)$")]
COLUMNS_OF: dict[str, int] = {"ratio": 2, "size_difference": 2, "correlation": 2, "same_sign": 2, "sum_to": 2}
COLUMNS_OF |= {"correlation_difference": 3, "ratio_difference": 4}
Temperature = Literal["greedy", "best", "best_point", "matched_avg", "matched_pass"] | float
POINTS = ("best_point", "matched_avg")

SMALLEST = {"avg": 1.0, "pass": 3.0, "pass_minus_avg": 3.0, "pass_area": 2.0, "all_correct": 3.0}  # points
SMALLEST |= {"log_mean": 0.1, "drop": 0.1, "correlation": 0.1, "same_sign": 0.1, "correlation_difference": 0.1}
"""The smallest effect of interest by metric or statistic; an inconclusive verdict states how many seeds detect it."""


class ClaimSpec(Section):
    """The keys that every claim has."""

    id: str
    label: str
    """Label in the figure of all claims."""
    statement: str
    """{model} is replaced by the model that ran."""
    place: str
    """Place in the paper."""
    ours: bool = False
    """Whether the claim is not the paper's, but follows from the one at this place."""
    rests_on: Basis = "independent"
    """identity: true whatever the runs | by construction: follows from a choice made so that it holds, such as the
    dose | facet of <id>: another side of what that claim is about | independent."""
    primary: bool = False
    """Whether the protocol calls it primary: its verdict then takes Holm's correction over all primary claims."""
    test: str
    unit: str
    above: float | None = None
    """The claimed side of the threshold: exactly one of above, below and within."""
    below: float | None = None
    within: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    why: str = ""
    """The reason for a threshold other than 0."""

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        given = [side for side in ("above", "below", "within") if getattr(self, side) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of above, below and within, not {' and '.join(given) or 'none'}")
        if not set(self.bounds) <= {-inf, 0, inf}:
            if not self.why:
                raise ValueError("a threshold other than 0 needs its reason, in `why`")
        elif self.why:
            raise ValueError("`why` is the reason for a threshold other than 0")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the claimed range; infinite if open."""
        if self.within:
            return self.within[0], self.within[1]
        return -inf if self.above is None else self.above, inf if self.below is None else self.below

    @property
    def smallest(self) -> float | None:
        """The smallest effect of interest, if one is defined."""
        return SMALLEST.get(getattr(self, "metric", "") or getattr(self, "statistic", ""))

    @property
    def claimed(self) -> str:
        low, high = self.bounds
        return f"from {low:g} to {high:g}" if self.within else f"below {high:g}" if low == -inf else f"above {low:g}"


class CurveClaim(ClaimSpec):
    """A statistic of training curves."""

    model: str
    runs: Methods
    statistic: Statistic
    columns: Columns
    window: Literal["all", "second_half", "last_tenth"] = "all"
    """The steps that count."""
    target: float | None = None
    """For the statistics steps_to and sum_to."""

    @model_validator(mode="after")
    def _fits_columns(self) -> Self:
        needed = COLUMNS_OF.get(self.statistic, 1)
        if len(self.columns) != needed:
            raise ValueError(f"the statistic {self.statistic!r} is of {needed} columns")
        if (self.target is None) == self.statistic.endswith("_to"):
            raise ValueError("target is for the statistics steps_to and sum_to, which need one")
        return self


class OverSeeds(CurveClaim):
    """The statistic of one method over its seeds."""

    test: Literal["over_seeds"]
    runs: Annotated[Methods, Field(max_length=1)]


class CurveDifference(CurveClaim):
    """Difference of the statistic between methods; several on one side count as their mean."""

    test: Literal["curve_difference"]
    against: Methods


class SweepTrend(CurveClaim):
    """Slope of the statistic over the logarithm of a parameter, over those of its values that drop any tokens."""

    test: Literal["sweep_trend"]
    runs: Annotated[Methods, Field(max_length=1)]
    """A method with its parameter, but without a value: clip_b@mu."""
    sweep: str
    """The experiment that defines the values."""


class ScoreDifference(ClaimSpec):
    """Difference of a score between methods, on the same problems."""

    test: Literal["score_difference"]
    models: Names
    runs: Methods
    against: Methods
    metric: Metric
    evaluations: Names
    minus: list[str] = Field(default_factory=list)
    """Data sets whose mean difference is subtracted from that of `evaluations`."""
    problems: Literal["all", "hard", "easy"] = "all"
    """All problems, or the hardest or easiest third of each data set by the untrained models' pass rate."""
    everywhere: bool = False
    """Take the smallest of the differences over models and data sets instead of their mean."""
    temperature: Temperature | None = None
    """Temperature of the evaluations; null: the paper's | greedy: 0 | best: for each method and model, the one with the
    highest metric on the validation set | matched_pass: the paper's for the method of `runs`; for that of `against`,
    interpolated between temperatures such that both have the same Pass@K | best_point: for each side, one of its
    methods, such as the checkpoints of a run, and one of the temperatures above 0, those of `control_temperatures`
    included, with the highest metric on the validation set | matched_avg: the paper's for the method of `runs`; for
    `against` the best point by Pass@K of those with at least that Avg@K on the validation set."""

    @model_validator(mode="after")
    def _fits_temperature(self) -> Self:
        if self.temperature in ("greedy", "matched_pass") and self.metric != "avg":
            raise ValueError(f"temperature {self.temperature!r} compares the metric 'avg'")
        if self.temperature == "matched_pass" and {len(self.models), len(self.runs), len(self.against)} != {1}:
            raise ValueError("temperature 'matched_pass' compares two methods on one model")
        if self.temperature in POINTS and (len(self.models) > 1 or self.problems != "all" or self.everywhere):
            raise ValueError(f"temperature {self.temperature!r} compares all problems, on one model")
        if self.temperature == "matched_avg" and len(self.runs) > 1:
            raise ValueError("temperature 'matched_avg' compares one method with the points of others")
        return self

    @property
    def datasets(self) -> dict[str, float]:
        """The weight of each data set in the score."""
        sides = ((1, self.evaluations), (-1, self.minus))
        return {dataset: sign / len(side) for sign, side in sides for dataset in side}


_TESTS: tuple[type[ClaimSpec], ...] = (OverSeeds, CurveDifference, SweepTrend, ScoreDifference)
TESTS = {get_args(spec.model_fields["test"].annotation)[0]: spec for spec in _TESTS}


class EvaluationSize(Section):
    problems: PositiveInt
    samples: PositiveInt


class PaperGains(Section):
    """Gains printed in the paper, to be compared with the sampling noise of its own evaluations."""

    place: str
    models: Names
    methods: Names
    against: str
    evaluations: dict[str, EvaluationSize]


def _distinct_ids(claims: list[ClaimSpec]) -> list[ClaimSpec]:
    ids = [claim.id for claim in claims]
    if twice := [id for id in ids if ids.count(id) > 1]:
        raise ValueError(f"two claims have the id {twice[0]!r}")
    for claim in claims:
        of = claim.rests_on.partition("facet of ")[2]
        if of and of not in [other.id for other in claims if other.rests_on == "independent"]:
            raise ValueError(f"rests_on of {claim.id} names {of!r}, which is no independent claim of this file")
    return claims


def _expanded(entries: Any) -> Any:
    """The entries, of which one with `for` stands for a claim per combination of its tables' rows.

    `for: [[{m: clip_b}, {m: clip_v}], [{s: qwen2.5}, {s: qwen3}]]` makes four claims, with `${m}` and `${s}` replaced
    in all keys and texts.
    """
    if not isinstance(entries, list):
        return entries
    claims = []
    for entry in entries:
        tables = entry.get("for", []) if isinstance(entry, dict) else []
        if not isinstance(tables, list) or not all(isinstance(table, list) for table in tables):
            raise ValueError("for: should be a list of tables, each a list of rows such as {m: clip_b}")
        for rows in product(*tables):
            if not all(isinstance(row, dict) for row in rows):
                raise ValueError("for: a row should be a mapping such as {m: clip_b}")
            claims.append(_filled(entry, {name: str(text) for row in rows for name, text in row.items()}))
    return claims


def _filled(part: Any, texts: Mapping[str, str]) -> Any:
    """A part of an entry, without `for`, with `${name}` replaced by the text of that name."""
    if isinstance(part, dict):
        return {_filled(key, texts): _filled(value, texts) for key, value in part.items() if key != "for"}
    if isinstance(part, list):
        return [_filled(value, texts) for value in part]
    try:
        return Template(part).substitute(texts) if isinstance(part, str) else part
    except KeyError as error:
        raise ValueError(f"for: no row has {error}, of {part!r}") from None


class Descriptions(Section):
    """Explanations of the tests, for readers of the verdicts."""

    over_seeds: str
    curve_difference: str
    sweep_trend: str
    score_difference: str
    paper_gain: str


Specs = Annotated[
    list[Annotated[ClaimSpec, OneOf("test", lambda: TESTS)]],
    Field(min_length=1),
    BeforeValidator(_expanded),
    AfterValidator(_distinct_ids),
]


class ClaimsFile(Section):
    tests: Descriptions
    topics: dict[str, Names] = Field(default_factory=dict)
    """Topic -> ids of its claims, or patterns of them."""
    claims: Specs
    paper: PaperGains | None = None
    """null: claims about models that the paper does not have."""

    @model_validator(mode="after")
    def _topics_have_claims(self) -> Self:
        for pattern in chain.from_iterable(self.topics.values()):
            if not fnmatch.filter((claim.id for claim in self.claims), pattern):
                raise ValueError(f"topics: no claim has the id {pattern!r}")
        return self

    def topic(self, claim: ClaimSpec) -> str:
        """The first topic of a claim; empty if it has none."""
        of = (topic for topic, ids in self.topics.items() if any(fnmatch.fnmatchcase(claim.id, id) for id in ids))
        return next(of, "")


class FieldPaper(Section):
    """A file of claims in a folder of experiments/: of another paper (`field`), or about controls (`controls`)."""

    paper: str
    """The heading of its claims."""
    claims: Specs
    """Their `place` refers to that paper."""
    untested: list[str] = Field(default_factory=list)
    """Its other claims, and why they cannot be tested here."""


@dataclass(frozen=True)
class Claim:
    """A claim at one scale: its entry in the file, and the methods it compares, with their seeds."""

    spec: ClaimSpec
    runs: dict[str, range]
    against: dict[str, range]
    config: Config
    configs: Path = CONFIGS

    @property
    def seeds(self) -> dict[str, range]:
        return self.runs | self.against

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each method in the effect; several on one side count as their mean."""
        sides = ((1, self.runs), (-1, self.against))
        return {method: sign / len(side) for sign, side in sides for method in side}

    @property
    def models(self) -> list[str]:
        model = getattr(self.spec, "model", None)
        return [model] if model else getattr(self.spec, "models", [])

    @property
    def evaluations(self) -> list[str]:
        return list(getattr(self.spec, "datasets", {}))

    def all_runs(self) -> list[Run]:
        """The runs of the compared methods, and the untrained models if these define the difficulty of problems."""
        by_method = self.seeds
        if getattr(self.spec, "problems", "all") != "all":
            by_method |= {BASE: max(self.seeds.values(), key=len)}
        named = product(self.models, by_method.items())
        runs = ((model, method, seed) for model, (method, seeds) in named for seed in seeds)
        return list(runs_of(runs, self.config, self.configs))

    @property
    def temperatures(self) -> list[float]:
        """All temperatures among which the claim may choose, ascending."""
        evaluation = self.config.evaluation
        if getattr(self.spec, "temperature", None) not in POINTS:
            return evaluation.all_temperatures
        return sorted({*filter(None, evaluation.all_temperatures), *evaluation.control_temperatures})

    def untrained(self, model: str) -> int:
        """The seed of the untrained model whose model.json describes the model that ran."""
        return self.config.untrained(model, min(seeds.start for seeds in self.seeds.values()))

    def files(self, results: Path, run: Run) -> list[Path]:
        """The files of a run that the claim reads, without those of temperatures that the scale does not evaluate."""
        if not isinstance(self.spec, ScoreDifference):
            return [run.metrics_file(results)]
        at = self.spec.temperature
        datasets = [*self.spec.datasets, *([self.config.training.validation_set] if at in ("best", *POINTS) else [])]
        if at is None or run.method == BASE:
            return [run.evaluation_file(results, dataset) for dataset in datasets]
        known = self.temperatures
        wanted = known if at in ("best", "matched_pass", *POINTS) else [0.0 if at == "greedy" else at]
        usual = self.config.evaluation.temperature
        return [
            run.evaluation_file(results, dataset, None if temperature == usual else temperature)
            for dataset, temperature in product(datasets, wanted)
            if temperature in known
        ]


def read_claims(experiments: Path = EXPERIMENTS) -> ClaimsFile:
    """Read experiments/claims.yaml. Raises UserError for invalid YAML and for unknown, missing or invalid keys."""
    path = experiments / "claims.yaml"
    return parse(ClaimsFile, read_yaml(path), str(path))


def read_field(experiments: Path = EXPERIMENTS, folder: str = "field") -> dict[str, FieldPaper]:
    """Read the files of experiments/<folder>, by name. Raises UserError like `read_claims`, and for duplicate ids."""
    paths = sorted((experiments / folder).glob("*.yaml"))
    papers = {path.stem: parse(FieldPaper, read_yaml(path), str(path)) for path in paths}
    ids = [claim.id for paper in papers.values() for claim in paper.claims]
    if twice := [id for id in ids if ids.count(id) > 1]:
        raise UserError(f"{experiments / folder}: two claims have the id {twice[0]!r}")
    return papers


def sweep_files(experiments: Path = EXPERIMENTS) -> list[Path]:
    """The files of the experiments that define the parameter values of claims."""
    sweeps = (getattr(spec, "sweep", None) for spec in read_claims(experiments).claims)
    return [experiments / f"{name}.yaml" for name in dict.fromkeys(sweeps) if name]


def load_claims(
    scale: str, seeds: Seeds, experiments: Path | None = None, configs: Path = CONFIGS, *, folder: str | None = None
) -> list[Claim]:
    """All claims of the paper, or of experiments/<folder>, at one scale.

    Raises UserError like `read_claims`, and for an unknown model, method, data set or column.
    """
    config = config_of(scale, configs)
    experiments = experiments or Path(config.experiments_folder)
    if folder:
        entries = {f"{folder}/{name}": paper.claims for name, paper in read_field(experiments, folder).items()}
    else:
        entries = {"claims": read_claims(experiments).claims}
    models, methods = known_names("model", configs), known_names("method", configs)
    claims = []
    for name, of_file in entries.items():
        for spec in of_file:
            where = f"{experiments / name}.yaml: claim {spec.id}"
            runs: Methods = getattr(spec, "runs", {})
            against: Methods = getattr(spec, "against", {})
            check_known(where, "method", [method.partition("@")[0] for method in (*runs, *against)], methods)
            if isinstance(spec, SweepTrend):
                runs = _swept(spec, scale, seeds, experiments, where)
            ours, others = ({name: seeds_of(of, seeds) for name, of in side.items()} for side in (runs, against))
            claim = Claim(spec, ours, others, config, configs)
            check_known(where, "model", claim.models, models)
            check_known(where, "evaluation set", claim.evaluations, config.data.evaluation)
            for column in set(getattr(spec, "columns", [])) - METRICS - DERIVED.keys():
                if meant := closest(column, {*METRICS, *DERIVED}):  # else it may be a method's own
                    raise UserError(f"{where}: unknown column {column!r}; did you mean {meant!r}?")
            claims.append(claim)
    return claims


def _swept(spec: SweepTrend, scale: str, seeds: Seeds, experiments: Path, where: str) -> Methods:
    """{'clip_b@mu=1.2': 'extras', ...}: the values of the sweep at this scale, ascending."""
    [(swept, group)] = spec.runs.items()
    try:
        runs = load_experiment(spec.sweep, scale, seeds, experiments).runs
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    methods = {run.method for run in runs if run.method.startswith(f"{swept}=")}
    if not methods:
        raise UserError(f"{where}: {spec.sweep} has no runs {swept}=...")
    return dict.fromkeys(sorted(methods, key=swept_value), group)


def swept_value(method: str) -> float:
    """1.2 for 'clip_b@mu=1.2'."""
    return float(method.rpartition("=")[2])


def input_files(
    results: Path,
    scale: str,
    seeds: Seeds,
    configs: Path = CONFIGS,
    experiments: Path | None = None,
    *,
    folder: str | None = None,
) -> list[Path]:
    """The files in results/<scale> from which the claims are judged, for the models of the scale."""
    config, layout = config_of(scale, configs), Layout(results)
    claims = load_claims(scale, seeds, experiments, configs, folder=folder)
    needed = [(claim, run) for claim in claims for run in claim.all_runs() if run.model in config.models]
    facts = [layout.facts(run.model, BASE, claim.untrained(run.model)) for claim, run in needed]
    files = [file for claim, run in needed for file in claim.files(results, run)]
    return list(dict.fromkeys([*facts, *files]))
