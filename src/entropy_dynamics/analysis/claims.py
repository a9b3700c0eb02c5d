"""The paper's claims: the schema of experiments/claims.yaml, and the runs that each claim needs at one scale.

Snakemake asks this module for the input files of its rule, so it imports nothing heavy.
"""

from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Annotated, Literal, Self, get_args

from pydantic import AfterValidator, Field, PositiveInt, model_validator

from entropy_dynamics.analysis.experiments import (
    EXPERIMENTS,
    Columns,
    Names,
    Run,
    SeedGroup,
    Seeds,
    load_experiment,
    seeds_of,
)
from entropy_dynamics.config import BASE, CONFIGS, load_config, read_yaml
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.validation import OneOf, Section, parse

Methods = Annotated[dict[str, SeedGroup], Field(min_length=1)]
"""Methods and their seeds. clip_b@mu=largest and =smallest are the ends of a sweep."""
Statistic = Literal["mean", "log_mean", "ratio", "correlation", "drop", "variation"]
"""mean | log_mean: its logarithm, so that a difference is a log ratio | ratio of the means of two columns | correlation
of two | drop of the mean from the first to the last tenth of the steps, as a share | variation: standard deviation over
mean."""

SMALLEST = {"avg": 1.0, "pass": 3.0, "pass_minus_avg": 3.0, "pass_area": 2.0}  # points
SMALLEST |= {"log_mean": 0.1, "drop": 0.1, "correlation": 0.1}
"""The smallest effect of interest by metric or statistic: an inconclusive claim says how many seeds would find it."""


class ClaimSpec(Section):
    """The keys that every claim has."""

    id: str
    label: str
    """In the figure of all claims."""
    statement: str
    """{model} is replaced by the model that ran."""
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
    def bounds(self) -> tuple[float, float]:
        """Ends of the claimed range, infinite where it is open."""
        if self.within:
            return self.within[0], self.within[1]
        return -inf if self.above is None else self.above, inf if self.below is None else self.below

    @property
    def smallest(self) -> float | None:
        """The smallest effect of interest; None if none is known."""
        return SMALLEST.get(getattr(self, "metric", "") or getattr(self, "statistic", ""))

    @property
    def claimed(self) -> str:
        low, high = self.bounds
        return f"from {low:g} to {high:g}" if self.within else f"below {high:g}" if low == -inf else f"above {low:g}"


class LogitSteps(ClaimSpec):
    """A theorem, tested by exact steps on the logits of single tokens."""

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
    """Which steps count."""

    @model_validator(mode="after")
    def _fits_columns(self) -> Self:
        needed = 2 if self.statistic in ("ratio", "correlation") else 1
        if len(self.columns) != needed:
            raise ValueError(f"the statistic {self.statistic!r} is of {needed} columns")
        return self


class OverSeeds(CurveClaim):
    """The statistic of one method over its seeds."""

    test: Literal["over_seeds"]
    runs: Annotated[Methods, Field(max_length=1)]


class CurveDifference(CurveClaim):
    """Difference of the statistic between methods; several on one side count as their mean."""

    test: Literal["curve_difference"]
    against: Methods
    sweep: str | None = None
    """The experiment whose largest and smallest parameter values are meant."""


class ScoreDifference(ClaimSpec):
    """Difference of a score between methods, on the same problems."""

    test: Literal["score_difference"]
    models: Names
    runs: Methods
    against: Methods
    metric: Literal["avg", "pass", "pass_minus_avg", "pass_area", "extremes"]
    """pass_area: mean of Pass@k over log k | extremes: share of problems that no sample solves, or every one."""
    evaluations: Names
    problems: Literal["all", "hard", "easy", "hard_minus_easy"] = "all"
    """Thirds of each data set by the untrained model's pass rate, or the difference between two of them."""


