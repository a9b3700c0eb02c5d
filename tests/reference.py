"""A training step written out plainly, one sequence at a time in float64: what the trainer is held against."""

import numpy as np
import torch

from entropy_dynamics.config.schema.training import TrainingConfig
from entropy_dynamics.sampling import Prompt, Rollout
from entropy_dynamics.sections import parse
from entropy_dynamics.tasks import Grade, Problem
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.trainer import Trainer

SINGLE_FORWARD = 10**9  # training.single_forward_tokens: every batch keeps its graphs


def training_config(**changes) -> TrainingConfig:
    """A small config with gradient clipping out of the way; `changes` may be of its sections, too."""
    optimizer = {"learning_rate": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "max_grad_norm": 1e9}
    critic = {"learning_rate": 1e-3, "weight_decay": 0.0, "max_grad_norm": 1.0, "value_clip": 0.5}
    optimizer |= {key: changes.pop(key) for key in list(changes) if key in optimizer}
    values = {
        "steps": 2,
        "prompts_per_step": 4,
        "group_size": 6,
        "updates_per_batch": 1,
        "reward": "binary",
        "advantage": "group",
        "importance_truncation": None,
        "precision": "float32",
        "head_precision": None,
        "activation_checkpointing": "none",
        "compile": False,
        "checkpoint_every": 0,
        "checkpoints_kept": 1,
        "keep_steps": [],
        "tokens_per_micro_batch": 200,
        "reduce_every_micro_batch": False,
        "single_forward_tokens": SINGLE_FORWARD,
        "entropy_change_every": 1,
        "entropy_change_first_order": False,
        "validation_set": "dapo500",
        "validation_every": 0,
        "validation_problems": 1,
        "validation_samples": 1,
        "optimizer": optimizer,
        "critic": critic | {"gamma": 1.0, "gae_lambda": 1.0} | changes.pop("critic", {}),
    }
    return parse(TrainingConfig, values | changes, "test")


def graded(correct: bool, truncated: bool = False) -> Grade:
    return Grade(answer=None, correct=correct, answer_correct=correct, formatted=correct, truncated=truncated)


def even_sum(rollout: Rollout) -> Grade:
    """A meaningless reward that depends on every token."""
    return graded(sum(rollout.token_ids) % 2 == 0, rollout.finish_reason == "length")


def sample(sampler, prompts, samples=4, temperature=1.0, max_new_tokens=30, stream="test"):
    how = {"samples": samples, "temperature": temperature, "stream": stream}
    return sampler.sample(prompts, max_new_tokens=max_new_tokens, **how)


def rollouts_of(trainer: Trainer, step: int = 0) -> tuple[list[Prompt], list[Rollout]]:
    """Prompts and rollouts that the step is going to sample: random numbers belong to the stream."""
    prompts = trainer.prompts_of_step(step)
    rollouts = trainer.sampler.sample(
        prompts,
        samples=trainer.config.group_size,
        temperature=1.0,
        max_new_tokens=trainer.max_new_tokens,
        stream=f"train/seed{trainer.seed}/step{step}",
    )
    return prompts, rollouts


def run(trainer: Trainer, steps: int | None = None) -> list[dict[str, float]]:
    """The metrics of the first steps (default: all)."""
    return [trainer.step(step) for step in range(steps or trainer.config.steps)]


def timeless(row: dict[str, float]) -> dict[str, float]:
    """The metrics of a step but its times."""
    return {name: value for name, value in row.items() if not name.startswith("seconds_")}


def interrupt(trainer: Trainer, before: int) -> None:
    """As by Ctrl-C, before that step."""
    take = trainer.step

    def step(number: int) -> dict[str, float]:
        if number == before:
            raise KeyboardInterrupt
        return take(number)

    trainer.step = step


def grade_alternately(trainer: Trainer, *constant: int) -> None:
    """Every other rollout of a group is right; at these places of the first step all are."""
    prompts = enumerate(trainer.prompts_of_step(0))
    same = {prompt.problem_id for place, prompt in prompts if place in constant}
    trainer.grade = lambda rollout: graded(rollout.problem_id in same or rollout.sample % 2 == 0)


def batch_of(trainer: Trainer, step: int = 0) -> RolloutBatch:
    return RolloutBatch.collate(*rollouts_of(trainer, step))


def log_probabilities(model, prompts, rollouts, temperature=1.0):
    """For every rollout log_softmax of the logits before each of its tokens [T_i, V], one sequence at a time."""
    tokens_of = {prompt.problem_id: list(prompt.token_ids) for prompt in prompts}
    for rollout in rollouts:
        start = tokens_of[rollout.problem_id]
        logits = model(torch.tensor([start + rollout.token_ids])).logits[0]
        yield torch.log_softmax(logits[len(start) - 1 : -1].double() / temperature, -1)


def by_definition(log_p, tokens) -> dict[str, torch.Tensor]:
    """log p_k, H = -sum p log p, S* = p_k (H + log p_k), E[S] = sum_i p_i S_i of tokens k from all log p [..., V]."""
    p = log_p.exp()
    entropy = -(p * log_p).sum(-1)
    s = p * (entropy[..., None] + log_p)
    logp, s_star = (values.gather(-1, tokens[..., None]).squeeze(-1) for values in (log_p, s))
    return {"logp": logp, "entropy": entropy, "s_star": s_star, "s_expected": (p * s).sum(-1)}


def slow_stats(model, prompts, rollouts, temperature=1.0):
    """`by_definition` of every response token, in float64, one entry a rollout."""
    for rollout, log_p in zip(rollouts, log_probabilities(model, prompts, rollouts, temperature), strict=True):
        yield by_definition(log_p, torch.tensor(rollout.token_ids))


def slow_advantages(rollouts, group_size, grade=even_sum) -> np.ndarray:
    rewards = np.array([float(grade(rollout).correct) for rollout in rollouts]).reshape(-1, group_size)
    deviation = rewards - rewards.mean(1, keepdims=True)
    return (deviation / (rewards.std(1, ddof=1, keepdims=True) + 1e-6)).ravel()


def gradients(model) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten().double() for parameter in model.parameters()])


def parameters(model) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().double() for parameter in model.parameters()])


def assert_close(got: torch.Tensor, expected: torch.Tensor, relative: float = 1e-6):
    """Up to `relative` of the largest element: single elements are sums in which larger ones cancel."""
    scale = expected.abs().max()
    assert scale > 0
    assert (got - expected).abs().max() <= relative * scale


def sums() -> list[Problem]:
    """Twelve sums of two to six numbers, so that prompts have five lengths."""
    texts = (
        "8+1+8+1+8+1 9+1+9+3+1 3+6+3+7+6+6 8+3+8+4 6+6 9+2+2+4+2+7 5+3+8+7+9 7+6+2+2+2+2 6+1+1+1+6+5 9+5+8+9+6 "
        "2+2+1+1+2+2 9+6+1+3+6"
    )
    return [
        Problem(f"p-{number:04d}", text, str(sum(map(int, text.split("+")))), "math")
        for number, text in enumerate(texts.split())
    ]
