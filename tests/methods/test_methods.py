"""Clip_B, Clip_V and the S* ablations: hand-worked masks, and brute force over the definitions."""

import math

import pytest
import torch

from batches import random_batch, seeded, stats_of
from entropy_dynamics.methods import load_method

S_STAR_METHODS = [f"s_star_{m}_{s}_{g}" for m in ("keep", "mask") for s in ("pos", "neg") for g in ("gt", "lt")]
CLIPPING_METHODS = ["clip_b", "clip_b_paper", "clip_v", "clip_v_paper"]


def weights_of(method, s_star, advantages, mask=None, s_expected=None) -> list[list[float]]:
    """token_weights with one advantage per row."""
    stats = stats_of(s_star=s_star, s_expected=s_expected)
    advantages = torch.tensor(advantages, dtype=torch.float32)[:, None].expand(stats.s_star.shape)
    mask = torch.ones_like(stats.s_star) if mask is None else torch.tensor(mask, dtype=torch.float32)
    weights = method.token_weights(stats, advantages, mask)
    assert weights.dtype == torch.float32
    return weights.tolist()


def random_scores(seed, **size):
    """Scores with heavy tails, and the advantages and mask of `random_batch`."""
    *_, advantages, mask = random_batch(seed, **size)
    s_star, s_expected = torch.randn(2, *mask.shape, generator=seeded(seed))
    return s_star**3, 0.1 * s_expected, advantages, mask


# ---------------------------------------------------------------- Clip_B
# Seven tokens (the last place is padding): mean 0, population variance (36 + 1 + 1 + 1 + 36 + 1 + 64) / 7 = 20,
# so in units of sigma -6 is -1.342 and 8 is 1.789. With n - 1 it were -1.242 and 1.656; over the first row alone
# -6 were -1.732.
SCORES = [[-6.0, 1.0, 1.0, 1.0], [-6.0, 1.0, 8.0, 0.0]]
MASK = [[1, 1, 1, 1], [1, 1, 1, 0]]


@pytest.mark.parametrize(
    ("method", "params", "advantages", "first", "second"),
    [
        ("clip_b", {"mu": 1.30}, [-0.5, 2.0], [0, 1, 1, 1], [1, 1, 1, 0]),  # kept by the unbiased sigma
        ("clip_b", {"mu": 1.35}, [-0.5, 2.0], [1, 1, 1, 1], [1, 1, 1, 0]),  # not by that of negative ones
        ("clip_b", {"mu": 1.3, "apply_to": "positive"}, [-0.5, 2.0], [1, 1, 1, 1], [0, 1, 1, 0]),
        ("clip_b", {"mu": 1.3, "apply_to": "both"}, [-0.5, 2.0], [0, 1, 1, 1], [0, 1, 1, 0]),
        *(
            ("clip_b", {"mu": 0.1, "apply_to": which}, [0.0, 0.0], [1, 1, 1, 1], [1, 1, 1, 0])
            for which in ("negative", "positive", "both")
        ),
        ("clip_b", {"mu": 1.3}, [-0.5, -0.5], [0, 1, 1, 1], [0, 1, 1, 0]),
        ("clip_b_paper", {"mu": 1.3}, [-0.5, -0.5], [0, 1, 1, 1], [0, 1, 0, 0]),  # two-sided
        ("clip_b_paper", {"mu": 1.3}, [-0.5, 2.0], [0, 1, 1, 1], [1, 1, 1, 0]),
        ("clip_b_paper", {"mu": 1.3, "mu_plus": 1.8}, [-0.5, -0.5], [0, 1, 1, 1], [0, 1, 1, 0]),
    ],
)
def test_clip_b_by_hand(method, params, advantages, first, second):
    assert weights_of(load_method(method, **params), SCORES, advantages, MASK) == [first, second]


@pytest.mark.parametrize("name", CLIPPING_METHODS)
def test_a_token_exactly_at_the_bound_is_kept(name):
    """Scores of -1 and 1: mean 0, standard deviation 1."""
    free = {"max_frac": None} if "_v" in name else {}
    assert weights_of(load_method(name, mu=1.0, mu_plus=1.0, **free), [[-1.0, 1.0]], [-1.0]) == [[1.0, 1.0]]
    assert weights_of(load_method(name, mu=0.99, mu_plus=0.99, **free), [[-1.0, 1.0]], [-1.0]) == [[0.0, 0.0]]


