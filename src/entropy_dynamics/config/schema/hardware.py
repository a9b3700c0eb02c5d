"""Machines: how a run is divided among devices, and what `plan` assumes about them."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from entropy_dynamics.sections import PositiveInt, Section, Share


class HardwareConfig(Section):
    device: Literal["cpu", "cuda"]
    ranks: PositiveInt | None
    """World size of a stage with FSDP2, over all nodes; null: a single process without FSDP2."""
    nodes: PositiveInt
    """Number of nodes of a stage; above 1: HSDP, with parameters sharded within a node and replicated across nodes."""
    runs_per_gpu: Literal[1, 2, 4, 8]
    """Number of single-process jobs that share a GPU."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.nodes > 1 and (self.ranks is None or self.ranks % self.nodes):
            raise ValueError(f"ranks is {self.ranks}; it should be a multiple of nodes = {self.nodes}")
        return self

    @property
    def processes(self) -> int:
        """Number of processes of a stage, one per GPU unless several share it."""
        return self.ranks or 1

    @property
    def per_node(self) -> int:
        """Number of processes on each node, over which FSDP2 shards the parameters."""
        return max(1, self.processes // self.nodes)


class ThroughputConfig(Section):
    """Tokens per second per GPU, as measured in runs (see `seconds_*` in their metrics)."""

    sampled: PositiveFloat
    """Sampled response tokens."""
    trained: PositiveFloat
    """Prompt and response tokens in the updates of a GRPO run, which needs no scoring pass."""


class GPUConfig(Section):
    """A GPU: its peak performance, and the utilization that `plan` assumes."""

    memory_gib: PositiveFloat
    """Total memory as CUDA reports it, GiB."""
    tflops: PositiveFloat
    """Peak dense bf16 throughput, TFLOP/s."""
    bandwidth_gb_s: PositiveFloat
    """Peak memory bandwidth, GB/s."""
    training_mfu: Share
    """Model FLOPs utilization in training; recomputed activations count as work."""
    decoding_mbu: Share
    """Model bandwidth utilization in decoding."""


class PlanConfig(Section):
    """Assumptions of `plan`."""

    gpu: str
    """A row of `gpus`."""
    gpus: dict[str, GPUConfig]
    decode_step_ms: NonNegativeFloat
    """Fixed overhead per decoding step (scheduling, sampling), ms."""
    engine_gib: NonNegativeFloat
    """Engine memory other than weights and KV cache (CUDA graphs, activations), GiB."""
    process_gib: NonNegativeFloat
    """CUDA context, communication buffers and fragmentation, GiB."""
    startup_minutes: NonNegativeFloat
    """Start-up time of a job (imports, weights, engine), minutes."""
    runs_at_a_time: PositiveInt
    """Number of concurrent runs, each with checkpoints on disk: `jobs` of profiles/slurm."""
    prompt_tokens: PositiveInt
    """Mean length of a prompt, tokens."""
    response_tokens: PositiveInt
    """Mean length of a response, tokens."""
    problems: dict[str, PositiveInt]
    """Number of problems in sets whose size is not in the config."""
    safety: Annotated[float, Field(ge=1)]
    """Ratio of a job's time limit to its planned time."""
    max_job_hours: PositiveFloat
    """Maximum time limit of a job, hours; a longer run stops at a checkpoint and resumes in the next job."""
    measured: dict[str, ThroughputConfig]
    """Measured throughput by model, instead of the assumed one."""

    @model_validator(mode="after")
    def _known_gpu(self) -> Self:
        if self.gpu not in self.gpus:
            raise ValueError(f"gpu is {self.gpu!r}; it should be one of {', '.join(self.gpus)}, or a row added to gpus")
        return self

    @property
    def hardware(self) -> GPUConfig:
        """The row of `gpus` that `gpu` names."""
        return self.gpus[self.gpu]
