"""The keys of experiments/claims.yaml, and of the files of claims in folders of experiments/."""

import json
from fnmatch import fnmatchcase
from itertools import product
from math import inf
from string import Template
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from entropy_dynamics.experiments.specs import Metric, Names, SeedGroup
from entropy_dynamics.sections import OneOf, PositiveInt, Section

Methods = Annotated[dict[str, SeedGroup], Field(min_length=1)]
"""Methods and their seeds."""
OfOne = Literal["mean", "log_mean", "log_sd", "log_relative_sd", "drop", "steps_to"]
OfTwo = Literal["ratio", "relative_error", "size_difference", "correlation", "same_sign", "sum_to"]
OfThree = Literal["correlation_difference"]
OfFour = Literal["ratio_difference"]
Statistic = Literal[OfOne, OfTwo, OfThree, OfFour]
"""mean | log_mean: its logarithm, so that a difference is a log ratio | log_sd: logarithm of the standard deviation |
log_relative_sd: likewise of the column's logarithm | drop of the mean from the first to the last tenth, as a share |
ratio of the means of two columns | relative_error: mean of |first - second| over the mean of |second| |
size_difference: of the absolute values of two means, first minus second |
correlation of two columns | same_sign: share of the steps at which two have the same sign, minus the share expected of
unrelated ones with as many negative steps | correlation_difference: of the first column's correlation with the second,
minus that with the third | ratio_difference: of two ratios of means, first to second minus third to fourth | steps_to:
number of steps until the column's mean over a tenth of the steps first reaches `target` | sum_to: sum of the second
column until the first has reached it; both are undefined for a run that does not."""
COLUMNS_OF = {name: n for n, of in enumerate((OfOne, OfTwo, OfThree, OfFour), 1) for name in get_args(of)}
Temperature = Literal["greedy", "best", "best_point", "matched_avg", "matched_pass", "envelope"]

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
    figures: list[str] = Field(default_factory=list)
    """The tables and figures of this place."""
    headline: PositiveInt | None = None
    """Rank among the claims that the page and the figure of all claims show first."""
    ours: bool = False
    """Whether the claim is not the paper's, but follows from the one at this place."""
    rests_on: Literal["identity", "by construction", "independent"] = "independent"
    """identity: true whatever the runs | by construction: follows from a choice made so that it holds, such as the
    dose | independent."""
    facet_of: str = ""
    """The id of an independent claim, in any file of the folder or in claims.yaml, of which this is another side."""
    primary: bool = False
    """Whether the protocol calls it primary: its verdict then takes Holm's correction over all primary claims."""
    test: str
    runs: Methods
    unit: str
    above: float | None = None
    """The claimed side of the threshold: exactly one of above, below and within."""
    below: float | None = None
    within: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    why: str = ""
    """The reason for a threshold other than 0."""

    @model_validator(mode="after")
    def _one_side(self) -> Self:
        if (self.above, self.below, self.within).count(None) != 2:
            raise ValueError("give one of above, below and within")
        if bool(self.why) == (set(self.bounds) <= {-inf, 0, inf}):
            raise ValueError("`why` is the reason for a threshold other than 0, which needs one")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """Bounds of the claimed range; infinite if open."""
        if self.within:
            return self.within[0], self.within[1]
        return -inf if self.above is None else self.above, inf if self.below is None else self.below

    @property
    def basis(self) -> str:
        """What the claim rests on, for readers."""
        return f"facet of {self.facet_of}" if self.facet_of else self.rests_on

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
    statistic: Statistic
    columns: Names
    window: Literal["all", "second_half", "last_tenth"] = "all"
    """The steps that count."""
    target: float | None = None
    """For the statistics steps_to and sum_to."""

    @model_validator(mode="after")
    def _fits_columns(self) -> Self:
        needed = COLUMNS_OF[self.statistic]
        if len(self.columns) != needed:
            raise ValueError(f"the statistic {self.statistic!r} is of {needed} columns")
        if (self.target is None) == self.statistic.endswith("_to"):
            raise ValueError("target is for the statistics steps_to and sum_to, which need one")
        return self


class OverSeeds(CurveClaim):
    """The statistic of one method over its seeds."""

    runs: Annotated[Methods, Field(max_length=1)]


class CurveDifference(CurveClaim):
    """Difference of the statistic between methods; several on one side count as their mean."""

    against: Methods


class SweepTrend(CurveClaim):
    """Slope of the statistic over the logarithm of a parameter, over those of its values that drop any tokens."""

    runs: Annotated[Methods, Field(max_length=1)]
    """A method with its parameter, but without a value: clip_b@mu."""
    sweep: str
    """The experiment that defines the values."""


