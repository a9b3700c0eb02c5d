"""vLLM."""

from typing import Annotated, Literal

from pydantic import Field, PositiveFloat

from entropy_dynamics.engines import Engine
from entropy_dynamics.sections import PER_MACHINE


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


SETTINGS = VLLM
