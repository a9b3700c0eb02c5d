"""Group-normalized advantages and GAE against hand-worked cases, closed forms and brute force."""

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from entropy_dynamics.core.advantages import gae, group_advantages


# ---------------------------------------------------------------- group-normalized
@pytest.mark.parametrize(("dtype", "of_advantages"), [(torch.float64, torch.float64), (torch.long, torch.float32)])
@pytest.mark.parametrize("size", [2, 3, 8, 16])
def test_binary_rewards_have_a_closed_form(size, dtype, of_advantages):
    for correct in range(1, size):
        f = correct / size
        rewards = torch.tensor([1] * correct + [0] * (size - correct), dtype=dtype)
        advantages = group_advantages(rewards, torch.zeros(size, dtype=torch.long))
        assert advantages.dtype == of_advantages
        assert advantages[0].item() == pytest.approx(math.sqrt((size - 1) / size * (1 - f) / f), rel=1e-5)
        assert advantages[-1].item() == pytest.approx(-math.sqrt((size - 1) / size * f / (1 - f)), rel=1e-5)


@pytest.mark.parametrize("reward", [-0.1, 1.0, 1 / 3])
@pytest.mark.parametrize("size", [2, 7, 33])
def test_a_group_without_variance_gets_exactly_zero(reward, size):
    """The mean of equal rewards leaves a residual in floating point, which 1e-6 would blow up to 0.01."""
    for dtype in (torch.float32, torch.float64):
        rewards = torch.tensor([reward] * size + [1.0, 0.0], dtype=dtype)
        advantages = group_advantages(rewards, torch.tensor([0] * size + [1, 1]))
        assert torch.equal(advantages[:size], torch.zeros(size, dtype=dtype))
        assert advantages[size] > 0.7 > 0 > advantages[size + 1]


@pytest.mark.parametrize("shape", [(3,), (2, 2)])
def test_rewards_and_groups_must_be_one_vector_each(shape):
    with pytest.raises(ValueError, match="must both be"):
        group_advantages(torch.zeros(*shape), torch.zeros(2, 2, dtype=torch.long))


REWARDS = st.sampled_from([-1.0, -0.1, 0.0, 1e-6, 1.0])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(REWARDS, st.integers(0, 3)), min_size=1, max_size=40))
@example([(0.0, 2), (0.5, 1), (1e-6, 2)])  # a std about as large as epsilon, and a group with a single rollout
def test_every_group_by_the_definition(batch):
    """A group with a single rollout uses mean 0 and standard deviation 1."""
    rewards, groups = (torch.tensor(values) for values in zip(*batch, strict=True))
    rewards = rewards.double()
    advantages = group_advantages(rewards, groups)
    for group in groups.unique():
        own = rewards[groups == group].numpy()
        mean, std = (own.mean(), own.std(ddof=1)) if len(own) > 1 else (0.0, 1.0)
        expected = (own - mean) / (std + 1e-6)
        assert advantages[groups == group].numpy() == pytest.approx(expected, rel=1e-9, abs=1e-9)


# ---------------------------------------------------------------- GAE
def row(*values):
    return torch.tensor([values], dtype=torch.float64)


@pytest.mark.parametrize("x", [123.0, math.nan])
def test_gae_by_hand_with_a_prompt_a_gap_and_padding(x):
    """gamma 0.9, lambda 0.8: A_3 = 1 - 0.7; A_2 = 0.63 - 0.6 + 0.72 A_3; A_1 = 0.54 - 0.5 + 0.72 A_2."""
    mask = torch.tensor([[0, 0, 1, 0, 0, 1, 1, 0, 0]])
    rewards = row(x, x, 0, x, x, 0, 1, x, x)
    values = row(x, x, 0.5, x, x, 0.6, 0.7, x, x)
    advantages, returns = gae(rewards, values, mask, gamma=0.9, lam=0.8)
    torch.testing.assert_close(advantages, row(0, 0, 0.21712, 0, 0, 0.246, 0.3, 0, 0))
    torch.testing.assert_close(returns, row(0, 0, 0.71712, 0, 0, 0.846, 1.0, 0, 0))


@pytest.mark.parametrize(("gamma", "lam"), [(1.0, 1.0), (1.0, 0.95), (0.97, 0.0), (0.9, 0.6)])
def test_gae_is_the_discounted_sum_of_td_errors(gamma, lam):
    """A_t = sum_l (gamma lam)^l delta_{t+l} over a row's response tokens, written out token by token."""
    g = torch.Generator().manual_seed(2)
    rewards, values = torch.randn(2, 6, 12, generator=g, dtype=torch.float64)
    mask = torch.rand(6, 12, generator=g) < 0.6
    mask[0], mask[1], mask[2, :] = True, False, torch.arange(12) < 5
    advantages, returns = gae(rewards, values, mask, gamma=gamma, lam=lam)
    for b in range(6):
        places = mask[b].nonzero().flatten().tolist()
        deltas = []
        for i, t in enumerate(places):
            following = values[b, places[i + 1]].item() if i + 1 < len(places) else 0.0
            deltas.append(rewards[b, t].item() + gamma * following - values[b, t].item())
        for i, t in enumerate(places):
            expected = sum((gamma * lam) ** n * delta for n, delta in enumerate(deltas[i:]))
            assert advantages[b, t].item() == pytest.approx(expected, rel=1e-9, abs=1e-12)
            assert returns[b, t].item() == pytest.approx(expected + values[b, t].item(), rel=1e-9, abs=1e-12)
        assert torch.all(advantages[b][~mask[b]] == 0)
        assert torch.all(returns[b][~mask[b]] == 0)
