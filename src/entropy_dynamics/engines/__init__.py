"""Engines: their config keys and their memory use. Does not import torch.

An engine `x` consists of two modules, which are found by name: engines/x.py with a subclass of `Engine` as its
`SETTINGS`, and sampling/x.py with a function `open_engine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import model_validator

from entropy_dynamics.discovery import modules_of
from entropy_dynamics.sections import PER_MACHINE, Precision, Section, Threshold


class Engine(Section):
    """The engine that generates responses for pass rates, rollouts and evaluation."""

    in_trainer: ClassVar[bool] = False
    """Samples from the policy itself or, with several ranks, from a copy that stays in memory during training."""

    name: str
    """A module of engines/ and sampling/: native | vllm."""
    dtype: Precision
    """dtype of its weights and KV cache."""
    tolerance: Annotated[Threshold, PER_MACHINE]
    """Mean absolute difference between the engine's and the trainer's log p above which the run stops, as the engine
    does not hold the trainer's weights; nats."""

    def kv_cache_bytes(self, batch: float, gpu: float, others: float) -> float:
        """Size of the KV cache, bytes.

        Args:
            batch: size that a full batch needs, bytes.
            gpu: memory of the GPU, bytes.
            others: what weights and buffers take of it, bytes.
        """
        return batch

    @model_validator(mode="before")
    @classmethod
    def _keys_of_other_engines(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ignore other engines' keys that do not change results, since a scale may set them beside another `name`."""
        for name, kind in engine_types().items():
            for key in data.keys() & kind.model_fields.keys() - cls.model_fields.keys():
                field = kind.model_fields[key]
                if PER_MACHINE not in field.metadata and data[key] != field.default:
                    raise ValueError(f"{key} is {data[key]}; only the engine {name} has it")
                data = {other: value for other, value in data.items() if other != key}
        return data


@cache
def engine_types() -> dict[str, type[Engine]]:
    """The config section of every engine, by name."""
    return {name: module.SETTINGS for name, module in modules_of(__name__)}
