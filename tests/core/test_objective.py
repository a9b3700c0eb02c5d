"""The clipped token-level loss and its averaging, against hand-worked cases and gradients written out."""

import math

import pytest
import torch

from batches import loss_weights, policy_loss
from entropy_dynamics.core.dynamics import batch_entropy_change
from entropy_dynamics.core.objective import importance_ratio
from entropy_dynamics.core.token_stats import token_stats


# ---------------------------------------------------------------- one token
def loss_and_gradient(ratio, advantage, **clip):
    logp = torch.tensor([[-1.0 + math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([[-1.0]], dtype=torch.float64)
    one = torch.ones_like(old)
    loss = policy_loss(logp, old, advantage * one, one, **clip)
    loss.backward()
    return loss.item(), logp.grad.item()


@pytest.mark.parametrize(
    ("advantage", "ratio", "dual_clip", "loss", "gradient"),
    [
        # A > 0: clipped above only
        (1.0, 1.0, 3.0, -1.0, -1.0),
        (2.0, 1.25, 3.0, -2.5, -2.5),
        (2.0, 1.5, 3.0, -2.6, 0.0),  # r > 1.3: no gradient
        (2.0, 9.0, math.inf, -2.6, 0.0),
        (2.0, 0.5, 3.0, -1.0, -1.0),  # r < 0.8: still learns
        # A < 0: clipped below only, and the dual clip
        (-1.0, 1.0, 3.0, 1.0, 1.0),
        (-1.0, 0.5, 3.0, 0.8, 0.0),  # r < 0.8: no gradient
        (-1.0, 1.5, 3.0, 1.5, 1.5),  # r > 1.3: still learns
        (-2.0, 2.5, 3.0, 5.0, 5.0),
        (-2.0, 4.0, 3.0, 6.0, 0.0),  # r > 3: capped, no gradient
        (-2.0, 40.0, math.inf, 80.0, 80.0),  # never capped
        # A = 0
        (0.0, 2.0, 3.0, 0.0, 0.0),
        (0.0, 0.1, math.inf, 0.0, 0.0),
    ],
)
def test_clipping_by_hand(advantage, ratio, dual_clip, loss, gradient):
    got = loss_and_gradient(ratio, advantage, clip_low=0.2, clip_high=0.3, dual_clip=dual_clip)
    assert got == (pytest.approx(loss, abs=1e-12), pytest.approx(gradient, abs=1e-12))


@pytest.mark.parametrize(("log_ratio", "loss"), [(60.0, math.exp(20)), (-60.0, 0.8)])
def test_the_log_ratio_is_clamped(log_ratio, loss):
    logp = torch.tensor([[log_ratio]], dtype=torch.float64, requires_grad=True)
    one = torch.ones(1, 1, dtype=torch.float64)
    value = policy_loss(logp, 0 * one, -one, one, dual_clip=math.inf)
    value.backward()
    assert value.item() == pytest.approx(loss, rel=1e-9)
    assert logp.grad.item() == 0


# ---------------------------------------------------------------- a batch
def test_strictly_on_policy_the_gradient_is_the_mean_of_a_grad_logp():
    g = torch.Generator().manual_seed(0)
    logits = torch.randn(4, 6, 9, generator=g, dtype=torch.float64)
    tokens = torch.randint(9, (4, 6), generator=g)
    advantages = torch.randn(4, 6, generator=g, dtype=torch.float64)
    mask = torch.arange(6) < torch.tensor([6, 1, 4, 5])[:, None]
    multipliers = loss_weights(mask.double(), mask, torch.tensor([0, 0, 1, 1]))
    logits.requires_grad_()
    logp = logits.log_softmax(-1).gather(-1, tokens[..., None]).squeeze(-1)
    loss = policy_loss(logp, logp, advantages, multipliers)  # logp_old is detached inside
    (gradient,) = torch.autograd.grad(loss, logits)

    grad_logp = torch.nn.functional.one_hot(tokens, 9) - logits.detach().softmax(-1)
    expected = -(advantages * mask)[..., None] * grad_logp / mask.sum()
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=1e-14)
    assert loss.item() == pytest.approx(-advantages[mask].mean().item(), rel=1e-12)


def test_a_batch_without_tokens_has_loss_and_gradient_zero():
    logp = torch.randn(2, 3, requires_grad=True)
    for mask in (torch.zeros(2, 3), torch.ones(2, 3)):  # no response tokens; all of them dropped
        multipliers = loss_weights(torch.zeros(2, 3), mask, torch.tensor([0, 1]))
        loss = policy_loss(logp, logp, torch.ones(2, 3), multipliers)
        loss.backward()
        assert loss.item() == 0
        assert torch.equal(logp.grad, torch.zeros(2, 3))


# ---------------------------------------------------------------- the average
X = 7.0  # padding: never read
MASK = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0]])
WEIGHTS = torch.tensor([[1.0, 0.0, 1.0], [1.0, X, X], [0.5, 1.0, X]])  # 5 of 6 response tokens kept
GROUPS = torch.tensor([50, 9, 50])  # 4 of 5, and 1 of 1


