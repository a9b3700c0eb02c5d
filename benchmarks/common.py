"""Shared by the benchmarks: their options, trainers, processes and records."""

import argparse
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import torch

from entropy_dynamics.config import RunConfig, load_config
from entropy_dynamics.distributed.precision import precision_on
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.models.storage import load_policy
from entropy_dynamics.results.files import write_json
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.results.provenance import hardware
from entropy_dynamics.sampling.native import NativeSampler
from entropy_dynamics.stages.common import make_grader, make_prompts
from entropy_dynamics.tasks.files import load_problems
from entropy_dynamics.training.modules import load_trained_policy
from entropy_dynamics.training.trainer import Trainer

if TYPE_CHECKING:
    from trl import GRPOConfig


def make_parser(script: str, about: str, scale: bool = False) -> argparse.ArgumentParser:
    """--out and, for benchmarks of a scale, --scale and --results."""
    parser = argparse.ArgumentParser(description=about.split("\n")[0])
    result = Path(script).parent / "results" / Path(script).with_suffix(".json").name
    parser.add_argument("--out", type=Path, default=result)
    if scale:
        parser.add_argument("--scale", default="laptop")
        parser.add_argument("--results", default="results", help="where the scale's base model and problems are")
        parser.add_argument("--model", default="qwen2.5-7b-instruct")
    return parser


def write_record(out: Path, what: str, **results: Any) -> None:
    """Write and print the results, with the hardware and the versions that they were measured with."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    about = {"what": what, "hardware": hardware(), "versions": versions, "threads": torch.get_num_threads()}
    write_json(out, about | results)
    print(out.read_text())


def make_trainer(
    scale: str,
    model_name: str,
    method: str,
    layout: Layout,
    overrides: Sequence[str] = (),
    *,
    seed: int = 0,
    directory: Path | None = None,
) -> Trainer:
    """A trainer of the scale's base model, or of another policy, without measurements of the entropy change."""
    config = load_config(scale, model_name, method, [*overrides, "training.entropy_change_every=0"])
    directory = directory or layout.model(model_name, seed)
    model, tokenizer = load_policy(directory)
    rates = pd.read_parquet(layout.pass_rates(seed))
    kept = set(rates["problem_id"][config.pass_rates.keeps(rates["rate"])])
    problems = [problem for problem in load_problems(layout.problems("train")) if problem.id in kept]
    policy = load_trained_policy(directory, config.training, Ranks(), model)
    sampler = NativeSampler(model, end_tokens=[tokenizer.eos_token_id], batch_size=config.sampling.batch_size)
    sampler.precision = policy.precision
    return Trainer(
        config.training,
        policy=policy,
        method=config.method.build(),
        sampler=sampler,
        grade=make_grader(tokenizer, problems),
        prompts=make_prompts(config, tokenizer, problems),
        temperature=config.sampling.temperature,
        max_new_tokens=config.sampling.max_new_tokens,
        seed=seed,
    )


def trl_settings(config: RunConfig, folder: Path | str, **more: Any) -> "GRPOConfig":
    """Settings for TRL's trainer on a CPU, with which it does what ours does with `config`, and `more`."""
    from trl import GRPOConfig

    training, optimizer, method = config.training, config.training.optimizer, config.method.build()
    return GRPOConfig(
        output_dir=str(folder),
        use_cpu=True,
        bf16=precision_on(torch.device("cpu"), training.precision) == "bfloat16",
        gradient_checkpointing=False,
        use_vllm=False,
        shuffle_dataset=False,
        num_generations=training.group_size,
        num_iterations=1,
        max_completion_length=config.sampling.max_new_tokens,
        temperature=config.sampling.temperature,
        beta=0.0,
        loss_type="dapo",  # the mean over all tokens of the batch
        epsilon=method.clip_low,
        epsilon_high=method.clip_high,
        learning_rate=optimizer.learning_rate,
        lr_scheduler_type="constant",
        adam_beta1=optimizer.betas[0],
        adam_beta2=optimizer.betas[1],
        adam_epsilon=optimizer.eps,
        weight_decay=optimizer.weight_decay,
        max_grad_norm=optimizer.max_grad_norm,
        logging_steps=1,  # the results come from its log
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
        **more,
    )


def in_own_process(script: str, *arguments: object) -> Any:
    """The JSON on the last line that a script prints."""
    command = [sys.executable, script, *map(str, arguments)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output.splitlines()[-1])
