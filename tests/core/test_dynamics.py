"""The theorems against finite differences, autograd, closed forms and sampling, in float64."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entropy_dynamics.core.dynamics import (
    batch_entropy_change,
    discriminator,
    entropy_change_gradient_step,
    entropy_change_single_logit,
    expected_centered_score,
    expected_discriminator,
    expected_entropy_change,
)

WORKED_P = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
WORKED_S_CENTERED = (0.140793, -0.332332, -0.320885)


def entropy_of(logits):
    """H of softmax(logits), by the definition: [..., V] -> [...]."""
    logp = logits.log_softmax(-1)
    return -(logp.exp() * logp).sum(-1)


def make_logits(kind):
    g = torch.Generator().manual_seed(7)
    if kind == "random":
        return 2 * torch.randn(6, 40, generator=g, dtype=torch.float64)
    if kind == "uniform":
        return torch.zeros(1, 17, dtype=torch.float64)
    if kind == "vocabulary":
        return 4 * torch.randn(1, 151_936, generator=g, dtype=torch.float64)
    gap = {"peaked": 12.0, "very peaked": 30.0}[kind]
    logits = torch.randn(3, 40, generator=g, dtype=torch.float64)
    logits[:, 5] += gap
    return logits


KINDS = ["random", "uniform", "peaked", "very peaked", "vocabulary"]


def some_tokens(p):
    """Some items to update, as pairs of rows and tokens: the first, the fifth, the likeliest and the least likely."""
    rows = torch.arange(len(p)).repeat_interleave(4)
    tokens = torch.stack([torch.zeros(len(p)).long(), torch.full((len(p),), 5), p.argmax(-1), p.argmin(-1)], -1)
    return rows, tokens.flatten()


def onehot(tokens, size):
    return torch.nn.functional.one_hot(tokens, size).double()


# ---------------------------------------------------------------- S, Lemma 1
def test_worked_values_of_s():
    expected = torch.tensor([0.311601, -0.161524, -0.150077], dtype=torch.float64)
    torch.testing.assert_close(discriminator(WORKED_P), expected, rtol=0, atol=1e-6)
    assert expected_discriminator(WORKED_P).item() == pytest.approx(0.170808, abs=1e-6)


@pytest.mark.parametrize("rare", [0.4, 0.1, 1e-3, 1e-6, 1e-9])
def test_two_items_have_a_closed_form(rare):
    """With p = (1 - d, d): S = ±d (1 - d) log((1 - d)/d) and E[S] = (1 - 2d) S_0, down to p -> 1."""
    p = torch.tensor([1 - rare, rare], dtype=torch.float64)
    s = rare * (1 - rare) * (math.log1p(-rare) - math.log(rare))
    torch.testing.assert_close(discriminator(p), torch.tensor([s, -s], dtype=torch.float64), rtol=1e-6, atol=0)
    assert expected_discriminator(p).item() == pytest.approx((1 - 2 * rare) * s, rel=1e-6)


# ---------------------------------------------------------------- Theorems 1 and 2
@pytest.mark.parametrize("kind", KINDS)
def test_theorems_match_autograd(kind):
    logits = make_logits(kind).requires_grad_()
    (gradient,) = torch.autograd.grad(entropy_of(logits).sum(), logits)
    p = logits.detach().softmax(-1)
    rows, tokens = some_tokens(p)
    along_step = gradient[rows] * (onehot(tokens, p.shape[-1]) - p[rows])
    # atol: what rounding of p -> 1 costs any formula in float64
    single = entropy_change_single_logit(p[rows], tokens, 1.0)
    torch.testing.assert_close(single, gradient[rows, tokens], rtol=1e-6, atol=5e-15)
    step = entropy_change_gradient_step(p[rows], tokens, 1.0)
    torch.testing.assert_close(step, along_step.sum(-1), rtol=1e-6, atol=5e-15)


@pytest.mark.parametrize("predict", [entropy_change_single_logit, entropy_change_gradient_step])
def test_what_the_theorems_leave_out_of_finite_differences_is_of_second_order(predict):
    """Halving the step divides the error by four."""
    logits = make_logits("random")[:1]
    p = logits.softmax(-1)
    token = torch.tensor([3])
    direction = onehot(token, 40) - (0 if predict is entropy_change_single_logit else p)

    def error(step):
        return (entropy_of(logits + step * direction) - entropy_of(logits) - predict(p, token, step)).item()

    assert error(2e-2) / error(1e-2) == pytest.approx(4, rel=0.05)


# ---------------------------------------------------------------- Corollaries 1 and 3, exact
@pytest.mark.parametrize("kind", KINDS)
def test_corollaries_1_and_1_1_are_zero(kind):
    logits = make_logits(kind)
    p = logits.softmax(-1)
    zero = torch.zeros(len(p), dtype=torch.float64)
    torch.testing.assert_close(expected_centered_score(p), zero, rtol=0, atol=1e-14)
    behavior = (logits / 2).softmax(-1)
    torch.testing.assert_close(expected_centered_score(p, behavior), zero, rtol=0, atol=1e-14)


@pytest.mark.parametrize("kind", ["random", "uniform", "peaked", "very peaked"])
@pytest.mark.parametrize("off_policy", [False, True])
def test_corollaries_3_and_3_1_are_the_mean_of_theorem_2(kind, off_policy):
    logits = make_logits(kind)
    p = logits.softmax(-1)
    behavior = (logits / 3).softmax(-1) if off_policy else p
    advantages = 1 + torch.randn(p.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    eta = 0.05
    mean = torch.zeros(len(p), dtype=torch.float64)
    for k in range(p.shape[-1]):
        ratio = p[:, k] / behavior[:, k]
        change = entropy_change_gradient_step(p, torch.full((len(p),), k), eta * ratio * advantages[:, k])
        mean += behavior[:, k] * change
    predicted = expected_entropy_change(p, advantages, eta, behavior if off_policy else None)
    torch.testing.assert_close(predicted, mean, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("mean", [0.0, 2.0])
def test_corollary_3_1_is_a_covariance_under_the_behavior_policy(mean):
    """p' = (1/2, 1/2, 0) and A = mean + (1, -1, 100): r = (1.4, 0.4), so Cov = 0.7 S_c0 - 0.2 S_c1."""
    behavior = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64)
    advantages = mean + torch.tensor([1.0, -1.0, 100.0], dtype=torch.float64)
    change = expected_entropy_change(WORKED_P, advantages, 2.0, behavior)
    covariance = 0.7 * WORKED_S_CENTERED[0] - 0.2 * WORKED_S_CENTERED[1]
    assert change.item() == pytest.approx(-2 * covariance, abs=2e-6)


