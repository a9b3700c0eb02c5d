"""Every key of a config: its type, bounds, choices and meaning. Defaults and their sources are in configs/base.yaml.

The sections of tasks, methods and engines are defined beside their code; this module only looks them up.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Literal, Self

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

from entropy_dynamics.engines import Engine, engine_types
from entropy_dynamics.methods import Method, method_types
from entropy_dynamics.tasks import SetSource, Solutions, set_sources, solution_types
from entropy_dynamics.validation import LOCATION, PER_MACHINE, OneOf, Precision, Section, Threshold

TRAIN = "train"
BASE = "base"  # the method of the untrained model: evaluated, never trained

Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=2**31 - 1)]
Architecture = Literal["llama", "qwen2", "qwen3"]


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


class Shape(Section):
    """Architecture and size of a model."""

    architecture: Architecture
    """transformers' `model_type` of the family."""
    hidden_size: PositiveInt
    layers: PositiveInt
    head_size: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    intermediate_size: PositiveInt
    tied_embeddings: bool

    @property
    def qkv_bias(self) -> bool:
        """Biases on q, k and v."""
        return self.architecture == "qwen2"

    @property
    def qk_norm(self) -> bool:
        """RMSNorm of each head's q and k."""
        return self.architecture == "qwen3"


class ToyModelConfig(Shape):
    """A toy model: the architecture of the paper's model at 0.1 to 1 M parameters, warm-started from random weights."""

    head_size: Literal[32, 64]
    """32 or 64, the smallest that vLLM's CPU attention supports."""
    tokenizer: Literal["characters", "bytes"] = "characters"
    """characters (those that toy tasks use) | bytes (any text)."""
    seed: NonNegativeInt
    """Distinct for every model of a scale: with a run's seed it gives that of its untrained model."""
    warm_start: WarmStartConfig

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.heads * self.head_size != self.hidden_size:
            size = f"{self.heads} x {self.head_size}"
            raise ValueError(f"heads x head_size is {size}; it should be hidden_size = {self.hidden_size}")
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads is {self.kv_heads}; it should divide heads = {self.heads}")
        return self


class ShapeConfig(Shape):
    """The shape of a pretrained model: `plan` uses it before the model is downloaded, then config.json has to agree."""

    vocabulary: PositiveInt


class ModelConfig(Section):
    name: str
    label: str
    """Its name as the paper writes it."""
    pretrained: str | None
    """Id on the Hugging Face Hub; null: there is a toy model of that name only."""
    revision: str | None
    """Its commit there, 40 hex digits."""
    path: Annotated[str | None, LOCATION]
    """A directory with the model, instead of the Hub."""
    substitute: bool
    """`pretrained` is a smaller model that runs under `name`."""
    prompt_format: Literal["chat", "completion"]
    """chat (the tokenizer's template) | completion (plain text, for base models)."""
    shape: ShapeConfig | None


class SamplingConfig(Section):
    temperature: PositiveFloat
    """Temperature of rollouts and pass rates."""
    max_prompt_tokens: PositiveInt
    max_new_tokens: PositiveInt
    batch_size: Annotated[PositiveInt, PER_MACHINE]
    """Maximum number of sequences generated at a time on each rank."""


class HardwareConfig(Section):
    device: Literal["cpu", "cuda"]
    ranks: PositiveInt | None
    """World size of a stage with FSDP2, over all nodes; null: one plain process."""
    nodes: PositiveInt
    """Number of nodes of a stage; several: HSDP, parameters sharded within a node and replicated across nodes."""
    runs_per_gpu: Literal[1, 2, 4, 8]
    """Number of single-process jobs that share a GPU."""

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


class OptimizerConfig(Section):
    """AdamW with a constant learning rate."""

    learning_rate: PositiveFloat
    betas: Annotated[list[Annotated[float, Field(ge=0, lt=1)]], Field(min_length=2, max_length=2)]
    eps: Annotated[float, Field(ge=1e-38)]
    weight_decay: NonNegativeFloat
    max_grad_norm: Threshold


