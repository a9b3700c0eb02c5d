"""Methods of other papers: hand-worked masks, weights and rewards, or brute force over definitions."""

import inspect
import math
from functools import partial

import numpy as np
import pytest
import torch
import yaml

from batches import random_batch, seeded, shares, stats_of
from conftest import ROOT
from entropy_dynamics.config import config_file, load_config
from entropy_dynamics.core.objective import weighted_sum
from entropy_dynamics.methods import load_method
from entropy_dynamics.methods.covariance import token_covariance

CONFIGS = ROOT / "configs"
METHODS = ["clip_cov", "kl_cov", "unlikeliness", "forking_tokens", "advantage_reweighting", "entropy_bonus"]
METHODS += ["dppo", "ce_gppo"]


# ---------------------------------------------------------------- rewarding the unlikely
def test_groups_of_any_size_and_order():
    rng = np.random.default_rng(0)
    groups = rng.permutation(np.repeat([7, -2, 40, 3, 9], [1, 2, 5, 16, 30]))
    mean_logp = -rng.integers(0, 12, len(groups)) / 4  # with ties
    rewards = rng.choice([1.0, 0.0, -0.1, -1.0], len(groups))
    given = map(torch.tensor, (rewards, groups, mean_logp))
    shaped = load_method("unlikeliness", beta=0.4).shape_rewards(*given)
    for i, (group, value) in enumerate(zip(groups, mean_logp, strict=True)):
        members = np.flatnonzero(groups == group)
        rank = sum(mean_logp[j] < value or (mean_logp[j] == value and j < i) for j in members)
        expected = rewards[i] * (1 - 0.4 * rank / len(members)) if rewards[i] > 0 else rewards[i]
        assert shaped[i].item() == pytest.approx(expected, rel=1e-6)


# ---------------------------------------------------------------- forking tokens
# Five tokens; the last place of the second row is padding.
ENTROPY = [[0.1, 0.5, 0.3], [0.9, 0.2, 7.0]]
FIVE = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])


def keep(entropy, keep_fraction, mask=FIVE, **params):
    method = load_method("forking_tokens", keep_fraction=keep_fraction, **params)
    return method.token_weights(stats_of(entropy=entropy), torch.zeros_like(mask), mask)


@pytest.mark.parametrize(
    ("keep_fraction", "first", "second"),
    [
        (0.2, [0, 0, 0], [1, 0, 0]),
        (0.21, [0, 1, 0], [1, 0, 0]),  # rounded up
        (0.8, [0, 1, 1], [1, 1, 0]),
        (1.0, [1, 1, 1], [1, 1, 0]),
    ],
)
def test_the_tokens_of_highest_entropy_are_kept(keep_fraction, first, second):
    weights = keep(ENTROPY, keep_fraction)
    assert weights.dtype == torch.float32
    assert weights.tolist() == [first, second]


def test_ties_at_the_threshold_are_all_kept():
    assert keep([[0.5, 0.1, 0.5], [0.5, 0.2, 0.0]], 0.2).tolist() == [[1, 0, 1], [1, 0, 0]]
    assert torch.equal(keep(torch.zeros(2, 3), 0.2), FIVE)


def test_a_share_that_is_rounded_up_is_so_but_by_rounding_errors():
    """0.07 * 100 is 7.000000000000001 in floating point."""
    logp, ones = -torch.arange(100.0)[None], torch.ones(1, 100)
    for share, kept in ((0.07, 7), (0.071, 8), (1e-9, 1)):
        assert keep(-logp, share, ones).sum() == kept
        weights = load_method("stare", share=share, amplify=2.0).token_weights(stats_of(logp), ones, ones)
        assert (weights == 2).sum() == kept


# ---------------------------------------------------------------- advantage reweighting
def test_advantage_reweighting_by_hand():
    logp, mask = torch.tensor([[1.0, 0.5, 0.0]]).log(), torch.tensor([[1.0, 1.0, 0.0]])
    for alpha, expected in ((0.2, [1.0, 0.9, 0.0]), (0.0, [1.0, 1.0, 0.0]), (1.0, [1.0, 0.5, 0.0])):
        method = load_method("advantage_reweighting", alpha=alpha)
        assert method.token_weights(stats_of(logp), -mask, mask)[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("name", METHODS)
def test_files_and_defaults_agree(name):
    """Those of the method itself, not of PPO's clipping. A scale may override them; the files give their sources."""
    params = yaml.safe_load(config_file("method", name, CONFIGS).read_text())["method"]["params"]
    method = load_method(name)
    own = {key: params[key] for key in params.keys() & inspect.get_annotations(type(method))}
    assert own
    assert method.model_dump().items() >= own.items()


# ---------------------------------------------------------------- Clip-Cov
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
    draw = partial(method.token_weights, stats, advantages, mask, generator=generator)
    counts = sum((draw() == 0).double() for _ in range(draws))
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
