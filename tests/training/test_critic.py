"""PPO's side: whitening, the value loss, the critic and its estimator."""

import copy

import pytest
import torch

from entropy_dynamics.core.advantages import whiten
from entropy_dynamics.training.critic import Critic, CriticGAE
from reference import batch_of, parameters, training_config


def test_hand_worked_whitening_leaves_padding_zero():
    advantages = torch.tensor([[1.0, 2.0, 99.0], [3.0, 99.0, 99.0]])
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    # mean 2, unbiased variance ((1)^2 + 0 + 1^2) / 2 = 1
    assert whiten(advantages, mask).tolist() == [[pytest.approx(-1.0), 0.0, 0.0], [pytest.approx(1.0), 0.0, 0.0]]


def test_whitening_keeps_the_digits_of_advantages_far_from_zero():
    near, mask = torch.tensor([[0.0, 2.0, 6.0]]), torch.ones(1, 3)
    torch.testing.assert_close(whiten(near + 2**24, mask), whiten(near, mask), rtol=1e-6, atol=0)


def reference_estimate(critic, batch, rewards, *, gamma, gae_lambda):
    """Values, advantages before whitening, and returns: one sequence at a time, each sum of GAE written out."""
    values, advantages = torch.zeros(batch.mask.shape), torch.zeros(batch.mask.shape)
    for row, reward in enumerate(rewards.tolist()):
        values[row] = reference_values(critic, batch, row)
        length = int(batch.response_lengths[row])
        v = [*values[row, :length].tolist(), 0.0]  # nothing follows the last token
        errors = [(reward if t == length - 1 else 0.0) + gamma * v[t + 1] - v[t] for t in range(length)]
        for t in range(length):
            advantages[row, t] = sum((gamma * gae_lambda) ** (k - t) * errors[k] for k in range(t, length))
    return values, advantages, (advantages + values) * batch.mask


def reference_values(critic, batch, row):
    """V before each response token: of the state that has read the prompt and the tokens before, never the token."""
    prompt, length = int(batch.prompt_lengths[row]), int(batch.response_lengths[row])
    hidden = critic.backbone(input_ids=batch.sequences[row : row + 1, : prompt + length]).last_hidden_state[0]
    values = critic.head(hidden[prompt - 1 : prompt + length - 1]).squeeze(-1)
    return torch.nn.functional.pad(values, (0, batch.mask.shape[1] - length))


def test_the_critic_is_gae_and_ppo_written_out(model, make_trainer):
    """Two updates of half of the prompts each, in their order. At first all values are 0."""
    batch = batch_of(make_trainer(model, group_size=4, max_new=8))
    critic = Critic(copy.deepcopy(model.model), model.config.hidden_size)
    own = {"gamma": 0.9, "gae_lambda": 0.8, "value_clip": 0.1, "learning_rate": 1e-2, "max_grad_norm": 0.5}
    own["weight_decay"] = 10.0  # takes a tenth of every weight at each step
    estimator = CriticGAE(training_config(critic=own, tokens_per_micro_batch=64), critic)
    rewards = torch.linspace(-1, 1, len(batch))
    assert not estimator.estimate(batch, rewards).values.any()
    torch.manual_seed(0)
    torch.nn.init.normal_(critic.head.weight, std=0.3)
    torch.nn.init.constant_(critic.head.bias, 0.2)
    reference = copy.deepcopy(critic)

    estimate = estimator.estimate(batch, rewards)
    with torch.no_grad():
        values, advantages, returns = reference_estimate(reference, batch, rewards, gamma=0.9, gae_lambda=0.8)
    assert values[batch.mask].std() > 0.1
    torch.testing.assert_close(estimate.values, values, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(estimate.advantages, whiten(advantages, batch.mask), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(estimate.returns * batch.mask, returns, rtol=1e-4, atol=1e-5)

    before = parameters(reference)
    metrics = estimator.learn(batch, estimate, 2)
    optimizer = torch.optim.AdamW(reference.parameters(), 1e-2, weight_decay=10.0)
    losses, clipped = [], 0
    for groups in batch.groups.unique().chunk(2):
        rows = torch.isin(batch.groups, groups).nonzero().squeeze(-1).tolist()
        mask, old, target = batch.mask[rows], values[rows][batch.mask[rows]], returns[rows][batch.mask[rows]]
        v = torch.stack([reference_values(reference, batch, row) for row in rows])[mask]
        clipped += int(((v - old).abs() > 0.1).sum())
        near = torch.minimum(torch.maximum(v, old - 0.1), old + 0.1)
        loss = 0.5 * torch.maximum((v - target) ** 2, (near - target) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        assert torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.5) > 0.5, "clipping was not tried"
        optimizer.step()
        losses.append(loss.item())
    assert clipped, "the value clip was not tried"
    assert metrics["value_loss"] == pytest.approx(sum(losses) / 2, rel=1e-4)
    unexplained = (returns - values)[batch.mask].var() / returns[batch.mask].var()
    assert metrics["value_explained_variance"] == pytest.approx(1 - unexplained.item(), abs=1e-4)
    learned, expected = (parameters(of) - before for of in (critic, reference))
    assert (learned - expected).norm() < 1e-2 * expected.norm()
