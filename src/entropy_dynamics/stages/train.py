"""One training run from its inputs to its directory: model and kept problems in; policy, metrics and records out."""

import sys
from contextlib import ExitStack
from pathlib import Path

import pandas as pd
from omegaconf import OmegaConf

from entropy_dynamics.config import Config, identity, read_yaml, to_yaml
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import PRECISIONS
from entropy_dynamics.errors import EngineMismatchError, NotFiniteError, UserError
from entropy_dynamics.methods import load_method
from entropy_dynamics.models.loading import (
    FACTS,
    check_model_directory,
    load_model,
    load_tokenizer,
    other_hashes,
    read_facts,
    save_policy,
    weight_hashes,
)
from entropy_dynamics.results.files import read_parquet, write_json, write_parquet, write_text, written_whole
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.results.provenance import provenance
from entropy_dynamics.sampling.responses import (
    make_grader,
    make_prompts,
    make_training_prompts,
    open_sampler,
    pad_token,
)
from entropy_dynamics.tasks.problems import load_problems
from entropy_dynamics.training.checkpoints import Checkpoints
from entropy_dynamics.training.failures import save_failure
from entropy_dynamics.training.loading import load_critic, load_trained_policy
from entropy_dynamics.training.policy import Policy
from entropy_dynamics.training.progress import Progress
from entropy_dynamics.training.trackers import Trackers
from entropy_dynamics.training.trainer import Trainer

VALIDATION_SET = "dapo500"  # the paper's validation set


