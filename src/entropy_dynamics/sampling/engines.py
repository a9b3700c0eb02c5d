"""The engines by name. A new engine is a class with the methods of `Sampler`, and an entry in `ENGINES`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from entropy_dynamics.config.schema import StageConfig
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.sampling import Sampler
from entropy_dynamics.sampling.shared import SharedSampler

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@contextmanager
def open_sampler(
    config: StageConfig,
    directory: Path,
    tokenizer: "PreTrainedTokenizerBase",
    ranks: Ranks,
    *,
    model: "PreTrainedModel | None" = None,
    with_training: bool = False,
) -> Iterator[SharedSampler]:
    """The configured engine with the policy in `directory`, until the block ends; each rank has its own.

    Args:
        model: what the native engine samples from, instead of `directory`: the policy that training changes.
        with_training: weights will be pushed, and the engine leaves the GPU to training between two calls.

    Raises:
        UserError: an unknown engine, or one that cannot serve this model here.
    """
    if config.engine.name not in ENGINES:
        raise UserError(
            f"engine.name is {config.engine.name!r}, an unknown engine{nearest(config.engine.name, ENGINES)}"
        )
    sampler = ENGINES[config.engine.name](config, directory, tokenizer, ranks, model, with_training)
    try:
        yield SharedSampler(sampler, ranks)
        ranks.barrier()  # an engine's shutdown may take the process group along: all ranks have to be done with it
    finally:
        sampler.close()


def pad_token(tokenizer: "PreTrainedTokenizerBase") -> int:
    """The id to pad with. Nothing attends to it, so the end token serves where a tokenizer has none."""
    return tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id


def _native(
    config: StageConfig,
    directory: Path,
    tokenizer: "PreTrainedTokenizerBase",
    ranks: Ranks,
    model: "PreTrainedModel | None",
    with_training: bool,
) -> Sampler:
    from entropy_dynamics.models.loading import load_model
    from entropy_dynamics.sampling.native import NativeSampler, ReplicaSampler

    kind = ReplicaSampler if with_training and model is None else NativeSampler
    return kind(
        load_model(directory).to(ranks.device) if model is None else model,
        end_token=tokenizer.eos_token_id,
        pad_token=pad_token(tokenizer),
        batch_size=config.sampling.batch_size,
    )


def _vllm(
    config: StageConfig,
    directory: Path,
    tokenizer: "PreTrainedTokenizerBase",
    ranks: Ranks,
    model: "PreTrainedModel | None",
    with_training: bool,
) -> Sampler:
    from entropy_dynamics.sampling.vllm import VLLMSampler

    return VLLMSampler(
        directory,
        config=config.engine,
        end_token=tokenizer.eos_token_id,
        max_tokens=config.sampling.max_prompt_tokens + config.sampling.max_new_tokens,
        batch_size=config.sampling.batch_size,
        sleeps=with_training,
    )


ENGINES: dict[str, Callable[..., Sampler]] = {"native": _native, "vllm": _vllm}
