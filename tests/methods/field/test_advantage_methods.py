"""Methods that act through advantages, rollouts or the average: hand-worked cases and brute force over definitions."""

import copy
from itertools import combinations

import numpy as np
import pytest
import torch

from batches import random_batch, shares, stats_of
from entropy_dynamics.core.objective import weighted_sum
from entropy_dynamics.errors import UserError
from entropy_dynamics.methods import load_method, method_types
from reference import assert_close, batch_of, even_sum, gradients, rollouts_of


def advantages_of(name, rewards, groups=None, **params) -> list[float]:
    groups = torch.zeros(len(rewards), dtype=torch.long) if groups is None else torch.tensor(groups)
    return load_method(name, **params).advantages(torch.tensor(rewards), groups).tolist()


@pytest.mark.parametrize("name", sorted(name for name, kind in method_types().items() if kind.overrides("advantages")))
def test_advantages_of_whole_rewards_are_no_whole_numbers(name):
    found, groups, logp = [], torch.zeros(6, dtype=torch.long), -torch.arange(1.0, 7.0)
    for rewards in (torch.tensor([1, 0, 0, 1, 0, 0]), torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])):
        method = load_method(name)
        found.append(method.advantages(method.shape_rewards(rewards, groups, logp), groups))
    assert found[1].any()
    torch.testing.assert_close(*found, rtol=0, atol=0)


# ---------------------------------------------------------------- W-REINFORCE, NSR, PSR
@pytest.mark.parametrize(
    ("name", "advantages"),
    [("w_reinforce", [0.1, -1, -1, -1]), ("nsr", [0, -1, -1, -1]), ("psr", [1, 0, 0, 0])],
)
def test_fixed_advantages(name, advantages):
    """Whatever the size of a reward, and in a group of equal ones too."""
    rewards = [1.0, 0.0, -0.1, -1.0]
    assert advantages_of(name, rewards) == pytest.approx(advantages)
    assert advantages_of(name, rewards, groups=[3, 1, 1, 2]) == pytest.approx(advantages)


# ---------------------------------------------------------------- Pass@k training
def slow_pass_at_k(correct: list[bool], k: int) -> list[float]:
    """Reward of a draw of k rollouts: 1 if one is correct; an advantage is the mean over the draws that contain it."""
    draws = list(combinations(range(len(correct)), k))
    rewards = np.array([float(any(correct[i] for i in draw)) for draw in draws])
    if rewards.std() == 0:
        return [0.0] * len(correct)
    of_draw = (rewards - rewards.mean()) / rewards.std()
    return [float(np.mean(of_draw[[i in draw for draw in draws]])) for i in range(len(correct))]


@pytest.mark.parametrize("k", [1, 4, 7])
@pytest.mark.parametrize("c", [0, 1, 5, 8])
def test_pass_at_k_training_is_the_mean_over_all_draws(c, k):
    """The advantages of two interleaved groups; the second has one correct rollout."""
    correct = [[i < c, i == 3] for i in range(8)]
    rewards = [1.0 if one else -0.1 for pair in correct for one in pair]
    found = advantages_of("pass_at_k", rewards, groups=[5, 9] * 8, k=k)
    for place, group in enumerate(zip(*correct, strict=True)):
        assert found[place::2] == pytest.approx(slow_pass_at_k(group, k), rel=1e-5, abs=1e-5)


def test_pass_at_k_training_needs_groups_larger_than_k():
    with pytest.raises(UserError, match="k is 4; it should be below the group's size, 4"):
        advantages_of("pass_at_k", [1.0, 0.0, 0.0, 0.0], k=4)


# ---------------------------------------------------------------- QAE
@pytest.mark.parametrize(
    ("name", "size", "correct", "quantile", "baseline"),
    [
        ("qae", 10, 6, 0.4, 0.0),  # correct are at most 1 - 0.4: only they have an advantage
        ("qae", 10, 7, 0.4, 1.0),
        ("qae", 10, 3, 0.7, 0.0),
        ("qae", 10, 4, 0.7, 1.0),
        ("qae", 10, 0, 0.4, 0.0),
        ("qae", 10, 10, 0.4, 1.0),
        # Interpolated: among places 0 to 15, 0.4 is place 6, and 0.45 is place 6.75.
        ("qae_authors", 16, 9, 0.4, 0.0),
        ("qae_authors", 16, 10, 0.4, 1.0),
        ("qae_authors", 16, 9, 0.45, 0.75),
    ],
)
def test_qae_of_two_rewards(name, size, correct, quantile, baseline):
    rewards = np.r_[np.ones(correct), np.zeros(size - correct)]
    expected = (rewards - baseline) / (rewards.std(ddof=1) + 1e-6)
    assert advantages_of(name, rewards.tolist(), quantile=quantile) == pytest.approx(expected.tolist(), rel=1e-5)


def test_qae_of_four_rewards():
    """Sorted: -1, -0.1, 0, 1 in one group, so that the medians by `inf {x: F(x) >= 1/2}` are -0.1 and 2."""
    found = advantages_of("qae", [0.0, 2.0, -1.0, 1.0, -0.1, 2.0], groups=[0, 1, 0, 0, 0, 1], quantile=0.5)
    std = np.std([-1, -0.1, 0, 1], ddof=1)
    assert [found[i] for i in (0, 2, 3, 4)] == pytest.approx([0.1 / std, -0.9 / std, 1.1 / std, 0], rel=1e-4)
    assert [found[1], found[5]] == [0, 0]


