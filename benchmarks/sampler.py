"""The native engine against transformers' `generate`, and vLLM: response tokens per core-second in a training step.

All sample from the same model with the same prompts, samples, temperature and limit: a toy model of a scale, or the
pretrained one in --directory. They take turns, each turn on other prompts of the training set; medians over the turns.
`generate` gets the padded prompts once, and the number of samples per prompt. --vllm needs an environment with vLLM,
whose engine runs in this process, in fp32 without compilation, as in the scales.
"""

import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import torch

from common import make_parser, make_trainer, write_record
from entropy_dynamics.config.schema.engines import VLLM
from entropy_dynamics.models.storage import load_tokenizer
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.sampling import Prompt
from entropy_dynamics.sampling.vllm import VLLMSampler
from pretrained_step import pretrained_trainer


def main() -> None:
    parser = make_parser(__file__, __doc__, scale=True)
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("--directory", type=Path, help="a pretrained model, instead of the scale's toy model")
    parser.add_argument("--vllm", action="store_true", help="also vLLM")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.directory:
        size = ["training.prompts_per_step=16", "training.group_size=8", "sampling.max_new_tokens=24"]
        trainer, directory = pretrained_trainer(options.directory, "grpo", size), options.directory
    else:
        layout = Layout.of(options.scale, options.results)
        trainer = make_trainer(options.scale, options.model, "grpo", layout)
        directory = layout.model(options.model, 0)
    tokenizer = load_tokenizer(directory)
    count, samples = trainer.config.prompts_per_step, trainer.config.group_size
    settings = {"temperature": trainer.temperature, "max_new_tokens": trainer.max_new_tokens}

    def native(prompts: Sequence[Prompt], turn: int) -> int:
        rollouts = trainer.sampler.sample(prompts, samples=samples, stream=f"benchmark/{turn}", **settings)
        return sum(len(rollout.token_ids) for rollout in rollouts)

    def generate(prompts: Sequence[Prompt], turn: int) -> int:
        batch = {"input_ids": [list(prompt.token_ids) for prompt in prompts]}
        inputs = tokenizer.pad(batch, padding_side="left", return_tensors="pt")
        sequences = trainer.policy.model.generate(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            do_sample=True,
            top_k=0,
            top_p=1.0,
            num_return_sequences=samples,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **settings,
        )
        ended = sequences[:, inputs["input_ids"].shape[1] :] == tokenizer.eos_token_id
        return int((ended.cumsum(-1) - ended.int() == 0).sum())  # no end token before it

    sides = {"native": native, "generate": generate}
    if options.vllm:
        engine = VLLMSampler(
            directory,
            config=VLLM(name="vllm", dtype="float32", kv_cache_gib=1.0, tolerance=1e-3),
            end_tokens=[tokenizer.eos_token_id],
            max_tokens=256,
            batch_size=count * samples,
        )

        def vllm(prompts: Sequence[Prompt], turn: int) -> int:
            rollouts = engine.sample(prompts, samples=samples, stream=f"benchmark/{turn}", **settings)
            return sum(len(rollout.token_ids) for rollout in rollouts)

        sides["vllm"] = vllm

    torch.manual_seed(0)
    speeds: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-1, options.turns):  # the first warms up
        start = (turn + 1) * count % (len(trainer.prompts) - count)
        for name, side in sides.items():
            began = time.process_time()
            tokens = side(trainer.prompts[start : start + count], turn)
            speeds[name].append(tokens / (time.process_time() - began))
    timed = {side: rates[1:] for side, rates in speeds.items()}
    write_record(
        options.out,
        f"sampling the rollouts of a step, {'a pretrained model' if options.directory else f'scale {options.scale}'}",
        prompts=count,
        samples=samples,
        **settings,
        turns=options.turns,
        tokens_per_core_second={side: round(median(rates)) for side, rates in timed.items()},
        native_over={
            name: round(median(ours / theirs for ours, theirs in zip(timed["native"], timed[name], strict=True)), 2)
            for name in timed
            if name != "native"
        },
    )


if __name__ == "__main__":
    main()
