"""Engines: their keys in the config, and their memory. No torch here.

An engine `x` is two modules, which no list names: engines/x.py with a subclass of `Engine` as its `SETTINGS`, and
sampling/x.py with a function `open_engine`.
"""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any, ClassVar, Self

from pydantic import model_validator

from entropy_dynamics.validation import PER_MACHINE, Precision, Section, Threshold


class Engine(Section):
    """The engine that generates responses, for pass rates, rollouts and evaluation."""

    in_trainer: ClassVar[bool] = False
    """Samples from the policy itself or, with ranks, from a copy that stays in memory while the trainer computes."""

    name: str
    """A module of engines/ and sampling/: native | vllm."""
    dtype: Precision
    """dtype of its weights and KV cache."""
    warn_above: Annotated[Threshold, PER_MACHINE]
    """Mean difference between the engine's and the trainer's log p above which a run prints a note, once; nats."""
    tolerance: Annotated[Threshold, PER_MACHINE]
    """Mean difference above which the run stops, since the engine does not hold the trainer's weights; nats."""

    def kv_cache_bytes(self, batch: float, gpu: float, others: float) -> float:
        """Bytes of the KV cache: `batch` for a full batch; weights and buffers take `others` of a GPU's `gpu`."""
        return batch

    def memory_settings(self) -> Mapping[str, Sequence[float]]:
        """Keys of this section that save memory on a GPU, each with the values to try in turn."""
        return {}

    @model_validator(mode="before")
    @classmethod
    def _keys_of_other_engines(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ignore other engines' keys that change no result, since a scale may set them beside another `name`."""
        for name, kind in engine_types().items():
            for key in data.keys() & kind.model_fields.keys() - cls.model_fields.keys():
                field = kind.model_fields[key]
                if PER_MACHINE not in field.metadata and data[key] != field.default:
                    raise ValueError(f"{key} is {data[key]}; only the engine {name} has it")
                data = {other: value for other, value in data.items() if other != key}
        return data

    @model_validator(mode="after")
    def _warns_before_it_stops(self) -> Self:
        if self.tolerance < self.warn_above < math.inf:
            raise ValueError(
                f"warn_above is {self.warn_above:g}; it should be at most tolerance = {self.tolerance:g}, where the "
                "run stops, or inf"
            )
        return self


@cache
def engine_types() -> dict[str, type[Engine]]:
    """The section of every engine by name."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return {name: importlib.import_module(f"{__name__}.{name}").SETTINGS for name in names}
