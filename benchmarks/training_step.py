"""One training step of a scale, split by phase: seconds, tokens a second and peak memory, each method beside GRPO.

Once where the batch is small enough for one forward pass to serve scoring and update, and once where it is not (as at
the paper's scale): there Clip_B and Clip_V take their bounds from the batch, which costs a scoring pass, or from the
step before. The methods take turns step by step (grpo, clip_b, clip_v, grpo, ...), each from its own copy of the base
model, so that a drift of the machine's speed meets all of them alike. Medians over the steps after the first.
"""

import argparse
import copy
import resource
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import torch

from entropy_dynamics.config import load_config
from entropy_dynamics.methods import load_method
from entropy_dynamics.models.loading import load_policy
from entropy_dynamics.results.files import write_json
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.results.provenance import hardware
from entropy_dynamics.sampling.native import NativeSampler
from entropy_dynamics.sampling.responses import make_grader, make_prompts
from entropy_dynamics.tasks.problems import load_problems
from entropy_dynamics.training.policy import Policy
from entropy_dynamics.training.trainer import Trainer

PHASES = ("sample", "grade", "score", "update")
TOO_LARGE = "training.held_tokens=0"  # for one forward pass
CASES = {
    "batch held": {"grpo": [], "clip_b": [], "clip_v": []},
    "batch not held": {
        "grpo": [TOO_LARGE],
        "clip_b": [TOO_LARGE],
        "clip_v": [TOO_LARGE],
        "clip_b, bounds of the step before": [TOO_LARGE, "training.bounds_from=previous_step"],
        "clip_v, bounds of the step before": [TOO_LARGE, "training.bounds_from=previous_step"],
    },
}
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
    found = {case: measured(options, layout, methods) for case, methods in CASES.items()}
    write_json(
        options.out,
        {
            "what": f"a training step, scale {options.scale}, stand-in of {options.model}, {options.steps} steps each",
            "hardware": hardware(),
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "peak_memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
            **found,
        },
    )
    print(options.out.read_text(), file=sys.stdout)


def measured(options: argparse.Namespace, layout: Layout, methods: dict[str, list[str]]) -> dict:
    trainers = {
        name: make_trainer(options.scale, options.model, name.partition(",")[0], layout, overrides)
        for name, overrides in methods.items()
    }
    rows = {name: [] for name in trainers}
    for step in range(options.steps + 1):
        for name, trainer in trainers.items():
            rows[name].append(trainer.step(step))
    return summary({name: found[1:] for name, found in rows.items()})


def make_trainer(
    scale: str, model_name: str, method_name: str, layout: Layout, overrides: Sequence[str] = ()
) -> Trainer:
    config = load_config(scale, model_name, method_name, list(overrides))
    model, tokenizer = load_policy(layout.model(model_name))
    kept = set(pd.read_parquet(layout.pass_rates).query("kept")["problem_id"])
    problems = [problem for problem in load_problems(layout.problems("train")) if problem.id in kept]
    training = copy.deepcopy(config.training)
    training.entropy_change_every = 0  # what is measured is the step, not the measurements
    return Trainer(
        training,
        policy=Policy(model),
        method=load_method(config.method.name, **config.method.params),
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
            "seconds_a_step": median(method, seconds),
            **{f"seconds_{phase}": median(method, lambda row, p=phase: row[f"seconds_{p}"]) for phase in PHASES},
            "response_tokens_a_second": median(method, lambda row: row["tokens"] / seconds(row)),
            "tokens_a_step": median(method, lambda row: row["tokens"]),
        }
        for method in rows
    }
    first = next(iter(rows))
    result = {
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
    changed = {method: median(method, lambda row: row["bounds_changed"]) for method in rows if "bounds" in method}
    return result | ({"share_of_tokens_weighed_otherwise": changed} if changed else {})


if __name__ == "__main__":
    main()
