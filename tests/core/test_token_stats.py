"""Token statistics in fp32 against float64 by the definitions, their gradient, and what they hold in memory."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from entropy_dynamics.core.token_stats import TokenStats, token_stats
from reference import by_definition

FIELDS = ("logp", "entropy", "s_star", "s_expected", "s_centered")


def brute_force(logits, tokens, temperature=1.0):
    """The definitions, in float64."""
    stats = by_definition((logits.double() / temperature).log_softmax(-1), tokens)
    return stats | {"s_centered": stats["s_star"] - stats["s_expected"]}


def check(stats, expected, rtol=2e-5, atol=2e-6):
    for name in FIELDS:
        got = getattr(stats, name)
        assert got.dtype == torch.float32, name
        torch.testing.assert_close(
            got.double(), expected[name], rtol=rtol, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


def make_logits(rows, vocabulary, kind="random", seed=0):
    g = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, vocabulary, generator=g)
    if kind == "uniform":
        logits = torch.full((rows, vocabulary), 3.0)
    elif kind == "peaked":
        logits[:, 1] += 18
    elif kind == "far from zero":
        logits = logits + 1000 * torch.randn(rows, 1, generator=g)
    tokens = torch.randint(vocabulary, (rows,), generator=g)
    tokens[: rows // 2] = logits[: rows // 2].argmax(-1)
    return logits, tokens


# ---------------------------------------------------------------- values
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["random", "uniform", "peaked", "far from zero"])
def test_logits_of_every_dtype(kind, dtype):
    """A half-precision logit is exact; only what is computed from it could lose digits, and must not."""
    logits, tokens = make_logits(64, 200, kind)
    logits = logits.to(dtype)
    # far from zero: the division by the temperature rounds logits of size 1000 in fp32
    check(
        token_stats(logits, tokens, temperature=0.7),
        brute_force(logits, tokens, 0.7),
        atol=2e-3 if kind == "far from zero" else 2e-6,
    )


WORKED_P = torch.tensor([0.7, 0.2, 0.1])
WORKED_S_STAR = torch.tensor([0.311601, -0.161524, -0.150077])


def test_worked_values():
    stats = token_stats(WORKED_P.log().expand(3, 3), torch.arange(3))
    expected = {"entropy": torch.full((3,), 0.801819), "s_expected": torch.full((3,), 0.170808)}
    expected["s_centered"] = torch.tensor([0.140793, -0.332332, -0.320885])
    expected["s_star"] = WORKED_S_STAR
    for name, values in expected.items():
        torch.testing.assert_close(getattr(stats, name), values, rtol=0, atol=2e-6)
    torch.testing.assert_close(stats.logp.exp(), WORKED_P)
    assert [*stats.columns()] == ["logp", "entropy", "s_star", "s_expected"]
    assert torch.equal(stats.map(torch.neg).entropy, -stats.entropy)


@pytest.mark.parametrize("s_expected", [None, torch.full((3,), 0.25).double()])
def test_statistics_of_a_trainers_log_are_the_worked_values(s_expected):
    """Logged in float64, with a graph. E[S] does not follow from log p and H."""
    logp = WORKED_P.double().log().requires_grad_()
    stats = TokenStats.from_logged(logp, -(logp.exp() * logp).sum().expand(3), s_expected)
    for column in stats.columns().values():
        assert (column.dtype, column.requires_grad) == (torch.float32, False)
    torch.testing.assert_close(stats.s_star, WORKED_S_STAR, rtol=0, atol=2e-6)
    assert stats.s_expected.nan_to_num(-1).tolist() == [-1 if s_expected is None else 0.25] * 3


@pytest.mark.parametrize("gap", [5.0, 12.0, 20.0, 40.0])
def test_s_of_a_peaked_distribution_keeps_its_digits(gap):
    """Two items, d = sigmoid(-gap): S = ±d (1 - d) gap and E[S] = (1 - 2d) S_0, although p_0 rounds to 1 in fp32."""
    d = 1 / (1 + math.exp(gap))
    s = d * (1 - d) * gap
    stats = token_stats(torch.tensor([[gap, 0.0], [gap, 0.0]]), torch.tensor([0, 1]))
    assert stats.s_star.tolist() == pytest.approx([s, -s], rel=1e-5)
    assert stats.s_expected.tolist() == pytest.approx([(1 - 2 * d) * s] * 2, rel=1e-5)
    assert stats.entropy.min().item() >= 0
    assert stats.logp.tolist() == pytest.approx([math.log1p(-d), math.log(d)], rel=1e-6, abs=1e-7)


@pytest.mark.parametrize(("rows", "vocabulary"), [(7, 1000), (2500, 1000), (1, 5003), (600, 5003)])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_hidden_states_and_a_weight(rows, vocabulary, entropy_gradient):
    """Statistics, and the gradient of log p, with that of the entropy or without."""
    g = torch.Generator().manual_seed(rows)
    given = torch.randn(rows, 16, generator=g), 0.5 * torch.randn(vocabulary, 16, generator=g)
    tokens, upstream = torch.randint(vocabulary, (rows,), generator=g), torch.randn(2, rows, generator=g)
    hidden, weight = (x.clone().requires_grad_() for x in given)
    stats = token_stats(hidden, tokens, weight=weight, temperature=0.7, entropy_gradient=entropy_gradient)
    exact_hidden, exact_weight = (x.double().requires_grad_() for x in given)
    expected = brute_force(exact_hidden @ exact_weight.T, tokens, 0.7)
    check(stats, {name: values.detach() for name, values in expected.items()}, atol=2e-5)

    (stats.logp * upstream[0] + entropy_gradient * stats.entropy * upstream[1]).sum().backward()
    (expected["logp"] * upstream[0] + entropy_gradient * expected["entropy"] * upstream[1]).sum().backward()
    assert exact_weight.grad.abs().max() > 0.1
    torch.testing.assert_close(hidden.grad.double(), exact_hidden.grad, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(weight.grad.double(), exact_weight.grad, rtol=1e-4, atol=2e-5)


def test_leading_shapes_are_kept():
    """Also those of the usual shift, logits[:, :-1] against tokens[:, 1:], not contiguous."""
    logits, tokens = make_logits(24, 30)
    flat = token_stats(logits, tokens)
    shaped = token_stats(logits.view(2, 3, 4, 30), tokens.view(2, 3, 4))
    shifted = logits.view(4, 6, 30)[:, :-1], tokens.view(4, 6)[:, 1:]
    alone = token_stats(logits[5], tokens[5])
    for name in FIELDS:
        assert torch.equal(getattr(shaped, name), getattr(flat, name).view(2, 3, 4))
        torch.testing.assert_close(getattr(alone, name), getattr(flat, name)[5])
    check(token_stats(*shifted), brute_force(*shifted))
    assert token_stats(logits[:0], tokens[:0]).logp.shape == (0,)


def test_logits_in_another_order_in_memory_have_the_same_gradient():
    """A transposed matrix, and one whose rows are apart."""
    logits, tokens = make_logits(6, 300)
    columns = torch.arange(6.0)

    def gradient(matrix):
        matrix = matrix.detach().requires_grad_()
        stats = token_stats(matrix, tokens, entropy_gradient=True)
        (stats.logp * columns + stats.entropy).sum().backward()
        return matrix.grad

    expected = gradient(logits)
    for matrix in (logits.T.contiguous().T, torch.cat((logits, logits), -1)[:, :300]):
        assert not matrix.is_contiguous()
        torch.testing.assert_close(gradient(matrix), expected)


def test_a_wrong_shape_is_refused():
    with pytest.raises(ValueError, match=r"\(3,\)"):
        token_stats(torch.zeros(4, 10), torch.zeros(3, dtype=torch.long))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-640, 640), min_size=2, max_size=40), st.integers(-500, 500), st.integers(0, 39))
def test_a_shift_of_the_logits_changes_no_bit(sixty_fourths, shift, token):
    """Multiples of 1/64 and whole shifts are exact in fp32, so the statistics must be equal, not only close."""
    logits = torch.tensor([sixty_fourths]) / 64
    token = torch.tensor([token % len(sixty_fourths)])
    plain, shifted = token_stats(logits, token), token_stats(logits + shift, token)
    for name in FIELDS:
        assert torch.equal(getattr(plain, name), getattr(shifted, name)), name


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-40, 40, width=32), min_size=2, max_size=40))
def test_bounds_and_identities(values):
    vocabulary = len(values)
    logits = torch.tensor([values]).expand(vocabulary, vocabulary)
    stats = token_stats(logits, torch.arange(vocabulary))
    p = stats.logp.double().exp()
    assert p.sum().item() == pytest.approx(1, abs=1e-5)
    assert (stats.logp <= 0).all()
    assert (stats.entropy >= 0).all()
    assert (stats.entropy <= math.log(vocabulary) + 1e-5).all()
    assert (stats.s_star >= -1 / math.e - 1e-6).all()
    assert abs((p * stats.s_centered.double()).sum().item()) < 1e-5


# ---------------------------------------------------------------- wide vocabularies, streamed in tiles
# one tile of many rows; several tiles, the last not full
WIDE = [5003, 151_936, 200_001]


@pytest.mark.parametrize(("vocabulary", "kind"), [*zip(WIDE, ["random", "peaked", "far from zero"], strict=True)])
def test_wide_logits(vocabulary, kind):
    logits, tokens = make_logits(9, vocabulary, kind)
    tokens[-1] = vocabulary - 1
    far = kind == "far from zero"  # fp32 rounds the difference of logits of size 1000
    stats, expected = token_stats(logits, tokens, temperature=0.7), brute_force(logits, tokens, 0.7)
    check(stats, expected, rtol=1e-5, atol=1e-5 if far else 1e-6)


@pytest.mark.parametrize("vocabulary", [200, 5003])
def test_half_precision_loses_no_bit(vocabulary):
    """Logits in bf16 give what the same logits in fp32 give, log p of the most likely tokens included."""
    logits, tokens = make_logits(9, vocabulary)
    half = logits.bfloat16()
    ours, theirs = (token_stats(of, tokens, temperature=0.7, top=4) for of in (half, half.float()))
    for name in (*FIELDS, "top_logp"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name)), name


@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("vocabulary", [200, 5003, 151_936])
def test_minus_infinity_is_a_token_that_is_not_there(vocabulary, entropy_gradient):
    """Statistics and gradient are those of the vocabulary without it, at any place: a hole and a whole tile."""
    logits, tokens = make_logits(6, vocabulary)
    absent = torch.zeros(vocabulary, dtype=torch.bool)
    absent[7], absent[vocabulary // 2 :] = True, True
    tokens = tokens % 7
    given, short = logits.masked_fill(absent, -torch.inf).requires_grad_(), logits[:, ~absent].double().requires_grad_()
    stats, expected = token_stats(given, tokens, entropy_gradient=entropy_gradient), brute_force(short, tokens)
    check(stats, {name: value.detach() for name, value in expected.items()})
    (stats.logp + stats.entropy).sum().backward()
    (expected["logp"] + (expected["entropy"] if entropy_gradient else 0)).sum().backward()
    torch.testing.assert_close(given.grad[:, ~absent].double(), short.grad, rtol=1e-4, atol=1e-6)
    assert not given.grad[:, absent].any()


# ---------------------------------------------------------------- gradients
@pytest.mark.parametrize("temperature", [0.7, 1.0, 2.0])
@pytest.mark.parametrize(("rows", "dtype"), [(6, torch.float32), (2500, torch.float32), (20, torch.bfloat16)])
def test_gradient_of_logp_from_logits(rows, dtype, temperature):
    """It has the dtype of the logits."""
    logits, tokens = make_logits(rows, 1000)
    upstream = torch.randn(rows, generator=torch.Generator().manual_seed(1))
    mine = logits.to(dtype).requires_grad_()
    (token_stats(mine, tokens, temperature=temperature).logp * upstream).sum().backward()
    theirs = mine.detach().double().requires_grad_()
    (brute_force(theirs, tokens, temperature)["logp"] * upstream).sum().backward()
    assert mine.grad.dtype == dtype
    rtol, atol = (0.01, 1e-4) if dtype == torch.bfloat16 else (1e-4, 1e-6)
    torch.testing.assert_close(mine.grad.double(), theirs.grad, rtol=rtol, atol=atol)


@pytest.mark.parametrize("form", ["logits", "hidden"])
def test_only_logp_carries_a_gradient(form):
    logits, tokens = make_logits(8, 30)
    logits.requires_grad_()
    weight = torch.randn(12, 30, requires_grad=True) if form == "hidden" else None
    stats = token_stats(logits, tokens % 12, weight=weight)
    assert stats.logp.requires_grad
    for name in FIELDS[1:]:
        assert not getattr(stats, name).requires_grad, name
    with torch.no_grad():
        assert not token_stats(logits, tokens % 12, weight=weight).logp.requires_grad


# ---------------------------------------------------------------- memory
class Allocations(TorchDispatchMode):
    """Sizes, in elements, of the storages that operations return and that were not there before."""

    def __init__(self, *known):
        super().__init__()
        self.known = {x.untyped_storage().data_ptr() for x in known}
        self.sizes = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        inputs = {x.untyped_storage().data_ptr() for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                if storage.data_ptr() not in self.known | inputs:
                    self.sizes.append(storage.nbytes() // x.element_size())
        return out


ROWS, VOCABULARY = 4096, 1024
FULL = ROWS * VOCABULARY


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_second_logits_tensor_from_logits(dtype):
    logits, tokens = make_logits(ROWS, VOCABULARY)
    logits = logits.to(dtype).requires_grad_()
    with Allocations(logits) as seen:
        stats = token_stats(logits, tokens)
    assert ROWS <= max(seen.sizes) <= FULL // 2
    with Allocations(logits) as seen:
        stats.logp.sum().backward()
    assert sum(size > FULL // 2 for size in seen.sizes) <= 1  # the gradient itself


def test_no_logits_tensor_at_all_from_hidden_states():
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(ROWS, 16, generator=g, requires_grad=True)
    weight = torch.randn(VOCABULARY, 16, generator=g, requires_grad=True)
    tokens = torch.randint(VOCABULARY, (ROWS,), generator=g)
    with Allocations(hidden, weight) as seen:
        token_stats(hidden, tokens, weight=weight).logp.sum().backward()
    assert ROWS <= max(seen.sizes) <= FULL // 2
