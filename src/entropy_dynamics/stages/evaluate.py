"""Evaluation: K samples of every problem, one row a sample; Avg@K and Pass@K follow from these rows alone."""

import hashlib
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd

from entropy_dynamics.config import Config, identity
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.evaluation import avg_at_k, pass_at_k
from entropy_dynamics.results.files import sha256, write_json, write_parquet
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.results.provenance import provenance
from entropy_dynamics.sampling import Prompt, Rollout, Sampler
from entropy_dynamics.tasks.grading import Grade

if TYPE_CHECKING:
    from entropy_dynamics.distributed.ranks import Ranks

__all__ = ["avg_at_k", "evaluate", "pass_at_k", "sample_rows"]


def evaluate(
    config: Config, layout: Layout, method: str, seed: int, datasets: Sequence[str], ranks: "Ranks | None" = None
) -> list[Path]:
    """Sample `datasets` from the trained policy (or the base model, method `base`) and write a parquet for each.

    Beside it a record of what it was made from and, of `evaluation.cross_checked` responses, how often Math-Verify
    agrees with our grades. What was sampled before an earlier call was ended is not sampled again.

    Raises UserError for a data set without a number of samples in the config, and for a file that is not there.
    """
    from entropy_dynamics.distributed.ranks import Ranks
    from entropy_dynamics.models.loading import FACTS, check_model_directory, load_tokenizer
    from entropy_dynamics.sampling.responses import make_grader, make_prompts, open_sampler
    from entropy_dynamics.sampling.shards import Shards
    from entropy_dynamics.tasks.cross_check import cross_check
    from entropy_dynamics.tasks.problems import load_problems

    ranks = ranks or Ranks()
    for dataset in datasets:
        if dataset not in config.evaluation.samples:
            raise UserError(f"evaluation.samples has no {dataset!r}{nearest(dataset, config.evaluation.samples)}")
    model = config.model.name
    policy = check_model_directory(layout.policy(model, method, seed))
    tokenizer = load_tokenizer(policy)
    out = layout.evaluation(model, method, seed)
    problems = {dataset: load_problems(layout.problems(dataset)) for dataset in datasets}
    prompts = {dataset: make_prompts(config, tokenizer, problems[dataset]) for dataset in datasets}

    def grader_of(dataset: str, sampler: Sampler) -> Callable[[Sequence[Prompt]], pd.DataFrame]:
        samples = config.evaluation.samples[dataset]
        grade = make_grader(tokenizer, problems[dataset])
        ids = [problem.id for problem in problems[dataset]]
        checked = some_samples(ids, samples, config.evaluation.cross_checked, seed)

        def graded(part: Sequence[Prompt]) -> pd.DataFrame:
            rollouts = sampler.sample(
                part,
                samples=samples,
                temperature=config.evaluation.temperature,
                max_new_tokens=config.sampling.max_new_tokens,
                stream=f"evaluation/{dataset}/seed{seed}",
            )
            rows = sample_rows(rollouts, [grade(rollout) for rollout in rollouts])
            rows["response"] = [
                tokenizer.decode(one.token_ids, skip_special_tokens=True)
                if (one.problem_id, one.sample) in checked
                else None
                for one in rollouts
            ]
            return rows

        return graded

    found = {}
    with open_sampler(config, policy, tokenizer, ranks) as sampler:
        for dataset in datasets:
            record = {"seed": seed, "config": identity(config)}
            record |= provenance([policy / FACTS, layout.problems(dataset)])
            root = layout.shards("evaluation", model, method, f"seed{seed}", dataset)
            shards = Shards(root, ranks, record | {"dataset": dataset})
            found[dataset] = (shards.rows(prompts[dataset], grader_of(dataset, sampler)), record, shards)
    for dataset, (rows, record, _) in found.items() if ranks.is_main else ():
        answers = {problem.id: problem.answer for problem in problems[dataset]}
        file = out / f"{dataset}.parquet"
        write_parquet(file, rows.drop(columns="response"))
        settings = {"samples": config.evaluation.samples[dataset], "temperature": config.evaluation.temperature}
        record = {"evaluation": settings, **record, "outputs": {file.name: sha256(file)}}
        if config.evaluation.cross_checked:
            record["math_verify"] = cross_check(
                (row.response, answers[row.problem_id], row.correct)
                for row in rows[rows["response"].notna()].itertuples()
            )
        write_json(out / f"{dataset}.provenance.json", record)
    for _, _, shards in found.values() if ranks.is_main else ():  # one job makes all sets, and all anew if it is ended
        shards.delete()
    return [out / f"{dataset}.parquet" for dataset in datasets]


def some_samples(problem_ids: Sequence[str], samples: int, number: int, seed: int) -> set[tuple[str, int]]:
    """`number` of the (problem, sample) pairs: the first by a hash of seed, problem and sample."""

    def chance(pair: tuple[str, int]) -> bytes:
        return hashlib.sha256(f"{seed}/{pair[0]}/{pair[1]}".encode()).digest()

    return set(sorted(product(problem_ids, range(samples)), key=chance)[:number]) if number else set()


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
