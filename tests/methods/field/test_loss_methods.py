"""Methods that act through the loss or weight of a token: hand-worked cases, and state.

STEER and more of GSPO, DPPO and CE-GPPO are in test_authors_functions.py.
"""

import math

import pytest
import torch

from batches import loss_weights, random_batch, stats_of
from entropy_dynamics.core.objective import weighted_sum
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import load_method
from reference import run


def gradient(method, log_ratio, advantages, mask) -> tuple[torch.Tensor, torch.Tensor]:
    """Token losses, and the gradient of their mean in log p, for log p_old = -1 and log p - log p_old = `log_ratio`."""
    logp = (torch.as_tensor(log_ratio) - 1.0).requires_grad_()
    mask = torch.as_tensor(mask)
    loss = method.token_loss(logp, torch.full_like(logp, -1.0), torch.as_tensor(advantages), mask)
    groups = torch.zeros(len(mask), dtype=torch.long)
    divisors = loss_weights(mask.float(), mask, groups, scope=method.loss_scope, denominator=method.denominator)
    weighted_sum(loss, divisors).backward()
    return loss.detach(), logp.grad


# ---------------------------------------------------------------- CISPO, DPPO, CE-GPPO, GSPO
@pytest.mark.parametrize(
    ("name", "params", "ratio", "advantage", "weight"),
    [
        ("cispo", {}, 1.0, 2.0, 1.0),
        ("cispo", {}, 1.2, 2.0, 1.2),
        ("cispo", {}, 1.5, 2.0, 1.28),  # truncated, but PPO would give it no gradient at all
        ("cispo", {}, 9.0, -1.0, 1.28),
        ("cispo", {}, 0.1, -1.0, 0.1),  # no lower bound by default
        ("cispo", {"clip_low": 0.5}, 0.1, -1.0, 0.5),
        ("dppo", {}, 1.3, 1.0, 1.3),
        ("dppo", {}, 1.5, 1.0, 0.0),  # the probability moved by 0.18, more than 0.15
        ("dppo", {}, 0.5, -1.0, 0.0),
        ("dppo", {}, 11.0, -1.0, 10.0),  # away from where A pushes: never stopped, but truncated
        ("ce_gppo", {}, 1.5, 2.0, 1.2),  # PPO: 0
        ("ce_gppo", {}, 0.5, -1.0, 0.75 * 0.8),  # PPO: 0
        ("ce_gppo", {}, 11.0, -1.0, 0.0),  # dual clip
    ],
)
def test_gradient_by_hand(name, params, ratio, advantage, weight):
    """It is -weight A; the loss of CISPO and DPPO is this constant times log p."""
    loss, grad = gradient(load_method(name, **params), [[math.log(ratio)]], [[advantage]], [[1]])
    assert grad.item() == pytest.approx(-weight * advantage, rel=1e-5)
    if name != "ce_gppo":
        assert loss.item() == pytest.approx(-weight * advantage * (math.log(ratio) - 1), rel=1e-5)


def test_gspo_with_an_advantage_per_token():
    """Each token's gradient is s A_t / T, as in GSPO-token."""
    _, grad = gradient(load_method("gspo", clip_high=0.5), [[0.3, 0.1]], [[1.0, 3.0]], [[1, 1]])
    torch.testing.assert_close(grad, -math.exp(0.2) * torch.tensor([[1.0, 3.0]]) / 2)


# ---------------------------------------------------------------- adaptive entropy
def test_the_controller_sees_the_log_probabilities_of_sampled_tokens():
    """-(-1 - 3 - 2) / 3 = 2, whatever the entropies of the distributions."""
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]])
    stats = stats_of([[-1.0, -3.0, 7.0], [-2.0, 7.0, 7.0]], torch.full((2, 3), 0.5))
    seen = load_method("adaptive_entropy").metrics(stats, torch.zeros(2, 3), mask.float(), mask)
    assert seen["sampled_entropy"] == pytest.approx(2.0)


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


