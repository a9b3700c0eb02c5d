"""Sampling on several ranks: each samples its share of the prompts, and every rank gets all rollouts."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import Tensor

from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.sampling import Prompt, Rollout, Sampler


class SharedSampler:
    """A `Sampler` over the engines of all ranks.

    Random numbers belong to (stream, problem, sample), so which rank samples a prompt changes nothing.
    """

    def __init__(self, sampler: Sampler, ranks: Ranks):
        self.sampler, self.ranks = sampler, ranks

    def sample(
        self, prompts: Sequence[Prompt], *, samples: int, temperature: float, max_new_tokens: int, stream: str
    ) -> list[Rollout]:
        """See `Sampler.sample`."""
        own = self.ranks.share(prompts)
        rollouts = []
        if own:
            rollouts = self.sampler.sample(
                own, samples=samples, temperature=temperature, max_new_tokens=max_new_tokens, stream=stream
            )
        place = {prompt.problem_id: number for number, prompt in enumerate(prompts)}
        return sorted(self._gather(rollouts, prompts, place), key=lambda one: (place[one.problem_id], one.sample))

    def _gather(
        self, rollouts: Iterable[Rollout], prompts: Sequence[Prompt], place: dict[str, int]
    ) -> Iterator[Rollout]:
        """Exchange rollouts as two flat tensors, so that no object is pickled."""
        numbers, logp = [], []
        for one in rollouts:
            numbers += [place[one.problem_id], one.sample, one.finish_reason == "stop", one.logp is not None]
            numbers += [len(one.token_ids), *one.token_ids]
            logp += one.logp or []
        all_numbers = self.ranks.gather(torch.tensor(numbers, dtype=torch.long))
        all_logp = self.ranks.gather(torch.tensor(logp, dtype=torch.float64))
        for of_rank, logp_of_rank in zip(all_numbers, all_logp, strict=True):
            left, logps = iter(of_rank.tolist()), iter(logp_of_rank.tolist())
            for number in left:
                sample, stopped, has_logp, length = (next(left) for _ in range(4))
                yield Rollout(
                    prompts[number].problem_id,
                    sample,
                    [next(left) for _ in range(length)],
                    "stop" if stopped else "length",
                    [next(logps) for _ in range(length)] if has_logp else None,
                )

    def push(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Every rank's engine gets the whole weights: see `Sampler.push`."""
        self.sampler.push(weights)

    def sleep(self) -> None:
        """See `Sampler.sleep`."""
        self.sampler.sleep()

    def close(self) -> None:
        """See `Sampler.close`."""
        self.sampler.close()