def run_training(config: Config, layout: Layout, method_name: str, seed: int, ranks: Ranks | None = None) -> Path:
    """Train one model with one method and one seed; write the run's directory whole or not at all.

    A run that was ended goes on from its last checkpoint, if there is one of the same config and inputs.

    Raises UserError for a mistake in the config, for a loss that is not finite, and for an engine that disagrees.
    """
    ranks = ranks or Ranks()
    if config.method.name == "base":
        raise UserError("the method base is the untrained model: it is evaluated, never trained")
    model_name = config.model.name
    out = layout.run(model_name, method_name, seed)
    _refuse_to_replace(out, config)
    method = load_method(config.method.name, **config.method.params)
    base = check_model_directory(layout.model(model_name))
    tokenizer = load_tokenizer(base)
    if not layout.pass_rates.is_file():
        raise UserError(f"no file {layout.pass_rates}: measure the pass rates first (entropy-dynamics pass-rates)")
    kept = set(read_parquet(layout.pass_rates).query("kept")["problem_id"])
    problems = [problem for problem in load_problems(layout.problems("train")) if problem.id in kept]
    held_out = load_problems(layout.problems(VALIDATION_SET))[: config.training.validation_problems]
    grade_held_out = make_grader(tokenizer, held_out)  # two files may use one id for different problems
    prompts = make_training_prompts(config, tokenizer, problems)
    if len(prompts) < len(problems) and ranks.is_main:
        limit = config.sampling.max_prompt_tokens
        print(
            f"note: {len(problems) - len(prompts)} of {len(problems)} training problems are left out: their prompts "
            f"are over {limit} tokens",
            file=sys.stderr,
        )
    validation_prompts = make_prompts(config, tokenizer, held_out)
    inputs = [base / FACTS, layout.pass_rates, layout.problems("train"), layout.problems(VALIDATION_SET)]
    record = provenance(inputs)

    with ExitStack() as stack:
        trackers = stack.enter_context(Trackers(config, layout, method_name, seed, enabled=ranks.is_main))
        # The native sampler runs the policy itself where that is in one piece; any other engine comes first, as vLLM
        # takes its share of a GPU's memory when it starts.
        in_one = config.engine.name == "native" and ranks.mesh is None
        model = load_model(base).to(ranks.device) if in_one else None
        sampler = stack.enter_context(open_sampler(config, base, tokenizer, ranks, model=model, beside_training=True))
        sampler.sleep()  # its memory goes to what the trainer loads; the first push wakes it
        policy = Policy(model) if model is not None else load_trained_policy(base, config.training, ranks)

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
            policy=policy,
            method=method,
            sampler=sampler,
            grade=make_grader(tokenizer, problems),
            prompts=prompts,
            temperature=config.sampling.temperature,
            max_new_tokens=config.sampling.max_new_tokens,
            pad_token=pad_token(tokenizer),
            seed=seed,
            estimator=load_critic(base, policy, config.training, ranks) if config.training.advantage == "gae" else None,
            validate=validate,
            engine_tolerance=config.engine.tolerance,
            ranks=ranks,
        )
        note = method.notes(config.training.updates_per_batch)
        if note is not None and ranks.is_main:
            print(f"note: {note}", file=sys.stderr)

        checkpoints = Checkpoints(
            layout.checkpoints(model_name, method_name, seed),
            ranks,
            made_from={"config": identity(config), "seed": seed, "inputs": record["inputs"]},
            made_by={key: record[key] for key in ("git", "code_sha256", "packages")},
            kept=config.training.checkpoints_kept,
        )
        start, rows = checkpoints.resume(trainer.trained())
        by_others = ", some of them by other code or packages" if checkpoints.earlier else ""
        if ranks.is_main and start:
            print(f"note: goes on from the checkpoint after step {start}{by_others}", file=sys.stderr)
        elif ranks.is_main and checkpoints.others():
            print(f"note: {checkpoints.root} has checkpoints of another config or other inputs", file=sys.stderr)
        progress = stack.enter_context(
            Progress(f"{model_name} {method_name} seed {seed}", config.training.steps, done=start, shown=ranks.is_main)
        )
        every = config.training.checkpoint_every
        try:
            for row in trainer.run(rows[:start]):
                rows.append(row)
                trackers.log(int(row["step"]), row)
                progress.step(entropy=row["entropy"], accuracy=row["accuracy"])
                checkpoints.finish()  # what a step before began to write
                if every and len(rows) % every == 0 and len(rows) < config.training.steps:
                    checkpoints.save(trainer.trained(), len(rows), rows)
        except EngineMismatchError:
            checkpoints.finish()  # all ranks find it together, and here they can still do so
            raise
        except NotFiniteError as error:
            if every and not trainer.changed_since_step:
                checkpoints.save(trainer.trained(), len(rows), rows)
            checkpoints.finish()
            failure = layout.failure(model_name, method_name, seed)
            save_failure(failure, trainer, tokenizer, ranks, len(rows), str(error))
            raise NotFiniteError(f"{error}; the policy before it and the batch are in {failure}") from error

        checkpoints.finish()
        weights = policy.weights(PRECISIONS[config.engine.dtype])
        if ranks.is_main:
            with written_whole(out) as directory:
                save_policy(policy.model, tokenizer, directory / "policy", weights)
                facts = read_facts(base) | {"method": method_name, "seed": seed}
                facts.pop("outputs", None)  # of the base model; the run's own are in its record
                facts["weights_sha256"] = weight_hashes(directory / "policy")
                write_json(directory / "policy" / FACTS, facts)
                write_parquet(directory / "metrics.parquet", pd.DataFrame(rows))
                write_text(directory / "config.yaml", to_yaml(config))
                run = {"model": model_name, "method": method_name, "seed": seed, "note": note, "ranks": ranks.size}
                more = {"outputs": other_hashes(directory)}
                if checkpoints.earlier:
                    more["earlier_steps_by"] = checkpoints.earlier
                write_json(directory / "provenance.json", run | record | more)
        else:
            for _ in weights:  # gathering a weight takes all ranks
                pass
    if ranks.is_main:  # last of all: until here the job may fail, and Snakemake then removes what it wrote
        checkpoints.delete()
    return out


def _refuse_to_replace(run: Path, config: Config) -> None:
    """Snakemake removes a run before it makes it anew; by hand, one of another config must not be lost to a trial."""
    if not (run / "config.yaml").is_file():
        return
    made_with = read_yaml(run / "config.yaml")
    if not isinstance(made_with, dict) or identity(OmegaConf.create(made_with)) != identity(config):
        raise UserError(f"{run} holds a run of another config; give --results DIR to keep both, or delete it")
