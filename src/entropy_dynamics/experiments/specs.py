"""The keys of the files in experiments/: a spec class per `kind` of table or figure, and the paper's own numbers."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from itertools import product
from typing import Annotated, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, RootModel, model_validator

from entropy_dynamics.sections import OneOf, Section

METRICS: dict[Literal["avg", "pass"], str] = {"avg": "Avg", "pass": "Pass"}  # a table's metrics and their headings

Score = Literal["avg", "pass", "majority", "unique", "answer_entropy"]
HEADINGS: dict[Score, str] = {"avg": "Avg", "pass": "Pass", "majority": "Maj", "unique": "Unique"}
HEADINGS |= {"answer_entropy": "Entropy"}
"""Metrics of tables. Maj@K is the share of problems whose most frequent answer is correct, Unique@K the number of
different correct answers over K, Entropy@K the entropy of the correct answers over ln K."""
Metric = Score | Literal["pass_minus_avg", "pass_area", "all_correct", "middle"]
"""Metrics of claims. pass_area: mean of Pass@k over log k | all_correct: share of problems that all samples solve |
middle: share of problems that between a quarter and three quarters of the samples solve."""


def _distinct(names: list[str]) -> list[str]:
    if len(set(names)) < len(names):
        raise ValueError(f"{names} has an entry twice")
    return names


Names = Annotated[list[str], Field(min_length=1), AfterValidator(_distinct)]
Percent = Annotated[float, Field(ge=0, le=100)]
SeedGroup = Literal["tables", "extras", "pilot"]
"""A key of the scale's `seeds`."""


class RunGroup(Section):
    """Runs of every method on every model."""

    models: Names
    methods: Names
    seeds: SeedGroup | None = None
    """null: those of the experiment."""


class Beyond(Section):
    """The experiment of another scale that is shown too, if its results are complete."""

    scale: str
    experiment: str


class Sweep(Section):
    """One method with several values of one parameter."""

    models: Names
    method: str
    parameter: str
    values: dict[str, Annotated[list[int | float], Field(min_length=1)]]
    """Values by scale, which also apply to scales that extend it; `default` for all others."""

    @model_validator(mode="after")
    def _has_default(self) -> Self:
        if "default" not in self.values:
            raise ValueError("values should have an entry `default`")
        return self

    def methods(self, scales: Iterable[str]) -> dict[str, int | float]:
        """{'clip_b@mu=1.2': 1.2, ...}; of `scales`, the result of `scale_names`, the last one with values counts."""
        values = self.values["default"]
        for scale in scales:
            values = self.values.get(scale, values)
        return {f"{self.method}@{self.parameter}={value}": value for value in values}


class Panel(Section):
    """A panel of a figure, with a line per method and column of metrics.parquet, or of `analysis.columns.DERIVED`."""

    columns: Names
    x: str = "step"
    """The column on the x axis. Any column other than step gives trajectories over training: the means over seeds of
    both columns at each step where both are finite, without a band, starting with a marker at the first step."""
    model: str | None = None
    """One of the models of the runs; optional if there is only one."""
    methods: Names = Field(default_factory=lambda: ["*"])
    """Methods of the runs, or patterns like clip_b@*."""
    title: str = ""
    """{model} is replaced by the model that ran."""
    points: str | None = None
    """Another column, drawn as separate points."""
    log: bool = False


class Spec(Section):
    """The keys that every experiment has."""

    kind: str
    title: str
    shows: str
    """Caption in the report, including what to look for."""
    is_table: ClassVar[bool] = False

    @property
    def sets(self) -> list[str]:
        """The data sets whose evaluations are read."""
        return getattr(self, "evaluations", None) or []

    @property
    def reads_curves(self) -> bool:
        """Whether the metrics of trained runs are read."""
        return not self.sets

    def temperatures(self, further: Iterable[float]) -> tuple[float, ...]:
        """Those of the scale's further temperatures at which evaluations are read."""
        return ()

    def reads_further(self, method: str) -> bool:
        """Whether the evaluations of a method are read at these temperatures."""
        return True


class DataFilter(Spec):
    """Histogram of the training problems by pass rate, including dropped ones."""


OneGroup = Annotated[list[RunGroup], Field(min_length=1, max_length=1)]
"""The same methods on every model."""


class RunsSpec(Spec):
    seeds: SeedGroup
    runs: Annotated[list[RunGroup], Field(min_length=1)]
    sweeps: list[Sweep] = Field(default_factory=list)


class BaselineSpec(RunsSpec):
    baseline: str = "grpo"
    """The method that others are compared with; drawn in black, or as a separate line."""


class LabelledSpec(BaselineSpec):
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that replace those of methods if these are too long."""


class ComparedSpec(BaselineSpec):
    evaluations: Names


class MetricsSpec(ComparedSpec):
    metrics: Annotated[list[Score], Field(min_length=1), AfterValidator(_distinct)]


class ScoresSpec(MetricsSpec, LabelledSpec):
    """Table of Avg@K and Pass@K, a row per model and method."""

    is_table: ClassVar[bool] = True

    entropy: bool = False
    """Also show the final entropy, and which methods are identical to the baseline."""
    pooled: bool = False
    """Also show the mean over the data sets."""

    @property
    def reads_curves(self) -> bool:
        return self.entropy


class FrontierSpec(ComparedSpec, LabelledSpec):
    """Avg@K against Pass@K over the scale's `evaluation.temperatures`, a panel per model, a line per method."""

    def temperatures(self, further: Iterable[float]) -> tuple[float, ...]:
        return tuple(further)


