"""One training step of Qwen2.5-0.5B's shape with random weights and responses, for tests/test_gpu.py.

    python tests/gpu_memory_program.py DIRECTORY

Writes DIRECTORY/measured.json: the peak of allocated GPU memory in bytes, and the seconds of a step.
"""

import json
import sys
import time
from pathlib import Path

import torch

from entropy_dynamics.config import load_config
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.sampling import Prompt, Rollout, Sampler
from entropy_dynamics.training.loading import load_trained_policy
from entropy_dynamics.training.trainer import Trainer
from reference import graded

CASE = ("gpu", "qwen2.5-7b-instruct", "clip_b")  # scale, model, method


class RandomResponses(Sampler):
    """In place of an engine, so that all memory is the trainer's."""

    def sample(self, prompts, *, samples, temperature, max_new_tokens, stream):
        draw = torch.Generator().manual_seed(0)
        lengths = torch.randint(max_new_tokens // 8, max_new_tokens + 1, (len(prompts) * samples,), generator=draw)
        tokens = torch.randint(100_000, (int(lengths.sum()),), generator=draw).split(lengths.tolist())
        names = [(prompt.problem_id, sample) for prompt in prompts for sample in range(samples)]
        return [Rollout(*name, own.tolist(), "length") for name, own in zip(names, tokens, strict=True)]

    def push(self, weights):
        for _ in weights:  # gathered one by one, as an engine would take them
            pass


def main() -> None:
    directory = Path(sys.argv[1])
    config = load_config(*CASE)
    ranks = Ranks.join(config.hardware)
    trainer = Trainer(
        config.training,
        policy=load_trained_policy(directory / "model", config.training, ranks),
        method=config.method.build(),
        sampler=RandomResponses(),
        grade=lambda rollout: graded(rollout.sample % 2 == 1),
        prompts=[Prompt(str(number), list(range(150))) for number in range(config.training.prompts_per_step)],
        temperature=1.0,
        max_new_tokens=config.sampling.max_new_tokens,
        pad_token=0,
        seed=0,
        ranks=ranks,
    )
    trainer.step(0)  # Adam's moments exist from the second step on
    torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    metrics = trainer.step(1)
    measured = {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "seconds": time.perf_counter() - start,
        "tokens": metrics["tokens"],
        "gpu": torch.cuda.get_device_name(),
    }
    (directory / "measured.json").write_text(json.dumps(measured))
    ranks.close()


if __name__ == "__main__":
    main()