class CriticConfig(Section):
    """PPO's critic; unused with group-normalized advantages."""

    learning_rate: PositiveFloat
    weight_decay: NonNegativeFloat
    max_grad_norm: Threshold
    gamma: Annotated[float, Field(ge=0, le=1)]
    gae_lambda: Annotated[float, Field(ge=0, le=1)]
    value_clip: Threshold


class TrainingConfig(Section):
    """A key with a default here is newer than some results, which were made with that default (`settings_of`)."""

    steps: PositiveInt
    prompts_per_step: PositiveInt
    group_size: Annotated[int, Field(ge=2)]
    """Rollouts per prompt; a group of one has no baseline."""
    updates_per_batch: PositiveInt
    """Optimizer steps per batch of rollouts; 1 is strictly on-policy, without staleness."""
    staleness: NonNegativeInt = 0
    """Training steps between the policy that samples a batch and the one that learns from it, as in asynchronous
    trainers; the first batches are of the untrained policy. The engine's log p is then that of p_old."""
    old_logp: Literal["trainer", "engine"] = "trainer"
    """Whose log p is that of p_old in importance ratios: trainer (recomputed before the first update) | engine."""
    reward: Literal["paper", "binary", "random"]
    """paper (four values) | binary | random: 0 or 1 by chance, whatever the answer, as a control."""
    advantage: Literal["group", "gae"]
    """group (GRPO) | gae (PPO, with a critic)."""
    importance_truncation: Threshold | None
    """Weight tokens by p(trainer) / p(engine), truncated at this value; null: off."""
    precision: Precision
    """dtype of forward and backward passes; master weights and reductions are float32."""
    head_precision: Precision | None
    """dtype of the lm_head matmul; null: `precision`."""
    activation_checkpointing: Annotated[Literal["none", "selective", "full"], PER_MACHINE]
    """none | selective (saves the outputs of matmuls and attention only) | full (recomputes whole blocks)."""
    compile: Annotated[bool, PER_MACHINE]
    """torch.compile every transformer block of the trainer."""
    checkpoint_every: Annotated[NonNegativeInt, PER_MACHINE]
    """Steps between checkpoints; 0: none."""
    checkpoints_kept: Annotated[PositiveInt, PER_MACHINE]
    tokens_per_micro_batch: Annotated[PositiveInt, PER_MACHINE]
    """Maximum number of tokens in a micro-batch, padding included; without ranks, of responses only."""
    reduce_every_micro_batch: Annotated[bool, PER_MACHINE]
    """Reduce gradients over ranks after every micro-batch, instead of accumulating unsharded fp32 gradients."""
    single_forward_tokens: NonNegativeInt
    """Tokens whose autograd graphs the scoring pass keeps for the update, besides those of the last micro-batch. With
    ranks: all of a batch that is one micro-batch per rank, or none."""
    entropy_change_every: NonNegativeInt
    """Steps between measurements of the entropy change; 0: never."""
    entropy_change_first_order: bool
    """With each of them, also the first order of the change, that of an SGD step and of an AdamW step without momentum:
    one more forward and backward pass, and the memory of one more gradient."""
    validation_every: NonNegativeInt
    """Steps between validations; 0: never."""
    validation_set: str
    """Name of an evaluation set."""
    validation_problems: PositiveInt
    """Maximum number of problems."""
    validation_samples: PositiveInt
    optimizer: OptimizerConfig
    critic: CriticConfig

    @property
    def engine_ratios(self) -> bool:
        """Whether importance ratios are to the engine's log p: nothing else remembers a stale policy."""
        return self.staleness > 0 or self.old_logp == "engine"

    @property
    def on_policy(self) -> bool:
        """Whether every importance ratio is exactly 1."""
        return self.updates_per_batch == 1 and not self.engine_ratios

    @model_validator(mode="after")
    def _one_correction(self) -> Self:
        if self.importance_truncation is not None and self.engine_ratios:
            key = f"staleness={self.staleness}" if self.staleness else "old_logp=engine"
            raise ValueError(
                f"importance_truncation corrects ratios to the trainer's log p; with {key} they are to the engine's, "
                "so it should be null"
            )
        return self

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
    """That of all tables."""
    temperatures: list[NonNegativeFloat]
    """Further ones, for the frontier and the claims about temperature; 0 is greedy."""
    samples: dict[SetName, PositiveInt]
    """K of Avg@K and Pass@K, for each evaluation set; one sample at temperature 0, where all would be equal."""

    @property
    def all_temperatures(self) -> list[float]:
        """Ascending."""
        return sorted({self.temperature, *self.temperatures})


