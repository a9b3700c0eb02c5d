"""What tests/test_ranks.py runs on one or several ranks: a small training run, its outcome written for comparison.

    python tests/rank_program.py DIRECTORY CASE [CASE ...]

Cases are the entries of CASES, checkpoint-save and checkpoint-resume. Rank 0 writes DIRECTORY/<case>-<ranks>.json.
DEVICE=cuda runs them on GPUs.
"""

import json
import os
import sys
from pathlib import Path

import torch
from omegaconf import OmegaConf

from entropy_dynamics.config import CriticConfig, HardwareConfig
from entropy_dynamics.distributed.ranks import Ranks, SharedSampler
from entropy_dynamics.methods import load_method
from entropy_dynamics.models.loading import load_model, load_tokenizer
from entropy_dynamics.sampling import Prompt
from entropy_dynamics.sampling.native import ReplicaSampler
from entropy_dynamics.tasks.arithmetic import generate_problems
from entropy_dynamics.tasks.prompts import encode_prompt
from entropy_dynamics.training.checkpoints import Checkpoints
from entropy_dynamics.training.loading import load_critic, load_trained_policy
from entropy_dynamics.training.policy import whole
from entropy_dynamics.training.trainer import Trainer
from reference import even_sum, training_config

CASES = {
    "held": {"method": "clip_b", "held_tokens": 10_000},
    "cut": {"method": "clip_b", "tokens_per_micro_batch": 70, "held_tokens": 0},
    "forking": {"method": "forking_tokens", "tokens_per_micro_batch": 70, "held_tokens": 0},
    "clip_cov": {"method": "clip_cov", "tokens_per_micro_batch": 70, "held_tokens": 0},
    "updates": {"method": "kl_cov", "tokens_per_micro_batch": 70, "updates_per_batch": 2},
    "reduced": {"method": "clip_b", "tokens_per_micro_batch": 70, "reduce_every_micro_batch": True},
    "bounds": {"method": "clip_b", "tokens_per_micro_batch": 70, "held_tokens": 0, "bounds_from": "previous_step"},
    "ppo": {"method": "clip_v", "advantage": "gae", "tokens_per_micro_batch": 90, "held_tokens": 0},
    "entropy_bonus": {"method": "entropy_bonus", "tokens_per_micro_batch": 70, "held_tokens": 0},
    "recomputed": {"method": "grpo", "activation_checkpointing": True, "held_tokens": 0},
    "bfloat16": {"method": "grpo", "precision": "bfloat16", "held_tokens": 0},
}
STEPS = 2
CRITIC = CriticConfig(learning_rate=1e-2, weight_decay=0.01, max_grad_norm=1e9, gamma=1.0, lam=0.9, value_clip=0.5)


def make_trainer(case: str, model: Path, ranks: Ranks) -> Trainer:
    settings = dict(CASES[case])
    method = load_method(settings.pop("method"))
    config = training_config(prompts_per_step=6, group_size=4, critic=CRITIC, **settings)
    tokenizer = load_tokenizer(model)
    problems = generate_problems(12, terms=(2, 6), seed=3, prefix="p")
    policy = load_trained_policy(model, config, ranks)
    critic = load_critic(model, policy, config, ranks) if config.advantage == "gae" else None
    sampler = ReplicaSampler(
        load_model(model).to(ranks.device),
        end_token=tokenizer.eos_token_id,
        pad_token=tokenizer.pad_token_id,
        batch_size=64,
    )
    return Trainer(
        config,
        policy=policy,
        method=method,
        sampler=SharedSampler(sampler, ranks),
        grade=even_sum,
        prompts=[Prompt(one.id, encode_prompt(tokenizer, one.problem, "chat", 32)) for one in problems],
        temperature=1.0,
        max_new_tokens=16,
        pad_token=tokenizer.pad_token_id,
        seed=0,
        estimator=critic,
        engine_tolerance=0.05 if config.precision == "bfloat16" else 1e-4,
        ranks=ranks,
    )


def recorded(trainer: Trainer) -> dict:
    """Keep what the trainer's own methods see: masks, losses and gradients of every update."""
    seen = {"weights": [], "rollouts": [], "gradients": []}
    weigh, step, sample = trainer.weigh, trainer.optimizer.step, trainer.sampler.sample

    def weigh_and_keep(*arguments):
        weighing = weigh(*arguments)
        seen["weights"].append(weighing.weights.tolist())
        return weighing

    def keep_and_step():
        gradients = [whole(parameter.grad).flatten() for parameter in trainer.policy.parameters()]
        seen["gradients"].append(torch.cat(gradients).tolist())
        step()

    def sample_and_keep(*arguments, **settings):
        rollouts = sample(*arguments, **settings)
        seen["rollouts"].append([[one.problem_id, one.sample, *one.token_ids] for one in rollouts])
        return rollouts

    trainer.weigh, trainer.optimizer.step, trainer.sampler.sample = weigh_and_keep, keep_and_step, sample_and_keep
    return seen


def train(case: str, directory: Path, ranks: Ranks) -> dict:
    trainer = make_trainer(case, directory / "model", ranks)
    seen = recorded(trainer)
    rows = [trainer.step(step) for step in range(STEPS)]
    weights = {name: tensor.flatten().tolist() for name, tensor in trainer.policy.weights()}
    return {**seen, "rows": rows, "policy": weights}


def checkpoint(part: str, directory: Path, ranks: Ranks) -> dict:
    """`save`: two steps, a checkpoint, two more. `resume`: the checkpoint, the same two more."""
    trainer = make_trainer("ppo", directory / "model", ranks)
    checkpoints = Checkpoints(directory / "checkpoints", ranks, made_from={"run": 1}, made_by={}, kept=1)
    rows = []
    if part == "save":
        for step in (0, 1):
            rows.append(trainer.step(step))
        checkpoints.save(trainer.trained(), 2, rows)
    else:
        done, rows = checkpoints.resume(trainer.trained())
        assert done == 2
    for step in (2, 3):  # what is written in the background must not change by this
        rows.append(trainer.step(step))
    checkpoints.finish()
    critic, _ = trainer.trained()["critic"]
    return {
        "rows": rows,
        "policy": {name: tensor.flatten().tolist() for name, tensor in trainer.policy.weights()},
        "critic": {name: whole(tensor).flatten().tolist() for name, tensor in critic.named_parameters()},
    }


def main() -> None:
    directory = Path(sys.argv[1])
    torch.set_num_threads(1)
    size = int(os.environ["WORLD_SIZE"])
    ranks = Ranks.join(OmegaConf.structured(HardwareConfig(device=os.environ.get("DEVICE", "cpu"), ranks=size)))
    for case in sys.argv[2:]:
        part = case.removeprefix("checkpoint-")
        result = checkpoint(part, directory, ranks) if part != case else train(case, directory, ranks)
        if ranks.is_main:
            (directory / f"{case}-{size}.json").write_text(json.dumps(result))
    ranks.close()


if __name__ == "__main__":
    main()
    os._exit(0)  # as the command does: taken apart in order, torch's threads now and then abort the process
