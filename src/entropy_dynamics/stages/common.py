"""Helpers shared by stages: preliminary checks, prompts, grades, and tables with their provenance."""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from entropy_dynamics.config import Config, StageConfig, settings_of
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import sha256, write_json, write_parquet
from entropy_dynamics.results.layout import Layout, record_of
from entropy_dynamics.sampling import Prompt, Rollout
from entropy_dynamics.stages.inputs import made_with
from entropy_dynamics.tasks import Grade, Problem
from entropy_dynamics.tasks.prompts import prompt_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

GRADES_KEPT = 1024  # cached grades: the samples of a problem are often identical, and are graded consecutively


def check_inputs(layout: Layout, target: Path, inputs: Mapping[Path, str]) -> None:
    """Raise UserError, which says how to make it, if one of `inputs` (path -> command that makes it) is missing.

    `target` is the stage's own output, which Snakemake can make together with all of its inputs.
    """
    snakemake = f"; all that is missing: snakemake --config scale={layout.root.name} -- {target}"
    everything = snakemake * (layout.root.parent == Path("results"))
    for path, command in inputs.items():
        if not path.exists():
            raise UserError(f"no {path}; make it with: {layout.command(command)}{everything}")


def check_replaceable(result: Path, stage: str, config: Config | Mapping[str, Any]) -> None:
    """Raise UserError if `result` exists and was made with other settings. (Snakemake removes outputs before a job.)"""
    if not result.is_file() or (was := made_with(result)) == settings_of(stage, config):
        return
    what = f"has no config in {record_of(result).name}" if was is None else "was made with another config"
    raise UserError(f"{result} {what}; give another folder to keep both, or delete it")


def make_prompts(
    config: StageConfig, tokenizer: "PreTrainedTokenizerBase", problems: Sequence[Problem], *, drop_long: bool = False
) -> list[Prompt]:
    """The prompts of `problems` for the configured model.

    With `drop_long`, those over sampling.max_prompt_tokens are left out; a training set may shrink, a test set must
    not. Raises UserError if a prompt is over the limit or, with `drop_long`, if all are.
    """
    limit = config.sampling.max_prompt_tokens
    settings = config.model.prompt_format, config.model.chat_template_kwargs
    prompts = [Prompt(each.id, prompt_tokens(tokenizer, each, *settings)) for each in problems]
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

    @lru_cache(maxsize=GRADES_KEPT)
    def grade(problem_id: str, token_ids: tuple[int, ...], finish_reason: str) -> Grade:
        response = tokenizer.decode(token_ids, skip_special_tokens=True)
        return by_id[problem_id].grade(response, finish_reason)

    return lambda rollout: grade(rollout.problem_id, tuple(rollout.token_ids), rollout.finish_reason)


def sample_rows(rollouts: Sequence[Rollout], grades: Sequence[Grade]) -> pd.DataFrame:
    """One row per sample: problem_id, sample, correct, formatted, answer (null without one), finish_reason, tokens, and
    logp if the engine returns it: the log p of the whole response, nats."""
    frame = pd.DataFrame(
        {
            "problem_id": [rollout.problem_id for rollout in rollouts],
            "sample": [rollout.sample for rollout in rollouts],
            "correct": [grade.correct for grade in grades],
            "formatted": [grade.formatted for grade in grades],
            "answer": pd.array([grade.answer for grade in grades], dtype="str"),
            "finish_reason": [rollout.finish_reason for rollout in rollouts],
            "tokens": [len(rollout.token_ids) for rollout in rollouts],
        }
    )
    if all(rollout.logp is not None for rollout in rollouts):
        frame["logp"] = [sum(rollout.logp) for rollout in rollouts]
    return frame


def write_table(path: Path, frame: pd.DataFrame, record: dict[str, Any]) -> None:
    """Write a parquet file and, next to it, its provenance: `record` and the file's hash."""
    write_parquet(path, frame)
    write_json(record_of(path), record | {"outputs": {path.name: sha256(path)}})
