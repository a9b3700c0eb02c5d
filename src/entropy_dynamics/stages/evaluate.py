"""Evaluation: K samples of every problem, one row per sample; Avg@K and Pass@K follow from these rows alone."""

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pandas as pd

from entropy_dynamics.config import RunConfig, identity
from entropy_dynamics.distributed.grading import grade_all
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.models.loading import check_model_directory, load_tokenizer
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.results.provenance import provenance
from entropy_dynamics.sampling import Prompt, Rollout, Sampler
from entropy_dynamics.sampling.engines import open_sampler
from entropy_dynamics.sampling.shards import Shards
from entropy_dynamics.stages.common import make_grader, make_prompts, write_table
from entropy_dynamics.tasks import Grade
from entropy_dynamics.tasks.files import load_problems


def evaluate(
    config: RunConfig,
    layout: Layout,
    method: str,
    seed: int,
    datasets: Sequence[str],
    ranks: Ranks | None = None,
    sampler: Sampler | None = None,
) -> list[Path]:
    """Sample `datasets` from the trained policy (or the base model, method `base`) and write a parquet file for each.

    Each has its provenance beside it. An interrupted call resumes with the shards that it had written.

    Args:
        sampler: an engine that holds the policy already, such as that of the training run; by default one is opened.

    Raises:
        UserError: a data set without a number of samples in the config, or a missing file.
    """
    ranks = ranks or Ranks()
    for dataset in datasets:
        if dataset not in config.evaluation.samples:
            raise UserError(f"evaluation.samples has no {dataset!r}{nearest(dataset, config.evaluation.samples)}")
    model = config.model.name
    policy = check_model_directory(layout.policy(model, method, seed))
    tokenizer = load_tokenizer(policy)
    problems = {dataset: load_problems(layout.problems(dataset)) for dataset in datasets}
    prompts = {dataset: make_prompts(config, tokenizer, problems[dataset]) for dataset in datasets}

    def sampled(dataset: str, sampler: Sampler) -> tuple[pd.DataFrame, dict[str, Any], Shards]:
        grade = make_grader(tokenizer, problems[dataset])
        settings = {"samples": config.evaluation.samples[dataset], "temperature": config.evaluation.temperature}

        def rows(shard: Sequence[Prompt]) -> pd.DataFrame:
            rollouts = sampler.sample(
                shard,
                **settings,
                max_new_tokens=config.sampling.max_new_tokens,
                stream=f"evaluation/{dataset}/seed{seed}",
            )
            return sample_rows(rollouts, grade_all(grade, rollouts, ranks))

        record = {"seed": seed, "config": identity(config)}
        record |= provenance([layout.facts(model, method, seed), layout.problems(dataset)])
        root = layout.shards("evaluation", model, method, f"seed{seed}", dataset)
        shards = Shards(root, ranks, record | {"dataset": dataset})
        return shards.rows(prompts[dataset], rows), {"evaluation": settings, **record}, shards

    with nullcontext(sampler) if sampler else open_sampler(config, policy, tokenizer, ranks) as engine:
        tables = [sampled(dataset, engine) for dataset in datasets]
    files = [layout.samples(model, method, seed, dataset) for dataset in datasets]
    if ranks.is_main:
        for file, (frame, record, _) in zip(files, tables, strict=True):
            write_table(file, frame, record)
        for _, _, shards in tables:  # last: one job writes all sets, and starts over if it is interrupted
            shards.delete()
    return files


def sample_rows(rollouts: Sequence[Rollout], grades: Sequence[Grade]) -> pd.DataFrame:
    """One row per sample: problem_id, sample, correct, formatted, answer (null without one), finish_reason, tokens."""
    return pd.DataFrame(
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
