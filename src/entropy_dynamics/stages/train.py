"""A training run: from the base model and the kept problems to policy, metrics, provenance and evaluation samples."""

from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
from safetensors.torch import save_file
from transformers import PreTrainedTokenizerBase

from entropy_dynamics.config import BASE, TRAIN, RunConfig, settings_of, shorter_runs, to_yaml
from entropy_dynamics.config.versions import versions_of
from entropy_dynamics.distributed.precision import precision_on
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import NotFiniteError, UserError
from entropy_dynamics.models.storage import check_directory, load_model, load_tokenizer, save_description, save_policy
from entropy_dynamics.results.files import read_json, read_parquet, write_json, write_parquet, write_text, written_whole
from entropy_dynamics.results.layout import CONFIG, FACTS, METRICS, PROVENANCE, Layout
from entropy_dynamics.results.provenance import other_hashes, provenance, weight_hashes
from entropy_dynamics.sampling import open_sampler, prompts_hash
from entropy_dynamics.stages.common import check_inputs, check_replaceable, make_grader, make_prompts
from entropy_dynamics.stages.evaluate import evaluate
from entropy_dynamics.stages.gate import pass_gate
from entropy_dynamics.stages.token_samples import token_samples
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
    if config.method.name == BASE:
        raise UserError("the method base is the untrained model: it is evaluated, never trained")
    model_name = config.model.name
    out = layout.run(model_name, method_name, seed)
    check_replaceable(out / CONFIG, "train", config)
    method = config.method.build()
    untrained, filtered = config.untrained(model_name, seed), config.untrained(config.pass_rates.model, seed)
    base, pass_rates = layout.model(model_name, untrained), layout.pass_rates(filtered)
    needed = {layout.problems(TRAIN): "problems", base: f"model --model {model_name} --seed {untrained}"}
    check_inputs(layout, out / METRICS, needed | {pass_rates: f"pass_rates --seed {filtered}"})
    pass_gate(config, layout, filtered, ranks)
    check_directory(base, config)
    tokenizer = load_tokenizer(base)
    rates = read_parquet(pass_rates)
    config.pass_rates.check_keeps_some(rates["rate"])
    kept = set(rates["problem_id"][config.pass_rates.keeps(rates["rate"])])
    problems = [problem for problem in load_problems(layout.problems(TRAIN)) if problem.id in kept]
    validation_set = layout.problems(config.training.validation_set)
    held_out = load_problems(validation_set)[: config.training.validation_problems]
    prompts = make_prompts(config, tokenizer, problems, drop_long=True)
    if len(prompts) < len(problems):
        ranks.note(
            f"{len(problems) - len(prompts)} of {len(problems)} training problems are left out: their prompts are over "
            f"{config.sampling.max_prompt_tokens} tokens"
        )
    for dataset in config.data.evaluation:  # detect errors of the evaluation before training
        make_prompts(config, tokenizer, load_problems(layout.problems(dataset)))
        check_replaceable(layout.samples(model_name, method_name, seed, dataset), "evaluate", config)
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

        def validate() -> dict[str, float]:
            rollouts = sampler.sample(
                validation_prompts,
                samples=config.training.validation_samples,
                temperature=config.evaluation.temperature,
                max_new_tokens=config.sampling.max_new_tokens,
                stream="validation",  # the same random numbers at every step, so that only the policy changes
            )
            correct = np.array(ranks.map(lambda rollout: grade_held_out(rollout).correct, rollouts))
            correct = correct.reshape(len(held_out), -1)  # ordered by problem, then sample
            return dict(zip(VALIDATION, (float(correct.mean()), float(correct.any(axis=1).mean())), strict=True))

        samples = layout.token_samples(model_name, method_name, seed)
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
            validate=validate,
            keep=token_samples(samples, tokenizer, config.training.steps) if ranks.is_main else None,
            ranks=ranks,
        )
        auto = config.training.precision == "auto"  # then the machine decides, and a run does not change its precision
        chosen = {"precision": precision_on(ranks.device, "auto")} if auto else {}

        def checkpoints_of(name: str, steps: int) -> Checkpoints:
            return Checkpoints(
                layout.checkpoints(model_name, name, seed),
                ranks,
                made_from={"config": settings_of("train", config.changed("training", steps=steps)), "seed": seed}
                | {key: record[key] for key in ("inputs", "prompts")}
                | chosen,
                made_by={"method": method_name} | {key: record[key] for key in ("git", "code_sha256", "packages")},
                kept=config.training.checkpoints_kept,
            )

        checkpoints = checkpoints_of(method_name, config.training.steps)
        shorter = shorter_runs(method_name, dict(config.training)).items()
        left = {steps: (layout.lock(model_name, name, seed), checkpoints_of(name, steps)) for name, steps in shorter}
        try:
            rows = trainer.run(f"{model_name} {method_name} seed {seed}", checkpoints, trackers.log, left)
        except NotFiniteError as error:
            failure = layout.failure(model_name, method_name, seed)
            save_failure(failure, trainer, tokenizer, str(error))
            raise NotFiniteError(f"{error}; the policy before it and the batch are in {failure}") from error

        weights = policy.weights_on_main(ranks, sampler.weights_dtype)
        if ranks.is_main:
            with written_whole(out) as directory:
                save_policy(policy.model, tokenizer, directory / "policy", weights)
                facts = read_json(base / FACTS) | {"method": method_name, "seed": seed}
                for key in ("outputs", "config"):  # the base model's; the run's are in its provenance and config.yaml
                    facts.pop(key, None)
                facts["weights_sha256"] = weight_hashes(directory / "policy")
                write_json(directory / "policy" / FACTS, facts)
                write_parquet(directory / METRICS, pd.DataFrame(rows))
                write_text(directory / CONFIG, to_yaml(config))
                more = chosen | ({"earlier_steps_by": checkpoints.earlier} if checkpoints.earlier else {})
                write_json(directory / PROVENANCE, run | record | {"outputs": other_hashes(directory)} | more)
        del weights  # in host memory, which the evaluation may need
        ranks.barrier()
        trainer.push()
        samples = evaluate(config, layout, method_name, seed, ranks=ranks, sampler=sampler)
    if ranks.is_main:  # only now, because Snakemake removes the run if the job fails before
        files = [out / METRICS, out / CONFIG, out / PROVENANCE, out / "policy" / FACTS, *samples]
        if missing := [file for file in files if not file.exists()]:  # Snakemake removes outputs before a job starts
            begun = "another job of this run has begun; checkpoints are kept: run the same command again"
            raise UserError(f"{missing[0]} is gone: {begun}")
        checkpoints.delete()
    return out


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
