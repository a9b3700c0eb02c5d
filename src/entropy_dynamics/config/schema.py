"""Every key of a config: its type, bounds, choices and meaning. Defaults and their sources are in configs/base.yaml.

The sections that belong to a task or a method are defined beside its code; this module only looks them up.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Literal, Self

from pydantic import (
    AfterValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    create_model,
    model_validator,
)

from entropy_dynamics.methods import Method, method_types
from entropy_dynamics.tasks import SetSource, Solutions, set_sources, solution_types
from entropy_dynamics.validation import OneOf, Section

TRAIN = "train"
BASE = "base"  # the method of the untrained model: evaluated, never trained


PER_MACHINE = "per machine"  # marks keys that machine.yaml may set: they change results by rounding at most
LOCATION = "location"  # marks paths that machine.yaml may set too: they replace data or a model
Fraction = Annotated[float, Field(gt=0, le=1)]
Threshold = Annotated[float, Field(gt=0, allow_inf_nan=True)]  # inf: never
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Precision = Literal["float32", "bfloat16"]
Architecture = Literal["qwen2", "qwen3", "llama"]


def _set_name(name: str) -> str:
    if name in (TRAIN, "pass_rates") or not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"{name!r} cannot name an evaluation set, since its file is data/<name>.parquet")
    return name


SetName = Annotated[str, AfterValidator(_set_name)]


class DataConfig(Section):
    seed: NonNegativeInt
    folder: Annotated[str | None, LOCATION]
    """<set>.jsonl or <set>.parquet found in this folder replaces the source of a set."""
    train: Annotated[SetSource, OneOf("source", set_sources)]
    evaluation: dict[SetName, Annotated[SetSource, OneOf("source", set_sources)]]

    @property
    def sets(self) -> dict[str, SetSource]:
        """All sets, the training set first."""
        return {TRAIN: self.train, **self.evaluation}


class WarmStartConfig(Section):
    """Supervised fine-tuning of a toy model on solutions that its task writes."""

    steps: PositiveInt
    batch_size: PositiveInt
    learning_rate: PositiveFloat
    solutions: Annotated[Solutions, OneOf("task", solution_types)]


class ToyModelConfig(Section):
    """A toy model: the architecture of the paper's model at 0.1 to 1 M parameters, warm-started from random weights."""

    architecture: Architecture
    hidden_size: PositiveInt
    layers: PositiveInt
    head_size: Literal[32, 64]
    """32 or 64, the smallest that vLLM's CPU attention supports."""
    heads: PositiveInt
    kv_heads: PositiveInt
    intermediate_size: PositiveInt
    tied_embeddings: bool
    tokenizer: Literal["characters", "bytes"] = "characters"
    """characters (those that toy tasks use) | bytes (any text)."""
    seed: NonNegativeInt
    warm_start: WarmStartConfig

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.heads * self.head_size != self.hidden_size:
            size = f"{self.heads} x {self.head_size}"
            raise ValueError(f"heads x head_size is {size}; it should be hidden_size = {self.hidden_size}")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads is {self.kv_heads}; it should divide heads = {self.heads}")
        return self


class ShapeConfig(Section):
    """The size of a pretrained model: `plan` uses it before the model is downloaded, then config.json has to agree."""

    architecture: Architecture
    layers: PositiveInt
    hidden_size: PositiveInt
    intermediate_size: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    head_size: PositiveInt
    vocabulary: PositiveInt
    tied_embeddings: bool


class ModelConfig(Section):
    name: str
    label: str
    """Its name as the paper writes it."""
    pretrained: str
    """Id on the Hugging Face Hub."""
    revision: str
    """Its commit there, 40 hex digits."""
    path: Annotated[str | None, LOCATION]
    """A directory with the model, instead of the Hub."""
    substitute: bool
    """`pretrained` is a smaller model that runs under `name`."""
    prompt_format: Literal["chat", "base"]
    shape: ShapeConfig


class SamplingConfig(Section):
    temperature: PositiveFloat
    """Of rollouts and pass rates."""
    max_prompt_tokens: PositiveInt
    max_new_tokens: PositiveInt
    batch_size: Annotated[PositiveInt, PER_MACHINE]
    """Sequences generated at a time, on each rank."""


class DataParallelSection(Section):
    """A section in which tensor and pipeline parallelism would be sought."""

    @classmethod
    def hint(cls, key: str) -> str:
        if key.startswith(("tensor_parallel", "pipeline_parallel")):
            return ": a run is divided by FSDP2 only; raise hardware.ranks"
        return super().hint(key)


