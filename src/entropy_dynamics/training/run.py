"""One training run from its inputs to its directory: model and kept problems in; policy, metrics and records out."""

import sys
from pathlib import Path

import pandas as pd

from entropy_dynamics.config import Config, to_yaml
from entropy_dynamics.errors import UserError
from entropy_dynamics.files import write_json, write_parquet, write_text, written_whole
from entropy_dynamics.layout import Layout
from entropy_dynamics.methods import load_method
from entropy_dynamics.models.loading import load_policy, save_policy
from entropy_dynamics.provenance import provenance
from entropy_dynamics.responses import make_grader, make_prompts, make_sampler
from entropy_dynamics.tasks.problems import load_problems
from entropy_dynamics.training.progress import Progress
from entropy_dynamics.training.trainer import Trainer

VALIDATION_SET = "dapo500"  # the paper's validation set


def run_training(config: Config, layout: Layout, method_name: str, seed: int) -> Path:
    """Train one model with one method and one seed; write the run's directory whole or not at all.

    Raises UserError for a mistake in the config and for a loss that is not finite.
    """
    if config.method.name == "base":
        raise UserError("the method base is the untrained model: it is evaluated, never trained")
    _refuse_to_replace(layout.run(config.model.name, method_name, seed), config)
    method = load_method(config.method.name, **config.method.params)
    model_name = config.model.name
    model, tokenizer = load_policy(layout.model(model_name))
    if not layout.pass_rates.is_file():
        raise UserError(f"no file {layout.pass_rates}: measure the pass rates first (entropy-dynamics pass-rates)")
    kept = set(pd.read_parquet(layout.pass_rates).query("kept")["problem_id"])
    problems = [problem for problem in load_problems(layout.problems("train")) if problem.id in kept]
    held_out = load_problems(layout.problems(VALIDATION_SET))[: config.training.validation_problems]
    sampler = make_sampler(config, model, tokenizer)
    grade_held_out = make_grader(tokenizer, held_out)  # two files may use one id for different problems
    validation_prompts = make_prompts(config, tokenizer, held_out)

    def validate() -> float:
        rollouts = sampler.sample(
            validation_prompts,
            samples=config.training.validation_samples,
            temperature=config.evaluation.temperature,
            max_new_tokens=config.sampling.max_new_tokens,
            stream="validation",  # the same random numbers at every step: what changes is the policy
        )
        return sum(grade_held_out(rollout).correct for rollout in rollouts) / len(rollouts)

    trainer = Trainer(
        config.training,
        model=model,
        method=method,
        sampler=sampler,
        grade=make_grader(tokenizer, problems),
        prompts=make_prompts(config, tokenizer, problems),
        temperature=config.sampling.temperature,
        max_new_tokens=config.sampling.max_new_tokens,
        pad_token=tokenizer.pad_token_id,
        seed=seed,
        validate=validate,
    )
    note = method.notes(config.training.updates_per_batch)
    if note is not None:
        print(f"note: {note}", file=sys.stderr)
    rows = []
    with Progress(f"{model_name} {method_name} seed {seed}", config.training.steps) as progress:
        for row in trainer.run():
            rows.append(row)
            progress.step(entropy=row["entropy"], accuracy=row["accuracy"])

    inputs = [layout.model(model_name), layout.pass_rates, layout.problems("train"), layout.problems(VALIDATION_SET)]
    out = layout.run(model_name, method_name, seed)
    with written_whole(out) as directory:
        save_policy(model, tokenizer, directory / "policy")
        write_parquet(directory / "metrics.parquet", pd.DataFrame(rows))
        write_text(directory / "config.yaml", to_yaml(config))
        record = {"model": model_name, "method": method_name, "seed": seed, "note": note, **provenance(inputs)}
        write_json(directory / "provenance.json", record)
    return out


def _refuse_to_replace(run: Path, config: Config) -> None:
    """Snakemake removes a run before it makes it anew; by hand, one of another config must not be lost to a trial."""
    made_with = run / "config.yaml"
    if made_with.is_file() and made_with.read_text(encoding="utf-8") != to_yaml(config):
        raise UserError(f"{run} holds a run of another config; give --results DIR to keep both, or delete it")
