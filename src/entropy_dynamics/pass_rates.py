"""The pass-rate filter (paper, Section 5.1): drop what the base model nearly always or nearly never gets right."""

import pandas as pd

from entropy_dynamics.config import Config
from entropy_dynamics.errors import UserError
from entropy_dynamics.files import write_parquet
from entropy_dynamics.layout import Layout
from entropy_dynamics.models.loading import load_policy
from entropy_dynamics.responses import make_grader, make_prompts, make_sampler
from entropy_dynamics.tasks.problems import load_problems


def measure_pass_rates(config: Config, layout: Layout) -> pd.DataFrame:
    """Sample every training problem, write `pass_rates.parquet`: a row a problem with its rate and why it was dropped.

    Columns: problem_id, correct, samples, rate, kept, reason (empty where kept).

    Raises:
        UserError: if no problem is left.
    """
    problems = load_problems(layout.problems("train"))
    model, tokenizer = load_policy(layout.model(config.pass_rates.model))
    count = config.pass_rates.samples
    rollouts = make_sampler(config, model, tokenizer).sample(
        make_prompts(config, tokenizer, problems),
        samples=count,
        temperature=config.sampling.temperature,
        max_new_tokens=config.sampling.max_new_tokens,
        stream="pass rates",
    )
    grade = make_grader(tokenizer, problems)
    right = pd.Series([grade(rollout).correct for rollout in rollouts])
    correct = right.groupby([rollout.problem_id for rollout in rollouts]).sum()
    frame = filter_by_rate(
        correct.reindex([problem.id for problem in problems]), count, config.pass_rates.low, config.pass_rates.high
    )
    if not frame["kept"].any():
        raise UserError(
            f"the pass-rate filter keeps none of {len(frame)} problems: no rate lies between {config.pass_rates.low} "
            f"and {config.pass_rates.high}; widen pass_rates.low and pass_rates.high or take other problems"
        )
    write_parquet(layout.pass_rates, frame)
    return frame


def filter_by_rate(correct: pd.Series, samples: int, low: float, high: float) -> pd.DataFrame:
    """Keep low < correct / samples < high. `correct` is indexed by problem id."""
    rate = correct / samples
    reason = pd.Series("", index=correct.index)
    reason[rate <= low] = f"rate <= {low:g}"
    reason[rate >= high] = f"rate >= {high:g}"
    return pd.DataFrame(
        {
            "problem_id": correct.index,
            "correct": correct.to_numpy(),
            "samples": samples,
            "rate": rate.to_numpy(),
            "kept": (reason == "").to_numpy(),
            "reason": reason.to_numpy(),
        }
    )