class LeftSpec(FrontierSpec):
    """Pass@K left at equal Avg@K over the envelope of the baseline's points, which each of the `grids` widens."""

    compared: Names
    """Methods or averages, each at the temperature of the tables."""
    grids: Annotated[dict[str, Names], Field(min_length=1)]
    """What is added -> methods, patterns like grpo@*, or averages, whose points at temperatures above 0 are added."""
    averages: dict[str, Names] = Field(default_factory=dict)
    """Name -> methods whose scores are averaged, such as the last checkpoints, at each temperature."""
    margin: float = 3.0
    """Points of Pass@K, the smallest effect of interest."""
    edge: list[str] = Field(default_factory=list)
    """Patterns of methods at the edge of what was tried: with a point of theirs at the envelope, a value is a bound."""
    beyond: Beyond | None = None
    """Pooled with this one."""

    def temperatures(self, further: Iterable[float]) -> tuple[float, ...]:
        return tuple(filter(None, further))  # greedy decoding has no Pass@K

    def reads_further(self, method: str) -> bool:
        names = {method, *(name for name, of in self.averages.items() if method in of)}
        patterns = (pattern for grid in self.grids.values() for pattern in grid)
        return any(fnmatchcase(*pair) for pair in product(names, patterns))


class LadderSpec(ComparedSpec):
    """Scores, entropy and gains over the models' number of parameters, and predictions from the `fitted` models."""

    runs: OneGroup
    fitted: Annotated[Names, Field(default_factory=list, min_length=3)]
    """Models from which the scores of all other models are predicted."""
    beyond: Beyond | None = None
    """Its gains are added."""
    reads_curves: ClassVar[bool] = True

    def temperatures(self, further: Iterable[float]) -> tuple[float, ...]:
        return tuple(further)


class DifficultySpec(ComparedSpec):
    """Gain in Avg@K and Pass@K over the baseline, on thirds of the problems by the untrained models' pass rate."""

    runs: OneGroup


class CurvesSpec(LabelledSpec):
    """Training curves: one or more panels."""

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
    reads_curves: ClassVar[bool] = True


class MatchedSpec(SweepsSpec, OneModelSpec):
    """Scores over the final entropy of each strength, and methods compared at the entropy of one of them."""

    reference: str = "clip_b"
    """The method at whose entropy the others are compared."""


class DistributionSpec(OneModelSpec):
    """Histogram of the problems of one data set by their number of correct samples, per method."""

    evaluations: Annotated[list[str], Field(min_length=1, max_length=1)]


class TheorySpec(Spec):
    """Predicted against measured entropy changes of single tokens, of the untrained `pass_rates.model`."""


class LinksSpec(OneModelSpec):
    """Correlation of columns over the steps of a method: each with the next, and the first with the last."""

    runs: OneGroup
    columns: Annotated[Names, Field(min_length=2)]


class LensSpec(OneModelSpec, LabelledSpec):
    """Share of GRPO's push on the entropy that each method keeps in the quadrants of sign(A) and sign(S*)."""


KINDS: dict[str, type[Spec]] = {
    "scores": ScoresSpec,
    "gains": MetricsSpec,  # over the baseline on each data set, next to those in the paper
    "pass_at_k": ComparedSpec,  # over k: a row of panels per model, a panel per data set, a line per method
    "difficulty": DifficultySpec,
    "curves": CurvesSpec,
    "strength": SweepsSpec,  # dropped tokens, entropy and scores over the parameter of each sweep
    "matched": MatchedSpec,
    "frontier": FrontierSpec,
    "left": LeftSpec,
    "ladder": LadderSpec,
    "pass_rate_distribution": DistributionSpec,
    "data_filter": DataFilter,
    "theory": TheorySpec,
    "links": LinksSpec,
    "lens": LensSpec,
}

SpecFile = RootModel[Annotated[Spec, OneOf("kind", lambda _: KINDS)]]


class Level(Section):
    """A level that the paper states only in words, as a number."""

    place: str
    value: float


class PaperValues(Section):
    """The paper's own numbers: paper_values.yaml; without that file, none."""

    scores: dict[str, dict[str, dict[str, dict[str, dict[Literal["avg", "pass"], Percent]]]]] = Field(
        default_factory=dict
    )
    """Percent: place in the paper -> model -> method -> data set -> metric."""
    levels: dict[str, Level] = Field(default_factory=dict)
    """Column of metrics.parquet -> level."""

    @property
    def datasets(self) -> set[str]:
        methods = [scores for models in self.scores.values() for scores in models.values()]
        return {dataset for scores in methods for of_method in scores.values() for dataset in of_method}

    def score(self, model: str, method: str, dataset: str, metric: str) -> float | None:
        """The paper's score in percent, or None if it reports none."""
        for models in self.scores.values():
            if metric in (scores := models.get(model, {}).get(method, {}).get(dataset, {})):
                return scores[metric]
        return None
