"""From problems to graded responses: what the pass-rate filter, the trainer and the evaluation share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from entropy_dynamics.config import Config
from entropy_dynamics.distributed.ranks import Ranks, SharedSampler
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.loading import load_model
from entropy_dynamics.sampling import Prompt, Rollout
from entropy_dynamics.sampling.native import NativeSampler, ReplicaSampler
from entropy_dynamics.tasks.grading import Grade, grade
from entropy_dynamics.tasks.problems import Problem
from entropy_dynamics.tasks.prompts import encode_prompt, prompt_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


def make_prompts(config: Config, tokenizer: "PreTrainedTokenizerBase", problems: Sequence[Problem]) -> list[Prompt]:
    """The prompts of `problems` as the configured model is to see them.

    Raises UserError for one over sampling.max_prompt_tokens: a test set must not shrink.
    """
    return [
        Prompt(
            problem.id,
            encode_prompt(tokenizer, problem.problem, config.model.prompt_format, config.sampling.max_prompt_tokens),
        )
        for problem in problems
    ]


def make_training_prompts(
    config: Config, tokenizer: "PreTrainedTokenizerBase", problems: Sequence[Problem]
) -> list[Prompt]:
    """Like `make_prompts`, without the prompts over sampling.max_prompt_tokens. Raises UserError if none is left."""
    limit = config.sampling.max_prompt_tokens
    prompts = [
        Prompt(problem.id, prompt_tokens(tokenizer, problem.problem, config.model.prompt_format))
        for problem in problems
    ]
    fitting = [prompt for prompt in prompts if len(prompt.token_ids) <= limit]
    if prompts and not fitting:
        shortest = min(len(prompt.token_ids) for prompt in prompts)
        raise UserError(
            f"all {len(prompts)} training prompts are over the limit sampling.max_prompt_tokens = {limit}: the "
            f"shortest has {shortest} tokens"
        )
    return fitting


@contextmanager
def open_sampler(
    config: Config,
    directory: Path,
    tokenizer: "PreTrainedTokenizerBase",
    ranks: Ranks,
    *,
    model: "PreTrainedModel | None" = None,
    beside_training: bool = False,
) -> Iterator[SharedSampler]:
    """The configured engine with the policy in `directory`, until the block ends; each rank has one of its own.

    Args:
        model: what the native sampler is to sample from, instead of `directory`: the policy that training changes.
        beside_training: vLLM then leaves the GPU to training between two samplings.
    """
    if config.engine.name == "vllm":
        from entropy_dynamics.sampling.vllm import VLLMSampler

        sampler = VLLMSampler(
            directory,
            config=config.engine,
            end_token=tokenizer.eos_token_id,
            max_tokens=config.sampling.max_prompt_tokens + config.sampling.max_new_tokens,
            batch_size=config.sampling.batch_size,
            sleeps=beside_training,
        )
    else:
        native = ReplicaSampler if beside_training and model is None else NativeSampler
        sampler = native(
            load_model(directory).to(ranks.device) if model is None else model,
            end_token=tokenizer.eos_token_id,
            pad_token=pad_token(tokenizer),
            batch_size=config.sampling.batch_size,
        )
    try:
        yield SharedSampler(sampler, ranks)
        ranks.barrier()  # an engine takes the process group along: all have to be done with it
    finally:
        sampler.close()


def pad_token(tokenizer: "PreTrainedTokenizerBase") -> int:
    """The id to pad with. Nothing attends to it, so the end token serves where a tokenizer has none."""
    return tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id


def make_grader(tokenizer: "PreTrainedTokenizerBase", problems: Sequence[Problem]) -> Callable[[Rollout], Grade]:
    """A function that grades a rollout of any of `problems` against its answer."""
    answers = {problem.id: problem.answer for problem in problems}

    def grade_rollout(rollout: Rollout) -> Grade:
        text = tokenizer.decode(rollout.token_ids, skip_special_tokens=True)
        return grade(text, answers[rollout.problem_id], rollout.finish_reason)

    return grade_rollout
