"""The methods of other papers: hand-worked masks, weights and rewards, or brute force over the definitions.

What is special to Clip-Cov and KL-Cov is in test_covariance.py.
"""

import math

import numpy as np
import pytest
import torch
import yaml

from batches import shares, stats_of
from conftest import ROOT
from entropy_dynamics.config import config_file
from entropy_dynamics.methods import load_method
from entropy_dynamics.methods.unlikeliness import ranks_in_groups

CONFIGS = ROOT / "configs"
METHODS = ["clip_cov", "kl_cov", "unlikeliness", "forking_tokens", "advantage_reweighting", "entropy_bonus"]


# ---------------------------------------------------------------- rewarding the unlikely
def shape(rewards, groups, mean_logp, **params) -> list[float]:
    method = load_method("unlikeliness", **params)
    return method.shape_rewards(torch.tensor(rewards), torch.tensor(groups), torch.tensor(mean_logp)).tolist()


def test_groups_of_any_size_and_order():
    rng = np.random.default_rng(0)
    groups = rng.permutation(np.repeat([7, -2, 40, 3, 9], [1, 2, 5, 16, 30]))
    mean_logp = -rng.integers(0, 12, len(groups)) / 4  # with ties
    rewards = rng.choice([1.0, 0.0, -0.1, -1.0], len(groups))
    ranks, sizes = ranks_in_groups(torch.tensor(mean_logp), torch.tensor(groups))
    shaped = shape(rewards.tolist(), groups.tolist(), mean_logp.tolist(), beta=0.4)
    for i, (group, value) in enumerate(zip(groups, mean_logp, strict=True)):
        members = np.flatnonzero(groups == group)
        rank = sum(mean_logp[j] < value or (mean_logp[j] == value and j < i) for j in members)
        assert ranks[i] == rank
        assert sizes[i] == len(members)
        expected = rewards[i] * (1 - 0.4 * rank / len(members)) if rewards[i] > 0 else rewards[i]
        assert shaped[i] == pytest.approx(expected, rel=1e-6)


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


# ---------------------------------------------------------------- advantage reweighting
def test_advantage_reweighting_by_hand():
    logp, mask = torch.tensor([[0.0, 0.5, 0.0]]).log(), torch.tensor([[1.0, 1.0, 0.0]])
    logp[0, 0] = 0.0
    for alpha, expected in ((0.2, [1.0, 0.9, 0.0]), (0.0, [1.0, 1.0, 0.0]), (1.0, [1.0, 0.5, 0.0])):
        method = load_method("advantage_reweighting", alpha=alpha)
        assert method.token_weights(stats_of(logp), -mask, mask)[0].tolist() == pytest.approx(expected)
    method = load_method("advantage_reweighting", alpha=1.0)
    of_another = method.token_weights(stats_of(logp), mask, mask, logp_old=logp - 1)  # stale rollouts
    assert of_another[0].tolist() == pytest.approx([1 / math.e, 0.5 / math.e, 0.0])
    method = load_method("advantage_reweighting")
    assert shares(method, method.token_weights(stats_of(logp), mask, mask), mask)[0, 1].item() == pytest.approx(0.45)


@pytest.mark.parametrize("name", METHODS)
def test_files_and_defaults_agree(name):
    """Those of the method itself, not of PPO's clipping. A scale may override them; the files give their sources."""
    params = yaml.safe_load(config_file("method", name, CONFIGS).read_text())["method"]["params"]
    own = {key: params[key] for key in params.keys() - load_method("grpo").model_dump().keys()}
    assert own
    assert load_method(name).model_dump().items() >= own.items()
