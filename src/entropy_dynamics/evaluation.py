"""Evaluation: K samples of every problem, one row a sample; Avg@K and Pass@K follow from these rows alone."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from entropy_dynamics.config import Config
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.files import write_json, write_parquet
from entropy_dynamics.layout import Layout
from entropy_dynamics.metrics import avg_at_k, pass_at_k
from entropy_dynamics.provenance import provenance
from entropy_dynamics.sampling import Rollout
from entropy_dynamics.tasks.grading import Grade

__all__ = ["avg_at_k", "evaluate", "pass_at_k", "sample_rows"]


def evaluate(config: Config, layout: Layout, method: str, seed: int, datasets: Sequence[str]) -> list[Path]:
    """Sample `datasets` from the trained policy (or the base model, method `base`) and write a parquet for each.

    Raises UserError for a data set without a number of samples in the config, and for a file that is not there.
    """
    from entropy_dynamics.models.loading import load_policy
    from entropy_dynamics.responses import make_grader, make_prompts, make_sampler
    from entropy_dynamics.tasks.problems import load_problems

    for dataset in datasets:
        if dataset not in config.evaluation.samples:
            raise UserError(f"evaluation.samples has no {dataset!r}{nearest(dataset, config.evaluation.samples)}")
    policy = layout.policy(config.model.name, method, seed)
    model, tokenizer = load_policy(policy)
    sampler = make_sampler(config, model, tokenizer)
    out = layout.evaluation(config.model.name, method, seed)
    written = []
    for dataset in datasets:
        problems = load_problems(layout.problems(dataset))
        rollouts = sampler.sample(
            make_prompts(config, tokenizer, problems),
            samples=config.evaluation.samples[dataset],
            temperature=config.evaluation.temperature,
            max_new_tokens=config.sampling.max_new_tokens,
            stream=f"evaluation/{dataset}/seed{seed}",
        )
        grade = make_grader(tokenizer, problems)
        write_parquet(out / f"{dataset}.parquet", sample_rows(rollouts, [grade(rollout) for rollout in rollouts]))
        settings = {"samples": config.evaluation.samples[dataset], "temperature": config.evaluation.temperature}
        record = {"evaluation": settings, "seed": seed, **provenance([policy, layout.problems(dataset)])}
        write_json(out / f"{dataset}.provenance.json", record)
        written.append(out / f"{dataset}.parquet")
    return written


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
