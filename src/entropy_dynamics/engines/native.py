"""The native engine: a plain decoding loop around a transformers model."""

from typing import ClassVar, Literal

from pydantic import NonNegativeFloat

from entropy_dynamics.engines import Engine

CACHE_SHARE = 0.5  # maximum share of a process's memory that its KV cache takes; a full batch is divided if necessary


class Native(Engine):
    in_trainer: ClassVar[bool] = True

    name: Literal["native"]
    logit_noise: NonNegativeFloat = 0.0
    """Standard deviation of Gaussian noise added to the logits before sampling; 0: none."""

    def kv_cache_bytes(self, batch: float, gpu: float, others: float) -> float:
        return min(batch, CACHE_SHARE * gpu)


SETTINGS = Native