@pytest.mark.parametrize("name", CLIPPING_METHODS)
@pytest.mark.parametrize("bounds", [{"mu": 0.0, "mu_plus": 0.0}, {"share": 1.0}])
@pytest.mark.parametrize("value", [0.0, 0.1, -0.3])
def test_without_a_spread_nothing_is_dropped(name, bounds, value):
    method = load_method(name, **bounds)
    assert weights_of(method, [[value] * 7], [-1.0]) == [[1.0] * 7]
    assert weights_of(method, [[value, 5.0]], [-1.0], [[1, 0]]) == [[1.0, 0.0]]  # one token has no spread either
    assert weights_of(method, [[value, 5.0]], [-1.0], [[0, 0]]) == [[0.0, 0.0]]


# ---------------------------------------------------------------- Clip_V
# S_c = -3, -3, -3, -1: sigma 0.866, so -3 is -3.46 sigma from zero, but only -0.58 from the mean.
UNCENTERED = torch.tensor([[-3.0, -3.0, -3.0, -1.0]])
# S_c = S* - E[S] = -2, 2, 0, 0: sigma sqrt(2), so -2 is -1.414 sigma. S* itself would point at the last token.
CENTERED = torch.tensor([[1.0, 4.0, 1.0, -5.0]]), torch.tensor([[3.0, 2.0, 1.0, -5.0]])


@pytest.mark.parametrize(
    ("name", "mu", "scores", "expected"),
    [
        ("clip_v", 3.0, (UNCENTERED,), [0, 0, 0, 1]),
        ("clip_v", 3.0, (-UNCENTERED,), [1, 1, 1, 1]),
        ("clip_v", 1.4, CENTERED, [0, 1, 1, 1]),
        ("clip_v", 1.42, CENTERED, [1, 1, 1, 1]),
        ("clip_v_paper", 1.4, CENTERED, [0, 0, 1, 1]),
    ],
)
def test_clip_v_looks_at_the_centered_score_which_is_not_recentered(name, mu, scores, expected):
    s_star, *s_expected = scores
    method = load_method(name, mu=mu, max_frac=1.0)
    assert weights_of(method, s_star, [-1.0], None, *s_expected) == [expected]


@pytest.mark.parametrize(
    ("name", "params", "negative", "zero"),
    [
        ("clip_v", {"max_frac": 1.0}, [0, 1, 1, 1, 1, 1], [0, 1, 1, 1, 1, 1]),
        ("clip_v", {"max_frac": 1.0, "drop_zero_advantage": False}, [0, 1, 1, 1, 1, 1], [1] * 6),
        ("clip_v_paper", {}, [0, 0, 1, 1, 1, 1], [1] * 6),  # two-sided and without a cap
    ],
)
def test_clip_v_drops_zero_advantages_as_released_but_never_positive_ones(name, params, negative, zero):
    """sigma = sqrt((9 + 9 + 4 * 1) / 6) of each row is 1.915: -3 is beyond 1.5 of it on one side, 3 on the other."""
    weights = weights_of(load_method(name, mu=1.5, **params), [[-3.0, 3.0, 1.0, -1.0, 1.0, -1.0]] * 3, [-1.0, 0.0, 1.0])
    assert weights == [negative, zero, [1] * 6]


@pytest.mark.parametrize(
    ("violators", "max_frac", "dropped"),
    [
        (2, 0.1, 2),  # exactly the allowed share of 20 tokens
        (3, 0.1, 2),
        (3, 0.149, 2),  # rounded down
        (3, 1e-4, 1),  # but never fewer than one
        (3, None, 3),
    ],
)
def test_the_cap_of_clip_v(violators, max_frac, dropped):
    scores = torch.zeros(1, 20)
    scores[0, 5 : 5 + violators] = -torch.arange(1.0, violators + 1) - 3
    weights = weights_of(load_method("clip_v", mu=1.0, max_frac=max_frac), scores, [-1.0])
    expected = torch.ones(20)
    expected[5 + violators - dropped : 5 + violators] = 0  # the largest D stand last
    assert weights == [expected.tolist()]