class MethodConfig(Section):
    name: str
    label: str
    """Its name in tables and figures."""
    params: Method

    def build(self) -> Method:
        """A fresh method, since a method may keep state."""
        return self.params.model_copy(deep=True)


@cache
def method_sections() -> dict[str, type[Section]]:
    """The `method` section of every registered method; imports them, and so torch."""
    sections: dict[str, type[Section]] = {}
    kinds: dict[str, type[Method]] = {BASE: Method, **method_types()}
    for name, kind in kinds.items():
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
    """Number of seeds in experiments with `seeds: tables`."""
    extras: Count
    """Number of seeds in ablations and sweeps."""
    pilot: Count
    """Number of seeds in experiments that choose a parameter: 100, 101, ..., so that no reported run takes part."""

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
    """Response tokens."""
    trained: PositiveFloat
    """Prompt and response tokens in the updates of a GRPO run, which needs no scoring pass."""


class GPUConfig(Section):
    """A GPU: its peaks, and what `plan` assumes that this project reaches of them."""

    memory_gib: PositiveFloat
    """Total memory as CUDA reports it, GiB."""
    tflops: PositiveFloat
    """Peak dense bf16 throughput, TFLOP/s."""
    bandwidth_gb_s: PositiveFloat
    """Peak memory bandwidth, GB/s."""
    training_mfu: Fraction
    """Model FLOPs utilization in training; recomputed activations count as work."""
    decoding_mbu: Fraction
    """Model bandwidth utilization in decoding."""


class PlanConfig(Section):
    """Assumptions of `plan`."""

    gpu: str
    """A row of `gpus`."""
    gpus: dict[str, GPUConfig]
    decode_step_ms: NonNegativeFloat
    """Fixed overhead per decoding step (scheduling, sampling), ms."""
    engine_gib: NonNegativeFloat
    """Engine memory besides weights and KV cache (CUDA graphs, activations), GiB."""
    process_gib: NonNegativeFloat
    """CUDA context, communication buffers and fragmentation, GiB."""
    startup_minutes: NonNegativeFloat
    """Start-up time of a job (imports, weights, engine), minutes."""
    grade_ms: NonNegativeFloat
    """Time to grade a response on one rank, ms."""
    sleep_seconds: NonNegativeFloat
    """Time for which an engine with memory of its own falls asleep and wakes up, s per step."""
    push_gb_s: PositiveFloat
    """Weights gathered from the trainer's shards and copied into a rank's engine, GB/s."""
    checkpoint_gb_s: PositiveFloat
    """A checkpoint written, flushed and hashed by all ranks, GB/s."""
    runs_at_a_time: PositiveInt
    """Runs that are going on at the same time, as many as `jobs` of profiles/slurm: each has checkpoints on disk."""
    prompt_tokens: PositiveInt
    """Mean length of a prompt, tokens."""
    response_tokens: PositiveInt
    """Mean length of a response, tokens."""
    problems: dict[str, PositiveInt]
    """Number of problems in the sets whose size the config does not state."""
    safety: Annotated[float, Field(ge=1)]
    """Ratio of a job's time limit to its planned time."""
    max_job_hours: PositiveFloat
    """Maximum time limit of a job, hours; a longer run ends at a checkpoint and resumes in the next job."""
    measured: dict[str, ThroughputConfig]
    """Measured throughput by model, in place of the assumed one."""

    @model_validator(mode="after")
    def _known_gpu(self) -> Self:
        if self.gpu not in self.gpus:
            raise ValueError(f"gpu is {self.gpu!r}; it should be one of {', '.join(self.gpus)}, or a row added to gpus")
        return self

    @property
    def hardware(self) -> GPUConfig:
        """The row of `gpus` that `gpu` names."""
        return self.gpus[self.gpu]