class ScoreDifference(ClaimSpec):
    """Difference of a score between methods, on the same problems."""

    models: Names
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
    `against` the best point by Pass@K of those with at least that Avg@K on the validation set | envelope: the paper's
    for `runs`, whose scores are averaged; the effect is what is left over the envelope of all points of `against`."""

    @model_validator(mode="after")
    def _fits_temperature(self) -> Self:
        avg, one, one_method = self.metric == "avg", len(self.models) == 1, len(self.runs) == 1
        plain = self.problems == "all" and not self.everywhere
        whole = one and plain
        two_methods = one_method and len(self.against) == 1
        fits, takes = {
            "greedy": (avg, "the metric avg"),
            "matched_pass": (avg and one and two_methods, "the metric avg, one model and two methods"),
            "best_point": (whole, "one model and all problems"),
            "matched_avg": (whole and one_method, "one model, all problems and one method"),
            "envelope": (self.metric == "pass" and plain, "the metric pass and all problems"),
        }.get(self.temperature or "", (True, ""))
        if not fits:
            raise ValueError(f"temperature {self.temperature} takes {takes}")
        if self.everywhere and self.above is None:
            raise ValueError("everywhere takes the smallest difference, so it takes `above`")
        if self.primary and self.temperature == "envelope":
            raise ValueError("a primary claim takes an effect per seed, which temperature envelope has not")
        return self

    @property
    def datasets(self) -> dict[str, float]:
        """The weight of each data set in the score."""
        sides = ((1, self.evaluations), (-1, self.minus))
        return {dataset: sign / len(side) for sign, side in sides for dataset in side}


TESTS: dict[str, type[ClaimSpec]] = {
    "over_seeds": OverSeeds,
    "curve_difference": CurveDifference,
    "sweep_trend": SweepTrend,
    "score_difference": ScoreDifference,
}


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


def _without_duplicates(claims: list[ClaimSpec]) -> list[ClaimSpec]:
    ids = [claim.id for claim in claims]
    if twice := [id for id in ids if ids.count(id) > 1]:
        raise ValueError(f"two claims have the id {twice[0]!r}")
    return claims


def _expanded(entries: Any) -> list[Any]:
    """The entries, of which one with `for` stands for a claim per combination of its tables' rows.

    `for: [[{m: clip_b}, {m: clip_v}], [{s: qwen2.5}, {s: qwen3}]]` makes four claims, with `${m}` and `${s}` replaced
    in all keys and texts.
    """
    claims = []
    try:
        for entry in entries:
            text = Template(json.dumps({key: value for key, value in entry.items() if key != "for"}))
            for rows in product(*entry.get("for", [])):
                texts = {name: json.dumps(str(value))[1:-1] for row in rows for name, value in row.items()}
                claims.append(json.loads(text.substitute(texts)))
    except (AttributeError, KeyError, TypeError) as error:
        shape = "claims are mappings, in which `for` is a list of tables, each a list of rows {name: text}"
        raise ValueError(f"{shape}: {error!r}") from None
    return claims


Specs = Annotated[
    list[Annotated[ClaimSpec, OneOf("test", lambda _: TESTS)]],
    Field(min_length=1),
    BeforeValidator(_expanded),
    AfterValidator(_without_duplicates),
]


class ClaimsFile(Section):
    tests: dict[str, str]
    """Explanations of the tests and of `paper_gain`, for readers of the verdicts."""
    topics: dict[str, Names] = Field(default_factory=dict)
    """Topic -> ids of its claims, or patterns of them."""
    claims: Specs
    paper: PaperGains | None = None
    """null: claims about models that the paper does not have."""

    @model_validator(mode="after")
    def _explains_all_tests(self) -> Self:
        if missing := {*TESTS, "paper_gain"} - self.tests.keys():
            raise ValueError(f"tests has no explanation of {min(missing)}")
        return self

    def topic(self, claim: ClaimSpec) -> str:
        """The first topic of a claim; empty if it has none."""
        of = (topic for topic, ids in self.topics.items() if any(fnmatchcase(claim.id, id) for id in ids))
        return next(of, "")


class FieldPaper(Section):
    """A file of claims in a folder of experiments/: of another paper (`field`), or about controls (`controls`)."""

    paper: str
    """The heading of its claims."""
    claims: Specs
    """Their `place` refers to that paper."""
    untested: list[str] = Field(default_factory=list)
    """Its other claims, and why they cannot be tested here."""
