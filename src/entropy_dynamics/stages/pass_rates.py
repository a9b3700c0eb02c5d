"""The pass-rate filter (paper, Section 5.1): drop problems that the base model nearly always or never solves."""

import pandas as pd

from entropy_dynamics.config import TRAIN, StageConfig, settings_of
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.loading import check_model_directory, load_tokenizer
from entropy_dynamics.results.layout import FACTS, Layout
from entropy_dynamics.results.provenance import provenance
from entropy_dynamics.sampling import prompts_hash
from entropy_dynamics.sampling.engines import open_sampler
from entropy_dynamics.stages.common import check_inputs, check_replaceable, graded_samples, make_prompts, write_table
from entropy_dynamics.stages.shards import Shards
from entropy_dynamics.tasks.files import load_problems


def measure_pass_rates(config: StageConfig, layout: Layout, seed: int = 0, ranks: Ranks | None = None) -> pd.DataFrame:
    """Sample every training problem from an untrained model; write one row per problem, and the file's provenance.

    Columns: problem_id, correct, samples, rate, kept, reason (empty if kept). A problem whose prompt is too long is not
    sampled: it has 0 samples and a rate of NaN. An interrupted call resumes after the last finished shard.

    Raises:
        UserError: no problem is left.
    """
    ranks, model = ranks or Ranks(), config.pass_rates.model
    out, base = layout.pass_rates(seed), layout.model(model, seed)
    check_inputs(layout, out, {layout.problems(TRAIN): "problems", base: f"model --model {model} --seed {seed}"})
    check_replaceable(out, "pass_rates", config)
    problems = load_problems(layout.problems(TRAIN))
    directory = check_model_directory(base, config)
    tokenizer = load_tokenizer(directory)
    prompts = make_prompts(config, tokenizer, problems, drop_long=True)
    count = config.pass_rates.samples
    record = {"seed": seed, "config": settings_of("pass_rates", config), "prompts": prompts_hash(prompts)}
    record |= provenance([base / FACTS, layout.problems(TRAIN)])
    shards = Shards(layout.shards("pass_rates", f"seed{seed}"), ranks, record)
    with open_sampler(config, directory, tokenizer, ranks) as sampler:
        settings = {"samples": count, "temperature": config.sampling.temperature, "stream": f"pass rates/seed{seed}"}
        graded = graded_samples(config, tokenizer, problems, prompts, sampler, shards, **settings)
    correct = graded.groupby("problem_id", sort=False)["correct"].sum()
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
        write_table(out, frame, record)
        shards.delete()
    return frame


def filter_by_rate(
    correct: pd.Series, samples: int, low: float | None, high: float | None, unsampled: str = "not sampled"
) -> pd.DataFrame:
    """Keep low < correct / samples < high.

    Args:
        correct: number of correct samples by problem id; NaN for problems that were not sampled.
        low, high: exclusive bounds; None: no bound.
        unsampled: the reason for dropping a problem that was not sampled.
    """
    rate = correct / samples
    reason = pd.Series("", index=correct.index)
    if low is not None:
        reason[rate <= low] = f"rate <= {low:g}"
    if high is not None:
        reason[rate >= high] = f"rate >= {high:g}"
    reason[rate.isna()] = unsampled
    counts = {"correct": correct.fillna(0).astype(int), "samples": rate.notna() * samples}
    frame = pd.DataFrame({**counts, "rate": rate, "kept": reason == "", "reason": reason})
    return frame.rename_axis("problem_id").reset_index()