class EngineConfig(DataParallelSection):
    """The engine that generates responses, for pass rates, rollouts and evaluation."""

    name: str
    """native | vllm, or another that is registered in sampling/engines.py."""
    dtype: Precision
    logit_noise: NonNegativeFloat
    """Native engine: standard deviation of Gaussian noise on the logits that it samples from; 0: none."""
    eager: Annotated[bool, PER_MACHINE]
    """vLLM: neither compilation nor CUDA graphs."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, lt=1), PER_MACHINE]
    """vLLM on a GPU: its share of the GPU's memory."""
    kv_cache_gib: Annotated[PositiveFloat | None, PER_MACHINE]
    """vLLM: size of the KV cache; null: what gpu_memory_utilization leaves."""
    warn_above: Threshold
    """Nats. A mean difference between the engine's and the trainer's log p above it is noted, once per run."""
    tolerance: Threshold
    """Nats. Above it the run stops: the engine does not hold the trainer's weights."""

    @model_validator(mode="after")
    def _noise_is_native(self) -> Self:
        if self.logit_noise and self.name != "native":
            raise ValueError(f"logit_noise is {self.logit_noise:g}; only the native engine has it")
        return self

    @model_validator(mode="after")
    def _warns_before_it_stops(self) -> Self:
        if self.tolerance < self.warn_above < math.inf:
            raise ValueError(
                f"warn_above is {self.warn_above:g}; it should be at most tolerance = {self.tolerance:g}, where the "
                "run stops, or inf"
            )
        return self


class HardwareConfig(DataParallelSection):
    device: Literal["cpu", "cuda"]
    ranks: PositiveInt | None
    """Processes of a stage, on all its nodes together, with FSDP2; null: one plain process."""
    nodes: PositiveInt
    """Machines of a stage; with several, parameters are sharded within a node and replicated across nodes (HSDP)."""
    runs_per_gpu: Literal[1, 2, 4, 8]
    """Jobs that share a GPU, if each has a single process."""

    @model_validator(mode="after")
    def _divides(self) -> Self:
        if self.nodes > 1 and (self.ranks is None or self.ranks % self.nodes):
            raise ValueError(f"ranks is {self.ranks}; it should be a multiple of nodes = {self.nodes}")
        if self.runs_per_gpu > 1 and (self.ranks or 1) > 1:
            raise ValueError(f"runs_per_gpu is {self.runs_per_gpu}, but runs with ranks = {self.ranks} need whole GPUs")
        return self


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


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Section):
    """AdamW with a constant learning rate."""

    learning_rate: PositiveFloat
    betas: Annotated[list[Beta], Field(min_length=2, max_length=2)]
    eps: Annotated[float, Field(ge=1e-38)]
    weight_decay: NonNegativeFloat
    max_grad_norm: Threshold


class CriticConfig(Section):
    """PPO's critic; unused where advantages are group-normalised."""

    learning_rate: PositiveFloat
    weight_decay: NonNegativeFloat
    max_grad_norm: Threshold
    gamma: Annotated[float, Field(ge=0, le=1)]
    gae_lambda: Annotated[float, Field(ge=0, le=1)]
    value_clip: Threshold


class TrainingConfig(Section):
    steps: PositiveInt
    prompts_per_step: PositiveInt
    group_size: Annotated[int, Field(ge=2)]
    """Rollouts per prompt; a group of one has no baseline."""
    updates_per_batch: PositiveInt
    """Optimizer steps per batch of rollouts; 1 is strictly on-policy."""
    reward: Literal["paper", "binary"]
    advantage: Literal["group", "gae"]
    """group (GRPO) | gae (PPO, with a critic)."""
    importance_truncation: Threshold | None
    """Weight tokens by p(trainer) / p(engine), truncated at this value; null: off."""
    precision: Precision
    """Of forward and backward passes; master weights and reductions are float32."""
    head_precision: Precision | None
    """Of the products in the output projection, whose inputs are in `precision`; null: `precision`."""
    activation_checkpointing: Annotated[Literal["none", "selective", "full"], PER_MACHINE]
    """What a backward pass recomputes: nothing; all but the outputs of matrix products and attention; whole blocks."""
    compile: Annotated[bool, PER_MACHINE]
    """torch.compile every transformer block of the trainer."""
    checkpoint_every: Annotated[NonNegativeInt, PER_MACHINE]
    """Steps between checkpoints; 0: none."""
    checkpoints_kept: Annotated[PositiveInt, PER_MACHINE]
    tokens_per_micro_batch: Annotated[PositiveInt, PER_MACHINE]
    """Padding included."""
    reduce_every_micro_batch: Annotated[bool, PER_MACHINE]
    """Reduce gradients over ranks after every micro-batch, instead of holding whole fp32 gradients until the last."""
    single_forward_tokens: NonNegativeInt
    """Batches of at most this many tokens keep the graphs of their scoring pass for the update; 0: none does."""
    entropy_change_every: NonNegativeInt
    """Steps between measurements of the entropy change; 0: never."""
    validation_every: NonNegativeInt
    """Steps between validations; 0: never."""
    validation_set: str
    """An evaluation set."""
    validation_problems: PositiveInt
    """At most so many of its problems."""
    validation_samples: PositiveInt
    optimizer: OptimizerConfig
    critic: CriticConfig

    def check_divisible(self, prompts: int, ranks: int) -> None:
        """Raise ValueError if the rollouts of some update of a step with `prompts` prompts do not divide by `ranks`."""
        smallest, larger = divmod(prompts, self.updates_per_batch)
        rollouts = {size * self.group_size for size in ({smallest, smallest + 1} if larger else {smallest})}
        if any(count % ranks for count in rollouts):
            raise ValueError(
                f"an update of {max(rollouts)} rollouts cannot be divided among {ranks} ranks evenly: change "
                "training.group_size or training.prompts_per_step to make it a multiple of hardware.ranks"
            )


