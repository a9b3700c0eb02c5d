"""Evaluation: K samples of every problem, one row a sample; Avg@K and Pass@K follow from these rows alone."""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from entropy_dynamics.config import Config
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.files import write_json, write_parquet
from entropy_dynamics.layout import Layout
from entropy_dynamics.metrics import avg_at_k, pass_at_k
from entropy_dynamics.provenance import provenance
from entropy_dynamics.sampling import Rollout
from entropy_dynamics.tasks.grading import Grade

if TYPE_CHECKING:
    from entropy_dynamics.ranks import Ranks

__all__ = ["avg_at_k", "evaluate", "pass_at_k", "sample_rows"]


def evaluate(
    config: Config, layout: Layout, method: str, seed: int, datasets: Sequence[str], ranks: "Ranks | None" = None
) -> list[Path]:
    """Sample `datasets` from the trained policy (or the base model, method `base`) and write a parquet for each.

    Beside it a record of what it was made from and, of `evaluation.cross_checked` responses, how often Math-Verify
    agrees with our grades.

    Raises UserError for a data set without a number of samples in the config, and for a file that is not there.
    """
    from entropy_dynamics.models.loading import FACTS, check_model_directory, load_tokenizer
    from entropy_dynamics.ranks import Ranks
    from entropy_dynamics.responses import make_grader, make_prompts, open_sampler
    from entropy_dynamics.tasks.cross_check import cross_check
    from entropy_dynamics.tasks.problems import load_problems

    ranks = ranks or Ranks()
    for dataset in datasets:
        if dataset not in config.evaluation.samples:
            raise UserError(f"evaluation.samples has no {dataset!r}{nearest(dataset, config.evaluation.samples)}")
    policy = check_model_directory(layout.policy(config.model.name, method, seed))
    tokenizer = load_tokenizer(policy)
    out = layout.evaluation(config.model.name, method, seed)
    problems = {dataset: load_problems(layout.problems(dataset)) for dataset in datasets}
    with open_sampler(config, policy, tokenizer, ranks) as sampler:
        sampled = {
            dataset: sampler.sample(
                make_prompts(config, tokenizer, problems[dataset]),
                samples=config.evaluation.samples[dataset],
                temperature=config.evaluation.temperature,
                max_new_tokens=config.sampling.max_new_tokens,
                stream=f"evaluation/{dataset}/seed{seed}",
            )
            for dataset in datasets
        }
    for dataset, rollouts in sampled.items() if ranks.is_main else ():
        grade = make_grader(tokenizer, problems[dataset])
        answers = {problem.id: problem.answer for problem in problems[dataset]}
        grades = [grade(rollout) for rollout in rollouts]
        write_parquet(out / f"{dataset}.parquet", sample_rows(rollouts, grades))
        settings = {"samples": config.evaluation.samples[dataset], "temperature": config.evaluation.temperature}
        record = {"evaluation": settings, "seed": seed, **provenance([policy / FACTS, layout.problems(dataset)])}
        if config.evaluation.cross_checked:
            graded = some_graded(rollouts, grades, config.evaluation.cross_checked, seed)
            record["math_verify"] = cross_check(
                (tokenizer.decode(one.token_ids, skip_special_tokens=True), answers[one.problem_id], given.correct)
                for one, given in graded
            )
        write_json(out / f"{dataset}.provenance.json", record)
    return [out / f"{dataset}.parquet" for dataset in datasets]


def some_graded(
    rollouts: Sequence[Rollout], grades: Sequence[Grade], number: int, seed: int
) -> list[tuple[Rollout, Grade]]:
    """`number` of the rollouts with their grades: the first by a hash of seed, problem and sample, in that order."""

    def chance(pair: tuple[Rollout, Grade]) -> bytes:
        return hashlib.sha256(f"{seed}/{pair[0].problem_id}/{pair[0].sample}".encode()).digest()

    return sorted(zip(rollouts, grades, strict=True), key=chance)[:number]


def sample_rows(rollouts: Sequence[Rollout], grades: Sequence[Grade]) -> pd.DataFrame:
    """One row a sample: problem_id, sample, correct, formatted, answer (null if unreadable), finish_reason, tokens."""
    return pd.DataFrame(
        {
            "problem_id": [rollout.problem_id for rollout in rollouts],
            "sample": [rollout.sample for rollout in rollouts],
            "correct": [grade.correct for grade in grades],
            "formatted": [grade.formatted for grade in grades],
            "answer": pd.array([grade.answer for grade in grades], dtype="Int64"),
            "finish_reason": [rollout.finish_reason for rollout in rollouts],
            "tokens": [len(rollout.token_ids) for rollout in rollouts],
        }
    )
