"""A full GRPO step (rollouts, rewards, update) against TRL's GRPOTrainer, on one base model and the same prompts.

Both start from the same model and see the same prompts in the same order, with the same group size, response length,
temperature, learning rate, reward and loss (token mean, no KL term), and take one optimizer step per batch. Both are
in fp32, or in bf16 with `--set training.precision=bfloat16`. They take turns step by step in one process, so that a
drift of the machine's speed affects both alike; seconds are medians after the first steps. Rollouts are drawn from
different random numbers, so the curves agree as two seeds of one run do.
"""

import argparse
import importlib.metadata
import logging
import tempfile
import time
from statistics import median

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase, PrinterCallback, TrainerCallback
from trl import GRPOTrainer

from common import make_parser, make_trainer, trl_settings, write_record
from entropy_dynamics.config import RunConfig, load_config
from entropy_dynamics.models.storage import load_policy
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.sampling import Rollout
from entropy_dynamics.training.trainer import Trainer

PHASES = ("sample", "grade", "score", "update")
CURVES = ("reward", "entropy")
LAST = 15  # steps at the end of the curves whose means are compared, if as many are timed


def main() -> None:
    parser = make_parser(__file__, __doc__, scale=True)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--warm-up", type=int, default=3, help="steps that are not timed")
    parser.add_argument("--base-seed", type=int, default=0, help="seed of the base model and pass rates")
    parser.add_argument("--set", nargs="*", action="extend", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)

    config = load_config(options.scale, options.model, "grpo", options.set)
    torch.set_num_threads(config.threads)
    layout = Layout.of(options.scale, options.results)
    curves = []
    for seed in range(options.seeds):
        ours = make_trainer(options.scale, options.model, "grpo", layout, options.set, seed=options.base_seed)
        ours.seed = seed
        model, tokenizer = load_policy(layout.model(options.model, options.base_seed))
        turns = Turns(ours)
        with tempfile.TemporaryDirectory() as directory:
            trl = make_trl_trainer(config, model, tokenizer, ours, options.steps, seed, directory)
            trl.remove_callback(PrinterCallback)
            trl.add_callback(turns)
            trl.train()
        rollouts = config.training.prompts_per_step * config.training.group_size
        curves.append({"ours": turns.rows, "trl": trl_rows(trl.state.log_history, turns.seconds, rollouts)})
    what = f"a full GRPO step against TRL's, scale {options.scale}, base model of {options.model}"
    write_record(options.out, what, **summary(options, config, curves))


class Turns(TrainerCallback):
    """Times every step of TRL's loop, with all it does until the next, and runs one of ours after it."""

    def __init__(self, ours: Trainer):
        self.ours = ours
        self.seconds: list[float] = []
        self.rows: list[dict[str, float]] = []

    def on_train_begin(self, *args, **kwargs):
        self.since = time.perf_counter()

    def on_step_end(self, *args, **kwargs):
        now = time.perf_counter()
        self.seconds.append(now - self.since)
        row = self.ours.step(len(self.rows))
        self.since = time.perf_counter()
        self.rows.append(
            {
                "seconds": self.since - now,
                "tokens": row["tokens"],
                "reward": row["reward_mean"],
                "entropy": row["entropy"],
                "clip_fraction": row["clip_fraction"],
                **{phase: row[f"seconds_{phase}"] for phase in PHASES},
            }
        )


def make_trl_trainer(
    config: RunConfig,
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    ours: Trainer,
    steps: int,
    seed: int,
    directory: str,
    kind: type[GRPOTrainer] = GRPOTrainer,
) -> GRPOTrainer:
    """TRL's trainer of `model`, or a subclass of it, with the settings, prompts and reward of `ours`."""
    prompts = [prompt for step in range(steps) for prompt in ours.prompts_of_step(step)]
    texts = [tokenizer.decode(prompt.token_ids) for prompt in prompts]
    if tokenizer(text=texts)["input_ids"] != [list(prompt.token_ids) for prompt in prompts]:
        raise SystemExit("TRL's tokenization of the prompts differs from ours")

    def reward(completion_ids: list[list[int]], problem_id: list[str], **_) -> list[float]:
        return [
            ours.reward(ours.grade(Rollout(name, 0, ids, "stop" if ids[-1] == tokenizer.eos_token_id else "length")))
            for name, ids in zip(problem_id, completion_ids, strict=True)
        ]

    return kind(
        model=model,
        processing_class=tokenizer,
        reward_funcs=reward,
        train_dataset=Dataset.from_dict({"prompt": texts, "problem_id": [prompt.problem_id for prompt in prompts]}),
        args=trl_settings(
            config,
            directory,
            seed=seed,
            max_steps=steps,
            per_device_train_batch_size=config.training.prompts_per_step * config.training.group_size,
            steps_per_generation=1,
        ),
    )


def trl_rows(history: list[dict], seconds: list[float], rollouts: int) -> list[dict[str, float]]:
    steps = [row for row in history if "reward" in row]
    return [
        {
            "seconds": taken,
            "tokens": round(row["completions/mean_length"] * rollouts),
            "reward": row["reward"],
            "entropy": row["entropy"],
        }
        for row, taken in zip(steps, seconds, strict=True)
    ]


def summary(options: argparse.Namespace, config: RunConfig, curves: list[dict[str, list[dict]]]) -> dict:
    sides, last = ("ours", "trl"), min(LAST, options.steps - options.warm_up)
    timed = {side: [row for run in curves for row in run[side][options.warm_up :]] for side in sides}

    def per_token(row: dict[str, float]) -> float:
        return row["seconds"] / row["tokens"]

    def at_the_end(side: str, name: str) -> list[float]:
        return [float(np.mean([row[name] for row in run[side][-last:]])) for run in curves]

    return {
        "trl": importlib.metadata.version("trl"),
        "settings": options.set,
        "prompts": config.training.prompts_per_step,
        "group_size": config.training.group_size,
        "max_new_tokens": config.sampling.max_new_tokens,
        "learning_rate": config.training.optimizer.learning_rate,
        "speedup_per_token": round(
            median(per_token(b) / per_token(a) for a, b in zip(*timed.values(), strict=True)), 2
        ),
        "seconds_per_step": {side: round(median(row["seconds"] for row in timed[side]), 4) for side in sides},
        "tokens_per_second": {side: round(1 / median(per_token(row) for row in timed[side])) for side in sides},
        "our_seconds_by_phase": {phase: round(median(row[phase] for row in timed["ours"]), 4) for phase in PHASES},
        f"mean_of_the_last_{last}_steps_by_seed": {
            name: {side: [round(value, 4) for value in at_the_end(side, name)] for side in sides} for name in CURVES
        },
        "curves_by_seed": [
            {f"{side}_{name}": [round(row[name], 4) for row in run[side]] for side in sides for name in CURVES}
            for run in curves
        ],
    }


if __name__ == "__main__":
    main()
