"""Every key of a config: its type, bounds, choices and meaning. Defaults and their sources are in configs/base.yaml."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from entropy_dynamics.config.schema.data import DataConfig, EvaluationConfig, GateConfig, PassRateConfig, without_null
from entropy_dynamics.config.schema.engines import ENGINES, Engine
from entropy_dynamics.config.schema.hardware import HardwareConfig, PlanConfig
from entropy_dynamics.config.schema.model import ModelConfig, ToyModelConfig, WarmStartConfig
from entropy_dynamics.config.schema.training import MethodConfig, SamplingConfig, TrainingConfig, method_sections
from entropy_dynamics.sections import PER_MACHINE, NonNegativeInt, OneOf, PositiveInt, Section

FIRST_PILOT_SEED = 100


class SeedsConfig(Section):
    """Seeds per method, counted from `first`."""

    first: NonNegativeInt
    """A different first seed gives an independent replication; `entropy-dynamics compare` shows whether it agrees."""
    tables: PositiveInt
    """Number of seeds in experiments with `seeds: tables`."""
    extras: PositiveInt
    """Number of seeds in ablations and sweeps."""
    pilot: PositiveInt
    """Number of seeds in pilot runs, which choose a parameter; 100, 101, ..., so that no reported run takes part."""

    @model_validator(mode="after")
    def _pilots_stay_apart(self) -> Self:
        if self.first < FIRST_PILOT_SEED + self.pilot and self.first + max(self.tables, self.extras) > FIRST_PILOT_SEED:
            last = FIRST_PILOT_SEED + self.pilot - 1
            raise ValueError(f"first is {self.first}; its seeds should not be pilots, {FIRST_PILOT_SEED} to {last}")
        return self


class Config(Section):
    """The config of a scale."""

    scale: str
    threads: Annotated[int, Field(ge=1, le=4096), PER_MACHINE]
    """CPU threads per process."""
    hardware: Annotated[HardwareConfig, PER_MACHINE]
    trackers: Annotated[list[Literal["tensorboard", "wandb", "trackio"]], PER_MACHINE]
    seeds: SeedsConfig
    experiments: Annotated[list[str] | None, AfterValidator(lambda names: names or None)]
    """Tables and figures of this scale; null or []: those in `experiments_folder` and its folder `further`."""
    experiments_folder: str
    """The folder of tables, figures and claims."""
    data: DataConfig
    models: list[Annotated[str, Field(pattern=r"^[\w.-]+$")]]
    toy_models: Annotated[dict[str, ToyModelConfig], BeforeValidator(without_null)]
    """Models that are built and warm-started instead of the pretrained model of that name; null: not this one."""
    cold_start: WarmStartConfig | None = None
    """Supervised fine-tuning of pretrained models before RL; null: none."""
    sampling: SamplingConfig
    engine: Annotated[Engine, OneOf("name", lambda _: ENGINES)]
    pass_rates: PassRateConfig
    gate: GateConfig
    training: TrainingConfig
    evaluation: EvaluationConfig
    plan: Annotated[PlanConfig, PER_MACHINE]

    def untrained(self, model: str, seed: int) -> int:
        """The seed of the untrained model from which the run with this seed starts; 0 for one that exists only once."""
        return seed if self.cold_start or model in self.toy_models else 0

    def changed(self, section: str, **values: Any) -> Self:
        """This config with other values in a section, which are not validated."""
        return self.model_copy(update={section: getattr(self, section).model_copy(update=values)})

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        ranks, training = self.hardware.ranks, self.training
        if unsampled := set(self.data.evaluation) - set(self.evaluation.samples):
            raise ValueError(f"evaluation.samples has no {min(unsampled)!r}, a set of data.evaluation")
        if training.validation_set not in self.data.evaluation:
            raise ValueError(f"training.validation_set should be one of {', '.join(self.data.evaluation)}")
        if self.hardware.runs_per_gpu > 1 and (self.hardware.processes > 1 or not self.engine.in_trainer):
            raise ValueError("hardware.runs_per_gpu above 1 needs engine.name=native and at most one rank")
        if ranks is not None:
            training.check_divisible(ranks)
            return self
        shared = {"engine.dtype": None if self.engine.dtype == "float32" else self.engine.dtype}
        weights = () if training.off_policy else ("importance_truncation", "importance_masking")
        shared |= {f"training.{key}": getattr(training, key) for key in weights}
        for key, value in shared.items() if self.engine.in_trainer else ():
            if value is not None:
                raise ValueError(f"{key}={value} needs hardware.ranks or engine.name=vllm: here the policy samples")
        if training.compile:
            raise ValueError("training.compile=True needs hardware.ranks: 1 for a single device")
        return self


class StageConfig(Config):
    """The config of a stage that runs a model."""

    model: ModelConfig

    @model_validator(mode="after")
    def _some_model_runs(self) -> Self:
        model = self.model
        if model.name in self.toy_models or model.path is not None:
            return self
        if model.package is None and None in (model.pretrained, model.revision):
            raise ValueError(f"{model.name} has no pretrained model: it runs at scales that list it in toy_models")
        if model.shape is None:
            raise ValueError("model.shape is null; it should have the sizes in config.json of model.pretrained")
        return self


class RunConfig(StageConfig):
    """The config of a training run or an evaluation: a model and a method."""

    method: Annotated[MethodConfig, OneOf("name", method_sections)]

    @model_validator(mode="after")
    def _advantages_are_of_one_kind(self) -> Self:
        if self.training.advantage == "gae" and self.method.params.overrides("advantages"):
            raise ValueError(f"training.advantage should be group: {self.method.name} has advantages of its own")
        return self


@cache
def later_keys() -> dict[str, Any]:
    """Dotted keys missing from results of earlier versions, with the values those results were made with."""
    kinds: dict[str, type[Section]] = {"": Config, "model.": ModelConfig, "training.": TrainingConfig}
    return {"method.params.share": None} | {
        f"{prefix}{name}": field.default
        for prefix, kind in kinds.items()
        for name, field in kind.model_fields.items()
        if not field.is_required()
    }


@cache
def marked_keys(*marks: str, kind: type[Section] = RunConfig, prefix: str = "") -> list[str]:
    """Dotted keys with one of these marks; a marked section counts as a single key."""
    keys = []
    for name, field in kind.model_fields.items():
        if any(mark in field.metadata for mark in marks):
            keys.append(f"{prefix}{name}")
        elif isinstance(field.annotation, type) and issubclass(field.annotation, Section):
            kinds = ENGINES.values() if field.annotation is Engine else [field.annotation]
            keys += [key for section in kinds for key in marked_keys(*marks, kind=section, prefix=f"{prefix}{name}.")]
    return list(dict.fromkeys(keys))  # engines share some
