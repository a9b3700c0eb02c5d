"""One training step of a scale by phase: seconds, tokens per second and peak memory, Clip_B and Clip_V against GRPO.

Once with batches that keep the graphs of a single forward pass, and once with batches that do not (as at the paper's
scale), where Clip_B and Clip_V need a scoring pass and GRPO does not. The methods take turns step by step, each from
its own copy of the base model, so that a drift of the machine's speed affects all alike. Medians over the steps after
the first.
"""

import argparse
import resource
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

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

PHASES = ("sample", "grade", "score", "update")
METHODS = ("grpo", "clip_b", "clip_v")
CASES = {"single forward": [], "scoring pass": ["training.single_forward_tokens=0"]}  # with these overrides
RESULT = Path(__file__).parent / "results" / "training_step.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scale", default="laptop")
    parser.add_argument("--results", default="results", help="where the scale's base model and problems are")
    parser.add_argument("--model", default="qwen2.5-7b-instruct")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()

    layout = Layout.of(options.scale, options.results)
    torch.set_num_threads(load_config(options.scale).threads)
    found = {case: measured(options, layout, overrides) for case, overrides in CASES.items()}
    write_json(
        options.out,
        {
            "what": f"a training step, scale {options.scale}, toy model of {options.model}, {options.steps} steps each",
            "hardware": hardware(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            **found,
        },
    )
    print(options.out.read_text(), file=sys.stdout)


def measured(options: argparse.Namespace, layout: Layout, overrides: Sequence[str]) -> dict:
    trainers = {name: make_trainer(options.scale, options.model, name, layout, overrides) for name in METHODS}
    rows = {name: [] for name in trainers}
    for step in range(options.steps + 1):
        for name, trainer in trainers.items():
            rows[name].append(trainer.step(step))
    return summary({name: found[1:] for name, found in rows.items()})


def make_trainer(
    scale: str, model_name: str, method_name: str, layout: Layout, overrides: Sequence[str] = ()
) -> Trainer:
    # What is measured is the step, not its measurements.
    config = load_config(scale, model_name, method_name, [*overrides, "training.entropy_change_every=0"])
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


def summary(rows: dict[str, list[dict[str, float]]]) -> dict:
    def median(method: str, value) -> float:
        return round(statistics.median(value(row) for row in rows[method]), 4)

    def seconds(row: dict[str, float]) -> float:
        return sum(row[f"seconds_{phase}"] for phase in PHASES)

    methods = {
        method: {
            "seconds_per_step": median(method, seconds),
            **{f"seconds_{phase}": median(method, lambda row, p=phase: row[f"seconds_{p}"]) for phase in PHASES},
            "response_tokens_per_second": median(method, lambda row: row["tokens"] / seconds(row)),
            "tokens_per_step": median(method, lambda row: row["tokens"]),
        }
        for method in rows
    }
    first = next(iter(rows))
    return {
        "methods": methods,
        f"seconds_per_token_against_{first}": {
            method: round(
                statistics.median(
                    (seconds(row) / row["tokens"]) / (seconds(reference) / reference["tokens"])
                    for row, reference in zip(rows[method], rows[first], strict=True)
                ),
                3,
            )
            for method in rows
        },
    }


if __name__ == "__main__":
    main()
