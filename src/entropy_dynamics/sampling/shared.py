"""Sampling on several ranks: the prompts are dealt out, and every rank gets all rollouts."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.sampling import Prompt, Rollout, Sampler


class SharedSampler:
    """A Sampler whose prompts are divided over the ranks, each with an engine of its own; all ranks get all rollouts.

    Random numbers belong to (stream, problem, sample), so who samples what changes nothing.
    """

    def __init__(self, sampler: Sampler, ranks: Ranks):
        self.sampler = sampler
        self.ranks = ranks

    def sample(
        self, prompts: Sequence[Prompt], *, samples: int, temperature: float, max_new_tokens: int, stream: str
    ) -> list[Rollout]:
        """See `Sampler.sample`."""
        mine = self.ranks.share(prompts)
        rollouts = []
        if mine:
            rollouts = self.sampler.sample(
                mine, samples=samples, temperature=temperature, max_new_tokens=max_new_tokens, stream=stream
            )
        place = {prompt.problem_id: number for number, prompt in enumerate(prompts)}
        return sorted(self._gather(rollouts, prompts, place), key=lambda one: (place[one.problem_id], one.sample))

    def _gather(
        self, rollouts: Iterable[Rollout], prompts: Sequence[Prompt], place: dict[str, int]
    ) -> Iterable[Rollout]:
        """Send rollouts as two flat tensors: no object is pickled between ranks."""
        mine, logp = [], []
        for one in rollouts:
            mine += [place[one.problem_id], one.sample, one.finish_reason == "stop", one.logp is not None]
            mine += [len(one.token_ids), *one.token_ids]
            logp += one.logp or []
        everyones = self.ranks.gather(torch.tensor(mine, dtype=torch.long))
        logps = self.ranks.gather(torch.tensor(logp, dtype=torch.float64))
        for numbers, scores in zip(everyones, logps, strict=True):
            left, scores = iter(numbers.tolist()), iter(scores.tolist())
            for number in left:
                sample, stopped, has_logp, length = (next(left) for _ in range(4))
                yield Rollout(
                    prompts[number].problem_id,
                    sample,
                    [next(left) for _ in range(length)],
                    "stop" if stopped else "length",
                    [next(scores) for _ in range(length)] if has_logp else None,
                )

    def push(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Every rank's engine gets the whole weights: see `Sampler.push`."""
        self.sampler.push(weights)

    def sleep(self) -> None:
        """This rank's own engine: see `Sampler.sleep`."""
        self.sampler.sleep()

    def close(self) -> None:
        """This rank's own engine: see `Sampler.close`."""
        self.sampler.close()
