"""The engines by name. A new engine is a module with a function `open_engine`, and a line in `ENGINES`."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from entropy_dynamics.errors import UserError, nearest

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from entropy_dynamics.config.schema import StageConfig
    from entropy_dynamics.distributed.ranks import Ranks
    from entropy_dynamics.sampling.shared import SharedSampler

ENGINES = {"native": "entropy_dynamics.sampling.native", "vllm": "entropy_dynamics.sampling.vllm"}


def find_engine(name: str) -> str:
    """The module of an engine.

    Raises:
        UserError: no engine has this name.
    """
    if name not in ENGINES:
        raise UserError(f"unknown engine.name {name!r}{nearest(name, ENGINES)}")
    return ENGINES[name]


@contextmanager
def open_sampler(
    config: "StageConfig",
    directory: Path,
    tokenizer: "PreTrainedTokenizerBase",
    ranks: "Ranks",
    *,
    model: "PreTrainedModel | None" = None,
    with_training: bool = False,
) -> Iterator["SharedSampler"]:
    """The configured engine with the policy in `directory`, until the block ends; one engine per rank.

    Args:
        model: what the native engine samples from instead of `directory`: the policy in training.
        with_training: weights will be pushed, and the engine frees the GPU for training between two calls.

    Raises:
        UserError: an unknown engine, or one that cannot serve this model here.
    """
    from entropy_dynamics.sampling.shared import SharedSampler

    engine = import_module(find_engine(config.engine.name))
    sampler = engine.open_engine(config, directory, tokenizer, ranks=ranks, model=model, with_training=with_training)
    try:
        yield SharedSampler(sampler, ranks)
        ranks.barrier()  # an engine's shutdown may destroy the process group, which all ranks must be done with
    finally:
        sampler.close()


def pad_token(tokenizer: "PreTrainedTokenizerBase") -> int:
    """The id to pad with: the end token where a tokenizer has none of its own, as nothing attends to padding."""
    return tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
