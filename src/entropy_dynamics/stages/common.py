"""Shared by stages: prompts of problems, grading of rollouts, tables with their provenance."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from entropy_dynamics.config import StageConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import sha256, write_json, write_parquet
from entropy_dynamics.results.layout import record_of
from entropy_dynamics.sampling import Prompt, Rollout
from entropy_dynamics.tasks import Grade, Problem
from entropy_dynamics.tasks.prompts import prompt_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def make_prompts(
    config: StageConfig, tokenizer: "PreTrainedTokenizerBase", problems: Sequence[Problem], *, drop_long: bool = False
) -> list[Prompt]:
    """The prompts of `problems` for the configured model.

    Args:
        drop_long: leave out prompts over sampling.max_prompt_tokens: a training set may shrink, a test set must not.

    Raises:
        UserError: a prompt is over the limit; with `drop_long`, all are.
    """
    limit = config.sampling.max_prompt_tokens
    prompts = [Prompt(one.id, prompt_tokens(tokenizer, one, config.model.prompt_format)) for one in problems]
    fitting = [prompt for prompt in prompts if len(prompt.token_ids) <= limit]
    if len(fitting) == len(prompts) or (drop_long and fitting):
        return fitting
    longest = max(prompts, key=lambda prompt: len(prompt.token_ids))
    raise UserError(
        f"{len(prompts) - len(fitting)} of {len(prompts)} prompts are over the limit sampling.max_prompt_tokens = "
        f"{limit}: the longest, of problem {longest.problem_id}, has {len(longest.token_ids)} tokens"
    )


def make_grader(tokenizer: "PreTrainedTokenizerBase", problems: Sequence[Problem]) -> Callable[[Rollout], Grade]:
    """A function that grades a rollout of any of `problems`."""
    by_id = {problem.id: problem for problem in problems}

    def grade(rollout: Rollout) -> Grade:
        response = tokenizer.decode(rollout.token_ids, skip_special_tokens=True)
        return by_id[rollout.problem_id].grade(response, rollout.finish_reason)

    return grade


def write_table(path: Path, frame: pd.DataFrame, record: dict[str, Any]) -> None:
    """Write a parquet file and, beside it, its provenance: `record` and the file's hash."""
    write_parquet(path, frame)
    write_json(record_of(path), record | {"outputs": {path.name: sha256(path)}})
