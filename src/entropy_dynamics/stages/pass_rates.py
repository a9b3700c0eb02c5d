"""The rates of the pass-rate filter (paper, Section 5.1), which drops problems that the base model rarely or nearly
always solves. Its bounds (`PassRateConfig.keeps`) are applied when a run begins, so that others need no new samples."""

import pandas as pd

from entropy_dynamics.config import TRAIN, StageConfig, settings_of
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.models.storage import check_directory, load_tokenizer
from entropy_dynamics.results.layout import FACTS, Layout
from entropy_dynamics.results.provenance import provenance
from entropy_dynamics.sampling import open_sampler, prompts_hash
from entropy_dynamics.stages.common import check_inputs, check_replaceable, make_grader, make_prompts, write_table
from entropy_dynamics.stages.gate import measure_gate, pass_gate
from entropy_dynamics.stages.shards import Shards
from entropy_dynamics.tasks.files import load_problems


def measure_pass_rates(config: StageConfig, layout: Layout, seed: int = 0, ranks: Ranks | None = None) -> pd.DataFrame:
    """Sample every training problem from an untrained model; write one row per problem, and the file's provenance.

    Columns: problem_id, correct, samples, rate. A problem whose prompt is too long is not sampled: it has 0 samples and
    a rate of NaN. An interrupted call resumes after the last finished shard. The gate's record is written in any case.

    Raises UserError if the samples are outside the bounds of the gate, or if the filter keeps no problem. The shards
    stay, for another call with other bounds.
    """
    ranks, model = ranks or Ranks(), config.pass_rates.model
    out, base = layout.pass_rates(seed), layout.model(model, seed)
    check_inputs(layout, out, {layout.problems(TRAIN): "problems", base: f"model --model {model} --seed {seed}"})
    check_replaceable(out, "pass_rates", config)
    problems = load_problems(layout.problems(TRAIN))
    directory = check_directory(base, config)
    tokenizer = load_tokenizer(directory)
    prompts = make_prompts(config, tokenizer, problems, drop_long=True)
    count = config.pass_rates.samples
    record = {"seed": seed, "config": settings_of("pass_rates", config), "prompts": prompts_hash(prompts)}
    record |= provenance([base / FACTS, layout.problems(TRAIN)])
    shards = Shards(layout.shards("pass_rates", f"seed{seed}"), ranks, record)
    with open_sampler(config, directory, tokenizer, ranks, with_logp=True) as sampler:
        limits = {"temperature": config.sampling.temperature, "max_new_tokens": config.sampling.max_new_tokens}
        stream, grade = f"pass rates/seed{seed}", make_grader(tokenizer, problems)
        graded = shards.graded_samples(sampler, prompts, grade, samples=count, stream=stream, **limits)
    counts = {"problems": graded["problem_id"].nunique(), "samples": len(graded)}
    gate = {"seed": seed, **counts, "measured": measure_gate(graded)}
    pass_gate(config, layout, seed, ranks, gate)
    correct = graded.groupby("problem_id", sort=False)["correct"].sum()
    correct = correct.reindex([problem.id for problem in problems])
    columns = {"correct": correct.fillna(0).astype(int), "samples": correct.notna() * count, "rate": correct / count}
    frame = pd.DataFrame(columns).rename_axis("problem_id").reset_index()
    config.pass_rates.check_keeps_some(frame["rate"])
    if ranks.is_main:
        write_table(out, frame, record | {"measured": gate["measured"]})
        shards.delete()
    return frame
