"""Hand-worked masks, brute force over the definitions, and the configs of all methods."""

import math

import numpy as np
import pandas as pd
import pytest
import torch

import command_line
from conftest import ROOT
from entropy_dynamics.config import known_names
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.errors import UserError
from entropy_dynamics.methods import Method, load_method, method, method_types

S_STAR_METHODS = [f"s_star_{m}_{s}_{g}" for m in ("keep", "mask") for s in ("pos", "neg") for g in ("gt", "lt")]
CLIPPING_METHODS = ["clip_b", "clip_b_paper", "clip_v", "clip_v_paper"]


def stats_of(s_star, s_expected=None) -> TokenStats:
    s_star = torch.as_tensor(s_star, dtype=torch.float32)
    zero = torch.zeros_like(s_star)
    return TokenStats(zero, zero, s_star, zero if s_expected is None else torch.as_tensor(s_expected).float())


def weights_of(method, s_star, advantages, mask=None, s_expected=None) -> list[list[float]]:
    """token_weights with one advantage per row."""
    stats = stats_of(s_star, s_expected)
    advantages = torch.tensor(advantages, dtype=torch.float32)[:, None].expand(stats.s_star.shape)
    mask = torch.ones_like(stats.s_star) if mask is None else torch.tensor(mask, dtype=torch.float32)
    weights = method.token_weights(stats, advantages, mask)
    assert weights.dtype == torch.float32
    return weights.tolist()


