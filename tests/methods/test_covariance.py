"""Clip-Cov and KL-Cov: which tokens, which denominator, and what they do to the gradient."""

import math

import pytest
import torch

from batches import random_batch, seeded, shares, stats_of
from entropy_dynamics.config import load_config
from entropy_dynamics.core.objective import weighted_sum
from entropy_dynamics.methods import load_method
from entropy_dynamics.methods.covariance import token_covariance

# Four tokens (row ends are padding): mean A 1, mean log p -2, so cov = (2, 2, -2, -2) * (2, 1, -1, -2) = 4, 2, 2, 4.
LOGP = [[0.0, -1.0, -90.0], [-3.0, -4.0, 0.0]]
ADVANTAGES = torch.tensor([[3.0, 3.0, 3.0], [-1.0, -1.0, -1.0]])
MASK = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])


def test_the_covariance_by_hand():
    stats = stats_of(LOGP)
    stats.logp.requires_grad_()
    cov = token_covariance(stats, ADVANTAGES, MASK)
    assert not cov.requires_grad
    assert cov.tolist() == [[4.0, 2.0, -math.inf], [2.0, 4.0, -math.inf]]


@pytest.mark.parametrize(
    ("lb", "ub", "first", "second"),
    [
        (1.0, 5.0, [0, 0, 0], [0, 0, 0]),
        (1.0, 3.0, [1, 0, 0], [0, 1, 0]),
        (3.0, 5.0, [0, 1, 0], [1, 0, 0]),
        (2.0, 4.0, [1, 1, 0], [1, 1, 0]),  # the bounds themselves are outside
        (-math.inf, 2.5, [1, 0, 0], [0, 1, 0]),  # padding is no candidate, whatever the bounds
    ],
)
def test_clip_cov_drops_candidates_between_its_bounds(lb, ub, first, second):
    method = load_method("clip_cov", ratio=1.0, lb=lb, ub=ub)
    weights = method.token_weights(stats_of(LOGP), ADVANTAGES, MASK, generator=seeded())
    assert weights.dtype == torch.float32
    assert weights.tolist() == [first, second]


def many_candidates(candidates, tokens):
    """A batch in which the first `candidates` of the tokens have a cov of about 1 to 3 and the others one below 0.6."""
    logp = torch.zeros(1, tokens)
    logp[0, :candidates] = -torch.linspace(4.0, 6.0, candidates)
    advantages = torch.full((1, tokens), 0.1)
    advantages[0, :candidates] = -0.5
    return stats_of(logp), advantages, torch.ones(1, tokens)


@pytest.mark.parametrize(("ratio", "dropped"), [(2e-4, 1), (0.0125, 12), (0.1, 100), (1.0, 100)])
def test_how_many_tokens_clip_cov_drops(ratio, dropped):
    stats, advantages, mask = many_candidates(100, 1000)
    weights = load_method("clip_cov", ratio=ratio).token_weights(stats, advantages, mask, generator=seeded())
    assert int((weights == 0).sum()) == dropped
    assert weights[0, 100:].all()


def test_clip_cov_draws_the_same_for_a_seed_and_otherwise_for_others():
    stats, advantages, mask = many_candidates(100, 1000)
    method = load_method("clip_cov", ratio=0.01)
    first, again, *others = (
        method.token_weights(stats, advantages, mask, generator=seeded(seed)) for seed in (3, 3, 4, 5)
    )
    assert torch.equal(first, again)
    assert all(not torch.equal(first, other) for other in others)


def test_clip_cov_draws_uniformly():
    stats, advantages, mask = many_candidates(10, 40)
    method, generator, draws = load_method("clip_cov", ratio=0.05), seeded(), 2000
    counts = sum(
        (method.token_weights(stats, advantages, mask, generator=generator) == 0).double() for _ in range(draws)
    )
    assert counts.sum() == 2 * draws
    deviation = math.sqrt(draws * 0.2 * 0.8)
    assert (counts[0, :10] - 0.2 * draws).abs().max() < 5 * deviation
    assert not counts[0, 10:].any()


# ---------------------------------------------------------------- KL-Cov
@pytest.mark.parametrize("log_ratio", [-3.0, 0.3])
def test_off_policy_kl_cov_pulls_back_its_tokens_and_clips_none(log_ratio):
    """With the clipping of its config, at log p - log p_old = `log_ratio`."""
    config = load_config("laptop", "qwen2.5-7b-instruct", "kl_cov@frac=0.1,beta=0.7")
    method = config.method.build()
    logp, _, advantages, mask = random_batch(seed=4)
    logp.requires_grad_()
    logp_old = (logp - log_ratio).detach()
    multipliers = shares(method, method.token_weights(stats_of(logp), advantages, mask), mask)
    coefficients = method.loss_coefficients(stats_of(logp), advantages, mask)
    weighted_sum(method.token_loss(logp, logp_old, advantages, mask, coefficients=coefficients), multipliers).backward()
    pull = 0.7 * math.copysign(1, log_ratio) * (coefficients > 0)
    expected = (-advantages * math.exp(log_ratio) + pull) * multipliers
    torch.testing.assert_close(logp.grad, expected, rtol=1e-5, atol=1e-8)


def test_kl_cov_says_when_it_has_no_effect():
    note = load_method("kl_cov").on_policy_note
    assert "exactly no effect" in note
    assert "training.updates_per_batch" in note
    assert "\n" not in note
    assert all(load_method(name).on_policy_note is None for name in ("grpo", "clip_b", "clip_cov"))
