"""A training run: from the base model and the kept problems to policy, metrics, provenance and evaluation samples."""

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from entropy_dynamics.config import BASE, TRAIN, RunConfig, settings_of, shorter_runs, to_yaml, versions_of
from entropy_dynamics.distributed.precision import precision_on
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import NotFiniteError, UserError
from entropy_dynamics.models.storage import check_directory, load_model, load_tokenizer, save_description, save_policy
from entropy_dynamics.results.files import read_json, read_parquet, write_json, write_parquet, write_text, written_whole
from entropy_dynamics.results.layout import CONFIG, FACTS, METRICS, PROVENANCE, Layout
from entropy_dynamics.results.provenance import other_hashes, provenance, weight_hashes
from entropy_dynamics.sampling import Prompt, Rollout, Sampler, open_sampler, prompts_hash
from entropy_dynamics.stages.common import check_inputs, check_replaceable, make_grader, make_prompts
from entropy_dynamics.stages.evaluate import evaluate
from entropy_dynamics.stages.gate import pass_gate
from entropy_dynamics.stages.token_samples import token_samples
from entropy_dynamics.tasks import Grade, Problem
from entropy_dynamics.tasks.files import load_problems
from entropy_dynamics.training.checkpoints import Checkpoints
from entropy_dynamics.training.modules import load_critic, load_trained_policy
from entropy_dynamics.training.trackers import Trackers
from entropy_dynamics.training.trainer import VALIDATION, Trainer


