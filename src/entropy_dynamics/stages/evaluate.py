"""Evaluation: K samples of every problem, one row per sample; Avg@K and Pass@K follow from these rows alone."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd

from entropy_dynamics.config import RunConfig, identity
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.models.loading import FACTS, check_model_directory, load_tokenizer
from entropy_dynamics.results.files import sha256, write_json, write_parquet
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.results.provenance import provenance
from entropy_dynamics.sampling import Prompt, Rollout, Sampler
from entropy_dynamics.sampling.engines import open_sampler
from entropy_dynamics.sampling.shards import Shards
from entropy_dynamics.stages.common import make_grader, make_prompts
from entropy_dynamics.tasks import Grade
from entropy_dynamics.tasks.files import load_problems


def evaluate(
    config: RunConfig, layout: Layout, method: str, seed: int, datasets: Sequence[str], ranks: Ranks | None = None
) -> list[Path]:
    """Sample `datasets` from the trained policy (or the base model, method `base`) and write a parquet file for each.

    Beside each is its provenance. What an interrupted call had sampled is not sampled again.

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

    def sample_and_grade(dataset: str, sampler: Sampler) -> Callable[[Sequence[Prompt]], pd.DataFrame]:
        grade = make_grader(tokenizer, problems[dataset])

        def rows(part: Sequence[Prompt]) -> pd.DataFrame:
            rollouts = sampler.sample(
                part,
                samples=config.evaluation.samples[dataset],
                temperature=config.evaluation.temperature,
                max_new_tokens=config.sampling.max_new_tokens,
                stream=f"evaluation/{dataset}/seed{seed}",
            )
            return sample_rows(rollouts, [grade(rollout) for rollout in rollouts])

        return rows

    sampled = {}
    with open_sampler(config, policy, tokenizer, ranks) as sampler:
        for dataset in datasets:
            record = {"seed": seed, "config": identity(config)}
            record |= provenance([policy / FACTS, layout.problems(dataset)])
            root = layout.shards("evaluation", model, method, f"seed{seed}", dataset)
            shards = Shards(root, ranks, record | {"dataset": dataset})
            sampled[dataset] = (shards.rows(prompts[dataset], sample_and_grade(dataset, sampler)), record, shards)
    files = [layout.evaluation(model, method, seed) / f"{dataset}.parquet" for dataset in datasets]
    if ranks.is_main:
        for file, (dataset, (rows, record, _)) in zip(files, sampled.items(), strict=True):
            write_parquet(file, rows)
            settings = {"samples": config.evaluation.samples[dataset], "temperature": config.evaluation.temperature}
            record = {"evaluation": settings, **record, "outputs": {file.name: sha256(file)}}
            write_json(file.with_suffix(".provenance.json"), record)
        for _, _, shards in sampled.values():  # last: one job writes all sets, and starts over if it is interrupted
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