class Config(Section):
    """The config of a scale."""

    scale: str
    threads: Annotated[int, Field(ge=1, le=4096), PER_MACHINE]
    """CPU threads per process."""
    hardware: Annotated[HardwareConfig, PER_MACHINE]
    trackers: Annotated[list[Literal["tensorboard", "wandb", "trackio"]], PER_MACHINE]
    seeds: SeedsConfig
    experiments: list[str] | None
    """The tables and figures of this scale; null: all of experiments/."""
    data: DataConfig
    models: list[str]
    toy_models: dict[str, ToyModelConfig]
    """Models that are built here, in place of the pretrained model of that name."""
    sampling: SamplingConfig
    engine: Annotated[Engine, OneOf("name", engine_types)]
    pass_rates: PassRateConfig
    training: TrainingConfig
    evaluation: EvaluationConfig
    plan: Annotated[PlanConfig, PER_MACHINE]

    def untrained(self, model: str, seed: int) -> int:
        """The seed of the untrained model from which run `seed` starts: every run seed has its own toy model.

        A pretrained model exists once, with seed 0.
        """
        return seed if model in self.toy_models else 0

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
        if self.hardware.runs_per_gpu > 1 and not self.engine.in_trainer:
            raise ValueError(
                f"hardware.runs_per_gpu is {self.hardware.runs_per_gpu}, but {self.engine.name} checks how much memory "
                "of the whole GPU is free, and fails when another run takes or frees some: set it to 1, or engine.name "
                "to native"
            )
        if ranks is None:
            dtype = self.engine.dtype if self.engine.dtype != "float32" else None
            shared = {"training.importance_truncation": training.importance_truncation, "engine.dtype": dtype}
            for key, value in shared.items() if self.engine.in_trainer else ():
                if value is not None:
                    raise ValueError(
                        f"{key}={value} needs hardware.ranks or engine.name=vllm: without them the engine samples from "
                        "the policy itself"
                    )
            for key, plain in {"precision": "float32", "activation_checkpointing": "none", "compile": False}.items():
                if (value := getattr(training, key)) != plain:
                    raise ValueError(f"training.{key}={value} needs hardware.ranks: 1 for a single device")
            return self
        training.check_divisible(training.prompts_per_step, ranks)
        return self


class StageConfig(Config):
    """The config of a stage that runs a model."""

    model: ModelConfig

    @model_validator(mode="after")
    def _some_model_runs(self) -> Self:
        known = self.model.path is not None or None not in (self.model.pretrained, self.model.revision)
        if self.model.name not in self.toy_models and not (known and self.model.shape):
            raise ValueError(f"{self.model.name} has no pretrained model: it runs at scales that list it in toy_models")
        return self


class RunConfig(StageConfig):
    """The config of a training run or an evaluation: a model and a method."""

    method: Annotated[MethodConfig, OneOf("name", method_sections)]

    def at_temperature(self, temperature: float) -> Self:
        """This config with another temperature of the evaluation."""
        evaluation = self.evaluation.model_copy(update={"temperature": float(temperature)})
        return self.model_copy(update={"evaluation": evaluation})

    @model_validator(mode="after")
    def _advantages_are_of_one_kind(self) -> Self:
        if self.training.advantage == "gae" and self.method.params.overrides("advantages"):
            raise ValueError(
                f"training.advantage is gae, but the method {self.method.name} has advantages of its own, which a "
                "critic would replace; set training.advantage=group"
            )
        return self


def later_keys() -> dict[str, Any]:
    """Dotted keys that results of earlier versions lack, with the value that they were made with."""
    fields = TrainingConfig.model_fields.items()
    return {f"training.{name}": field.default for name, field in fields if not field.is_required()}


def marked_keys(*marks: str, kind: type[Section] = RunConfig, prefix: str = "") -> list[str]:
    """Dotted keys with one of these marks; for a section that has it, the section."""
    keys = []
    for name, field in kind.model_fields.items():
        if any(mark in field.metadata for mark in marks):
            keys.append(f"{prefix}{name}")
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            kinds = engine_types().values() if field.annotation is Engine else [field.annotation]
            keys += [key for section in kinds for key in marked_keys(*marks, kind=section, prefix=f"{prefix}{name}.")]
    return keys
