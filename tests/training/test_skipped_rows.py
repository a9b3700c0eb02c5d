"""Rows without a gradient are left out of the backward pass: same gradient, same metrics, fewer tokens."""

import copy

import pytest
import torch

from conftest import DISTINCT_METHODS, ROOT
from entropy_dynamics.config import load_config
from entropy_dynamics.training.update import PolicyUpdate
from reference import assert_close, graded, gradients

CONFIGS = ROOT / "configs"
CONSTANT = {0, 2}  # places of the prompts whose group has no reward variance


@pytest.fixture
def run(trainer_on, shared_model, monkeypatch):
    """`run(name, skipping)`: metrics, gradients of the last update and rows of backward passes in one step."""

    def one_step(name, *, skipping=True, **changes):
        model, settings = copy.deepcopy(shared_model), {"reward": "binary", "tokens_per_micro_batch": 50} | changes
        trainer = trainer_on(torch.device("cpu"), name, model, **settings)
        constant = {prompt.problem_id for place, prompt in enumerate(trainer.prompts_of_step(0)) if place in CONSTANT}
        trainer.grade = lambda rollout: graded(rollout.problem_id in constant or rollout.sample % 2 == 0)
        rows = []
        trainer.policy.register_forward_hook(
            lambda module, inputs, output: rows.append(len(inputs[1])) if torch.is_grad_enabled() else None
        )
        with monkeypatch.context() as patched:
            if not skipping:
                patched.setattr(PolicyUpdate, "_by_gradient", lambda self, batch, rows, *_: (rows, rows[:0]))
            metrics = trainer.step(0)
        return metrics, gradients(model), sum(rows)

    return one_step


@pytest.mark.parametrize("name", DISTINCT_METHODS)
def test_the_update_is_the_same(run, name):
    metrics, gradient, rows = run(name)
    expected, whole, all_rows = run(name, skipping=False)
    assert metrics["zero_variance_groups"] == 0.5
    known = {key for key in expected if not key.startswith("seconds_")}
    assert {key: metrics[key] for key in known} == pytest.approx(
        {key: expected[key] for key in known}, rel=1e-5, abs=1e-7, nan_ok=True
    )
    if whole.any():
        assert_close(gradient, whole, relative=1e-5)  # the order of summation differs
    else:
        assert not gradient.any()
    assert all_rows == 24
    config = load_config("laptop", "qwen2.5-7b-instruct", name, configs=CONFIGS)
    if config.training.advantage == "gae" or name == "w_reinforce":  # groups of equal rewards have advantages too
        assert rows == 24
    elif config.method.build().acts_without_advantage:
        assert rows == (8 if name == "nsr_authors" else 18 if name == "psr_authors" else 24)  # rows with a weight
    elif name in ("psr", "rft"):  # correct responses of all groups
        assert rows == 18
    else:
        assert rows < 16  # half of them, and one in an update without any


def test_an_optimizer_step_without_gradients_is_still_taken(run):
    """One row is kept, so that momentum and weight decay still apply."""
    metrics, gradient, rows = run("grpo", prompts_per_step=1)
    assert (metrics["grad_norm"], rows) == (0.0, 1)
    assert not gradient.any()
