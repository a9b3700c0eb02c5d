"""Engines: their config keys and memory use, without torch. `open_engine` in sampling/x.py opens the engine `x`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from entropy_dynamics.sections import PER_MACHINE, Precision, Section, Threshold

CACHE_SHARE = 0.5  # maximum share of a process's memory for the native engine's KV cache; larger batches are divided


class Engine(Section):
    """The engine that generates responses for pass rates, rollouts and evaluation."""

    in_trainer: ClassVar[bool] = False
    """Samples from the policy itself or, with several ranks, from a copy that stays in memory during training."""

    name: str
    """native | vllm."""
    dtype: Precision
    """dtype of its weights and KV cache."""
    tolerance: Annotated[Threshold, PER_MACHINE]
    """Mean absolute difference between the engine's and the trainer's log p above which the run stops, as the engine
    does not hold the trainer's weights; nats."""

    def kv_cache_bytes(self, batch: float, gpu: float, others: float) -> float:
        """Size of the KV cache for a `batch`, on a `gpu` that holds `others` (weights and buffers); all in bytes."""
        raise NotImplementedError

    @model_validator(mode="before")
    @classmethod
    def _keys_of_other_engines(cls, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ignore other engines' keys that do not change results, since a scale may set them beside another `name`."""
        for name, kind in ENGINES.items():
            for key in data.keys() & kind.model_fields.keys() - cls.model_fields.keys():
                field = kind.model_fields[key]
                if PER_MACHINE not in field.metadata and data[key] != field.default:
                    raise ValueError(f"{key} is {data[key]}; only the engine {name} has it")
                data = {other: value for other, value in data.items() if other != key}
        return data


class Native(Engine):
    """A plain decoding loop around a transformers model."""

    in_trainer: ClassVar[bool] = True

    name: Literal["native"]
    logit_noise: NonNegativeFloat = 0.0
    """Standard deviation of Gaussian noise added to the logits before sampling; 0: none."""

    def kv_cache_bytes(self, batch: float, gpu: float, others: float) -> float:
        return min(batch, CACHE_SHARE * gpu)


class VLLM(Engine):
    name: Literal["vllm"]
    eager: Annotated[bool, PER_MACHINE] = True
    """Use neither compilation nor CUDA graphs."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1), PER_MACHINE] = 0.85
    """Fraction of a GPU's memory for the engine."""
    kv_cache_gib: Annotated[PositiveFloat | None, PER_MACHINE] = None
    """Size of the KV cache, GiB; null: whatever gpu_memory_utilization leaves."""

    def kv_cache_bytes(self, batch: float, gpu: float, others: float) -> float:
        if self.kv_cache_gib is not None:
            return self.kv_cache_gib * 2**30
        return max(0.0, self.gpu_memory_utilization * gpu - others)


ENGINES: dict[str, type[Engine]] = {"native": Native, "vllm": VLLM}
