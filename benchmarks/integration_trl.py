"""Clip_B in TRL's GRPOTrainer against Clip_B in our trainer: entropy per step of each seed, and what the weights cost.

Both start from the same toy model and see the same prompts (see grpo_step.py); rollouts are drawn from different random
numbers, so the curves agree as the seeds of one trainer do. The cost is the time between TRL's scoring and its update:
the forward pass, the statistics and the weights.
"""

import importlib.metadata
import logging
import tempfile
import time
from statistics import median

import numpy as np
import torch
from transformers import PrinterCallback
from trl import GRPOTrainer

from common import make_parser, make_trainer, write_record
from entropy_dynamics.config import load_config
from entropy_dynamics.integrations.trl import make_grpo_trainer
from entropy_dynamics.models.storage import load_policy
from entropy_dynamics.results.layout import Layout
from grpo_step import LAST, Turns, make_trl_trainer, trl_rows

WARM_UP = 3  # steps that are not timed


class Timed:
    """Comes before the trainer of `make_grpo_trainer`."""

    def _weight_tokens(self, output):
        start = time.perf_counter()
        super()._weight_tokens(output)
        self.weighting = [*getattr(self, "weighting", []), time.perf_counter() - start]


def main() -> None:
    parser = make_parser(__file__, __doc__, scale=True)
    parser.add_argument("--method", default="clip_b")
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    logging.getLogger("transformers").setLevel(logging.ERROR)

    config = load_config(options.scale, options.model, options.method)
    torch.set_num_threads(config.threads)
    layout = Layout.of(options.scale, options.results)
    method = config.method.build()
    params = {name: getattr(method, name) for name in config.method.params.model_fields_set}
    kind = type("TimedTrainer", (Timed, make_grpo_trainer(GRPOTrainer, options.method, **params)), {})
    rollouts = config.training.prompts_per_step * config.training.group_size
    curves, shares = [], []
    for seed in range(options.seeds):
        ours = make_trainer(options.scale, options.model, options.method, layout)
        ours.seed = seed
        turns = Turns(ours)
        with tempfile.TemporaryDirectory() as directory:
            model, tokenizer = load_policy(layout.model(options.model, 0))
            trl = make_trl_trainer(config, model, tokenizer, ours, options.steps, seed, directory, kind)
            trl.remove_callback(PrinterCallback)
            trl.add_callback(turns)
            trl.train()
        theirs = trl_rows(trl.state.log_history, turns.seconds, rollouts)
        dropped = [row["entropy_control/clip_fraction"] for row in trl.state.log_history if "reward" in row]
        curves.append(
            {
                "ours_entropy": [row["entropy"] for row in turns.rows],
                "trl_entropy": [row["entropy"] for row in theirs],
                "ours_clip_fraction": [row["clip_fraction"] for row in turns.rows],
                "trl_clip_fraction": dropped,
            }
        )
        shares += [part / whole for part, whole in zip(trl.weighting, turns.seconds, strict=True)][WARM_UP:]
    ends = {name: [float(np.mean(run[name][-LAST:])) for run in curves] for name in curves[0]}
    write_record(
        options.out,
        f"{options.method} in TRL and in our trainer, scale {options.scale}, toy model of {options.model}",
        trl=importlib.metadata.version("trl"),
        steps=options.steps,
        share_of_a_step=round(median(shares), 3),
        **{f"mean_of_the_last_{LAST}_steps_by_seed": {name: np.round(end, 4).tolist() for name, end in ends.items()}},
        curves_by_seed=[{name: np.round(values, 4).tolist() for name, values in run.items()} for run in curves],
    )


if __name__ == "__main__":
    main()
