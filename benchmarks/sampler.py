"""The native engine against transformers' `generate`: response tokens per second at the size of a training step.

Both sample from the same toy model with the same prompts, samples, temperature and limit. They take turns, each turn on
other prompts of the training set; medians over the turns. `generate` gets the padded prompts once, and the number of
samples per prompt.
"""

import time
from collections.abc import Sequence
from statistics import median

import torch

from common import make_parser, make_trainer, write_record
from entropy_dynamics.config import load_config
from entropy_dynamics.models.loading import load_tokenizer
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.sampling import Prompt


def main() -> None:
    parser = make_parser(__file__, __doc__, scale=True)
    parser.add_argument("--turns", type=int, default=30)
    options = parser.parse_args()
    config = load_config(options.scale, options.model, "grpo")
    torch.set_num_threads(config.threads)
    layout = Layout.of(options.scale, options.results)
    trainer = make_trainer(options.scale, options.model, "grpo", layout)
    tokenizer = load_tokenizer(layout.model(options.model, 0))
    count, samples = config.training.prompts_per_step, config.training.group_size
    settings = {"temperature": config.sampling.temperature, "max_new_tokens": config.sampling.max_new_tokens}

    def native(prompts: Sequence[Prompt], turn: int) -> int:
        rollouts = trainer.sampler.sample(prompts, samples=samples, stream=f"benchmark/{turn}", **settings)
        return sum(len(rollout.token_ids) for rollout in rollouts)

    def generate(prompts: Sequence[Prompt], turn: int) -> int:
        inputs = tokenizer.pad({"input_ids": [list(prompt.token_ids) for prompt in prompts]}, return_tensors="pt")
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

    torch.manual_seed(0)
    speeds: dict[str, list[float]] = {"native": [], "generate": []}
    for turn in range(-1, options.turns):  # the first warms up
        start = (turn + 1) * count % (len(trainer.prompts) - count)
        for side in (native, generate):
            began = time.perf_counter()
            tokens = side(trainer.prompts[start : start + count], turn)
            speeds[side.__name__].append(tokens / (time.perf_counter() - began))
    timed = {side: rates[1:] for side, rates in speeds.items()}
    write_record(
        options.out,
        f"sampling the rollouts of a step, scale {options.scale}, toy model of {options.model}",
        prompts=count,
        samples=samples,
        **settings,
        turns=options.turns,
        tokens_per_second={side: round(median(rates)) for side, rates in timed.items()},
        speedup=round(median(ours / theirs for ours, theirs in zip(*timed.values(), strict=True)), 2),
    )


if __name__ == "__main__":
    main()
