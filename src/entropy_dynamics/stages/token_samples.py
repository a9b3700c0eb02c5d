"""Token samples that a training run keeps from three of its steps for inspection: `results.token_samples`."""

import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from entropy_dynamics.core.shapes import PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.results.token_samples import sampled_steps, write_token_samples
from entropy_dynamics.sampling import Rollout
from entropy_dynamics.tasks import Grade
from entropy_dynamics.training.batch import RolloutBatch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def token_samples(folder: Path, tokenizer: "PreTrainedTokenizerBase", steps: int) -> Callable[..., None]:
    """The `keep` of a `Trainer`: writes the samples of the run's `sampled_steps`. To be used on one rank only."""
    text: Callable[[int], str] = cache(lambda token: tokenizer.decode([token]))

    def keep(
        step: int,
        rollouts: Sequence[Rollout],
        grades: Sequence[Grade],
        batch: RolloutBatch,
        stats: TokenStats,
        advantages: PerToken,
        weights: PerToken,
    ) -> None:
        if step not in sampled_steps(steps):
            return
        if step == 0:  # remove samples of an earlier config
            shutil.rmtree(folder, ignore_errors=True)
        ids = batch.sequences.new_zeros(batch.mask.shape)
        ids[batch.mask] = ids.new_tensor([token for rollout in rollouts for token in rollout.token_ids])

        def response(row: int) -> dict[str, object]:
            prompt = batch.sequences[row, : batch.prompt_lengths[row]]
            return {
                "problem_id": rollouts[row].problem_id,
                "prompt": tokenizer.decode(prompt, skip_special_tokens=True),
                "sample": rollouts[row].sample,
                "correct": grades[row].correct,
            }

        path = folder / f"step{step}.parquet"
        write_token_samples(path, batch.groups, batch.mask, ids, stats, advantages, weights, text, response)

    return keep
