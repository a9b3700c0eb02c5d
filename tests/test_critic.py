"""PPO's side: whitening, the value loss, the critic and its estimator."""

import copy

import pytest
import torch

from batches import loss_weights
from entropy_dynamics.core.advantages import whiten
from entropy_dynamics.core.objective import value_loss, weighted_sum
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.critic import Critic, CriticGAE
from reference import training_config


def test_hand_worked_whitening_leaves_padding_zero():
    advantages = torch.tensor([[1.0, 2.0, 99.0], [3.0, 99.0, 99.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    # mean 2, unbiased variance ((1)^2 + 0 + 1^2) / 2 = 1
    assert whiten(advantages, mask).tolist() == [[pytest.approx(-1.0), 0.0, 0.0], [pytest.approx(1.0), 0.0, 0.0]]


def test_whitening_divides_by_the_unbiased_standard_deviation():
    """(0, 2, 4, 6) have the mean 3 and the variance (9 + 1 + 1 + 9) / 3; (0, 2) have 1 and 2."""
    four = torch.tensor([[0.0, 2.0, 4.0, 6.0]])
    torch.testing.assert_close(whiten(four, torch.ones(1, 4)), (four - 3) / (20 / 3) ** 0.5)
    torch.testing.assert_close(whiten(four[:, :2], torch.ones(1, 2)), torch.tensor([[-(0.5**0.5), 0.5**0.5]]))


def test_whitening_keeps_the_digits_of_advantages_far_from_zero():
    near, mask = torch.tensor([[0.0, 2.0, 6.0]]), torch.ones(1, 3)
    torch.testing.assert_close(whiten(near + 2**24, mask), whiten(near, mask), rtol=1e-6, atol=0)


def test_a_single_token_is_only_shifted():
    assert whiten(torch.tensor([[5.0, float("nan")]]), torch.tensor([[1, 0]])).tolist() == [[0.0, 0.0]]


def test_whitening_can_turn_a_sign():
    whitened = whiten(torch.tensor([[0.1, 2.0, 3.0]]), torch.ones(1, 3))
    assert whitened[0, 0] < 0  # a positive advantage below the batch's mean


def test_whiten_of_equal_advantages_is_zero():
    assert whiten(torch.full((2, 3), 0.7), torch.ones(2, 3)).abs().max() == 0


def test_hand_worked_value_loss():
    values = torch.tensor([[0.2, 2.0]], requires_grad=True)
    old = torch.tensor([[0.0, 0.0]])
    returns = torch.tensor([[1.0, 1.5]])
    # token 0 inside the clip range: (0.2 - 1)^2 = 0.64; token 1: V 2.0 -> 0.25, clipped to 0.5 -> 1.0: the larger
    loss = weighted_sum(value_loss(values, old, returns, clip=0.5), torch.tensor([[0.5, 0.5]]))
    assert loss.item() == pytest.approx(0.5 * (0.5 * 0.64 + 0.5 * 1.0))
    loss.backward()
    assert values.grad[0, 0].item() == pytest.approx(0.5 * (0.2 - 1.0))
    assert values.grad[0, 1].item() == 0.0  # the clipped branch does not depend on V


def test_value_loss_takes_the_larger_error_and_ignores_padding():
    """V = 2 is clipped to 0.5; for R = 0 the error of V itself is the larger: (2 - 0)^2 / 2."""
    values = torch.tensor([[2.0, 7.0]], requires_grad=True)
    other = torch.tensor([[0.0, -3.0]])
    loss = weighted_sum(value_loss(values, other, other, clip=0.5), torch.tensor([[1.0, 0.0]]))
    assert loss.item() == pytest.approx(2.0)
    loss.backward()
    assert values.grad.tolist() == [[2.0, 0.0]]


@pytest.fixture
def estimator_and_batch(model, make_trainer, tokenizer):
    prompts = make_trainer(model).prompts_of_step(0)
    sampler = make_trainer(model).sampler
    rollouts = sampler.sample(prompts, samples=4, temperature=1.0, max_new_tokens=8, stream="critic")
    batch = RolloutBatch.collate(prompts, rollouts, tokenizer.pad_token_id)
    critic = Critic(copy.deepcopy(model.model), model.config.hidden_size)
    own = {"learning_rate": 1e-2, "value_clip": float("inf")}
    return CriticGAE(training_config(critic=own, tokens_per_micro_batch=64), critic), batch


def test_a_fresh_critic_gives_the_reward_to_every_token(estimator_and_batch):
    """Values start at 0 and gamma = lambda = 1, so before whitening A = R at every token."""
    estimator, batch = estimator_and_batch
    rewards = torch.linspace(-1, 1, len(batch))
    estimate = estimator.estimate(batch, rewards)
    raw = rewards[:, None].expand(batch.mask.shape)
    assert torch.allclose(estimate.advantages, whiten(raw, batch.mask), atol=1e-5)
    assert torch.allclose(estimate.returns[batch.mask], raw[batch.mask])


def test_the_critic_learns_the_rewards_and_leaves_the_policy_alone(estimator_and_batch, model):
    estimator, batch = estimator_and_batch
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    rewards = torch.tensor([1.0, -1.0]).repeat(len(batch))[: len(batch)]
    losses = []
    for _ in range(30):
        losses.append(estimator.learn(batch, estimator.estimate(batch, rewards), 1)["value_loss"])
    assert losses[0] == pytest.approx(0.5)  # V = 0 against R = +-1
    assert losses[-1] < 0.25 * losses[0]
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


def test_the_critics_loss_does_not_depend_on_the_cut(estimator_and_batch):
    estimator, batch = estimator_and_batch
    rewards = torch.linspace(-1, 1, len(batch))
    estimate = estimator.estimate(batch, rewards)
    rows = torch.arange(len(batch))
    ones = batch.mask.float()
    whole = loss_weights(ones, ones, batch.groups, denominator="all")
    values = estimator.critic(batch, rows)
    expected = weighted_sum(value_loss(values, estimate.values, estimate.returns, clip=float("inf")), whole).item()
    assert estimator.learn(batch, estimate, 1)["value_loss"] == pytest.approx(expected, rel=1e-5)
