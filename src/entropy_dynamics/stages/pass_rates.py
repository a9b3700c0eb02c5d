"""The pass-rate filter (paper, Section 5.1): drop problems that the base model nearly always or never solves."""

from collections.abc import Sequence

import pandas as pd

from entropy_dynamics.config import TRAIN, StageConfig, identity
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.loading import check_model_directory, load_tokenizer
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.results.provenance import provenance
from entropy_dynamics.sampling import Prompt
from entropy_dynamics.sampling.engines import open_sampler
from entropy_dynamics.sampling.shards import Shards
from entropy_dynamics.stages.common import make_grader, make_prompts, write_table
from entropy_dynamics.tasks.files import load_problems


def measure_pass_rates(config: StageConfig, layout: Layout, ranks: Ranks | None = None) -> pd.DataFrame:
    """Sample every training problem and write `pass_rates.parquet` with its provenance: one row per problem.

    Columns: problem_id, correct, samples, rate, kept, reason (empty if kept). A problem whose prompt is too long is not
    sampled: 0 samples and a rate of NaN. An interrupted call resumes with the shards that it had written.

    Raises:
        UserError: no problem is left.
    """
    problems = load_problems(layout.problems(TRAIN))
    ranks = ranks or Ranks()
    directory = check_model_directory(layout.model(config.pass_rates.model))
    tokenizer = load_tokenizer(directory)
    prompts = make_prompts(config, tokenizer, problems, drop_long=True)
    count = config.pass_rates.samples
    grade = make_grader(tokenizer, problems)
    record = {"config": identity(config), **provenance([layout.facts(config.pass_rates.model), layout.problems(TRAIN)])}
    shards = Shards(layout.shards("pass_rates"), ranks, record)
    with open_sampler(config, directory, tokenizer, ranks) as sampler:

        def counted(shard: Sequence[Prompt]) -> pd.DataFrame:
            rollouts = sampler.sample(
                shard,
                samples=count,
                temperature=config.sampling.temperature,
                max_new_tokens=config.sampling.max_new_tokens,
                stream="pass rates",
            )
            rows = pd.DataFrame(
                {
                    "problem_id": [rollout.problem_id for rollout in rollouts],
                    "correct": ranks.map(lambda rollout: grade(rollout).correct, rollouts),
                }
            )
            return rows.groupby("problem_id", sort=False)["correct"].sum().reset_index()

        correct = shards.rows(prompts, counted).set_index("problem_id")["correct"]
    low, high = config.pass_rates.low, config.pass_rates.high
    unsampled = f"prompt over {config.sampling.max_prompt_tokens} tokens"
    frame = filter_by_rate(correct.reindex([problem.id for problem in problems]), count, low, high, unsampled)
    if not frame["kept"].any():
        raise UserError(
            f"the pass-rate filter keeps none of {len(frame)} problems: no rate lies between "
            f"{0 if low is None else low} and {1 if high is None else high}; widen pass_rates.low and pass_rates.high "
            "or use other problems"
        )
    if ranks.is_main:
        write_table(layout.pass_rates, frame, record)
        shards.delete()
    return frame


def filter_by_rate(
    correct: pd.Series, samples: int, low: float | None, high: float | None, unsampled: str = "not sampled"
) -> pd.DataFrame:
    """Keep low < correct / samples < high.

    Args:
        correct: number of correct samples by problem id; NaN if it was not sampled.
        low, high: None is no bound.
        unsampled: the reason to drop a problem that was not sampled.
    """
    rate = correct / samples
    reason = pd.Series("", index=correct.index)
    if low is not None:
        reason[rate <= low] = f"rate <= {low:g}"
    if high is not None:
        reason[rate >= high] = f"rate >= {high:g}"
    reason[rate.isna()] = unsampled
    columns = {
        "correct": correct.fillna(0).astype(int),
        "samples": rate.notna() * samples,
        "rate": rate,
        "kept": reason == "",
        "reason": reason,
    }
    return pd.DataFrame(columns).rename_axis("problem_id").reset_index()
