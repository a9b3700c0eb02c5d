"""Problems: their sources, the filter of training problems, and the evaluation of policies."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    NonNegativeFloat,
    ValidationInfo,
    field_validator,
    model_validator,
)

from entropy_dynamics.errors import UserError
from entropy_dynamics.sections import LOCATION, NonNegativeInt, OneOf, PositiveInt, Section, Temperature, path_digits
from entropy_dynamics.tasks import SetSource, ordered, set_sources

if TYPE_CHECKING:
    import pandas as pd

TRAIN = "train"


def _set_name(name: str) -> str:
    if name in (TRAIN, "pass_rates") or not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"{name!r} cannot name an evaluation set, since its file is data/<name>.parquet")
    return name


def without_null(section: Any) -> Any:
    """A mapping without the keys that an extending config drops with null."""
    return {key: value for key, value in section.items() if value is not None} if isinstance(section, dict) else section


SetName = Annotated[str, AfterValidator(_set_name)]


class DataConfig(Section):
    seed: NonNegativeInt
    folder: Annotated[str | None, LOCATION]
    """A file <set>.jsonl or <set>.parquet in this folder replaces the source of that set."""
    train: Annotated[SetSource, OneOf("source", lambda _: set_sources())]
    evaluation: Annotated[
        dict[SetName, Annotated[SetSource, OneOf("source", lambda _: set_sources())]], BeforeValidator(without_null)
    ]
    """null leaves out a set of the scale that this one extends."""
    near_duplicates: Annotated[float, Field(gt=0, le=1)] | None = 0.5
    """Overlap from which a problem is dropped as a near duplicate of one in an earlier set; null: none is."""

    @property
    def sets(self) -> dict[str, SetSource]:
        """All sets, the training set first."""
        return {TRAIN: self.train, **self.evaluation}

    def files_in_folder(self, name: str) -> list[Path]:
        """The files of a set in `folder`."""
        files = [Path(self.folder or "", f"{name}{end}") for end in (".jsonl", ".parquet")]
        return [file for file in files if self.folder is not None and file.is_file()]


class PassRateConfig(Section):
    """The filter of training problems: keep those with low < pass rate < high."""

    model: str
    samples: PositiveInt
    low: Annotated[float, Field(ge=0, lt=1)] | None
    high: Annotated[float, Field(gt=0, le=1)] | None

    @model_validator(mode="after")
    def _some_rate_passes(self) -> Self:  # otherwise known only after sampling
        if self.low is not None and self.high is not None and self.low >= self.high:
            raise ValueError(f"low is {self.low} and high {self.high}: no rate lies between them")
        return self

    def keeps(self, rates: pd.Series) -> pd.Series:
        """Mask of the rates between the bounds; False for NaN, the rate of a problem that was not sampled."""
        low, high = -1 if self.low is None else self.low, 2 if self.high is None else self.high
        return (rates > low) & (rates < high)

    def check_keeps_some(self, rates: pd.Series) -> None:
        """Raise UserError if no rate is between the bounds."""
        if self.keeps(rates).any():
            return
        count, zeros, ones = int(rates.notna().sum()), int((rates == 0).sum()), int((rates == 1).sum())
        raise UserError(
            f"none of {count} rates is above pass_rates.low={self.low} and below pass_rates.high={self.high} "
            f"({zeros} are 0, {ones} are 1): nothing is left to train on"
        )


Bounds = Annotated[list[NonNegativeFloat | None], Field(min_length=2, max_length=2), AfterValidator(ordered)]


EASIER, HARDER = "easier problems in data.train, or a larger cold_start.steps", "harder problems in data.train"
ADVICE = {  # remedies for a quantity below its minimum, and above its maximum
    "pass_rate": (EASIER, HARDER),
    "mixed_groups": ("problems in data.train that are solved sometimes, or a larger cold_start.steps", HARDER),
    "entropy": ("a smaller cold_start.steps or cold_start.learning_rate", EASIER),
    "formatted": ("a larger cold_start.steps or another model.prompt_format", HARDER),
    "truncated": ("a smaller sampling.max_new_tokens", "a larger sampling.max_new_tokens or cold_start.steps"),
}


class GateConfig(Section):
    """Bounds [min, max] on statistics of the pass-rate samples; outside them the workflow stops. null: no bounds."""

    pass_rate: Bounds | None
    """Share of correct samples."""
    mixed_groups: Bounds | None
    """Share of problems with both correct and incorrect samples: others give group-normalized advantages of 0."""
    entropy: Bounds | None
    """Nats per token, at the temperature of rollouts."""
    formatted: Bounds | None
    """Share of samples that end with an answer in the required format."""
    truncated: Bounds | None
    """Share of samples cut off at the token limit."""

    def faults(self, measured: Mapping[str, float]) -> list[str]:
        """The quantities that are out of bounds, with their remedies."""
        faults = []
        for name, value in measured.items():
            low, high = getattr(self, name) or (None, None)
            low, high = -math.inf if low is None else low, math.inf if high is None else high
            if not low <= value <= high:
                side = f"below {low:g}" if value < low else f"above {high:g}"
                faults.append(f"{name} is {value:.3g}, {side}: try {ADVICE[name][value > high]}")
        return faults


class EvaluationConfig(Section):
    temperature: Annotated[Temperature, Field(gt=0)]
    """Temperature of the tables."""
    temperatures: list[Temperature]
    """Additional temperatures, for the frontier and the claims about temperature; 0 is greedy."""
    control_temperatures: list[Annotated[Temperature, Field(gt=0)]]
    """Further ones, only for the target `controls`."""
    samples: dict[SetName, PositiveInt]
    """K of Avg@K and Pass@K for each evaluation set; at temperature 0 a single sample, as all would be equal."""

    @field_validator("temperatures", "control_temperatures")
    @classmethod
    def _no_temperature_twice(cls, values: list[float], info: ValidationInfo) -> list[float]:
        """Without those of an earlier key: the samples at a temperature have one path, which one job writes."""
        earlier = info.data.get("temperature"), *info.data.get("temperatures", ())
        return [at for at in dict.fromkeys(values) if at not in earlier]

    def folder_of(self, temperature: float | None) -> float | None:
        """The temperature in the path of samples: None for that of the tables."""
        at = self.temperature if temperature is None else path_digits(temperature)
        return None if at == self.temperature else at
