"""Evaluation: K samples of every problem, one row per sample. Avg@K and Pass@K are computed from these rows alone."""

from collections.abc import Sequence
from contextlib import nullcontext
from itertools import product
from pathlib import Path

from entropy_dynamics.config import BASE, RunConfig, settings_of
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.models.storage import check_directory, load_tokenizer
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.results.provenance import provenance
from entropy_dynamics.sampling import Sampler, open_sampler, prompts_hash
from entropy_dynamics.stages.common import check_inputs, check_replaceable, make_grader, make_prompts, write_table
from entropy_dynamics.stages.shards import Shards
from entropy_dynamics.tasks.files import load_problems


def evaluate(
    config: RunConfig,
    layout: Layout,
    method: str,
    seed: int,
    datasets: Sequence[str] | None = None,
    ranks: Ranks | None = None,
    sampler: Sampler | None = None,
    temperatures: Sequence[float] | None = None,
) -> list[Path]:
    """Sample `datasets` from the trained policy (or the base model, method `base`) and write a parquet file for each.

    Each file has its provenance next to it. An interrupted call resumes after the last finished shard. By default, all
    evaluation sets of the config are sampled, at its temperature. With `temperatures`, the files of each are in a
    separate folder, but for the config's. `sampler` is an engine that already holds the policy, as the training run's
    (default: a new one).

    Raises UserError if the config has no number of samples for a data set, or if a file is missing.
    """
    ranks, datasets = ranks or Ranks(), list(dict.fromkeys(datasets or config.data.evaluation))
    if unknown := [dataset for dataset in datasets if dataset not in config.evaluation.samples]:
        raise UserError(f"evaluation.samples has no {unknown[0]!r}{nearest(unknown[0], config.evaluation.samples)}")
    model = config.model.name
    if method == BASE and seed != config.untrained(model, seed):
        raise UserError(f"--seed {seed}: {model} is pretrained, so it exists once, with seed 0")
    run = f"--model {model} --seed {seed}" if method == BASE else f"--model {model} --method {method} --seed {seed}"
    sets = product(map(config.evaluation.folder_of, temperatures or [None]), datasets)
    files = {(at, dataset): layout.evaluation_file(model, method, seed, dataset, at) for at, dataset in sets}
    needed = {layout.policy(model, method, seed): f"{'model' if method == BASE else 'train'} {run}"}
    needed |= {layout.problems(dataset): "problems" for dataset in datasets}
    # Samples at the temperature of tables are a target of Snakemake, whatever temperatures the config lists.
    check_inputs(layout, layout.evaluation_file(model, method, seed, datasets[0]), needed)
    configs = {at: config if at is None else config.changed("evaluation", temperature=at) for at, _ in files}
    for (at, _), file in files.items():
        check_replaceable(file, "evaluate", configs[at])
    policy = check_directory(layout.policy(model, method, seed), config)
    tokenizer = load_tokenizer(policy)
    problems = {dataset: load_problems(layout.problems(dataset)) for dataset in datasets}
    prompts = {dataset: make_prompts(config, tokenizer, problems[dataset]) for dataset in datasets}

    tables = []
    with nullcontext(sampler) if sampler else open_sampler(config, policy, tokenizer, ranks) as engine:
        for (at, dataset), file in files.items():
            evaluation = configs[at].evaluation
            samples = evaluation.samples[dataset] if evaluation.temperature else 1
            settings = {"samples": samples, "temperature": evaluation.temperature}
            record = {"seed": seed, "config": settings_of("evaluate", configs[at])}
            record["prompts"] = prompts_hash(prompts[dataset])
            record |= provenance([layout.facts(model, method, seed), layout.problems(dataset)])
            names = [model, method, f"seed{seed}", *([] if at is None else [f"T{at:g}"]), dataset]
            folder = layout.shards("evaluation", *names)
            shards = Shards(folder, ranks, record | {"dataset": dataset})
            limit, stream = config.sampling.max_new_tokens, f"evaluation/{dataset}/seed{seed}"
            more = {"max_new_tokens": limit, "stream": stream}
            grade = make_grader(tokenizer, problems[dataset])
            frame = shards.graded_samples(engine, prompts[dataset], grade, **settings, **more)
            tables.append((file, frame, {"evaluation": settings, **record}, shards))
    if ranks.is_main:
        for file, frame, record, _ in tables:
            write_table(file, frame, record)
    for *_, shards in tables:  # only now: a job writes all sets, and starts over if it is interrupted
        shards.delete()
    return list(files.values())