# ---------------------------------------------------------------- weights of tokens
def weights_of(method, p, entropy, advantages) -> list:
    """Token weights from probabilities; one list per row."""
    stats = stats_of(torch.tensor(p).log(), entropy)
    weights = method.token_weights(stats, torch.tensor(advantages), torch.ones_like(stats.logp))
    assert weights.dtype == torch.float32
    return weights.tolist()


# L = log p + H of three tokens: 0.5, -1.5 and -40
P, ENTROPY = [math.exp(-0.5), math.exp(-2.5), math.exp(-41.0)], [1.0, 1.0, 1.0]


# ---------------------------------------------------------------- REPO-R
@pytest.mark.parametrize(
    ("zeta", "advantage", "expected"),
    [
        (0.1, 2.0, [0.95, 1.15, 5.0]),  # A (1 - zeta L)
        (0.1, -2.0, [1.05, 0.85, 0.0]),  # A (1 + zeta L), which would be positive for the third
        (-0.1, 2.0, [1.05, 0.85, 0.0]),
        (0.0, -2.0, [1.0, 1.0, 1.0]),
        (0.1, 0.0, [1.0, 1.0, 1.0]),
    ],
)
def test_repo_r_by_hand(zeta, advantage, expected):
    (weights,) = weights_of(load_method("repo_r", zeta=zeta), [P], [ENTROPY], [[advantage] * 3])
    assert weights == pytest.approx(expected, rel=1e-5)


def test_repo_r_pushes_the_entropy_up_in_all_four_quadrants():
    """-A' S* is at least -A S*, as S* = p L."""
    logp, entropy, advantages, mask = random_batch(seed=1)
    weights = load_method("repo_r", zeta=0.2).token_weights(stats_of(logp, entropy), advantages, mask)
    s_star = logp.exp() * (logp + entropy)
    pushed = (-advantages * s_star * (weights - 1))[mask]
    assert (pushed >= 0).all()
    for positive in (True, False):
        for likely in (True, False):
            quadrant = ((advantages > 0) == positive) & ((s_star > 0) == likely) & (advantages != 0) & mask
            assert (weights != 1)[quadrant].any()


def zetas(method, entropies) -> list[float]:
    found = []
    for entropy in entropies:
        method.observe({"entropy": entropy})
        found.append(method.metrics()["repo_zeta"])
    return found


def test_the_controller_of_repo_r():
    """Doubled while the entropy is below the target, up to the bound; halved above it, then of the other sign."""
    method = load_method("repo_r", zeta=0.01, target=0.3, zeta_min=0.004, zeta_max=0.03)
    entropies = [0.1, 0.1, 0.5, 0.5, 0.5, 0.5, 0.5, 0.3, 0.1, 0.1, 0.1]
    expected = [0.02, 0.03, 0.015, 0.0075, -0.004, -0.008, -0.016, -0.03, -0.015, -0.0075, 0.004]
    assert zetas(method, entropies) == pytest.approx(expected)
    (weights,) = weights_of(method, [P[:2]], [ENTROPY[:2]], [[1.0, 1.0]])
    assert weights == pytest.approx([1 - 0.004 * 0.5, 1 + 0.004 * 1.5])


def test_without_a_target_zeta_is_constant():
    assert zetas(load_method("repo_r", zeta=0.01), [0.0, 9.0]) == [0.01, 0.01]
    assert zetas(load_method("repo_r", zeta=0.0, target=0.3), [0.1]) == [1e-4]


# ---------------------------------------------------------------- STARE
ROWS = [[0.9, 0.1, 0.5], [0.2, 0.3, 0.05]]
SIGNS = [[1.0] * 3, [-1.0] * 3]