def train(config: RunConfig, layout: Layout, method_name: str, seed: int, ranks: Ranks | None = None) -> Path:
    """Train a model with a method and a seed, and evaluate the policy with the engine of the training run.

    The run's directory is written atomically. An interrupted run resumes from its last checkpoint with the same config
    and inputs, if there is one. Raises Unfinished if the time limit is near or SIGURG was received, and UserError for a
    mistake, a non-finite loss, an engine that disagrees with the trainer, or files that another job has removed.
    """
    ranks = ranks or Ranks()
    model_name = config.model.name
    out = layout.run(model_name, method_name, seed)
    base, pass_rates = _inputs(config, layout, out, seed, ranks)
    method = config.method.build()
    tokenizer = load_tokenizer(base)
    problems = _kept_problems(config, layout.problems(TRAIN), pass_rates)
    validation_set = layout.problems(config.training.validation_set)
    held_out = load_problems(validation_set)[: config.training.validation_problems]
    prompts = make_prompts(config, tokenizer, problems, drop_long=True)
    if left_out := len(problems) - len(prompts):
        limit = f"their prompts are over {config.sampling.max_prompt_tokens} tokens"
        ranks.note(f"{left_out} of {len(problems)} training problems are left out: {limit}")
    for dataset in config.data.evaluation:  # detect errors of the evaluation before training
        make_prompts(config, tokenizer, load_problems(layout.problems(dataset)))
        check_replaceable(layout.evaluation_file(model_name, method_name, seed, dataset), "evaluate", config)
    validation_prompts = make_prompts(config, tokenizer, held_out)
    grade_held_out = make_grader(tokenizer, held_out)  # separate, as two files may use an id for different problems
    record = provenance([base / FACTS, pass_rates, layout.problems(TRAIN), validation_set])
    record["prompts"] = [prompts_hash(prompts), prompts_hash(validation_prompts)]
    if note := method.on_policy_note if config.training.on_policy else None:
        ranks.note(note)
    run = {"model": model_name, "method": method_name, "seed": seed, "note": note, "ranks": ranks.size}
    run["versions"] = versions_of(config)

    with ExitStack() as stack:
        trackers = stack.enter_context(Trackers(config, layout, method_name, seed, enabled=ranks.is_main))
        # The native engine samples from the policy itself if that is not sharded. Any other engine is opened first, as
        # vLLM reserves its share of a GPU's memory at startup.
        shared = config.engine.in_trainer and ranks.mesh is None
        model = load_model(base).to(ranks.device) if shared else None
        engine = {"model": model, "with_training": True, "with_logp": config.training.off_policy}
        sampler = stack.enter_context(open_sampler(config, base, tokenizer, ranks, **engine))
        sampler.sleep()  # frees memory for the trainer; the first push wakes it
        policy = load_trained_policy(base, config.training, ranks, model)
        with TemporaryDirectory() as trial:  # what cannot be written fails now, not after training
            save_description(policy.model, tokenizer, Path(trial))
            write_text(Path(trial, CONFIG), to_yaml(config))
            write_json(Path(trial, PROVENANCE), run | record)

        samples = layout.step_samples(model_name, method_name, seed)
        trainer = Trainer(
            config.training,
            policy=policy,
            method=method,
            sampler=sampler,
            grade=make_grader(tokenizer, problems),
            prompts=prompts,
            temperature=config.sampling.temperature,
            max_new_tokens=config.sampling.max_new_tokens,
            seed=seed,
            critic=load_critic(base, policy, config.training, ranks) if config.training.advantage == "gae" else None,
            validate=_validation(config, ranks, sampler, validation_prompts, grade_held_out),
            keep=token_samples(samples, tokenizer, config.training.steps) if ranks.is_main else None,
            ranks=ranks,
        )
        auto = config.training.precision == "auto"  # then the machine decides, and a run does not change its precision
        chosen = {"precision": precision_on(ranks.device, "auto")} if auto else {}

        def checkpoints_of(name: str, steps: int) -> Checkpoints:
            folder = layout.checkpoints(model_name, name, seed)
            made_from = {"config": settings_of("train", config.changed("training", steps=steps)), "seed": seed}
            made_from |= {key: record[key] for key in ("inputs", "prompts")} | chosen
            made_by = {"method": method_name} | {key: record[key] for key in ("git", "code_sha256", "packages")}
            kept = config.training.checkpoints_kept
            return Checkpoints(folder, ranks, made_from=made_from, made_by=made_by, kept=kept)

        checkpoints = checkpoints_of(method_name, config.training.steps)
        shorter = shorter_runs(method_name, dict(config.training)).items()
        left = {steps: (layout.lock(model_name, name, seed), checkpoints_of(name, steps)) for name, steps in shorter}
        facts = read_json(base / FACTS)
        if ranks.is_main and facts.get("toy"):  # so that nobody takes a toy for the model whose name it has
            size = facts["parameters"] / 1e6
            print(f"{model_name} runs as a toy model of {size:.2f} M parameters", file=sys.stderr)
        try:
            rows = trainer.run(f"{model_name} {method_name} seed {seed}", checkpoints, trackers.log, left)
        except NotFiniteError as error:
            failure = layout.failure(model_name, method_name, seed)
            save_failure(failure, trainer, tokenizer, str(error))
            raise NotFiniteError(f"{error}; the policy before it and the batch are in {failure}") from error

        more = chosen | ({"earlier_steps_by": checkpoints.earlier} if checkpoints.earlier else {})
        weights = policy.weights_on_main(ranks, sampler.weights_dtype)
        if ranks.is_main:
            with written_whole(out) as directory:
                save_policy(policy.model, tokenizer, directory / "policy", weights)
                _write_records(directory, config, base, pd.DataFrame(rows), run | record, more)
        del weights  # in host memory, which the evaluation may need
        ranks.barrier()
        trainer.push()
        samples = evaluate(config, layout, method_name, seed, ranks=ranks, sampler=sampler)
    if ranks.is_main:  # only now, because Snakemake removes the run if the job fails before
        made = [out / METRICS, out / CONFIG, out / PROVENANCE, out / "policy" / FACTS, *samples]
        if missing := [file for file in made if not file.exists()]:
            remedy = "checkpoints are kept: run the same command again"
            raise UserError(f"{missing[0]} is gone: another job of this run has begun; {remedy}")
        checkpoints.delete()
    return out


