"""Sampling: one interface, implemented by the native engine (native.py) and by vLLM (vllm.py).

Random numbers are keyed by (stream, problem, sample), never by position in a batch: a stream always gives the same
rollouts, whatever else is in the batch and however the work is divided.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from entropy_dynamics.results.provenance import fingerprint

if TYPE_CHECKING:
    import torch
    from torch import Tensor

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


class Sampler(ABC):
    """The interface of an engine to pass rates, training and evaluation.

    `push`, `sleep` and `close` do nothing by default.
    """

    returns_logp: bool = True
    """Whether rollouts have the engine's log p."""
    weights_dtype: "torch.dtype | None" = None
    """dtype in which weights are pushed; None: the policy's own."""
    tolerance: float = 1e-4
    """Mean absolute difference between the engine's and the trainer's log p above which a run stops, nats."""

    @abstractmethod
    def sample(
        self, prompts: Sequence[Prompt], *, samples: int, temperature: float, max_new_tokens: int, stream: str
    ) -> list[Rollout]:
        """Generate `samples` responses per prompt, ordered by prompt, then by sample.

        Args:
            temperature: logits are divided by it; neither top-k nor top-p is applied. 0 is greedy.
            stream: name of the random stream, e.g. "train/seed0/step12".
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
