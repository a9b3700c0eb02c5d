"""Sampling: one protocol, implemented by the native engine (native.py) and by vLLM (vllm.py).

Random numbers belong to (stream, problem, sample), never to a place in a batch: the same stream gives the same
rollouts, whatever else is in the batch and however the work is divided.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from torch import Tensor

# Prompts whose responses are in memory at a time (those of all DAPO problems take 200 GiB on 8 ranks), and the most
# that an interrupted stage samples again.
PROMPTS_HELD = 1024


@dataclass(frozen=True)
class Prompt:
    """A problem as the model sees it."""

    problem_id: str
    token_ids: Sequence[int]


@dataclass(frozen=True)
class Rollout:
    """One response. `token_ids` include the end token unless the response was truncated."""

    problem_id: str
    sample: int
    token_ids: list[int]
    finish_reason: Literal["stop", "length"]
    logp: list[float] | None = None  # log p of each token as the engine computes it, nats; None if it does not


class Sampler(Protocol):
    """An engine, as pass rates, training and evaluation use it."""

    @abstractmethod
    def sample(
        self, prompts: Sequence[Prompt], *, samples: int, temperature: float, max_new_tokens: int, stream: str
    ) -> list[Rollout]:
        """`samples` responses per prompt, ordered by prompt, then sample.

        Args:
            temperature: logits are divided by it; neither top-k nor top-p is applied. 0 is greedy.
            stream: names the random numbers, e.g. "train/seed0/step12".
        """

    def push(self, weights: Iterable[tuple[str, "Tensor"]]) -> None:
        """Sample from `weights` from now on: the policy's parameters by name, each an unsharded tensor.

        A no-op, which does not consume `weights`, for an engine that samples from the policy itself.
        """

    def sleep(self) -> None:
        """Free memory for training until the next `push`, if the engine can. Until then it may be unable to sample."""

    def close(self) -> None:
        """Free what the engine holds."""


def sample_seed(stream: str, problem_id: str, sample: int) -> int:
    """The 128-bit seed of one sample of one problem in one stream."""
    digest = hashlib.blake2b(f"{stream}\0{problem_id}\0{sample}".encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")
