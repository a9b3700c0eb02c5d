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
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import torch

from common import make_parser, write_record
from entropy_dynamics.config import load_config
from entropy_dynamics.config.schema import ShapeConfig
from entropy_dynamics.methods import load_method
from entropy_dynamics.models.loading import load_policy
from entropy_dynamics.planning.footprint import parameters
from entropy_dynamics.sampling import Prompt
from entropy_dynamics.training.policy import Policy
from entropy_dynamics.training.trainer import Trainer
from random_model import RandomResponses, alternating, write_random_model

SHAPE = ShapeConfig(
    architecture="qwen2",
    vocabulary=151_936,
    hidden_size=896,
    intermediate_size=4864,
    layers=24,
    heads=14,
    kv_heads=2,
    head_size=64,
    tied_embeddings=True,
)
PROMPTS, GROUP, PROMPT_TOKENS, ROWS = 4, 8, 32, 8  # ROWS: of a micro-batch
WORDS = 200  # response tokens are drawn from these: TRL decodes them
STATES = 16  # bytes per parameter: fp32 weights, gradients and Adam's moments
GIB = 2**30


def responses(tokens: int) -> list[list[int]]:
    rollouts = RandomResponses(WORDS).sample(
        prompts(), samples=GROUP, temperature=1.0, max_new_tokens=tokens, stream=""
    )
    return [list(rollout.token_ids) for rollout in rollouts]


def prompts() -> list[Prompt]:
    return [Prompt(f"p{number}", [number + 1] * PROMPT_TOKENS) for number in range(PROMPTS)]


def ours(directory: Path, tokens: int, steps: int) -> dict[str, list[float]]:
    settings = {"prompts_per_step": PROMPTS, "group_size": GROUP, "steps": steps, "reward": "binary"}
    settings |= {"tokens_per_micro_batch": ROWS * (PROMPT_TOKENS + tokens), "single_forward_tokens": 0}
    settings |= {"validation_every": 0, "entropy_change_every": 0, "optimizer.learning_rate": 1e-6}
    overrides = [f"training.{key}={value}" for key, value in settings.items()]
    config = load_config("laptop", "qwen2.5-7b-instruct", "grpo", overrides).training
    model, _ = load_policy(directory)
    trainer = Trainer(
        config,
        policy=Policy(model),
        method=load_method("grpo"),
        sampler=RandomResponses(WORDS),
        grade=alternating,
        prompts=prompts(),
        temperature=1.0,
        max_new_tokens=tokens,
        pad_token=0,
        seed=0,
    )
    found: dict[str, list[float]] = {"seconds": [], "grad_norm": []}
    for step in range(steps):
        start = time.perf_counter()
        row = trainer.step(step)
        found["seconds"].append(time.perf_counter() - start)
        found["grad_norm"].append(row["grad_norm"])
    return found


def trl(directory: Path, tokens: int, steps: int) -> dict[str, list[float]]:
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer, PrinterCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    found: dict[str, list[float]] = {"seconds": [], "grad_norm": []}

    class Clock(TrainerCallback):
        def on_step_begin(self, *args, **kwargs):  # after the rollouts of the step before, which cost nothing
            self.since = time.perf_counter()

        def on_step_end(self, *args, **kwargs):
            found["seconds"].append(time.perf_counter() - self.since)

        def on_log(self, args, state, control, logs=None, **kwargs):
            if "grad_norm" in logs:
                found["grad_norm"].append(logs["grad_norm"])

    def rollout(texts: list[str], trainer) -> dict[str, list]:
        ids = [prompt.token_ids for prompt in prompts() for _ in range(GROUP)]
        assert len(ids) == len(texts)
        return {"prompt_ids": ids, "completion_ids": responses(tokens), "logprobs": None}

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    trainer = GRPOTrainer(
        model=model,
        processing_class=AutoTokenizer.from_pretrained(directory),
        reward_funcs=lambda completions, **_: [float(number % 2) for number in range(len(completions))],
        train_dataset=Dataset.from_dict({"prompt": ["a"] * PROMPTS * steps}),
        rollout_func=rollout,
        args=GRPOConfig(
            output_dir=str(directory / "trl"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            use_vllm=False,
            shuffle_dataset=False,
            max_steps=steps,
            per_device_train_batch_size=ROWS,
            gradient_accumulation_steps=PROMPTS * GROUP // ROWS,
            num_generations=GROUP,
            num_iterations=1,
            max_completion_length=tokens,
            temperature=1.0,
            beta=0.0,
            loss_type="dapo",  # the mean over all tokens of the batch
            learning_rate=1e-6,
            lr_scheduler_type="constant",
            weight_decay=0.01,
            max_grad_norm=1.0,
            logging_steps=1,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Clock())
    trainer.train()
    return found


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
        found = {"ours": ours, "trl": trl}[options.side](options.model_folder, options.tokens, options.steps)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB
        print(json.dumps(found | {"peak_gib": peak}))
        return
    sides = {}
    with tempfile.TemporaryDirectory() as folder:
        write_random_model(SHAPE, Path(folder))
        arguments = ["--tokens", options.tokens, "--steps", options.steps, "--threads", options.threads]
        for side in ("ours", "trl"):
            command = [sys.executable, __file__, "--side", side, "--model-folder", folder, *map(str, arguments)]
            output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
            sides[side] = json.loads(output.splitlines()[-1])
    lengths = [len(one) for one in responses(options.tokens)]
    states = STATES * parameters(SHAPE) / GIB
    for found in sides.values():
        found["seconds_per_update"] = median(found["seconds"][1:])
        found["peak_gib_beyond_states"] = found["peak_gib"] - states
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