_TESTS: tuple[type[ClaimSpec], ...] = (LogitSteps, OverSeeds, CurveDifference, ScoreDifference)
TESTS = {get_args(spec.model_fields["test"].annotation)[0]: spec for spec in _TESTS}


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
    if twice := [id for id in ids if ids.count(id) > 1]:
        raise ValueError(f"two claims have the id {twice[0]!r}")
    return claims


class Descriptions(Section):
    """Explanations of the tests, for readers of the verdicts."""

    logit_steps: str
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


@dataclass(frozen=True)
class Claim:
    """A claim at one scale: its entry in the file, and the methods that it compares, with their seeds."""

    spec: ClaimSpec
    runs: dict[str, range]
    against: dict[str, range]

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
        return getattr(self.spec, "evaluations", [])

    def all_runs(self) -> list[Run]:
        """The runs of the compared methods, and the untrained model if it defines which problems are hard."""
        difficulty = {BASE: range(1)} if getattr(self.spec, "problems", "all") != "all" else {}
        return [
            Run(model, method, seed)
            for model in self.models
            for method, seeds in (self.seeds | difficulty).items()
            for seed in seeds
        ]

    def files(self, results: Path, run: Run) -> list[Path]:
        """The files of one run that the claim reads."""
        evaluations = [run.evaluation_file(results, dataset) for dataset in self.evaluations]
        return evaluations or [run.metrics_file(results)]


def read_claims(experiments: Path = EXPERIMENTS) -> ClaimsFile:
    """experiments/claims.yaml. Raises UserError for broken YAML and unknown, missing or invalid keys or values."""
    path = experiments / "claims.yaml"
    return parse(ClaimsFile, read_yaml(path), str(path))


def sweep_files(experiments: Path = EXPERIMENTS) -> list[Path]:
    """The files of the experiments whose parameter values claims refer to."""
    sweeps = (getattr(spec, "sweep", None) for spec in read_claims(experiments).claims)
    return [experiments / f"{name}.yaml" for name in dict.fromkeys(sweeps) if name]


def load_claims(scale: str, seeds: Seeds, experiments: Path = EXPERIMENTS) -> list[Claim]:
    """All claims for one scale. Raises UserError as `read_claims`."""

    def side(spec: ClaimSpec, name: str) -> dict[str, range]:
        groups: Methods = getattr(spec, name, {})
        return {
            _swept(spec, method, scale, seeds, experiments): seeds_of(method, group, seeds)
            for method, group in groups.items()
        }

    return [Claim(spec, side(spec, "runs"), side(spec, "against")) for spec in read_claims(experiments).claims]


def _swept(spec: ClaimSpec, method: str, scale: str, seeds: Seeds, experiments: Path) -> str:
    """'clip_b@mu=largest' -> 'clip_b@mu=2.1', the largest value that the sweep has at this scale."""
    prefix, _, end = method.rpartition("=")
    if end not in ("smallest", "largest"):
        return method
    where, sweep = f"{experiments / 'claims.yaml'}: claim {spec.id}", getattr(spec, "sweep", None)
    try:
        runs = load_experiment(sweep, scale, seeds, experiments).runs if sweep else ()
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    swept = sorted(
        (run.method for run in runs if run.method.startswith(f"{prefix}=")),
        key=lambda name: float(name.rpartition("=")[2]),
    )
    if not swept:
        raise UserError(f"{where}: {method} needs the key `sweep`, an experiment with runs {prefix}=...")
    return swept[0 if end == "smallest" else -1]


def input_files(
    results: Path, scale: str, seeds: Seeds, configs: Path = CONFIGS, experiments: Path = EXPERIMENTS
) -> list[Path]:
    """The files in results/<scale> that the claims are judged by, of the models that the scale has."""
    known, layout = load_config(scale, configs=configs).models, Layout(results)
    claims = load_claims(scale, seeds, experiments)
    needed = [(claim, run) for claim in claims for run in claim.all_runs() if run.model in known]
    facts = [layout.facts(run.model) for _, run in needed]
    files = [file for claim, run in needed for file in claim.files(results, run)]
    return list(dict.fromkeys([layout.logit_steps, *facts, *files]))
