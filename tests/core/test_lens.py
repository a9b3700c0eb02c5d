"""The lens: effective advantages by autograd of a method's own loss, and their sums over the quadrants, by hand."""

import copy
import math

import pytest
import torch

from batches import random_batch, stats_of
from entropy_dynamics.core.metrics import lens_metrics
from entropy_dynamics.core.objective import effective_advantages, weighted_sum
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import load_method
from reference import assert_close, gradients

PARTS = ["pos_gt", "pos_lt", "neg_gt", "neg_lt"]


def lens(advantages, effective, s_star) -> dict[str, float]:
    """Rows of one token each."""
    s_star, effective = torch.tensor(s_star)[:, None], torch.tensor(effective)[:, None]
    stats = TokenStats(s_star, s_star, s_star, s_star)
    mask = torch.ones(len(s_star), 1, dtype=torch.bool)
    return lens_metrics(stats, torch.tensor(advantages), effective, mask)


def test_the_quadrants_by_hand():
    """Five tokens; -A S* is -0.2, 0.3, 0.1 and -0.4 in the four quadrants, and nothing where A = 0."""
    advantages, s_star = [2.0, 3.0, -1.0, -4.0, 0.0], [0.1, -0.1, 0.1, -0.1, -0.1]
    found = lens(advantages, [1.0, 6.0, -1.0, 0.0, 0.0], s_star)
    assert [5 * found[f"lens_{part}"] for part in PARTS] == pytest.approx([-0.2, 0.3, 0.1, -0.4])
    assert [5 * found[f"lens_{part}_kept"] for part in PARTS] == pytest.approx([-0.1, 0.6, 0.1, 0.0])


def test_what_grpo_leaves_out_counts_where_the_method_puts_it():
    """NSR punishes a group that is all wrong, where GRPO has A = 0."""
    found = lens([0.0, -1.0], [-2.0, -1.0], [-0.1, -0.1])
    assert found["lens_neg_lt_kept"] == pytest.approx(3 * found["lens_neg_lt"])
    assert found["lens_pos_lt_kept"] == found["lens_pos_lt"] == 0


def effective(name, log_ratio=0.0, **params):
    """Effective advantages of a batch, times its tokens, and the batch."""
    logp, entropy, advantages, mask = random_batch(seed=1)
    method = load_method(name, **params)
    stats = stats_of(logp, entropy)
    weights = method.token_weights(stats, advantages, mask, generator=torch.Generator().manual_seed(0))
    coefficients = method.loss_coefficients(stats, advantages, mask)
    groups = torch.arange(len(mask))
    divisors = method.divisors(weights, mask, groups)

    def loss_of(logp, entropy):
        loss = method.token_loss(
            logp, stats.logp - log_ratio, advantages, mask, entropy=entropy, coefficients=coefficients
        )
        return weighted_sum(loss, weights / divisors)

    found = effective_advantages(loss_of, stats.logp, stats.entropy) * mask.sum()
    return found, (logp, entropy, advantages, mask, weights)


@pytest.mark.parametrize("name", ["grpo", "cispo", "dppo", "ce_gppo", "kl_cov", "clip_cov", "repo_r", "steer", "stare"])
def test_on_policy_it_is_the_advantage_times_the_weight(name):
    found, (_, _, advantages, mask, weights) = effective(name)
    torch.testing.assert_close(found, advantages * weights * mask)


def test_the_average_counts():
    """Tokens of short responses are amplified by a mean over sequences, and all kept ones by a smaller denominator."""
    found, (_, _, advantages, mask, _) = effective("gspo")
    mean_length = mask.sum() / len(mask)
    torch.testing.assert_close(found, advantages * mask * mean_length / mask.sum(-1, keepdim=True))
    found, (_, _, advantages, mask, weights) = effective("clip_v", mu=0.1, max_frac=None)
    torch.testing.assert_close(found, advantages * weights * mask.sum() / weights.sum())


def test_off_policy_it_is_what_the_clipping_leaves():
    """A ratio of 1.5 everywhere: PPO keeps A < 0 with the ratio, CISPO all at 1.28."""
    found, (_, _, advantages, mask, _) = effective("grpo", math.log(1.5))
    torch.testing.assert_close(found, 1.5 * advantages.clamp_max(0) * mask)
    found, (_, _, advantages, mask, _) = effective("cispo", math.log(1.5))
    torch.testing.assert_close(found, 1.28 * advantages * mask)


def test_an_entropy_bonus_counts_as_minus_c_l():
    found, (logp, entropy, advantages, mask, _) = effective("entropy_bonus", coefficient=0.3)
    torch.testing.assert_close(found, (advantages - 0.3 * (logp + entropy)) * mask)


@pytest.mark.parametrize(("name", "updates"), [("grpo", 3), ("unlikeliness", 1), ("qae", 1), ("nsr", 3), ("gspo", 3)])
def test_effective_advantages_give_the_gradient_of_training(make_trainer, model, name, updates):
    """Through the trainer: the gradient of the last update is that of the sum of effective advantage * log p."""
    trainer = make_trainer(copy.deepcopy(model), name, updates_per_batch=updates, learning_rate=1e-2)
    backward, seen = trainer.update.backward, []

    def spy(batch, rows, *arguments, **named):
        policy = copy.deepcopy(trainer.policy) if len(seen) == updates - 1 else None
        gradient = backward(batch, rows, *arguments, **named)
        seen.append((batch, rows, policy, gradient.effective))
        return gradient

    trainer.update.backward = spy
    trainer.step(0)
    found = gradients(trainer.policy.model)
    batch, rows, policy, effective = seen[-1]
    logp = policy.stats(batch, rows, 1.0).logp
    policy.zero_grad()
    (-(effective[rows] * logp).sum() / batch.mask[rows].sum()).backward()
    assert_close(found, gradients(policy.model), relative=1e-4)
