"""Sampling: one interface, implemented by the native engine (native.py) and by vLLM (vllm.py).

Random numbers are keyed by (stream, problem, sample), never by position in a batch: a stream always gives the same
rollouts, whatever else is in the batch and however the work is divided.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from entropy_dynamics.results.files import read_json
from entropy_dynamics.results.provenance import fingerprint

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from entropy_dynamics.config.schema import StageConfig
    from entropy_dynamics.distributed.ranks import Ranks

# Number of prompts whose responses are in memory at a time (all DAPO problems would take 200 GiB on 8 ranks); also the
# most that an interrupted stage has to sample again.
PROMPTS_HELD = 1024


@dataclass(frozen=True)
class Prompt:
    """A problem as token ids."""

    problem_id: str
    token_ids: Sequence[int]


def prompts_hash(prompts: Iterable[Prompt]) -> str:
    """A short hash of ids and tokens, which depend on more than the config: template, library and instruction."""
    return fingerprint({prompt.problem_id: list(prompt.token_ids) for prompt in prompts})


@dataclass(frozen=True)
class Rollout:
    """One response. `token_ids` include the end token unless the response was truncated."""

    problem_id: str
    sample: int
    token_ids: list[int]
    finish_reason: Literal["stop", "length"]
    logp: list[float] | None = None  # log p of each token as computed by the engine, nats; None if it returns none
    top: list[list[int]] | None = None  # the tokens that the engine held most likely, for each token; None: not asked
    top_logp: list[list[float]] | None = None  # their log p as computed by the engine, nats


class Sampler(ABC):
    """The interface of an engine to pass rates, training and evaluation."""

    returns_logp: bool = True
    """Whether rollouts have the engine's log p."""
    returns_top: bool = False
    """Whether `sample` takes `top`, the number of most likely tokens in rollouts."""
    weights_dtype: "torch.dtype | None" = None
    """dtype in which weights are pushed; None: the policy's own."""
    tolerance: float = 1e-4
    """Mean absolute difference between the engine's and the trainer's log p above which a run stops, nats."""

    @abstractmethod
    def sample(
        self, prompts: Sequence[Prompt], *, samples: int, temperature: float, max_new_tokens: int, stream: str
    ) -> list[Rollout]:
        """Generate `samples` responses per prompt, ordered by prompt, then by sample.

        Logits are divided by `temperature`, of which 0 is greedy; neither top-k nor top-p is applied. `stream` is the
        name of the random stream, e.g. "train/seed0/step12".
        """

    def push(self, weights: Iterable[tuple[str, "Tensor"]]) -> None:  # noqa: B027 - optional
        """Sample from `weights` from now on: the policy's parameters by name, as unsharded tensors.

        For an engine that samples from the policy itself this is a no-op that does not consume `weights`.
        """

    def sleep(self) -> None:  # noqa: B027 - optional
        """Free memory for training, if the engine can. It may then be unable to sample until the next `push`."""

    def close(self) -> None:  # noqa: B027 - optional
        """Release the engine's resources."""


def sample_seed(stream: str, problem_id: str, sample: int) -> int:
    """The 128-bit seed of one sample of one problem in one stream."""
    digest = hashlib.blake2b(f"{stream}\0{problem_id}\0{sample}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")


@contextmanager
def open_sampler(
    config: "StageConfig",
    directory: Path,
    tokenizer: "PreTrainedTokenizerBase",
    ranks: "Ranks",
    *,
    model: "PreTrainedModel | None" = None,
    with_training: bool = False,
    with_logp: bool = False,
) -> Iterator[Sampler]:
    """Context manager: the configured engine with the policy in `directory`, opened by its module; one per rank.

    `model` is the policy in training, from which the native engine samples instead of `directory`. `with_training`:
    weights will be pushed, and the engine frees the GPU for training between calls. `with_logp`: rollouts have the
    engine's log p. Raises UserError if the engine cannot serve this model here.
    """
    from entropy_dynamics.distributed.precision import PRECISIONS  # imports torch

    module = import_module(f"entropy_dynamics.sampling.{config.engine.name}")
    engine = module.open_engine(config, directory, tokenizer, ranks=ranks, model=model, with_training=with_training)
    try:
        engine.returns_logp |= with_logp
        sampler = engine if ranks.size == 1 else SharedSampler(engine, ranks)
        sampler.weights_dtype = PRECISIONS[config.engine.dtype]
        sampler.tolerance = config.engine.tolerance
        yield sampler
        ranks.barrier()  # shutdown may destroy the process group, so all ranks must have finished with it
    finally:
        engine.close()


class SharedSampler(Sampler):
    """The engines of all ranks: each samples a share of the prompts, and every rank gets all rollouts."""

    def __init__(self, engine: Sampler, ranks: "Ranks"):
        self.engine, self.ranks = engine, ranks

    def sample(self, prompts: Sequence[Prompt], **settings: Any) -> list[Rollout]:
        share = self.ranks.share(prompts)
        rollouts = self.engine.sample(share, **settings) if share else []
        place = {prompt.problem_id: number for number, prompt in enumerate(prompts)}
        return sorted(_gathered(rollouts, self.ranks), key=lambda rollout: (place[rollout.problem_id], rollout.sample))

    def push(self, weights: Iterable[tuple[str, "Tensor"]]) -> None:
        self.engine.push(weights)

    def sleep(self) -> None:
        self.engine.sleep()


def _gathered(rollouts: Sequence[Rollout], ranks: "Ranks") -> Iterator[Rollout]:
    """The rollouts of all ranks. Tokens are sent as flat tensors, since JSON would take a second per batch."""
    import torch  # imported late, as the command line imports this module

    records = [(each.problem_id, each.sample, each.finish_reason, len(each.token_ids)) for each in rollouts]
    tokens = torch.tensor([token for rollout in rollouts for token in rollout.token_ids], dtype=torch.int32)
    logp = torch.tensor([value for rollout in rollouts for value in rollout.logp or ()], dtype=torch.float32)
    for share, *flat in zip(ranks.gather(records), ranks.gather_flat(tokens), ranks.gather_flat(logp), strict=True):
        ids, values = (iter(tensor.tolist()) for tensor in flat)
        for problem_id, sample, reason, length in share:
            yield Rollout(problem_id, sample, [*islice(ids, length)], reason, [*islice(values, length)] or None)


def end_tokens(directory: Path, tokenizer: "PreTrainedTokenizerBase") -> list[int]:
    """The token ids that end a response: the tokenizer's end token and those in generation_config.json."""
    generation = directory / "generation_config.json"
    more = read_json(generation).get("eos_token_id") if generation.is_file() else None
    return sorted({tokenizer.eos_token_id, *(more if isinstance(more, list) else [more])} - {None})