def _inputs(config: RunConfig, layout: Layout, out: Path, seed: int, ranks: Ranks) -> tuple[Path, Path]:
    """The untrained model and the pass rates from which the run `out` starts, checked."""
    if config.method.name == BASE:
        raise UserError("the method base is the untrained model: it is evaluated, never trained")
    check_replaceable(out / CONFIG, "train", config)
    name, filtering = config.model.name, config.pass_rates.model
    untrained, filtered = config.untrained(name, seed), config.untrained(filtering, seed)
    base, pass_rates = layout.model(name, untrained), layout.pass_rates(filtered)
    needed = {layout.problems(TRAIN): "problems", base: f"model --model {name} --seed {untrained}"}
    check_inputs(layout, out / METRICS, needed | {pass_rates: f"pass_rates --seed {filtered}"})
    pass_gate(config, layout, filtered, ranks)
    return check_directory(base, config), pass_rates


def _kept_problems(config: RunConfig, file: Path, pass_rates: Path) -> list[Problem]:
    """The training problems that the filter keeps."""
    rates = read_parquet(pass_rates)
    config.pass_rates.check_keeps_some(rates["rate"])
    kept = set(rates["problem_id"][config.pass_rates.keeps(rates["rate"])])
    return [problem for problem in load_problems(file) if problem.id in kept]


def _validation(
    config: RunConfig, ranks: Ranks, sampler: Sampler, prompts: Sequence[Prompt], grade: Callable[[Rollout], Grade]
) -> Callable[[], dict[str, float]]:
    """The `validate` of a `Trainer`."""
    limits = {"temperature": config.evaluation.temperature, "max_new_tokens": config.sampling.max_new_tokens}

    def validate() -> dict[str, float]:
        # the same random numbers at every step, so that only the policy changes
        samples = config.training.validation_samples
        rollouts = sampler.sample(prompts, samples=samples, stream="validation", **limits)
        correct = np.array(ranks.map(lambda rollout: grade(rollout).correct, rollouts))
        correct = correct.reshape(len(prompts), -1)  # ordered by problem, then sample
        scores = float(correct.mean()), float(correct.any(axis=1).mean())
        return dict(zip(VALIDATION, scores, strict=True))

    return validate


def _write_records(
    directory: Path, config: RunConfig, base: Path, metrics: pd.DataFrame, run: dict[str, Any], more: dict[str, Any]
) -> None:
    """Write everything of a run but its policy; `run` is the record of what it was made from."""
    facts = read_json(base / FACTS) | {"method": run["method"], "seed": run["seed"]}
    for key in ("outputs", "config"):  # the base model's; the run's are in its provenance and config.yaml
        facts.pop(key, None)
    facts["weights_sha256"] = weight_hashes(directory / "policy")
    write_json(directory / "policy" / FACTS, facts)
    write_parquet(directory / METRICS, metrics)
    write_text(directory / CONFIG, to_yaml(config))
    write_json(directory / PROVENANCE, run | {"outputs": other_hashes(directory)} | more)


def save_failure(directory: Path, trainer: Trainer, tokenizer: PreTrainedTokenizerBase, message: str) -> None:
    """Write the last finite `policy` (readable by `load_policy`), and the batch that broke it, atomically.

    `batch.safetensors` holds the fields of RolloutBatch, and `rewards`. A collective: all ranks must call it.
    """
    weights = trainer.policy.weights_on_main(trainer.ranks)
    if not trainer.ranks.is_main:
        return
    step, batch, rewards = trainer.in_progress
    tensors = {**vars(batch), "rewards": rewards}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in tensors.items() if tensor is not None}
    with written_whole(directory) as temporary:
        save_policy(trainer.policy.model, tokenizer, temporary / "policy", weights)
        save_file(tensors, temporary / "batch.safetensors")
        write_json(temporary / "failure.json", {"message": message, "steps_done": step})
