"""CISPO, GSPO, DPPO, CE-GPPO: losses that own their importance ratio; adaptive entropy control, which keeps state.

The last three against their authors' functions: test_authors_functions.py.
"""

import copy
import math

import pytest
import torch

from batches import loss_weights, random_batch, stats_of
from entropy_dynamics.core.objective import weighted_sum
from entropy_dynamics.methods import load_method
from reference import assert_close, gradients, run


def gradient(method, log_ratio, advantages, mask) -> tuple[torch.Tensor, torch.Tensor]:
    """Token losses, and the gradient of their mean in log p, for log p_old = -1 and log p - log p_old = `log_ratio`."""
    logp = (torch.as_tensor(log_ratio) - 1.0).requires_grad_()
    mask = torch.as_tensor(mask)
    loss = method.token_loss(logp, torch.full_like(logp, -1.0), torch.as_tensor(advantages), mask)
    groups = torch.zeros(len(mask), dtype=torch.long)
    divisors = loss_weights(mask.float(), mask, groups, scope=method.loss_scope, denominator=method.denominator)
    weighted_sum(loss, divisors).backward()
    return loss.detach(), logp.grad


# ---------------------------------------------------------------- CISPO
@pytest.mark.parametrize(
    ("ratio", "advantage", "weight"),
    [
        (1.0, 2.0, 1.0),
        (1.2, 2.0, 1.2),
        (1.5, 2.0, 1.28),  # truncated, but PPO would give it no gradient at all
        (9.0, -1.0, 1.28),
        (0.1, -1.0, 0.1),  # no lower bound by default
    ],
)
def test_cispo_by_hand(ratio, advantage, weight):
    """loss = -sg(min(r, 1.28)) A log p, and the gradient -sg(min(r, 1.28)) A."""
    loss, grad = gradient(load_method("cispo"), [[math.log(ratio)]], [[advantage]], [[1]])
    assert loss.item() == pytest.approx(-weight * advantage * (math.log(ratio) - 1), rel=1e-6)
    assert grad.item() == pytest.approx(-weight * advantage, rel=1e-6)


def test_the_lower_bound_of_cispo():
    _, grad = gradient(load_method("cispo", clip_low=0.5), [[math.log(0.1)]], [[-1.0]], [[1]])
    assert grad.item() == pytest.approx(0.5)


# ---------------------------------------------------------------- all
@pytest.mark.parametrize("name", ["cispo", "gspo", "dppo", "ce_gppo", "grpo"])
def test_on_policy_they_are_the_plain_policy_gradient(name):
    """Each with its own average: over sequences (GSPO), over tokens (the others)."""
    method = load_method(name)
    logp, _, advantages, mask = random_batch(seed=3)
    logp.requires_grad_()
    groups = torch.arange(len(mask))
    multipliers = loss_weights(mask.float(), mask, groups, scope=method.loss_scope, denominator="all")
    weighted_sum(method.token_loss(logp, logp.detach(), advantages, mask), multipliers).backward()
    divisor = len(mask) * mask.sum(-1, keepdim=True) if name == "gspo" else mask.sum()
    torch.testing.assert_close(logp.grad, -advantages * mask / divisor, rtol=1e-6, atol=1e-8)


def test_gspo_with_an_advantage_per_token():
    """Each token's gradient is s A_t / T, as in GSPO-token."""
    _, grad = gradient(load_method("gspo", clip_high=0.5), [[0.3, 0.1]], [[1.0, 3.0]], [[1, 1]])
    torch.testing.assert_close(grad, -math.exp(0.2) * torch.tensor([[1.0, 3.0]]) / 2)


@pytest.mark.parametrize("name", ["gspo", "ce_gppo"])
def test_several_updates_differ_from_grpo(make_trainer, model, name):
    """Through the trainer: with one update per batch as GRPO in direction, with several not."""
    of = {}
    for updates in (1, 4):
        for method in ("grpo", name):
            params = {"loss_scope": "global_token"} if method == "gspo" else {}
            trainer = make_trainer(
                copy.deepcopy(model), method, params=params, updates_per_batch=updates, learning_rate=3e-2
            )
            trainer.step(0)
            of[method, updates] = gradients(trainer.policy.model)
    assert_close(of[name, 1], of["grpo", 1], relative=1e-4)
    assert (of[name, 4] - of["grpo", 4]).norm() > 1e-2 * of["grpo", 4].norm()


# ---------------------------------------------------------------- adaptive entropy
def coefficient(method) -> float:
    stats, ones = stats_of(torch.zeros(1, 1)), torch.ones(1, 1)
    return method.metrics(stats, ones, ones, ones)["entropy_coefficient"]


def test_the_controller_sees_the_log_probabilities_of_sampled_tokens():
    """-(-1 - 3 - 2) / 3 = 2, whatever the entropies of the distributions."""
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    stats = stats_of([[-1.0, -3.0, 7.0], [-2.0, 7.0, 7.0]], torch.full((2, 3), 0.5))
    seen = load_method("adaptive_entropy").metrics(stats, torch.zeros(2, 3), mask.float(), mask)
    assert seen["sampled_entropy"] == pytest.approx(2.0)


def test_the_state_is_restored():
    method, restored = load_method("adaptive_entropy", delta=0.01), load_method("adaptive_entropy", delta=0.01)
    for _ in range(2):
        method.observe({"sampled_entropy": 0.1})
    restored.load_state_dict(method.state_dict())
    for one in (method, restored):
        assert coefficient(one) == pytest.approx(0.02)
        one.observe({"sampled_entropy": 0.1})
        assert coefficient(one) == pytest.approx(0.03)


def test_the_bonus_acts_with_the_coefficient():
    method = load_method("adaptive_entropy", delta=0.3)
    logp, entropy, advantages, mask = random_batch(seed=7)
    plain = load_method("grpo").token_loss(logp, logp, advantages, mask)
    assert torch.equal(method.token_loss(logp, logp, advantages, mask, entropy=entropy), plain)
    method.observe({"sampled_entropy": 0.1})
    with_bonus = method.token_loss(logp, logp, advantages, mask, entropy=entropy)
    torch.testing.assert_close(with_bonus - plain, -0.3 * entropy)


def test_the_trainer_feeds_the_state_and_reports_it(make_trainer, model):
    trainer = make_trainer(model, "adaptive_entropy", params={"target": 50.0, "delta": 0.01}, steps=3)
    assert [row["entropy_coefficient"] for row in run(trainer)] == pytest.approx([0.0, 0.01, 0.02])
    assert trainer.method.state_dict() == {"coefficient": pytest.approx(0.03), "active": 1.0}