@pytest.mark.parametrize(
    ("scope", "denominator", "first_group", "second_group"),
    [
        ("global_token", "kept", 5, 5),
        ("global_token", "all", 6, 6),
        ("per_group", "kept", 2 * 4, 2 * 1),
        ("per_group", "all", 2 * 5, 2 * 1),
    ],
)
def test_averages_by_hand(scope, denominator, first_group, second_group):
    got = loss_weights(WEIGHTS, MASK, GROUPS, scope=scope, denominator=denominator)
    a, b = 1 / first_group, 1 / second_group
    expected = torch.tensor([[a, 0, a], [b, 0, 0], [a / 2, a, 0]])
    torch.testing.assert_close(got, expected)


def test_a_group_that_lost_all_its_tokens_still_counts_as_a_group():
    """Group 0 keeps nothing, group 1 two tokens: (0 + mean of the two) / 2."""
    weights = torch.tensor([[0.0, 0.0], [1.0, 1.0]])
    got = loss_weights(weights, torch.ones(2, 2), torch.tensor([0, 1]), scope="per_group", denominator="kept")
    assert got.tolist() == [[0.0, 0.0], [0.25, 0.25]]


# ---------------------------------------------------------------- together with the theory
def test_a_real_step_changes_entropy_as_corollary_4_predicts():
    """Gradient descent on the logits of a tabular policy, with tokens sampled from it."""
    g = torch.Generator().manual_seed(8)
    tokens_n, vocabulary, eta = 4000, 12, 1e-3
    logits = (2 * torch.randn(1, tokens_n, vocabulary, generator=g)).requires_grad_()
    tokens = torch.multinomial(logits.detach()[0].softmax(-1), 1, generator=g).T
    stats = token_stats(logits, tokens)
    # Likely tokens are rewarded more often than rare ones, so that entropy must fall.
    likely = stats.s_centered > 0
    advantages = torch.where(torch.rand(1, tokens_n, generator=g) < 0.5 + 0.2 * likely, 1.0, -1.0)
    mask = torch.ones(1, tokens_n)
    multipliers = loss_weights(mask, mask, torch.tensor([0]))
    policy_loss(stats.logp, stats.logp, advantages, multipliers).backward()

    def mean_entropy(z):
        return torch.distributions.Categorical(logits=z.double()).entropy().mean().item()

    before = logits.detach()
    measured = mean_entropy(before.double() - eta * tokens_n * logits.grad.double()) - mean_entropy(before)
    predicted = batch_entropy_change(advantages, stats.s_centered, mask, eta).item()
    # Besides second-order terms, Cov and the plain mean differ by mean(A) mean(S_c), of the order 1/sqrt(N).
    extra = eta * advantages.mean().item() * stats.s_centered.mean().item()
    assert measured < -1e-5
    assert measured == pytest.approx(predicted - extra, rel=5e-3)
    assert measured == pytest.approx(predicted, rel=0.1)


def test_the_importance_ratio_by_hand():
    """p / p_old, bounded by e^20 either way, and 1 outside the mask whatever stands there."""
    logp = torch.tensor([0.5, 0.1, 1.0, 1e-12, 0.3]).log()
    logp_old = torch.tensor([0.25, 0.4, 1e-12, 1.0, float("nan")]).log()
    ratio = importance_ratio(logp, logp_old, torch.tensor([1, 1, 1, 1, 0]))
    torch.testing.assert_close(ratio, torch.tensor([2.0, 0.25, math.exp(20), math.exp(-20), 1.0]))
