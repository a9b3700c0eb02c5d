"""A training step on a pretrained model: core-seconds by phase, and peak memory.

Rollouts of Countdown problems (a system message and a short question) with the model in --directory, which is best one
that ends its answers. The first step is a warm-up. One process per method and setting, since memory is that of the
process. With --bf16 it measures on one batch how far log p and gradient in bf16 are from those in fp32.
"""

import resource
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

from common import make_parser, write_record
from entropy_dynamics.config import load_config
from entropy_dynamics.core.advantages import group_advantages
from entropy_dynamics.distributed.precision import PRECISIONS
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.models.storage import load_policy, load_tokenizer
from entropy_dynamics.sampling import Prompt, Rollout
from entropy_dynamics.sampling.native import NativeSampler
from entropy_dynamics.tasks import Grade, find_task
from entropy_dynamics.tasks.countdown.problems import CountdownSet
from entropy_dynamics.training import trainer as trainer_module
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.modules import load_trained_policy
from entropy_dynamics.training.trainer import PHASES, Trainer

INSTRUCTION = "Use every number once, with + and -, to reach the target. Answer within \\boxed{}."
RULES = {"numbers": [3, 4], "values": [1, 9], "targets": [1, 10], "operations": "+-"}


def countdown_prompts(directory: Path, count: int) -> tuple[list[Prompt], Callable[[Rollout], Grade]]:
    """Prompts of Countdown problems in the model's chat template, and a function that grades their rollouts."""
    tokenizer, task = load_tokenizer(directory), find_task("countdown")
    problems = {one.id: one for one in CountdownSet(source="countdown", size=count, **RULES).generate("train", 0, [])}

    def prompt(text: str) -> list[int]:
        numbers, _, target = text.partition("=")
        question = f"Make {target} from {numbers.replace(',', ', ')}."
        turns = [{"role": "system", "content": INSTRUCTION}, {"role": "user", "content": question}]
        chat = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return tokenizer.encode(chat, add_special_tokens=False)

    def grade(rollout: Rollout) -> Grade:
        text = tokenizer.decode(rollout.token_ids, skip_special_tokens=True)
        return task.grade(text, problems[rollout.problem_id], rollout.finish_reason)

    return [Prompt(name, prompt(problem.text)) for name, problem in problems.items()], grade


def pretrained_trainer(directory: Path, method: str, settings: list[str]) -> Trainer:
    """A trainer of the model in `directory` on 300 Countdown problems."""
    off = ("training.entropy_change_every=0", "training.validation_every=0", "training.optimizer.learning_rate=5e-6")
    config = load_config("laptop", "qwen2.5-7b-instruct", method, [*off, *settings])
    model, tokenizer = load_policy(directory)
    policy = load_trained_policy(directory, config.training, Ranks(), model)
    ends = [tokenizer.eos_token_id]
    sampler = NativeSampler(model, end_tokens=ends, batch_size=config.sampling.batch_size)
    sampler.precision = policy.precision
    prompts, grade = countdown_prompts(directory, 300)
    return Trainer(
        config.training,
        policy=policy,
        method=config.method.build(),
        sampler=sampler,
        grade=grade,
        prompts=prompts,
        temperature=1.0,
        max_new_tokens=config.sampling.max_new_tokens,
        seed=0,
    )


def bf16_against_fp32(trainer: Trainer) -> dict[str, float]:
    """Differences of log p over response tokens, nats, and of the gradient of A log p, relative to its norm."""
    rollouts = trainer.sample(0)
    batch = RolloutBatch.collate(trainer.prompts_of_step(0), rollouts)
    rewards = torch.tensor([float(trainer.grade(rollout).correct) for rollout in rollouts])
    advantages = group_advantages(rewards, batch.groups)[:, None]
    found = []
    for trainer.policy.precision in (torch.float32, torch.bfloat16):
        trainer.policy.zero_grad()
        logp = trainer.policy.stats(batch, torch.arange(len(batch)), 1.0).logp
        (advantages * logp).sum().backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in trainer.policy.parameters()])
        found.append((logp.detach()[batch.mask], gradient))
    (exact, expected), (logp, gradient) = found
    return {
        "tokens": len(exact),
        "mean_logp_difference": float((logp - exact).mean()),
        "mean_absolute_logp_difference": float((logp - exact).abs().mean()),
        "largest_absolute_logp_difference": float((logp - exact).abs().max()),
        "gradient_difference": float((gradient - expected).norm() / expected.norm()),
    }


def main() -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--directory", type=Path, required=True, help="a pretrained model as safetensors")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--bf16", action="store_true", help="compare bf16 with fp32 on one batch instead")
    parser.add_argument("--method", default="grpo")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size = [f"training.prompts_per_step={options.prompts}", "training.group_size=8", "sampling.max_new_tokens=24"]
    trainer = pretrained_trainer(options.directory, options.method, [*size, *options.set])
    if options.bf16:
        compared = bf16_against_fp32(trainer)
        write_record(options.out, f"bf16 against fp32 on {8 * options.prompts} Countdown rollouts", **compared)
        return
    seconds, clip_and_step, clock = defaultdict(list), trainer_module.clip_and_step, time.perf_counter

    def timed(*arguments, **named):
        start = time.process_time()
        norm = clip_and_step(*arguments, **named)
        seconds["optimizer, a part of update"].append(time.process_time() - start)
        return norm

    trainer_module.clip_and_step = timed
    trainer_module.time.perf_counter = time.process_time  # the clock of `seconds_<phase>`
    rows, wall = [], []
    for step in range(options.steps):
        start = clock()
        rows.append(trainer.step(step))
        wall.append(clock() - start)
    for phase in (*PHASES, "training"):
        seconds[phase] = [row[f"seconds_{phase}"] for row in rows]
    write_record(
        options.out,
        f"a step of {8 * options.prompts} Countdown rollouts, {options.method}, core-seconds by phase",
        settings=options.set,
        precision=next(name for name, dtype in PRECISIONS.items() if dtype == trainer.policy.precision),
        core_seconds={phase: round(median(times[1:] or times), 2) for phase, times in seconds.items()},
        wall_seconds=round(median(wall[1:] or wall), 2),
        response_tokens=[row["tokens"] for row in rows],
        entropy=[round(row["entropy"], 4) for row in rows],
        peak_gib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    )


if __name__ == "__main__":
    main()
