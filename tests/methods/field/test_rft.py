"""Rejection-sampling fine-tuning: which tokens count, and how it differs from PSR."""

import torch

from batches import random_batch, shares, stats_of
from entropy_dynamics.core.objective import weighted_sum
from entropy_dynamics.methods import load_method


def gradient(name, logp, logp_old, rewards, mask):
    """Gradient of the loss of a batch with respect to log p; one group per pair of rows."""
    method, groups = load_method(name), torch.arange(len(rewards)) // 2
    advantages = method.advantages(rewards, groups)[:, None].expand(mask.shape)
    weights = method.token_weights(stats_of(logp), advantages, mask)
    logp = logp.clone().requires_grad_()
    weighted_sum(method.token_loss(logp, logp_old, advantages, mask), shares(method, weights, mask)).backward()
    return logp.grad


def test_the_gradient_is_that_of_the_mean_log_likelihood_of_correct_answers():
    logp, _, _, mask = random_batch(seed=1)
    rewards = torch.tensor([1.0, 0.0, -0.1, 0.3] * 3)
    correct = mask & (rewards > 0)[:, None]
    found = gradient("rft", logp, logp - 1.0, rewards, mask)  # whatever the policy that sampled them
    assert torch.allclose(found, torch.where(correct, -1.0 / correct.sum(), 0.0))


def test_strictly_on_policy_it_is_psr_and_off_policy_it_is_not():
    logp, _, _, mask = random_batch(seed=2)
    rewards = torch.tensor([1.0, 0.0] * 6)
    same = [gradient(name, logp, logp, rewards, mask) for name in ("rft", "psr")]
    stale = [gradient(name, logp, logp - 0.1, rewards, mask) for name in ("rft", "psr")]
    assert torch.allclose(*same)
    assert not torch.allclose(*stale)


def test_a_batch_without_correct_answers_has_no_gradient():
    logp, _, _, mask = random_batch(seed=3)
    assert not gradient("rft", logp, logp, torch.zeros(12), mask).any()
