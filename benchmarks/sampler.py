"""The native engine against transformers' `generate`: response tokens per second at the size of a training step.

Both sample from the same toy model with the same prompts, samples, temperature and limit. They take turns, each turn on
other prompts of the training set; medians over the turns. `generate` gets the padded prompts once, and the number of
samples per prompt.
"""

import argparse
import importlib.metadata
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from entropy_dynamics.config import load_config
from entropy_dynamics.models.loading import load_policy
from entropy_dynamics.results.files import write_json
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.results.provenance import hardware
from entropy_dynamics.sampling import Prompt
from entropy_dynamics.sampling.native import NativeSampler
from entropy_dynamics.stages.common import make_prompts
from entropy_dynamics.tasks.files import load_problems

RESULT = Path(__file__).parent / "results" / "sampler.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--scale", default="laptop")
    parser.add_argument("--results", default="results", help="where the scale's base model and problems are")
    parser.add_argument("--model", default="qwen2.5-7b-instruct")
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()

    config = load_config(options.scale, options.model, "grpo")
    torch.set_num_threads(config.threads)
    layout = Layout.of(options.scale, options.results)
    model, tokenizer = load_policy(layout.model(options.model))
    prompts = make_prompts(config, tokenizer, load_problems(layout.problems("train")))
    count, samples = config.training.prompts_per_step, config.training.group_size
    settings = {"temperature": config.sampling.temperature, "max_new_tokens": config.sampling.max_new_tokens}
    sampler = NativeSampler(
        model,
        end_token=tokenizer.eos_token_id,
        pad_token=tokenizer.pad_token_id,
        batch_size=config.sampling.batch_size,
    )

    def ours(prompts: Sequence[Prompt], turn: int) -> int:
        rollouts = sampler.sample(prompts, samples=samples, stream=f"benchmark/{turn}", **settings)
        return sum(len(rollout.token_ids) for rollout in rollouts)

    def generate(prompts: Sequence[Prompt], turn: int) -> int:
        return generated_tokens(model, tokenizer, prompts, samples, **settings)

    torch.manual_seed(0)
    speeds = {ours: [], generate: []}
    for turn in range(-1, options.turns):  # the first warms up
        start = (turn + 1) * count % (len(prompts) - count)
        for side in speeds:
            speeds[side].append(tokens_per_second(side, prompts[start : start + count], turn))
    (ours_speeds, generate_speeds) = (found[1:] for found in speeds.values())
    result = {
        "what": f"sampling the rollouts of a step, scale {options.scale}, toy model of {options.model}",
        "hardware": hardware(),
        "versions": {name: importlib.metadata.version(name) for name in ("torch", "transformers")},
        "threads": torch.get_num_threads(),
        "prompts": count,
        "samples": samples,
        **settings,
        "turns": options.turns,
        "tokens_per_second": {
            "native": round(statistics.median(ours_speeds)),
            "generate": round(statistics.median(generate_speeds)),
        },
        "speedup": round(statistics.median(a / b for a, b in zip(ours_speeds, generate_speeds, strict=True)), 2),
    }
    write_json(options.out, result)
    print(options.out.read_text())


def tokens_per_second(side: Callable[[Sequence[Prompt], int], int], prompts: Sequence[Prompt], turn: int) -> float:
    start = time.perf_counter()
    tokens = side(prompts, turn)
    return tokens / (time.perf_counter() - start)


def generated_tokens(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    samples: int,
    temperature: float,
    max_new_tokens: int,
) -> int:
    """Number of tokens that `generate` drew, end tokens included."""
    inputs = tokenizer.pad({"input_ids": [list(prompt.token_ids) for prompt in prompts]}, return_tensors="pt")
    sequences = model.generate(
        input_ids=inputs["input_ids"],
        attention_mask=inputs["attention_mask"],
        do_sample=True,
        temperature=temperature,
        top_k=0,
        top_p=1.0,
        num_return_sequences=samples,
        max_new_tokens=max_new_tokens,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    ended = sequences[:, inputs["input_ids"].shape[1] :] == tokenizer.eos_token_id
    return int((ended.cumsum(-1) - ended.int() == 0).sum())  # no end token before it


if __name__ == "__main__":
    main()