class EvaluationConfig(Section):
    temperature: PositiveFloat
    samples: dict[SetName, PositiveInt]
    """K of Avg@K and Pass@K, for each evaluation set."""


class MethodConfig(Section):
    name: str
    label: str
    """Its name in tables and figures."""
    params: Method

    def build(self) -> Method:
        """A fresh method, since a method may keep state."""
        return self.params.model_copy(deep=True)


class Untrained(MethodConfig):
    """The base model as it is."""

    name: Literal["base"]
    params: Method = Method()


@cache
def method_sections() -> dict[str, type[Section]]:
    """The `method` section of every registered method; imports them, and so torch."""
    sections: dict[str, type[Section]] = {BASE: Untrained}
    for name, kind in method_types().items():
        sections[name] = create_model(
            f"{kind.__name__}Config",
            __base__=MethodConfig,
            name=(Literal[name], ...),  # type: ignore[arg-type]
            params=(kind, kind.model_construct()),
        )
    return sections


FIRST_PILOT_SEED = 100


class SeedsConfig(Section):
    """Seeds per method, counted from `first`."""

    first: NonNegativeInt
    """Another first seed makes an independent run: `entropy-dynamics compare` shows whether it agrees."""
    tables: Count
    """Of experiments with `seeds: tables`."""
    extras: Count
    """Of ablations and sweeps."""
    pilot: Count
    """Of experiments that choose a parameter; always from 100 on, so that no reported run takes part in a choice."""

    @model_validator(mode="after")
    def _pilots_stay_apart(self) -> Self:
        if self.first < FIRST_PILOT_SEED + self.pilot and self.first + max(self.tables, self.extras) > FIRST_PILOT_SEED:
            raise ValueError(
                f"first is {self.first}; its seeds should be apart from the pilot seeds, {FIRST_PILOT_SEED} to "
                f"{FIRST_PILOT_SEED + self.pilot - 1}"
            )
        return self


class ThroughputConfig(Section):
    """Tokens per second and GPU, as measured in runs (see `seconds_*` in their metrics)."""

    sampled: PositiveFloat
    """Of responses."""
    trained: PositiveFloat
    """Of prompts and responses, in the updates of a GRPO run, which needs no scoring pass."""


class GPUConfig(Section):
    """A GPU: its peaks, and what `plan` assumes that this project reaches of them."""

    memory_gib: PositiveFloat
    """As CUDA reports it."""
    tflops: PositiveFloat
    """Peak, dense bf16."""
    bandwidth_gb_s: PositiveFloat
    """Peak, of its memory."""
    training_mfu: Fraction
    """FLOPS utilization in training; recomputed activations count as work."""
    decoding_mbu: Fraction
    """Memory bandwidth utilization in decoding."""


class PlanConfig(Section):
    """Assumptions of `plan`."""

    gpu: str
    """A row of `gpus`."""
    gpus: dict[str, GPUConfig]
    decode_step_ms: NonNegativeFloat
    """Of a decoding step besides reading weights and KV cache: scheduling, sampling."""
    engine_gib: NonNegativeFloat
    """The engine besides weights and KV cache: CUDA graphs, activations."""
    process_gib: NonNegativeFloat
    """CUDA context, communication buffers, fragmentation."""
    startup_minutes: NonNegativeFloat
    """Of a job: imports, weights, engine."""
    prompt_tokens: PositiveInt
    """Mean length."""
    response_tokens: PositiveInt
    """Mean length."""
    problems: dict[str, PositiveInt]
    """Sizes of the sets whose size the config does not state."""
    safety: Annotated[float, Field(ge=1)]
    """Time limit of a job over its planned time."""
    max_job_hours: PositiveFloat
    """The highest time limit of a job. A longer run ends at a checkpoint and resumes in the next job."""
    measured: dict[str, ThroughputConfig]
    """Measured throughput of a model, instead of the assumed one."""

    @model_validator(mode="after")
    def _known_gpu(self) -> Self:
        if self.gpu not in self.gpus:
            raise ValueError(f"gpu is {self.gpu!r}; it should be one of {', '.join(self.gpus)}, or a row added to gpus")
        return self

    @property
    def hardware(self) -> GPUConfig:
        """The figures of `gpu`."""
        return self.gpus[self.gpu]


