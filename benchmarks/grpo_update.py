"""One GRPO update at Qwen2.5-0.5B's shape (random weights, V = 151,936) against TRL's: seconds and peak memory.

Both learn from the same random responses, of the same model, in micro-batches of the same number of rows, with one
optimizer step per batch and the loss averaged over all tokens, in fp32 on a CPU. Each side has its own process, of
whose peak memory weights, gradients and both moments of Adam take 16 bytes per parameter. Equal gradient norms show
that the work is the same.
"""

import argparse
import importlib.metadata
import json
import resource
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from common import in_own_process, make_parser, trl_settings, write_record
from entropy_dynamics.config import RunConfig, load_config
from entropy_dynamics.models.storage import load_model
from entropy_dynamics.planning.footprint import GIB, parameters
from entropy_dynamics.training.policy import Policy
from random_model import RandomResponses, make_prompts, make_random_trainer, write_random_model

MODEL = "qwen2.5-7b-instruct"
SHAPE = load_config("gpu", MODEL).model.shape  # the substitute's
PROMPTS, GROUP, PROMPT_TOKENS, ROWS = 4, 8, 32, 8  # ROWS: per micro-batch
SAMPLER = RandomResponses(200)  # tokens from the start of the vocabulary: TRL decodes them
STATES = 16  # bytes per parameter: fp32 weights, gradients and Adam's moments


def make_config(tokens: int, steps: int) -> RunConfig:
    settings = {"prompts_per_step": PROMPTS, "group_size": GROUP, "steps": steps, "reward": "binary"}
    settings |= {"tokens_per_micro_batch": ROWS * (PROMPT_TOKENS + tokens), "single_forward_tokens": 0}
    settings |= {"validation_every": 0, "entropy_change_every": 0, "optimizer.learning_rate": 1e-6}
    overrides = [f"training.{key}={value}" for key, value in settings.items()]
    return load_config("laptop", MODEL, "grpo", [*overrides, f"sampling.max_new_tokens={tokens}"])


def ours(directory: Path, config: RunConfig) -> dict[str, list[float]]:
    trainer = make_random_trainer(config, Policy(load_model(directory)), SAMPLER, PROMPT_TOKENS)
    measured: dict[str, list[float]] = {"seconds": [], "grad_norm": []}
    for step in range(config.training.steps):
        start = time.perf_counter()
        row = trainer.step(step)
        measured["seconds"].append(time.perf_counter() - start)
        measured["grad_norm"].append(row["grad_norm"])
    return measured


def trl(directory: Path, config: RunConfig) -> dict[str, list[float]]:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import GRPOTrainer

    measured: dict[str, list[float]] = {"seconds": [], "grad_norm": []}

    class Clock(TrainerCallback):
        def on_step_begin(self, *args, **kwargs):  # after the rollouts of the step before, which cost nothing
            self.since = time.perf_counter()

        def on_step_end(self, *args, **kwargs):
            measured["seconds"].append(time.perf_counter() - self.since)

        def on_log(self, args, state, control, logs=None, **kwargs):
            if "grad_norm" in logs:
                measured["grad_norm"].append(logs["grad_norm"])

    def rollout(texts: list[str], trainer) -> dict[str, list]:
        prompts = make_prompts(PROMPTS, PROMPT_TOKENS)
        ids = [prompt.token_ids for prompt in prompts for _ in range(GROUP)]
        assert len(ids) == len(texts)
        rollouts = SAMPLER.sample(
            prompts, samples=GROUP, temperature=1.0, max_new_tokens=config.sampling.max_new_tokens, stream=""
        )
        return {"prompt_ids": ids, "completion_ids": [rollout.token_ids for rollout in rollouts], "logprobs": None}

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(directory),
        reward_funcs=lambda completions, **_: [float(number % 2) for number in range(len(completions))],
        train_dataset=Dataset.from_dict({"prompt": ["a"] * PROMPTS * config.training.steps}),
        rollout_func=rollout,
        args=trl_settings(
            config,
            directory / "trl",
            max_steps=config.training.steps,
            per_device_train_batch_size=ROWS,
            gradient_accumulation_steps=PROMPTS * GROUP // ROWS,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Clock())
    trainer.train()
    return measured


def main() -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--tokens", type=int, default=64, help="the longest response")
    parser.add_argument("--steps", type=int, default=3, help="the first is not timed")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", choices=["ours", "trl"], help=argparse.SUPPRESS)
    parser.add_argument("--model-folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.side:
        config = make_config(options.tokens, options.steps)
        measured = {"ours": ours, "trl": trl}[options.side](options.model_folder, config)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
        print(json.dumps(measured | {"peak_gib": peak}))
        return
    sides = {}
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(SHAPE, Path(folder))
        arguments = ["--tokens", options.tokens, "--steps", options.steps, "--threads", options.threads]
        for side in ("ours", "trl"):
            sides[side] = in_own_process(__file__, "--side", side, "--model-folder", folder, *arguments)
    lengths = SAMPLER.lengths(PROMPTS * GROUP, options.tokens)
    states = STATES * parameters(SHAPE) / GIB
    for measured in sides.values():
        measured["seconds_per_update"] = median(measured["seconds"][1:])
        measured["peak_gib_beyond_states"] = measured["peak_gib"] - states
    compared = ("seconds_per_update", "peak_gib", "peak_gib_beyond_states")
    write_record(
        options.out,
        f"a GRPO update at Qwen2.5-0.5B's shape, {len(lengths)} responses of {min(lengths)} to {max(lengths)} tokens, "
        f"prompts of {PROMPT_TOKENS}, micro-batches of {ROWS} rows, fp32",
        trl_version=importlib.metadata.version("trl"),
        response_tokens=sum(lengths),
        states_gib=states,
        **sides,
        ours_to_trl={key: sides["ours"][key] / sides["trl"][key] for key in compared},
    )


if __name__ == "__main__":
    main()
