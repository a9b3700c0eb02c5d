"""Problems: their sources, the filter of training problems, and the evaluation of policies."""

from __future__ import annotations

import re
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from entropy_dynamics.tasks import SetSource, set_sources
from entropy_dynamics.validation import LOCATION, OneOf, Section

TRAIN = "train"


def _set_name(name: str) -> str:
    if name in (TRAIN, "pass_rates") or not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"{name!r} cannot name an evaluation set, since its file is data/<name>.parquet")
    return name


SetName = Annotated[str, AfterValidator(_set_name)]


class DataConfig(Section):
    seed: NonNegativeInt
    folder: Annotated[str | None, LOCATION]
    """A file <set>.jsonl or <set>.parquet in this folder replaces the source of that set."""
    train: Annotated[SetSource, OneOf("source", set_sources)]
    evaluation: dict[SetName, Annotated[SetSource, OneOf("source", set_sources)]]
    near_duplicates: Annotated[float, Field(gt=0, le=1)] | None = 0.5
    """Overlap from which a problem is dropped as a near duplicate of one in an earlier set; null: none is."""

    @property
    def sets(self) -> dict[str, SetSource]:
        """All sets, the training set first."""
        return {TRAIN: self.train, **self.evaluation}


class PassRateConfig(Section):
    """The filter of training problems: keep those with low < pass rate < high."""

    model: str
    samples: PositiveInt
    low: Annotated[float, Field(ge=0, lt=1)] | None
    high: Annotated[float, Field(gt=0, le=1)] | None

    @model_validator(mode="after")
    def _some_rate_passes(self) -> Self:
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low is {self.low} and high {self.high}: no rate lies between them")
        return self


class EvaluationConfig(Section):
    temperature: PositiveFloat
    """Temperature of the tables."""
    temperatures: list[NonNegativeFloat]
    """Additional temperatures, for the frontier and the claims about temperature; 0 is greedy."""
    samples: dict[SetName, PositiveInt]
    """K of Avg@K and Pass@K for each evaluation set; at temperature 0 a single sample, as all would be equal."""

    @property
    def all_temperatures(self) -> list[float]:
        """All evaluation temperatures, ascending."""
        return sorted({self.temperature, *self.temperatures})