class Config(Section):
    """The config of a scale."""

    scale: str
    threads: Annotated[int, Field(ge=1, le=4096), PER_MACHINE]
    """CPU threads per process."""
    hardware: Annotated[HardwareConfig, PER_MACHINE]
    trackers: Annotated[list[Literal["tensorboard", "wandb"]], PER_MACHINE]
    seeds: SeedsConfig
    experiments: list[str] | None
    """The tables and figures of this scale; null: all of experiments/."""
    data: DataConfig
    models: list[str]
    toy_models: dict[str, ToyModelConfig]
    """Models that are built here, in place of the pretrained model of that name."""
    sampling: SamplingConfig
    engine: EngineConfig
    pass_rates: PassRateConfig
    training: TrainingConfig
    evaluation: EvaluationConfig
    plan: Annotated[PlanConfig, PER_MACHINE]

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        ranks, training = self.hardware.ranks, self.training
        if unsampled := set(self.data.evaluation) - set(self.evaluation.samples):
            raise ValueError(f"evaluation.samples has no {min(unsampled)!r}, a set of data.evaluation")
        if training.validation_set not in self.data.evaluation:
            raise ValueError(
                f"training.validation_set is {training.validation_set!r}; it should be one of data.evaluation: "
                f"{', '.join(self.data.evaluation)}"
            )
        if training.importance_truncation is not None and self.engine.name == "native" and ranks is None:
            raise ValueError(
                "training.importance_truncation needs hardware.ranks or engine.name=vllm: without them the engine "
                "samples from the policy itself"
            )
        if ranks is None:
            for key, plain in {"precision": "float32", "activation_checkpointing": "none", "compile": False}.items():
                if (value := getattr(training, key)) != plain:
                    raise ValueError(f"training.{key}={value} needs hardware.ranks: 1 for a single device")
            return self
        training.check_divisible(training.prompts_per_step, ranks)
        return self


class StageConfig(Config):
    """The config of a stage that runs a model."""

    model: ModelConfig


class RunConfig(StageConfig):
    """The config of a training run or an evaluation: a model and a method."""

    method: Annotated[MethodConfig, OneOf("name", method_sections)]


def marked_keys(*marks: str, kind: type[Section] = RunConfig, prefix: str = "") -> list[str]:
    """Dotted keys with one of these marks; for a section that has it, the section."""
    keys = []
    for name, field in kind.model_fields.items():
        if any(mark in field.metadata for mark in marks):
            keys.append(f"{prefix}{name}")
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            keys += marked_keys(*marks, kind=field.annotation, prefix=f"{prefix}{name}.")
    return keys


def file_schema() -> Mapping[str, object]:
    """JSON schema of the YAML files in configs/scale, configs/model, configs/method and of machine.yaml.

    A file may leave out any key, extend another scale and hold `overrides`; a number may be another key's, `${key}`.
    """
    schema = RunConfig.model_json_schema()
    _loosen(schema)
    names = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
    condition = {"type": "object", "properties": dict.fromkeys(("scale", "model", "method"), names)}
    entry = {"type": "object", "properties": {"for": condition, **schema["properties"]}}
    schema["properties"] |= {
        "extends": {"type": "string", "description": "another scale, whose file is merged before this one"},
        "overrides": {"type": "array", "items": entry, "description": "merged where `for` matches the run"},
    }
    return {"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema


def _loosen(node: object) -> None:
    if isinstance(node, dict):
        node.pop("required", None)
        for key in [key for key, value in node.items() if value == math.inf]:  # a default that JSON cannot express
            del node[key]
        if node.get("type") in ("integer", "number"):
            about = {key: node.pop(key) for key in ("title", "description", "default") if key in node}
            number = dict(node)
            node.clear()
            node |= {"anyOf": [number, {"type": "string", "pattern": r"^\$\{.+\}$"}]} | about
            return
        for child in node.values():
            _loosen(child)
    elif isinstance(node, list):
        for child in node:
            _loosen(child)