def random_batch(seed, rows=12, tokens=30):
    """Scores with heavy tails, advantages of all three signs, and a mask that ends at another place in every row."""
    generator = torch.Generator().manual_seed(seed)
    s_star = torch.randn(rows, tokens, generator=generator) ** 3
    s_expected = 0.1 * torch.randn(rows, tokens, generator=generator)
    advantages = torch.randn(rows, 1, generator=generator).expand(rows, tokens).clone()
    advantages[rows // 2] = 0.0
    mask = torch.arange(tokens) < torch.randint(1, tokens + 1, (rows, 1), generator=generator)
    mask[rows // 2] = True
    return s_star, s_expected, advantages, mask


# ---------------------------------------------------------------- Clip_B

# Seven tokens (the last place is padding): mean 0, population variance (36 + 1 + 1 + 1 + 36 + 1 + 64) / 7 = 20,
# so in units of sigma -6 is -1.342 and 8 is 1.789. With n - 1 it were -1.242 and 1.656; over the first row alone
# -6 were -1.732.
SCORES = [[-6.0, 1.0, 1.0, 1.0], [-6.0, 1.0, 8.0, 0.0]]
MASK = [[1, 1, 1, 1], [1, 1, 1, 0]]


@pytest.mark.parametrize(
    ("mu", "first", "second"),
    [
        (1.30, [0, 1, 1, 1], [1, 1, 1, 0]),  # the unbiased sigma would keep it
        (1.35, [1, 1, 1, 1], [1, 1, 1, 0]),  # the statistics of negative samples alone would drop it
    ],
)
def test_clip_b_drops_low_tokens_of_negative_samples_only(mu, first, second):
    assert weights_of(load_method("clip_b", mu=mu), SCORES, [-0.5, 2.0], MASK) == [first, second]


def test_clip_b_is_one_sided_and_the_paper_form_two_sided():
    assert weights_of(load_method("clip_b", mu=1.3), SCORES, [-0.5, -0.5], MASK) == [[0, 1, 1, 1], [0, 1, 1, 0]]
    assert weights_of(load_method("clip_b_paper", mu=1.3), SCORES, [-0.5, -0.5], MASK) == [[0, 1, 1, 1], [0, 1, 0, 0]]
    assert weights_of(load_method("clip_b_paper", mu=1.3), SCORES, [-0.5, 2.0], MASK) == [[0, 1, 1, 1], [1, 1, 1, 0]]
    asymmetric = load_method("clip_b_paper", mu=1.3, mu_plus=1.8)
    assert weights_of(asymmetric, SCORES, [-0.5, -0.5], MASK) == [[0, 1, 1, 1], [0, 1, 1, 0]]


def test_clip_b_measures_from_the_mean():
    shifted = [[value + 100.0 for value in row] for row in SCORES]
    assert weights_of(load_method("clip_b", mu=1.3), shifted, [-0.5, 2.0], MASK) == [[0, 1, 1, 1], [1, 1, 1, 0]]


@pytest.mark.parametrize("apply_to", ["negative", "positive", "both"])
def test_clip_b_never_touches_zero_advantages(apply_to):
    method = load_method("clip_b", mu=0.1, apply_to=apply_to)
    assert weights_of(method, SCORES, [0.0, 0.0], MASK) == [[1, 1, 1, 1], [1, 1, 1, 0]]


@pytest.mark.parametrize(
    ("apply_to", "first", "second"),
    [
        ("negative", [0, 1, 1, 1], [1, 1, 1, 0]),
        ("positive", [1, 1, 1, 1], [0, 1, 1, 0]),
        ("both", [0, 1, 1, 1], [0, 1, 1, 0]),
    ],
)
def test_apply_to(apply_to, first, second):
    assert weights_of(load_method("clip_b", mu=1.3, apply_to=apply_to), SCORES, [-1.0, 1.0], MASK) == [first, second]


@pytest.mark.parametrize("name", CLIPPING_METHODS)
def test_a_token_exactly_at_the_bound_is_kept(name):
    """Scores of -1 and 1: mean 0, standard deviation 1."""
    free = {"max_frac": None} if "_v" in name else {}
    assert weights_of(load_method(name, mu=1.0, mu_plus=1.0, **free), [[-1.0, 1.0]], [-1.0]) == [[1.0, 1.0]]
    assert weights_of(load_method(name, mu=0.99, mu_plus=0.99, **free), [[-1.0, 1.0]], [-1.0]) == [[0.0, 0.0]]


@pytest.mark.parametrize("name", CLIPPING_METHODS)
@pytest.mark.parametrize("value", [0.0, 0.1, -0.3])
def test_without_a_spread_nothing_is_dropped(name, value):
    method = load_method(name, mu=0.0, mu_plus=0.0)
    assert weights_of(method, [[value] * 7], [-1.0]) == [[1.0] * 7]
    assert weights_of(method, [[value, 5.0]], [-1.0], [[1, 0]]) == [[1.0, 0.0]]  # one token has no spread either
    assert weights_of(method, [[value, 5.0]], [-1.0], [[0, 0]]) == [[0.0, 0.0]]


# ---------------------------------------------------------------- Clip_V


def test_clip_v_is_not_recentered():
    # S_c = -3, -3, -3, -1: sigma 0.866, so -3 is -3.46 sigma from zero, but only -0.58 from the mean.
    method = load_method("clip_v", mu=3.0, max_frac=1.0)
    assert weights_of(method, [[-3.0, -3.0, -3.0, -1.0]], [-1.0]) == [[0, 0, 0, 1]]
    assert weights_of(method, [[3.0, 3.0, 3.0, 1.0]], [-1.0]) == [[1, 1, 1, 1]]


def test_clip_v_looks_at_the_centered_score():
    # S_c = S* - E[S] = -2, 2, 0, 0: sigma sqrt(2), so -2 is -1.414 sigma. S* itself would point at the last token.
    s_star, s_expected = [[1.0, 4.0, 1.0, -5.0]], [[3.0, 2.0, 1.0, -5.0]]
    drop = load_method("clip_v", mu=1.4, max_frac=1.0)
    assert weights_of(drop, s_star, [-1.0], s_expected=s_expected) == [[0, 1, 1, 1]]
    assert weights_of(load_method("clip_v", mu=1.42, max_frac=1.0), s_star, [-1.0], s_expected=s_expected) == [
        [1, 1, 1, 1]
    ]
    paper = load_method("clip_v_paper", mu=1.4)
    assert weights_of(paper, s_star, [-1.0], s_expected=s_expected) == [[0, 0, 1, 1]]


# sigma = sqrt((9 + 9 + 4 * 1) / 6) of each row is 1.915; mu = 1.5 makes -3 a violator and nothing else.
SIGNS = [[-3.0, 3.0, 1.0, -1.0, 1.0, -1.0]] * 3


def test_clip_v_drops_zero_advantages_as_released_but_never_positive_ones():
    negative, zero, positive = weights_of(load_method("clip_v", mu=1.5, max_frac=1.0), SIGNS, [-1.0, 0.0, 1.0])
    assert negative == [0, 1, 1, 1, 1, 1]
    assert zero == [0, 1, 1, 1, 1, 1]
    assert positive == [1, 1, 1, 1, 1, 1]
    quiet = load_method("clip_v", mu=1.5, max_frac=1.0, drop_zero_advantage=False)
    assert weights_of(quiet, SIGNS, [-1.0, 0.0, 1.0]) == [[0, 1, 1, 1, 1, 1], [1] * 6, [1] * 6]


def test_the_paper_form_of_clip_v_is_two_sided_without_a_cap_on_negative_samples():
    weights = weights_of(load_method("clip_v_paper", mu=1.5), SIGNS, [-1.0, 0.0, 1.0])
    assert weights == [[0, 0, 1, 1, 1, 1], [1] * 6, [1] * 6]


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


def test_the_cap_is_a_share_of_response_tokens_only():
    scores = torch.zeros(2, 10)
    scores[0, :3] = torch.tensor([-5.0, -7.0, -6.0])
    mask = [[1] * 10, [0] * 10]  # a tenth of ten tokens is one, of twenty it were two
    weights = weights_of(load_method("clip_v", mu=1.0, max_frac=0.1), scores, [-1.0, -1.0], mask)
    assert weights == [[1, 0, 1] + [1] * 7, [0] * 10]


def test_tokens_without_advantage_stand_outside_the_cap():
    scores = torch.zeros(2, 10)
    scores[0, :3] = torch.tensor([-5.0, -7.0, -6.0])
    scores[1, :2] = torch.tensor([-9.0, -8.0])
    weights = weights_of(load_method("clip_v", mu=1.0, max_frac=0.05), scores, [-1.0, 0.0])
    assert weights == [[1, 0, 1] + [1] * 7, [0, 0] + [1] * 8]


def test_a_million_tokens_and_350_violators_leave_100_masked():
    rng = np.random.default_rng(0)
    scores = rng.normal(0, 0.01, 1_000_000)
    place = rng.choice(1_000_000, 700, replace=False)
    scores[place] = -rng.permutation(np.linspace(1.0, 2.0, 700))
    advantages = rng.choice([0.5, 2.0], 1_000_000)
    advantages[place[:350]] = -1.0  # the other 350 belong to positive samples
    stats = stats_of(torch.from_numpy(scores).view(1000, 1000))
    mask = torch.ones(1000, 1000)
    weights = load_method("clip_v").token_weights(stats, torch.from_numpy(advantages).view(1000, 1000), mask)
    expected = place[:350][np.argsort(scores[place[:350]])[:100]]  # the 100 most negative S_c
    assert set(np.flatnonzero(weights.numpy() == 0)) == set(expected)


# ---------------------------------------------------------------- the S* ablations


@pytest.mark.parametrize("name", S_STAR_METHODS)
def test_ablations_by_their_definition(name):
    _, _, mode, samples, side = name.split("_")
    s_star, _, advantages, mask = random_batch(seed=1)
    s_star[:, ::7] = 0.0  # neither > 0 nor < 0
    weights = load_method(name).token_weights(stats_of(s_star), advantages, mask)
    for row in range(s_star.shape[0]):
        for token in range(s_star.shape[1]):
            s, a, response = s_star[row, token].item(), advantages[row, token].item(), mask[row, token].item()
            chosen = ((a > 0) if samples == "pos" else (a < 0)) and ((s > 0) if side == "gt" else (s < 0))
            expected = response and (chosen if mode == "keep" else not chosen)
            assert weights[row, token].item() == float(expected)


def test_the_ablations_are_eight_different_runs():
    s_star, _, advantages, mask = random_batch(seed=2)
    masks = {
        tuple(load_method(name).token_weights(stats_of(s_star), advantages, mask).flatten().tolist())
        for name in S_STAR_METHODS
    }
    assert len(masks) == 8


# ---------------------------------------------------------------- all methods


def test_grpo_gives_every_response_token_weight_1():
    s_star, s_expected, advantages, mask = random_batch(seed=3)
    weights = load_method("grpo").token_weights(stats_of(s_star, s_expected), advantages, mask)
    assert torch.equal(weights, mask.float())


@pytest.mark.parametrize("name", CLIPPING_METHODS)
def test_a_larger_mu_drops_a_subset(name):
    s_star, s_expected, advantages, mask = random_batch(seed=5, rows=40)
    sizes, before = [], torch.ones_like(mask)
    for mu in (0.0, 0.3, 0.6, 1.0, 1.7, 3.0, 1e6):
        dropped = load_method(name, mu=mu).token_weights(stats_of(s_star, s_expected), advantages, mask) < mask.float()
        assert not (dropped & ~before).any()
        before = dropped
        sizes.append(int(dropped.sum()))
    assert sizes[0] > 0
    assert sizes[-1] == 0
    if name != "clip_v":  # whose cap makes the first few alike
        assert len(set(sizes)) > 4


# ---------------------------------------------------------------- names, parameters, configs


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("clip_c", {}, "unknown method 'clip_c'; did you mean 'clip_"),
        ("s_star_keep_poss_gt", {}, "did you mean 's_star_keep_pos_gt'"),
        ("nothing like it", {}, "clip_b, clip_b_paper, "),
        ("clip_v", {"max_fraction": 0.1}, "method clip_v: unknown key 'max_fraction'; did you mean 'max_frac'"),
        ("grpo", {"mu": 1.0}, "method grpo: unknown key 'mu'; known: "),
        ("s_star_keep_pos_gt", {"mode": "mask"}, "unknown key 'mode'"),
        ("clip_b", {"mu": -1.0}, "mu is -1.0"),
        ("clip_b", {"mu": math.nan}, "mu is nan"),
        ("clip_b", {"mu": "high"}, "mu is 'high'"),
        ("clip_b", {"mu": None}, "mu is None"),
        ("clip_v", {"mu_plus": -2}, "mu_plus is -2"),
        ("clip_v", {"max_frac": 0}, "max_frac is 0"),
        ("clip_v", {"max_frac": 1.5}, "max_frac is 1.5"),
        ("clip_v", {"max_frac": "little"}, "max_frac is 'little'"),
        ("clip_v", {"drop_zero_advantage": "yes"}, "drop_zero_advantage is 'yes'"),
        ("clip_b", {"apply_to": "neg"}, "apply_to is 'neg'; it should be 'negative', 'positive' or 'both'"),
        ("clip_v", {"apply_to": "neg"}, "apply_to is 'neg'"),
        ("grpo", {"denominator": "some"}, "denominator is 'some'"),
        ("clip_cov", {"ratio": 0.0}, "ratio is 0.0; it should be greater than 0"),
        ("clip_cov", {"ratio": 1.5}, "ratio is 1.5; it should be less than or equal to 1"),
        ("clip_cov", {"ratio": math.nan}, "ratio is nan"),
        ("clip_cov", {"ratio": "few"}, "ratio is 'few'; it should be a valid number"),
        ("clip_cov", {"lb": 5.0}, "lb is 5.0; it should be below ub (5.0)"),
        ("clip_cov", {"ub": math.nan}, "it should be below ub (nan)"),
        ("clip_cov", {"rate": 0.1}, "unknown key 'rate'; did you mean 'ratio'"),
        ("kl_cov", {"beta": -1.0}, "beta is -1.0; it should be greater than or equal to 0"),
        ("kl_cov", {"beta": math.inf}, "beta is inf; it should be a finite number"),
        ("unlikeliness", {"beta": 1.1}, "beta is 1.1"),
        ("unlikeliness", {"shape_constant_groups": "no"}, "it should be a valid boolean"),
        ("forking_tokens", {"keep_fraction": 20}, "keep_fraction is 20"),
        ("forking_tokens", {"denominator": "selected"}, "it should be 'kept' or 'all'"),
        ("advantage_reweighting", {"alpha": 2}, "alpha is 2"),
        ("entropy_bonus", {"coefficient": -0.1}, "coefficient is -0.1"),
        ("repo_r", {"zeta_min": 0.0}, "zeta_min is 0.0"),
        ("steer", {"w_min": 0.0}, "w_min is 0.0"),
        ("stare", {"amplify": 0.9}, "amplify is 0.9"),
        ("stare", {"damp": 1.1}, "damp is 1.1"),
        ("rsi_s", {"low": 3.0}, "low is 3.0; it should be below high (3.0)"),
        ("adaptive_entropy", {"initial_coefficient": 5}, "initial_coefficient is 5, above max_coefficient (1)"),
    ],
)
def test_bad_names_and_values(name, params, message):
    with pytest.raises(UserError) as error:
        load_method(name, **params)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


