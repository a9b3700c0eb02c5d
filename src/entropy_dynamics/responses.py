"""From problems to graded responses: what the pass-rate filter, the trainer and the evaluation share."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from entropy_dynamics.config import Config
from entropy_dynamics.sampling import Prompt, Rollout
from entropy_dynamics.sampling.native import NativeSampler
from entropy_dynamics.tasks.grading import Grade, grade
from entropy_dynamics.tasks.problems import Problem
from entropy_dynamics.tasks.prompts import encode_prompt

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def make_prompts(config: Config, tokenizer: "PreTrainedTokenizerBase", problems: Sequence[Problem]) -> list[Prompt]:
    """The prompts of `problems` as the configured model is to see them."""
    return [
        Prompt(
            problem.id,
            encode_prompt(tokenizer, problem.problem, config.model.prompt_format, config.sampling.max_prompt_tokens),
        )
        for problem in problems
    ]


def make_sampler(config: Config, model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> NativeSampler:
    """The native sampler, sampling from `model`."""
    return NativeSampler(
        model,
        end_token=tokenizer.eos_token_id,
        pad_token=tokenizer.pad_token_id,
        batch_size=config.sampling.batch_size,
    )


def make_grader(tokenizer: "PreTrainedTokenizerBase", problems: Sequence[Problem]) -> Callable[[Rollout], Grade]:
    """A function that grades a rollout of any of `problems` against its answer."""
    answers = {problem.id: problem.answer for problem in problems}

    def grade_rollout(rollout: Rollout) -> Grade:
        text = tokenizer.decode(rollout.token_ids, skip_special_tokens=True)
        return grade(text, answers[rollout.problem_id], rollout.finish_reason)

    return grade_rollout