def test_the_cap_is_a_share_of_response_tokens_and_tokens_without_advantage_stand_outside():
    scores = torch.zeros(2, 10)
    scores[0, :3] = torch.tensor([-5.0, -7.0, -6.0])
    mask = [[1] * 10, [0] * 10]  # a tenth of ten tokens is one, of twenty it were two
    weights = weights_of(load_method("clip_v", mu=1.0, max_frac=0.1), scores, [-1.0, -1.0], mask)
    assert weights == [[1, 0, 1] + [1] * 7, [0] * 10]
    scores[1, :2] = torch.tensor([-9.0, -8.0])
    weights = weights_of(load_method("clip_v", mu=1.0, max_frac=0.05), scores, [-1.0, 0.0])
    assert weights == [[1, 0, 1] + [1] * 7, [0, 0] + [1] * 8]


# ---------------------------------------------------------------- a share of the tokens
def test_a_share_counts_whole_tokens_whatever_its_binary_fraction():
    """0.29 * 100 is 28.999999999999996 in floating point."""
    scores = torch.arange(100.0)[None]
    for method in (load_method("clip_b", share=0.29), load_method("clip_v", mu=0.0, max_frac=0.29)):
        assert weights_of(method, scores - 50, [-1.0]) == [[0.0] * 29 + [1.0] * 71]


@pytest.mark.parametrize("name", CLIPPING_METHODS)
@pytest.mark.parametrize("apply_to", ["negative", "positive", "both"])
@pytest.mark.parametrize("share", [0.002, 0.02, 0.1, 0.3, 1.0])
def test_a_share_by_its_definition(name, share, apply_to):
    """The lowest tokens below the mean, of equal ones the first; rounded down, but at least one."""
    method = load_method(name, share=share, apply_to=apply_to)
    for seed in range(5):
        s_star, s_expected, advantages, mask = random_scores(seed, rows=20)
        s_star[:, ::5] = -0.1  # ties
        if seed % 2:  # of one sign: the mean is far from zero
            s_star -= s_star.max() + 1
        given = s_star, s_expected, advantages, mask
        weights = share_of(method, *given)
        scores = (s_star - s_expected if "_v" in name else s_star).double()
        mean = scores[mask].mean().item()
        signs = {"negative": (-1,), "positive": (1,), "both": (-1, 1)}[apply_to]
        chosen = mask & torch.isin(advantages.sign(), torch.tensor(signs))
        ordered = sorted((scores[at].item(), at) for at in map(tuple, chosen.nonzero().tolist()))
        count = max(int(share * int(mask.sum())), 1)
        lowest = [list(at) for score, at in ordered if score < mean][:count]
        assert lowest
        assert (mask & (weights == 0)).nonzero().tolist() == sorted(lowest)

        padded = share_of(method, *(torch.nn.functional.pad(x, (3, 4)) for x in given))
        assert torch.equal(padded[:, 3:-4], weights)


def share_of(method, s_star, s_expected, advantages, mask):
    return method.token_weights(stats_of(s_star=s_star, s_expected=s_expected), advantages, mask)


@pytest.mark.parametrize("name", CLIPPING_METHODS)
def test_a_share_stands_alone(name):
    """Neither Clip_V's cap nor its tokens without advantage, nor an upper bound of the paper's forms."""
    method = load_method(name, share=0.5)
    assert (method.mu, method.mu_plus) == (None, math.inf)
    assert load_method(name, **method.model_dump()) == method
    assert load_method(name, **load_method(name).model_dump()).mu == load_method(name).mu > 0
    assert weights_of(method, [[-9.0, 1.0]] * 2, [0.0, 2.0]) == [[1, 1]] * 2  # no negative sample
    share = load_method(name, share=1.0)
    assert weights_of(share, [[-1.0, 0.0, 1.0]], [-1.0]) == [[0, 1, 1]]  # 0 is not below the mean


# ---------------------------------------------------------------- the S* ablations
@pytest.mark.parametrize("name", S_STAR_METHODS)
def test_ablations_by_their_definition(name):
    _, _, mode, samples, side = name.split("_")
    s_star, _, advantages, mask = random_scores(seed=1)
    s_star[:, ::7] = 0.0  # neither > 0 nor < 0
    weights = load_method(name).token_weights(stats_of(s_star=s_star), advantages, mask)
    values = (x.flatten().tolist() for x in (weights, s_star, advantages, mask))
    for weight, s, a, response in zip(*values, strict=True):
        chosen = ((a > 0) if samples == "pos" else (a < 0)) and ((s > 0) if side == "gt" else (s < 0))
        expected = response and (chosen if mode == "keep" else not chosen)
        assert weight == float(expected)