CONFIGS = ROOT / "configs"


def test_what_methods_tell_the_trainer():
    """Which compute weights before every update, and what their code reads."""
    methods = {name: load_method(name) for name in method_types()}
    assert {name for name, method in methods.items() if method.per_update} == {
        *("clip_cov", "kl_cov", "forking_tokens", "repo_r", "steer", "rsi_s", "ce_gppo_authors", "simko")
    }
    assert {name for name, method in methods.items() if not method.needs_scores(1)} == {
        *("grpo", "dr_grpo", "pass_at_k", "qae", "cispo", "gspo", "dppo", "ce_gppo", "entropy_bonus"),
        *("adaptive_entropy", "dppo_authors", "qae_authors"),
    }
    assert all(method.needs_scores(2) for method in methods.values())
    with_entropy = {"entropy_bonus", "adaptive_entropy", "w_reinforce_authors", "nsr_authors", "psr_authors"}
    assert {name for name, method in methods.items() if method.uses_entropy()} == with_entropy
    assert {name for name, method in methods.items() if method.uses_s_expected()} == {"clip_v", "clip_v_paper"}
    released = {"ce_gppo_authors", "entrocraft_authors"}
    for on_policy, names in ((True, with_entropy | released), (False, with_entropy | released | {"kl_cov"})):
        acting = {name for name, method in methods.items() if method.acts_without_advantage(on_policy=on_policy)}
        assert acting == names


