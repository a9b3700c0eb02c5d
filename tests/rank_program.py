"""A small training run on one or several ranks, for tests/distributed/test_ranks.py.

    python tests/rank_program.py ROOT MODEL/CASE ...

Cases are the entries of CASES, checkpoint-save and checkpoint-resume, with the model in ROOT/MODEL/model. Rank 0 writes
the outcome of each to ROOT/MODEL/<case>-<ranks>.json. DEVICE=cuda runs them on GPUs, NODES=2 as if on two nodes.
"""

import json
import os
import sys
from pathlib import Path

import torch

from entropy_dynamics.config.schema.hardware import HardwareConfig
from entropy_dynamics.distributed.launch import end_with_parent
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import whole
from entropy_dynamics.methods import load_method
from entropy_dynamics.models.storage import load_model, load_tokenizer
from entropy_dynamics.sampling import Prompt, SharedSampler
from entropy_dynamics.sampling.native import ReplicaSampler
from entropy_dynamics.tasks.prompts import prompt_tokens
from entropy_dynamics.training.checkpoints import Checkpoints
from entropy_dynamics.training.modules import load_critic, load_trained_policy
from entropy_dynamics.training.trainer import Trainer
from reference import even_sum, sums, training_config

FIRST_ORDER = {"entropy_change_first_order": True}
CASES = {
    "kept_graphs": {"single_forward_tokens": 10**5, "tokens_per_micro_batch": 10**5, **FIRST_ORDER},
    "scoring_pass": {},
    "share": {"method": "clip_v", "params": {"share": 0.1}},
    "fused": {"method": "grpo"},
    "clip_cov": {"method": "clip_cov"},
    "random_mask": {"method": "random_mask", "params": {"mu": 1.0}},
    "updates": {"method": "kl_cov", "updates_per_batch": 2, **FIRST_ORDER},
    "negative": {"method": "s_star_keep_neg_gt", "updates_per_batch": 2},  # an odd number of rows
    "steer": {"method": "steer", "updates_per_batch": 2},
    "repo_r": {"method": "repo_r", "params": {"target": 9.0}, "updates_per_batch": 2},
    "gspo": {"method": "gspo", "updates_per_batch": 2},
    "reduced": {"reduce_every_micro_batch": True, **FIRST_ORDER},
    "ppo": {"method": "clip_v", "advantage": "gae", "tokens_per_micro_batch": 90},
    "adaptive_entropy": {"method": "adaptive_entropy", "params": {"target": 9.0}},
    "recomputed": {"method": "grpo", "activation_checkpointing": "full"},
    "bfloat16": {"method": "grpo", "precision": "bfloat16", "head_precision": "float32"},
}
USUAL = {"method": "clip_b", "tokens_per_micro_batch": 140, "single_forward_tokens": 0}
STEPS = 2
CRITIC = {"learning_rate": 1e-2, "weight_decay": 0.01, "max_grad_norm": 1e9, "gae_lambda": 0.9}


def make_trainer(case: str, model: Path, ranks: Ranks) -> Trainer:
    settings = USUAL | CASES[case]
    method = load_method(settings.pop("method"), **settings.pop("params", {}))
    # eps: with a tiny one, AdamW makes a whole step of the rounding of a gradient that is zero.
    config = training_config(prompts_per_step=6, group_size=4, critic=CRITIC, eps=1e-5, **settings)
    tokenizer = load_tokenizer(model)
    problems = sums()
    policy = load_trained_policy(model, config, ranks)
    critic = load_critic(model, policy, config, ranks) if config.advantage == "gae" else None
    replica = load_model(model).to(ranks.device)
    shared = SharedSampler(ReplicaSampler(replica, end_tokens=[tokenizer.eos_token_id], batch_size=64), ranks)
    shared.tolerance = 0.05 if config.precision == "bfloat16" else 1e-4
    return Trainer(
        config,
        policy=policy,
        method=method,
        sampler=shared,
        grade=even_sum,
        prompts=[Prompt(one.id, prompt_tokens(tokenizer, one, "chat")) for one in problems],
        temperature=1.0,
        max_new_tokens=16,
        seed=0,
        critic=critic,
        ranks=ranks,
    )


