"""A training run: rollouts, updates, optimizer, critic and method."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeFloat, PositiveFloat, create_model, model_validator

from entropy_dynamics.methods import Method, method_types
from entropy_dynamics.sections import PER_MACHINE, NonNegativeInt, PositiveInt, Precision, Section, Threshold, ZeroToOne

BASE = "base"  # the method of the untrained model: evaluated, never trained


class SamplingConfig(Section):
    temperature: PositiveFloat
    """Temperature of rollouts and pass rates."""
    max_prompt_tokens: PositiveInt
    max_new_tokens: PositiveInt
    batch_size: Annotated[PositiveInt, PER_MACHINE]
    """Maximum number of sequences generated at a time on each rank."""

    @property
    def max_tokens(self) -> int:
        """Length of the longest possible sequence, tokens."""
        return self.max_prompt_tokens + self.max_new_tokens


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
    gamma: ZeroToOne
    gae_lambda: ZeroToOne
    value_clip: Threshold


class TrainingConfig(Section):
    """Keys with a default were added after results were published; the default keeps those valid (`settings_of`)."""

    steps: PositiveInt
    prompts_per_step: PositiveInt
    group_size: Annotated[PositiveInt, Field(ge=2)]
    """Rollouts per prompt; a group of one has no baseline."""
    updates_per_batch: PositiveInt
    """Optimizer steps per batch of rollouts; 1 is strictly on-policy (without staleness)."""
    staleness: NonNegativeInt = 0
    """Training steps between the policy that samples a batch and the one that learns from it, as in asynchronous
    trainers; the first batches come from the untrained policy. p_old is then the engine's, unless an importance weight
    below corrects for it."""
    old_logp: Literal["trainer", "engine"] = "trainer"
    """Source of log p_old in importance ratios: trainer (recomputed before the first update) | engine."""
    reward: Literal["paper", "binary", "random"]
    """paper (four values) | binary | random (0 or 1 by chance, regardless of the answer, as a control)."""
    advantage: Literal["group", "gae"]
    """group (GRPO) | gae (PPO, with a critic)."""
    importance_truncation: Threshold | None
    """Weight tokens by p(trainer) / p(engine), truncated at this value (TIS); null: off."""
    importance_masking: Threshold | None = None
    """Weight tokens by p(trainer) / p(engine), and by 0 above this value (MIS); null: off."""
    precision: Precision | Literal["auto"]
    """dtype of forward and backward passes; master weights and reductions are float32. auto: bfloat16 where the
    processor multiplies bf16 matrices, else float32; a run's provenance.json says which."""
    head_precision: Precision | None
    """dtype of the lm_head matmul; null: `precision`."""
    activation_checkpointing: Annotated[Literal["none", "full"], PER_MACHINE]
    """none | full (recomputes whole blocks in the backward pass)."""
    compile: Annotated[bool, PER_MACHINE]
    """torch.compile every transformer block of the trainer."""
    checkpoint_every: Annotated[NonNegativeInt, PER_MACHINE]
    """Steps between checkpoints; 0: none."""
    checkpoints_kept: Annotated[PositiveInt, PER_MACHINE]
    keep_steps: Annotated[list[PositiveInt], PER_MACHINE]
    """Numbers of steps after which a run of a method without parameters leaves its policy to the shorter run, such as
    `grpo@training.steps=10`, which then trains nothing. If parameters of the method depend on `steps`, as entrocraft's
    do, the shorter run trains nevertheless."""
    tokens_per_micro_batch: Annotated[PositiveInt, PER_MACHINE]
    """Maximum number of tokens in a micro-batch, including padding; without ranks there is none, and a prefix that
    several sequences share counts once."""
    reduce_every_micro_batch: Annotated[bool, PER_MACHINE]
    """Reduce gradients over ranks after every micro-batch, instead of accumulating unsharded fp32 gradients."""
    single_forward_tokens: Annotated[NonNegativeInt, PER_MACHINE]
    """Maximum number of tokens whose autograd graphs are kept from the scoring pass for the update; the graph of the
    last micro-batch is always kept. With ranks: the whole batch if it is a single micro-batch per rank, else none."""
    entropy_change_every: NonNegativeInt
    """Steps between measurements of the entropy change; 0: never."""
    entropy_change_first_order: bool
    """At each of them, also measure the first-order change under the AdamW step, an SGD step and an AdamW step without
    momentum; costs one more forward and backward pass, and the memory of one more gradient."""
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
        """Whether importance ratios use the engine's log p, the only record of a stale policy."""
        return self.off_policy and not self.reweighted

    @property
    def off_policy(self) -> bool:
        """Whether the engine's policy is taken for another one than the trainer's."""
        return self.staleness > 0 or self.old_logp == "engine"

    @property
    def reweighted(self) -> bool:
        """Whether tokens are weighted by p(trainer) / p(engine)."""
        return self.importance_truncation is not None or self.importance_masking is not None

    @property
    def on_policy(self) -> bool:
        """Whether every importance ratio is exactly 1."""
        return self.updates_per_batch == 1 and not self.engine_ratios

    @model_validator(mode="after")
    def _one_correction(self) -> Self:
        if self.importance_truncation is not None and self.importance_masking is not None:
            raise ValueError("importance_truncation or importance_masking should be null")
        if self.reweighted and self.old_logp == "engine":
            raise ValueError("old_logp should be trainer with an importance weight, which is to the engine's already")
        return self

    def check_divisible(self, ranks: int) -> None:
        """Raise ValueError if an update cannot be divided evenly among `ranks`."""
        smallest, larger = divmod(self.prompts_per_step, self.updates_per_batch)
        rollouts = {size * self.group_size for size in ({smallest, smallest + 1} if larger else {smallest})}
        if any(count % ranks for count in rollouts):
            raise ValueError(
                f"an update has {max(rollouts)} rollouts; it should be a multiple of hardware.ranks = {ranks}: "
                "change training.group_size or training.prompts_per_step"
            )


class MethodConfig(Section):
    name: str
    label: str
    """Name in tables and figures."""
    params: Method

    def build(self) -> Method:
        """A new copy of the method, as methods may keep state."""
        return self.params.model_copy(deep=True)


def method_sections(name: str | None = None) -> dict[str, type[Section]]:
    """The `method` sections of `method_types`, and of BASE."""
    kinds: dict[str, type[Method]] = {BASE: Method, **({} if name == BASE else method_types(name))}
    return {name: _method_section(name, kind) for name, kind in kinds.items()}


@cache
def _method_section(name: str, kind: type[Method]) -> type[Section]:
    fields: dict[str, Any] = {"name": (Literal[name], ...), "params": (kind, kind.model_construct())}
    return create_model(f"{kind.__name__}Config", __base__=MethodConfig, **fields)