# ---------------------------------------------------------------- Corollaries 2 and 4, over a batch
def z_score(values):
    return (values.mean() / values.std() * math.sqrt(values.numel())).item()


@pytest.mark.parametrize("off_policy", [False, True])
def test_corollaries_2_and_2_1_hold_for_sampled_tokens(off_policy):
    g = torch.Generator().manual_seed(11)
    logits = 2 * torch.randn(20_000, 30, generator=g, dtype=torch.float64)
    p = logits.softmax(-1)
    behavior = (logits / 2).softmax(-1) if off_policy else p
    tokens = torch.multinomial(behavior, 1, generator=g)
    s = discriminator(p)
    s_star = s.gather(-1, tokens).squeeze(-1)
    s_centered = s_star - (p * s).sum(-1)
    ratio = (p.gather(-1, tokens) / behavior.gather(-1, tokens)).squeeze(-1) if off_policy else None
    factors = s_centered if ratio is None else ratio * s_centered
    assert abs(z_score(factors)) < 4
    # What is not centered, or off-policy not reweighted, is far from zero on the same tokens.
    wrong = s_centered if off_policy else s_star
    assert abs(z_score(wrong)) > 20


def padded(values, filler):
    """A vector laid out as [2, T] rows with padding on both sides that holds `filler`."""
    half = len(values) // 2
    out = torch.full((2, len(values) - half + 3), filler, dtype=torch.float64)
    out[0, 1 : 1 + half] = values[:half]
    out[1, 2 : 2 + len(values) - half] = values[half:]
    return out


@pytest.mark.parametrize("off_policy", [False, True])
def test_corollaries_4_and_4_1_are_the_average_of_theorem_2(off_policy):
    """Tokens drawn exactly in proportion to the sampling policy: mean r S_c is zero, so the identity is exact."""
    p = WORKED_P
    behavior = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64) if off_policy else p
    tokens = torch.tensor([k for k in range(3) for _ in range(round(10 * behavior[k].item()))])
    advantages = torch.randn(10, generator=torch.Generator().manual_seed(5), dtype=torch.float64) + 0.7
    ratio = (p / behavior)[tokens]
    eta = 0.03

    average = sum(entropy_change_gradient_step(p, tokens[t], eta * ratio[t] * advantages[t]).item() for t in range(10))
    average /= 10
    s_centered = (discriminator(p) - expected_discriminator(p))[tokens]
    mask = padded(torch.ones(10), 0)
    args = (padded(advantages, math.nan), padded(s_centered, math.nan), mask, eta)
    predicted = batch_entropy_change(*args, padded(ratio, math.nan) if off_policy else None)
    assert predicted.item() == pytest.approx(average, rel=1e-12)


def test_corollary_4_by_hand():
    """A = (1, -1, 3), S_c = (2, 0, 4): Cov = (0 + 4 + 4)/3; with r = (1, 3, 0.5), r S_c = (2, 0, 2), Cov = 0."""
    mask = torch.tensor([[True, True, True, False]])
    advantages = torch.tensor([[1.0, -1.0, 3.0, math.nan]])
    s_centered = torch.tensor([[2.0, 0.0, 4.0, math.inf]])
    assert batch_entropy_change(advantages, s_centered, mask, 0.3).item() == pytest.approx(-0.8)
    ratio = torch.tensor([[1.0, 3.0, 0.5, math.nan]])
    # mean r S_c = 4/3: deviations (2/3, -4/3, 2/3) against (0, -2, 2): (8/3 + 4/3) / 3 = 4/3
    assert batch_entropy_change(advantages, s_centered, mask, 0.3, ratio).item() == pytest.approx(-0.4)


# ---------------------------------------------------------------- properties
@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-25, 25), min_size=2, max_size=40))
def test_bounds_and_signs_of_s(logits):
    """S >= p H - 1/e; S > 0 where p > exp(-H) (eq. 6); S_c < 0 wherever S < 0 (Section 4.2).

    The latter as E[S] is Cov(p, log p), which is never negative.
    """
    logits = torch.tensor(logits, dtype=torch.float64)
    p, log_p, entropy = logits.softmax(-1), logits.log_softmax(-1), entropy_of(logits)
    s, expected = discriminator(p), expected_discriminator(p).item()
    assert (s >= p * entropy - 1 / math.e - 1e-12).all()
    margin = p.log() + entropy
    clear = margin.abs() > 1e-9
    assert torch.equal(s[clear] > 0, margin[clear] > 0)
    assert expected == pytest.approx(((p * p * log_p).sum() - (p * p).sum() * (p * log_p).sum()).item(), abs=1e-12)
    assert expected >= -1e-15
    assert (s[s < -1e-12] - expected < 0).all()