# ---------------------------------------------------------------- Dr.GRPO
def test_dr_grpo_in_training_against_autograd(make_trainer, model):
    """The mean over rollouts of the sum over tokens, divided by max_tokens; advantages without the deviation."""
    trainer = make_trainer(copy.deepcopy(model), "dr_grpo", params={"max_tokens": 30})
    batch = batch_of(make_trainer(model))
    trainer.step(0)
    reference = make_trainer(copy.deepcopy(model))
    logp = reference.policy.stats(batch, torch.arange(len(batch)), 1.0).logp
    rewards = torch.tensor([float(even_sum(rollout).correct) for rollout in rollouts_of(reference)[1]])
    centered = (rewards.view(-1, 6) - rewards.view(-1, 6).mean(1, keepdim=True)).flatten()
    (-(centered[:, None] * logp * batch.mask).sum(1) / 30).mean().backward()
    assert_close(gradients(trainer.policy.model), gradients(reference.policy.model), relative=1e-4)


# ---------------------------------------------------------------- Entrocraft
SIGNS = torch.tensor([[1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]])
ONES = torch.ones(3, 2)


def kept_rows(method, entropy) -> list[float]:
    return method.token_weights(stats_of(entropy=torch.full((3, 2), entropy)), SIGNS, ONES)[:, 0].tolist()


def test_entrocraft_rejects_one_sign_outside_of_the_band():
    method = load_method("entrocraft", start=0.5, end=0.5, width=0.2)
    assert kept_rows(method, 0.61) == [1, 0, 1]  # too high: what lowers it is kept
    assert kept_rows(method, 0.39) == [0, 1, 1]
    for inside in (0.41, 0.5, 0.59):
        assert kept_rows(method, inside) == [1, 1, 1]
    assert method.denominator == "kept"


def test_the_band_of_entrocraft_moves():
    method = load_method("entrocraft", start=0.8, end=0.4, width=0.0, steps=4)
    expected = [0.8, 0.7, 0.6, 0.5, 0.4, 0.4]
    for step, target in enumerate(expected):
        assert kept_rows(method, target + 0.01) == [1, 0, 1]
        assert kept_rows(method, target - 0.01) == [0, 1, 1]
        method.observe({"step": step})


@pytest.mark.parametrize(
    ("entropy", "first", "second"),
    [
        (0.9, [1, 0, 0, 0], [0, 0, 0, 0]),  # above: RAFT++
        (0.1, [0, -1, -1, -1], [-1, -1, -1, -1]),  # below: NSR, where all are wrong too
        (0.5, [1.5, -0.5, -0.5, -0.5], [0, 0, 0, 0]),  # inside: GRPO; the deviation of 1, 0, 0, 0 is 1/2
    ],
)
def test_entrocraft_as_released(entropy, first, second):
    method = load_method("entrocraft_authors", start=0.5, end=0.5, width=0.2)
    rewards = torch.tensor([1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0])
    per_token = method.advantages(rewards, torch.tensor([0] * 4 + [1] * 4))[:, None].expand(8, 2)
    logp, mask = torch.full((8, 2), -1.0, requires_grad=True), torch.ones(8, 2)
    used = method.loss_coefficients(stats_of(entropy=torch.full((8, 2), entropy)), per_token, mask)
    method.token_loss(logp, logp.detach(), per_token, mask, coefficients=used).sum().backward()
    assert (-logp.grad)[:, 1].tolist() == pytest.approx(first + second, rel=1e-5)
    assert method.denominator == "all"


# ---------------------------------------------------------------- AsymGRPO
def test_asym_grpo_by_hand():
    """One of four is correct: odds of 3."""
    found = advantages_of("asym_grpo", [1.0, 0.0, -0.1, -1.0], beta_plus=2.0, beta_minus=1.0)
    assert found == pytest.approx([9, -1 / 3, -1 / 3, -1 / 3])
    assert advantages_of("asym_grpo", [1.0, 1.0, 0.0, 0.0], groups=[0, 0, 1, 1]) == [0, 0, 0, 0]


def test_asym_grpo_with_exponents_of_a_half_is_grpo():
    rewards = [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0]
    found = advantages_of("asym_grpo", rewards, beta_plus=0.5, beta_minus=0.5)
    standard = (np.array(rewards) - np.mean(rewards)) / np.std(rewards)
    assert found == pytest.approx(standard.tolist())


# ---------------------------------------------------------------- RFT, and PSR where log p is that of the sampler
@pytest.mark.parametrize(("name", "log_ratio"), [("rft", 1.0), ("rft", 0.0), ("psr", 0.0)])
@pytest.mark.parametrize("rewards", [[1.0, 0.0, -0.1, 0.3], [0.0, 0.0, -0.1, -1.0]])
def test_the_gradient_is_that_of_the_mean_log_likelihood_of_correct_answers(name, log_ratio, rewards):
    logp, _, _, mask = random_batch(seed=1)
    rewards, method = torch.tensor(rewards * 3), load_method(name)
    advantages = method.advantages(rewards, torch.arange(12) // 2)[:, None].expand(mask.shape)
    multipliers = shares(method, method.token_weights(stats_of(logp), advantages, mask), mask)
    logp.requires_grad_()
    weighted_sum(method.token_loss(logp, logp.detach() - log_ratio, advantages, mask), multipliers).backward()
    correct = mask & (rewards > 0)[:, None]
    torch.testing.assert_close(logp.grad, torch.where(correct, -1.0 / correct.sum(), 0.0))
