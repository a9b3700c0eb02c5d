"""A training step on a pretrained model: core-seconds by phase, and peak memory.

Rollouts of Countdown problems (a system message and a short question) with the model in --directory, which is best one
that ends its answers. The first step is a warm-up. One process per method and setting, since memory is that of the
process.
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
from entropy_dynamics.distributed.precision import PRECISIONS
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.models.storage import load_policy, load_tokenizer
from entropy_dynamics.sampling import Prompt, Rollout
from entropy_dynamics.sampling.native import NativeSampler
from entropy_dynamics.tasks import Grade, find_task
from entropy_dynamics.tasks.countdown.problems import CountdownSet
from entropy_dynamics.training import trainer as trainer_module
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


def main() -> None:
    parser = make_parser(__file__, __doc__)
    parser.add_argument("--directory", type=Path, required=True, help="a pretrained model as safetensors")
    parser.add_argument("--method", default="grpo")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    torch.set_num_threads(1)
    size = [f"training.prompts_per_step={options.prompts}", "training.group_size=8", "sampling.max_new_tokens=24"]
    trainer = pretrained_trainer(options.directory, options.method, [*size, *options.set])
    seconds, clip_and_step = defaultdict(list), trainer_module.clip_and_step

    def timed(*arguments, **named):
        start = time.process_time()
        norm = clip_and_step(*arguments, **named)
        seconds["optimizer, a part of update"].append(time.process_time() - start)
        return norm

    trainer_module.clip_and_step = timed
    trainer_module.time.perf_counter = time.process_time  # the clock of `seconds_<phase>`
    rows = [trainer.step(step) for step in range(options.steps)]
    for phase in (*PHASES, "training"):
        seconds[phase] = [row[f"seconds_{phase}"] for row in rows]
    write_record(
        options.out,
        f"a step of {8 * options.prompts} Countdown rollouts, {options.method}, core-seconds by phase",
        settings=options.set,
        precision=next(name for name, dtype in PRECISIONS.items() if dtype == trainer.policy.precision),
        core_seconds={phase: round(median(times[1:] or times), 2) for phase, times in seconds.items()},
        response_tokens=[row["tokens"] for row in rows],
        entropy=[round(row["entropy"], 4) for row in rows],
        peak_gib=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
    )


if __name__ == "__main__":
    main()