def recorded(trainer: Trainer) -> dict:
    """Record the rollouts, token weights, effective advantages and gradients of every step."""
    seen = {"weights": [], "effective": [], "rollouts": [], "gradients": [], "graphs": []}
    backward, step, sample = trainer.update.backward, trainer.optimizer.step, trainer.sampler.sample

    def backward_and_record(batch, rows, advantages, scored, decision, **more):
        gradient = backward(batch, rows, advantages, scored, decision, **more)
        seen["graphs"].append(bool(scored and scored.graphs))
        seen["weights"].append(decision.weights[rows].tolist())
        seen["effective"].append(gradient.effective.tolist())
        return gradient

    def record_and_step():
        gradients = [whole(parameter.grad).flatten() for parameter in trainer.policy.parameters()]
        seen["gradients"].append(torch.cat(gradients).tolist())
        step()

    def sample_and_record(*arguments, **settings):
        rollouts = sample(*arguments, **settings)
        seen["rollouts"].append([[one.problem_id, one.sample, *one.token_ids] for one in rollouts])
        return rollouts

    trainer.update.backward, trainer.optimizer.step = backward_and_record, record_and_step
    trainer.sampler.sample = sample_and_record
    return seen


def train(case: str, directory: Path, ranks: Ranks) -> dict:
    trainer = make_trainer(case, directory / "model", ranks)
    seen = recorded(trainer)
    rows = [trainer.step(step) for step in range(STEPS)]
    assert all(seen.pop("graphs")) == (case == "kept_graphs")
    assert trainer.policy.head_dtype == (torch.float32 if case == "bfloat16" else None)
    weights = {name: tensor.flatten().tolist() for name, tensor in trainer.policy.weights()}
    for name, rounded in trainer.policy.weights(torch.bfloat16):  # as an engine in bf16 gets them
        assert torch.equal(rounded.flatten().cpu(), torch.tensor(weights[name]).bfloat16())
    return {**seen, "rows": rows, "policy": weights}


def checkpoint(part: str, directory: Path, ranks: Ranks) -> dict:
    """`save`: two steps, a checkpoint, two more. `resume`: the checkpoint, the same two more."""
    trainer = make_trainer("ppo", directory / "model", ranks)
    checkpoints = Checkpoints(directory / "checkpoints", ranks, made_from={"run": 1}, made_by={}, kept=1)
    rows = []
    if part == "save":
        for step in (0, 1):
            rows.append(trainer.step(step))
        checkpoints.save(trainer.trained(), rows, trainer.method.state_dict())
    else:
        rows, _ = checkpoints.resume(trainer.trained())
        assert len(rows) == 2
    for step in (2, 3):
        rows.append(trainer.step(step))
    critic, _ = trainer.trained()["critic"]
    return {
        "rows": rows,
        "policy": {name: tensor.flatten().tolist() for name, tensor in trainer.policy.weights()},
        "critic": {name: whole(tensor).flatten().tolist() for name, tensor in critic.named_parameters()},
    }


def main() -> None:
    end_with_parent()
    root = Path(sys.argv[1])
    torch.set_num_threads(1)
    size = int(os.environ["WORLD_SIZE"])
    nodes = int(os.environ.get("NODES", 1))
    device = os.environ.get("DEVICE", "cpu")
    ranks = Ranks.join(HardwareConfig(device=device, ranks=size, nodes=nodes, runs_per_gpu=1))
    for model, case in (argument.split("/") for argument in sys.argv[2:]):
        part = case.removeprefix("checkpoint-")
        result = checkpoint(part, root / model, ranks) if part != case else train(case, root / model, ranks)
        if ranks.is_main:
            (root / model / f"{case}-{size}.json").write_text(json.dumps(result))
    ranks.close()


if __name__ == "__main__":
    main()
    os._exit(0)  # as the command does: in an orderly shutdown torch's threads now and then abort the process
