"""The paper's claims: what experiments/claims.yaml says of each, and the runs that it needs at one scale.

Snakemake asks this module for the input files of its rule, so it imports nothing heavy.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from entropy_dynamics.analysis.experiments import (
    EXPERIMENTS,
    Columns,
    Names,
    Run,
    SeedGroup,
    Seeds,
    load_experiment,
)
from entropy_dynamics.config import CONFIGS, load_config, read_yaml
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.validation import OneOf, Section, parse

Methods = Annotated[dict[str, SeedGroup], Field(min_length=1)]
"""Methods, and how many seeds of each. clip_b@mu=largest and =smallest are those of an experiment's sweep."""
Statistic = Literal["mean", "ratio", "correlation", "drop", "variation"]
"""mean | ratio of the means of two columns | correlation of two | drop of the mean from the first to the last tenth of
the steps, as a share | variation: standard deviation over mean."""
COLUMNS_OF = {"mean": 1, "ratio": 2, "correlation": 2, "drop": 1, "variation": 1}


class ClaimSpec(Section):
    """What the file says of every claim."""

    id: str
    label: str
    """In the figure of all claims."""
    statement: str
    """{model} stands for what ran."""
    place: str
    """In the paper."""
    test: str
    unit: str
    above: float | None = None
    """The claimed side of the threshold: exactly one of above, below and within."""
    below: float | None = None
    within: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        given = [side for side in ("above", "below", "within") if getattr(self, side) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of above, below and within, not {' and '.join(given) or 'none'}")
        return self

    @property
    def bounds(self) -> tuple[float | None, float | None]:
        """Ends of the claimed range, None where it is open."""
        low, high = self.within or (self.above, self.below)
        return low, high

    @property
    def claimed(self) -> str:
        low, high = self.bounds
        if low is not None and high is not None:
            return f"from {low:g} to {high:g}"
        return f"below {high:g}" if low is None else f"above {low:g}"


class LogitSteps(ClaimSpec):
    """A theorem, on exact steps on the logits of single tokens."""

    test: Literal["logit_steps"]
    theorem: Literal[1, 2]
    statistic: Literal["slope", "correlation"]


class CurveClaim(ClaimSpec):
    """A statistic of training curves."""

    model: str
    runs: Methods
    statistic: Statistic
    columns: Columns
    window: Literal["all", "second_half", "last_tenth"] = "all"
    """Of the steps."""

    @model_validator(mode="after")
    def _fits_columns(self) -> Self:
        if len(self.columns) != COLUMNS_OF[self.statistic]:
            raise ValueError(f"the statistic {self.statistic!r} is of {COLUMNS_OF[self.statistic]} columns")
        return self


class WithinRun(CurveClaim):
    """The statistic within the runs of one method."""

    test: Literal["within_run"]
    runs: Annotated[Methods, Field(max_length=1)]
    statistic: Literal["mean", "ratio", "correlation"]  # resampled blocks of a run have no `drop`


class OverSeeds(CurveClaim):
    """The statistic of one method, over its seeds."""

    test: Literal["over_seeds"]
    runs: Annotated[Methods, Field(max_length=1)]


class CurveDifference(CurveClaim):
    """Difference of the statistic between methods; several on one side count as their mean."""

    test: Literal["curve_difference"]
    against: Methods
    spread: dict[str, SeedGroup] = Field(default_factory=dict)
    """Runs that only help to estimate the variance between seeds."""
    sweep: str | None = None
    """The experiment whose parameter values clip_b@mu=largest and =smallest refer to."""


class ScoreDifference(ClaimSpec):
    """Difference of a score between methods, on the same problems."""

    test: Literal["score_difference"]
    models: Names
    runs: Methods
    against: Methods
    metric: Literal["avg", "pass", "pass_minus_avg", "extremes"]
    """extremes: share of problems that no sample solves, or every one."""
    evaluations: Names


TESTS: dict[str, type[ClaimSpec]] = {
    "logit_steps": LogitSteps,
    "within_run": WithinRun,
    "over_seeds": OverSeeds,
    "curve_difference": CurveDifference,
    "score_difference": ScoreDifference,
}


class EvaluationSize(Section):
    problems: PositiveInt
    samples: PositiveInt


class PaperGains(Section):
    """Gains that the paper prints, to be judged against the sampling noise of its own evaluations."""

    place: str
    models: Names
    methods: Names
    against: str
    evaluations: dict[str, EvaluationSize]


def _distinct_ids(claims: list[ClaimSpec]) -> list[ClaimSpec]:
    ids = [claim.id for claim in claims]
    if twice := [one for one in ids if ids.count(one) > 1]:
        raise ValueError(f"two claims have the id {twice[0]!r}")
    return claims


class Descriptions(Section):
    """What each test does."""

    logit_steps: str
    within_run: str
    over_seeds: str
    curve_difference: str
    score_difference: str
    paper_gain: str


class ClaimsFile(Section):
    tests: Descriptions
    claims: Annotated[
        list[Annotated[ClaimSpec, OneOf("test", lambda: TESTS)]], Field(min_length=1), AfterValidator(_distinct_ids)
    ]
    paper: PaperGains


C = TypeVar("C", bound=ClaimSpec, covariant=True)


@dataclass(frozen=True)
class Claim(Generic[C]):
    """A claim at one scale: its entry in the file, and the methods and seeds that it comes to."""

    spec: C
    runs: tuple[str, ...]
    against: tuple[str, ...]
    spread: tuple[str, ...]
    seeds: dict[str, int]
    """Of each of these methods."""

    @property
    def models(self) -> list[str]:
        match self.spec:
            case ScoreDifference(models=models):
                return models
            case CurveClaim(model=model):
                return [model]
        return []

    @property
    def evaluations(self) -> list[str]:
        return self.spec.evaluations if isinstance(self.spec, ScoreDifference) else []

    def all_runs(self) -> list[Run]:
        return [
            Run(model, method, seed)
            for model in self.models
            for method, count in self.seeds.items()
            for seed in range(count)
        ]

    def files(self, results: Path, run: Run) -> list[Path]:
        """What it reads of one of its runs."""
        evaluations = [run.evaluation_file(results, dataset) for dataset in self.evaluations]
        return evaluations or [run.metrics_file(results)]


def read_claims(experiments: Path = EXPERIMENTS) -> ClaimsFile:
    """experiments/claims.yaml.

    Raises:
        UserError: broken YAML, an unknown, missing or invalid key or value.
    """
    path = experiments / "claims.yaml"
    return parse(ClaimsFile, read_yaml(path), str(path))


def load_claims(scale: str, seeds: Seeds, experiments: Path = EXPERIMENTS) -> list[Claim[ClaimSpec]]:
    """All claims for one scale. Raises UserError as `read_claims`."""
    return [_claim(spec, scale, seeds, experiments) for spec in read_claims(experiments).claims]


def _claim(spec: ClaimSpec, scale: str, seeds: Seeds, experiments: Path) -> Claim[ClaimSpec]:
    sides: list[dict[str, int]] = []
    counts: dict[str, int] = {}
    for side in ("runs", "against", "spread"):
        groups: Methods = getattr(spec, side, {})
        own = {_swept(spec, method, scale, seeds, experiments): seeds[group] for method, group in groups.items()}
        counts |= {method: max(count, counts.get(method, 0)) for method, count in own.items()}
        sides.append(own)
    runs, against, spread = map(tuple, sides)
    return Claim(spec, runs, against, spread, counts)


def _swept(spec: ClaimSpec, method: str, scale: str, seeds: Seeds, experiments: Path) -> str:
    """'clip_b@mu=largest' -> 'clip_b@mu=2.1', the largest value that the sweep has at this scale."""
    prefix, _, end = method.rpartition("=")
    if end not in ("smallest", "largest"):
        return method
    where = f"{experiments / 'claims.yaml'}: claim {spec.id}: {method}"
    sweep = getattr(spec, "sweep", None)
    if sweep is None:
        raise UserError(f"{where} needs the key `sweep`, the experiment with its values")
    runs = load_experiment(sweep, scale, seeds, experiments).runs
    swept = {run.method for run in runs if run.method.startswith(f"{prefix}=")}
    if not swept:
        raise UserError(f"{where}: {sweep} has no runs {prefix}=...")
    pick = min if end == "smallest" else max
    return pick(swept, key=lambda name: float(name.rpartition("=")[2]))


def input_files(
    results: Path, scale: str, seeds: Seeds, configs: Path = CONFIGS, experiments: Path = EXPERIMENTS
) -> list[Path]:
    """All that the claims are judged by in results/<scale>, of the models that the scale has; in a fixed order."""
    known, layout = load_config(scale, configs=configs).models, Layout(results)
    needed = [
        (run, file)
        for claim in load_claims(scale, seeds, experiments)
        for run in claim.all_runs()
        if run.model in known
        for file in claim.files(results, run)
    ]
    models = dict.fromkeys(run.model for run, _ in needed)
    facts = [layout.model(model) / "model.json" for model in models]
    return [layout.logit_steps, *facts, *dict.fromkeys(file for _, file in needed)]
