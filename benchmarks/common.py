"""Shared by the benchmarks: their options, the trainer of a scale's base model, and the record that they write."""

import argparse
import importlib.metadata
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from entropy_dynamics.config import load_config
from entropy_dynamics.models.loading import load_policy
from entropy_dynamics.results.files import write_json
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.results.provenance import hardware
from entropy_dynamics.sampling.native import NativeSampler
from entropy_dynamics.stages.common import make_grader, make_prompts
from entropy_dynamics.tasks.files import load_problems
from entropy_dynamics.training.policy import Policy
from entropy_dynamics.training.trainer import Trainer


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


def write_record(out: Path, what: str, **found: Any) -> None:
    """Write and print the results, with the hardware and the versions that they were measured with."""
    versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
    about = {"what": what, "hardware": hardware(), "versions": versions, "threads": torch.get_num_threads()}
    write_json(out, about | found)
    print(out.read_text())


def make_trainer(scale: str, model_name: str, method: str, layout: Layout, overrides: Sequence[str] = ()) -> Trainer:
    """A trainer of the scale's base model, without measurements of the entropy change."""
    config = load_config(scale, model_name, method, [*overrides, "training.entropy_change_every=0"])
    model, tokenizer = load_policy(layout.model(model_name))
    kept = set(pd.read_parquet(layout.pass_rates).query("kept")["problem_id"])
    problems = [problem for problem in load_problems(layout.problems("train")) if problem.id in kept]
    return Trainer(
        config.training,
        policy=Policy(model),
        method=config.method.build(),
        sampler=NativeSampler(
            model,
            end_token=tokenizer.eos_token_id,
            pad_token=tokenizer.pad_token_id,
            batch_size=config.sampling.batch_size,
        ),
        grade=make_grader(tokenizer, problems),
        prompts=make_prompts(config, tokenizer, problems),
        temperature=config.sampling.temperature,
        max_new_tokens=config.sampling.max_new_tokens,
        pad_token=tokenizer.pad_token_id,
        seed=0,
    )