def test_the_defaults_are_the_released_values():
    """Scales with toy models override them: mu does not carry over between scales."""
    assert load_method("clip_b").mu == 2.5
    assert load_method("clip_v").mu == 8.5
    assert load_method("clip_v").max_frac == 1e-4


def test_what_a_method_inherits_counts_as_its_own():
    class Quieter(type(load_method("entropy_bonus"))):
        def token_loss(self, *arguments, **named):
            return 0.5 * super().token_loss(*arguments, **named)

    assert Quieter().uses_entropy()
    assert Quieter().acts_without_advantage(on_policy=True)


def test_what_is_found_of_a_method_holds_where_it_acts_in_a_range_only():
    class OneSided(Method):
        def token_loss(self, logp, logp_old, advantages, mask, **named):
            return (logp_old - logp - 0.5).clamp_min(0)

    assert OneSided().acts_without_advantage(on_policy=False)
    assert not OneSided().acts_without_advantage(on_policy=True)

    class AtLowEntropy(Method):
        def token_weights(self, stats, advantages, mask, **_):
            return mask.float() if stats.entropy.mean() > 0.3 else mask * (stats.s_centered > 0)

    assert AtLowEntropy().uses_s_expected()


def test_a_copied_file_does_not_replace_a_method():
    with pytest.raises(
        UserError, match=r"method 'grpo' is registered twice: in entropy_dynamics\.methods\.grpo and in "
    ):

        @method("grpo")
        class Copied(Method):
            pass

    assert type(load_method("grpo")).__module__ == "entropy_dynamics.methods.grpo"


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\ndef f()\n", "line 2: SyntaxError: "),
        (
            "from entropy_dynamics.methods import Method\nclass Sure(Method):\n    limit = 0.99\n",
            "line 2: PydanticUserError: ",
        ),
        ("import torhc\n", "line 1: ModuleNotFoundError: No module named 'torhc'"),
        ("x = 1\0", "SyntaxError: "),
    ],
)
def test_a_mistake_in_a_methods_file_is_one_line(code, message, tmp_path, monkeypatch, capsys):
    pd.DataFrame({"logp": [-1.0], "entropy": [1.0], "advantage": [1.0]}).to_parquet(tmp_path / "batch.parquet")
    (tmp_path / "methods").mkdir()
    (tmp_path / "methods" / "sure.py").write_text(code)
    monkeypatch.setattr("entropy_dynamics.methods.__path__", [str(tmp_path / "methods")])
    monkeypatch.chdir(tmp_path)
    line = command_line.error(capsys, "lens", "batch.parquet")
    assert line.startswith("methods/sure.py")
    assert message in line


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (np.ones((1, 2)), r"returned ndarray; it should be a tensor \[batch, token\], here \[1, 2\]"),
        (None, r"returned NoneType; it should be a tensor \[batch, token\], here \[1, 2\]"),
        (torch.ones(1), r"returned the shape \[1\]; it should be a tensor \[batch, token\], here \[1, 2\]"),
        (torch.tensor([[1.0, math.nan]]), "returned 1 of 2 weights that are NaN or infinite"),
    ],
)
def test_what_are_no_weights_is_named(returned, message):
    class Wrong(Method):
        def token_weights(self, *_, **__):
            return returned

    with pytest.raises(UserError, match=rf"{__name__}: token_weights of Wrong {message}$"):
        Wrong().checked_weights(stats_of([[1.0, 2.0]]), torch.ones(1, 2), torch.ones(1, 2))


def test_weights_of_a_policy_that_diverged_are_left_to_the_loss():
    nan = torch.full((1, 2), math.nan)
    stats = TokenStats(nan, nan, nan, nan)
    weights = load_method("steer").checked_weights(stats, torch.ones(1, 2), torch.ones(1, 2))
    assert weights.shape == (1, 2)


def test_every_method_has_a_file():
    assert set(known_names("method", CONFIGS)) >= {"base", *method_types()}
