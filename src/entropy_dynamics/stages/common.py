"""Shared by stages: prompts of problems, and grading of rollouts."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from entropy_dynamics.config import StageConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.sampling import Prompt, Rollout
from entropy_dynamics.tasks import Grade, Problem
from entropy_dynamics.tasks.prompts import prompt_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def make_prompts(
    config: StageConfig, tokenizer: "PreTrainedTokenizerBase", problems: Sequence[Problem]
) -> list[Prompt]:
    """The prompts of `problems` for the configured model.

    Raises:
        UserError: one is longer than sampling.max_prompt_tokens: a test set must not shrink.
    """
    limit = config.sampling.max_prompt_tokens
    prompts = [Prompt(one.id, prompt_tokens(tokenizer, one, config.model.prompt_format)) for one in problems]
    for prompt in prompts:
        if len(prompt.token_ids) > limit:
            raise UserError(
                f"the prompt of problem {prompt.problem_id} has {len(prompt.token_ids)} tokens, over the limit "
                f"sampling.max_prompt_tokens = {limit}"
            )
    return prompts


def make_training_prompts(
    config: StageConfig, tokenizer: "PreTrainedTokenizerBase", problems: Sequence[Problem]
) -> list[Prompt]:
    """The prompts of those `problems` whose prompts are no longer than sampling.max_prompt_tokens.

    Raises:
        UserError: none is left.
    """
    limit = config.sampling.max_prompt_tokens
    prompts = [Prompt(one.id, prompt_tokens(tokenizer, one, config.model.prompt_format)) for one in problems]
    fitting = [prompt for prompt in prompts if len(prompt.token_ids) <= limit]
    if prompts and not fitting:
        shortest = min(len(prompt.token_ids) for prompt in prompts)
        raise UserError(
            f"all {len(prompts)} training prompts are over the limit sampling.max_prompt_tokens = {limit}: the "
            f"shortest has {shortest} tokens"
        )
    return fitting


def make_grader(tokenizer: "PreTrainedTokenizerBase", problems: Sequence[Problem]) -> Callable[[Rollout], Grade]:
    """A function that grades a rollout of any of `problems`."""
    by_id = {problem.id: problem for problem in problems}

    def grade(rollout: Rollout) -> Grade:
        response = tokenizer.decode(rollout.token_ids, skip_special_tokens=True)
        return by_id[rollout.problem_id].grade(response, rollout.finish_reason)

    return grade