@pytest.mark.parametrize(
    ("params", "first", "second"),
    [
        ({"share": 0.1}, [1, 1.1, 1], [1, 1, 1]),  # rounded up to one of three
        ({"share": 0.5}, [1, 1.1, 1.1], [1, 1, 1]),
        ({"share": 1.0, "amplify": 2}, [2, 2, 2], [1, 1, 1]),
        ({"share": 0.5, "damp": 0.9}, [1, 1.1, 1.1], [0.9, 1, 0.9]),  # variant C2
        ({"share": 0.5, "damp": 0.9, "target": 0.25}, [1, 1, 1], [1, 1, 1]),  # the mean entropy is 0.25
    ],
)
def test_stare_by_hand(params, first, second):
    entropy = [[0.0, 0.5, 0.25], [0.25, 0.25, 0.25]]
    found = weights_of(load_method("stare", **params), ROWS, entropy, SIGNS)
    assert found == [pytest.approx(first), pytest.approx(second)]


# ---------------------------------------------------------------- RSI-S
def test_rsi_s_by_hand():
    """-log p / H of 0.05, 0.1, 1, 3 and 3.1; and a certain token, at which H = log p = 0."""
    rsi = torch.tensor([[0.05, 0.1, 1.0, 3.0, 3.1, 0.0]])
    entropy = torch.tensor([[0.5, 0.5, 2.0, 1.0, 1.0, 0.0]])
    stats = stats_of(-rsi * entropy, entropy)
    weights = load_method("rsi_s").token_weights(stats, torch.ones(1, 6), torch.ones(1, 6))
    assert weights.tolist() == [[0, 1, 1, 1, 0, 1]]


# ---------------------------------------------------------------- OPEFO
@pytest.mark.parametrize(
    ("params", "up", "down"),
    [
        ({}, 4 / 3, 2 / 3),
        ({"side": "raise"}, 4 / 3, 1.0),
        ({"side": "lower"}, 1.0, 2 / 3),
        ({"strength": 0.5}, 1.5, 0.5),
    ],
)
def test_opefo_by_hand(params, up, down):
    """Changes -A S*: 0.3 and 0.1 up, 0.8 down; lambda = (0.8 - 0.4) / 1.2 = 1/3."""
    stats, advantages = stats_of(s_star=[[-0.3, 0.8], [0.05, 0.0]]), torch.tensor([[1.0], [-2.0]])
    given = stats, advantages.expand(2, 2), torch.ones(2, 2)
    weights = load_method("opefo", **params).token_weights(*given)
    torch.testing.assert_close(weights, torch.tensor([[up, down], [up, 1.0]]))


@pytest.mark.parametrize(("name", "change"), [("opefo", "s_star"), ("opefo_centered", "s_centered")])
def test_opefo_leaves_the_entropy_of_a_batch_unchanged(name, change):
    logp, entropy, advantages, mask = random_batch(seed=3)
    expected = 0.3 * torch.rand_like(entropy) * entropy  # E[S], which is not 0
    stats = TokenStats.from_logged(logp, entropy, expected)
    weights = load_method(name).token_weights(stats, advantages, mask)
    assert not weights[~mask.bool()].any()
    changes = (-advantages * getattr(stats, change))[mask.bool()]
    assert abs((weights[mask.bool()] * changes).sum()) < 1e-5 * changes.abs().sum() < abs(changes.sum())


def test_the_share_of_tokens_whose_sign_the_omitted_term_changes():
    """The first of three response tokens has S* = 0.1 > 0 and S* - E[S] = -0.1 < 0; the other two keep their sign."""
    stats = stats_of(s_star=[[0.1, 0.3, -0.1, 0.1]], s_expected=[[0.2] * 4])
    mask = torch.tensor([[1, 1, 1, 0]])
    assert load_method("opefo").metrics(stats, mask, mask, mask)["opefo_sign_changes"] == pytest.approx(1 / 3)


def test_opefo_of_a_batch_without_a_change_is_grpo():
    logp, entropy, advantages, mask = random_batch(seed=1)
    assert torch.equal(load_method("opefo").token_weights(stats_of(logp, entropy), 0 * advantages, mask), mask.float())
