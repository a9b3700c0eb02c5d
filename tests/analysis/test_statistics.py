"""Intervals against textbook values, simulated coverage and power, and hand-worked cases."""

import json
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from entropy_dynamics.analysis.problem_scores import pass_curve
from entropy_dynamics.analysis.statistics import (
    Interval,
    averaged,
    holm,
    mean_interval,
    problem_variance,
    rounded,
    score_interval,
    seed_interval,
    seeds_needed,
    share_interval,
    simultaneous,
    smallest_effect,
)
from simulated_seeds import SEEDS, coverage, covered_differences, covered_scores

NOMINAL = (0.935, 0.965)
CONSERVATIVE = (0.95, 0.98)

# Over seeds


def test_three_seeds_are_students_t():
    values = np.array([1.5, 2.5, 4.5])
    found = seed_interval(values)
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 2, values.mean(), stats.sem(values)))
    assert found.p == pytest.approx(stats.ttest_1samp(values, 0).pvalue)
    assert found == mean_interval(values)


def test_two_seeds_have_no_interval():
    two = np.random.default_rng(0).random((2, 30))
    for found in (seed_interval(two[:, 0]), score_interval([two]), share_interval(two)):
        assert np.isnan([found.low, found.p, found.detectable()]).all()
        assert np.isfinite(found.value)
        assert found.seeds == 2
    assert math.isnan(share_interval(np.ones((2, 30))).low)


def test_five_seeds_by_hand():
    """The median, the lowest and the highest: the median of a distribution is outside if all five are on one side."""
    found = seed_interval(np.array([3.0, 9.0, 1.0, 2.0, 2.5]))
    assert (found.value, found.low, found.high) == (2.5, 1, 9)
    many = seed_interval(np.random.default_rng(0).random((40_000, 5)))
    assert coverage(many, 0.5) == pytest.approx(1 - 2 / 2**5, abs=0.004)


@pytest.mark.parametrize("seeds", [6, 8, 9, 12, 20, 60])
def test_more_seeds_lie_between_order_statistics_of_the_binomial(seeds):
    """The ends are between the order statistics whose levels enclose 95 %, nearer to the inner the nearer its level."""
    inner, _ = stats.binom.interval(0.95, seeds, 0.5)
    ordered = np.arange(1, seeds + 1.0) ** 2
    found = seed_interval(ordered)
    level = [1 - 2 * stats.binom.cdf(depth - 1, seeds, 0.5) for depth in range(1, seeds // 2 + 1)]
    outer = max(depth for depth, share in enumerate(level, 1) if share >= 0.95)
    assert ordered[outer - 1] <= found.low < ordered[outer]
    assert ordered[-outer] >= found.high > ordered[-outer - 1]
    assert inner in (outer, outer + 1)


def test_ends_between_order_statistics_by_hand():
    """Levels with eight seeds: 1 - 2/2^8 and 1 - 18/2^8; with twelve: 1 - 158/2^12 and 1 - 598/2^12.

    Excess levels over 0.95 are 0.675 and 0.10636 of their distance, which are shares of 0.93564 and 0.26312 of the gap.
    """
    for seeds, outer, inner, share in ((8, 1, 4, 0.935644), (12, 9, 16, 0.263119)):
        found = seed_interval(np.arange(1, seeds + 1.0) ** 2)
        assert found.low == pytest.approx((1 - share) * outer + share * inner, rel=1e-6)


def test_only_differences_above_rounding_are_a_spread():
    """Relative to values above 1, absolute below."""
    for value, least, above in ((1e9, 0.2, 2), (0.0, 2e-10, 1.5e-9)):
        assert math.isnan(mean_interval(value + least * np.arange(3)).low)
        assert math.isfinite(mean_interval(value + above * np.arange(3)).low)


def test_an_effect_that_all_seeds_agree_on_excludes_zero_whatever_its_size():
    """One seed explodes: the interval reaches up to it, and its lower end stays where it was."""
    agree = np.array([1.0, 1.2, 0.9, 1.1, 1.0])
    exploded = np.where(agree == 1.2, 1e6, agree)
    assert seed_interval(exploded).low == seed_interval(agree).low == 0.9
    assert mean_interval(exploded).low < 0


EXTREME = product(["one in five collapses", "one in three explodes, in nats"], (5, 16))


@pytest.mark.parametrize(("name", "seeds"), [("normal", 3), ("normal", 8), *EXTREME])
def test_coverage_of_normal_seeds_and_of_those_that_collapse_or_explode(name, seeds):
    assert NOMINAL[0] < covered_differences(name, seeds) < NOMINAL[1]


def test_students_t_does_not_cover_seeds_that_explode():
    """Why three or four seeds allow no verdict."""
    assert covered_differences("one in two explodes", 3) < 0.8
    assert covered_differences("one in three explodes, in nats", 8, mean_interval) < 0.9


@pytest.mark.parametrize("seeds", [3, 8])
def test_power_at_the_detectable_effect(seeds):
    """`detectable` of the true standard deviation: the effect that is found nine times in ten."""
    rng = np.random.default_rng(0)
    effect = Interval(spread=1.0, error=0.0).detectable(seeds)
    found = seed_interval(rng.normal(effect, 1, (50_000, seeds)))
    assert np.mean(found.low > 0) == pytest.approx(0.9, abs=0.008)
    assert Interval.normal(0.0, 1.0).detectable() == pytest.approx(1.960 + 1.282, abs=1e-3)


@pytest.mark.parametrize("seeds", [3, 5])
def test_p_is_rarely_small_without_an_effect(seeds):
    p = seed_interval(np.random.default_rng(0).standard_normal((50_000, seeds))).p
    for level in (0.05, 0.01, 0.002):
        assert np.mean(p < level) < 1.1 * level


def test_seeds_needed_by_the_sign_test():
    """Five seeds are all above zero with 90 % if each is with 0.9^(1/5): a distance of 2.04 standard deviations."""
    one = Interval(spread=1.0, error=0.0)
    assert one.detectable(5) == pytest.approx(stats.norm.ppf(0.9**0.2))
    assert (seeds_needed(one, 2.04), seeds_needed(one, 2.03)) == (5, 6)
    assert seeds_needed(one, 0.3) is None
    assert [seeds_needed(one, one.detectable(seeds)) for seeds in (100, 101)] == [100, None]
    assert seeds_needed(Interval(spread=1.0, error=0.4), 1.0) is None  # problems alone: 0.4 * 3.24


def test_more_seeds_do_not_replace_problems():
    rng = np.random.default_rng(0)
    problems, seeds, noise = rng.standard_normal((1, 100)), rng.standard_normal((4, 1)), rng.standard_normal((4, 100))
    found = score_interval([0.3 * problems + 0.1 * seeds + 0.2 * noise])
    assert found.detectable() > found.detectable(100)
    assert found.error == pytest.approx(0.3 / 100**0.5, rel=0.2)


def test_a_mean_and_its_interval_are_near_those_of_rliable():
    """rliable 1.2.0, `get_interval_estimates` of `aggregate_mean` with 50,000 bootstrap samples, stratified by problem.

    Its results are written down, because it needs arch below 8, which does not import with pandas 3.
    """
    scores = np.random.default_rng(0).random((100, 60)) ** 2  # runs, problems
    found = mean_interval(scores.mean(axis=1))
    assert found.value == pytest.approx(0.33214682)
    assert (found.low, found.high) == pytest.approx((0.32464, 0.33959), abs=0.1 * (found.high - found.value))


# Over seeds and problems


def test_score_interval_by_hand():
    """Three seeds, three problems: t over the seeds' means; the problems' mean square without the interaction's."""
    scores = np.array([[0.1, 0.3, 0.2], [0.2, 0.5, 0.5], [0.1, 0.6, 0.4]])
    found = score_interval([scores])
    means, problems = scores.mean(axis=1), scores.mean(axis=0)
    residuals = scores - problems - means[:, None] + scores.mean()
    error = (problems.var(ddof=1) - (residuals**2).sum() / 4 / 3) / 3
    half = math.hypot(stats.t.ppf(0.975, 2) * stats.sem(means), stats.t.ppf(0.975, 2) * error**0.5)
    assert (found.low, found.high) == pytest.approx((scores.mean() - half, scores.mean() + half))


def test_the_variance_of_two_problems_by_hand():
    """Means 0.2 and 0.6, a variance of 0.08; residuals of 0.1, an interaction of 0.04 with one degree of freedom."""
    scores = np.array([[0.3, 0.5], [0.1, 0.7]])
    share = (stats.t.ppf(0.975, 1) / stats.norm.ppf(0.975)) ** 2 / 2
    assert problem_variance(scores) == pytest.approx(share * (0.08 - 0.04 / 2))
    assert score_interval([scores[0]]).error == pytest.approx((share * 0.02) ** 0.5)


@pytest.mark.filterwarnings("error")
def test_a_data_set_of_one_problem_has_no_interval():
    """The value is what an interval would have: the mean of three seeds, the median of five."""
    for seeds, value in ((np.array([0.1, 0.3, 0.2]), 0.2), (np.array([0, 0, 0.1, 0.9, 0.5]), 0.1)):
        found = score_interval([seeds[:, None], np.full((len(seeds), 8), 0.5)])
        assert found.value == pytest.approx(value + 0.5)
        assert math.isnan(found.low)
        assert not found.seeds  # by which a claim knows the reason
    assert score_interval([np.array([0.3]), np.array([0.1, 0.2])]).value == pytest.approx(0.45)


@pytest.mark.parametrize("seeds", [3, 6])
def test_repetitions_are_independent(seeds):
    scores = np.random.default_rng(0).random((4, seeds, 4))
    scores = scores * [[[0.2]], [[0]], [[0.9]], [[0]]] + np.array([0, 0, 0, 1])[:, None, None]
    for interval in (lambda of: score_interval([of, of]), share_interval):
        both = interval(scores)
        for name in ("value", "low", "high", "spread", "error"):
            alone = [float(getattr(interval(of), name)) for of in scores]
            assert getattr(both, name).tolist() == pytest.approx(alone, nan_ok=True)


def test_problems_widen_each_end_of_five_seeds():
    """3-4-5: the seeds' end 3 away and the problems' 4 make one that is 5 away."""
    found = Interval(0.0, -3.0, 6.0, error=0.0).widened(4 / stats.norm.ppf(0.975))
    assert (found.low, found.high) == pytest.approx((-5, math.hypot(6, 4)))


def test_data_sets_share_their_seeds():
    """Two copies of a data set, each with half the weight: the seeds' variance stays, that of the problems halves."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((4, 1)) + np.zeros((4, 50))
    assert score_interval([scores / 2, scores / 2]).high == pytest.approx(score_interval([scores]).high)
    scores = rng.standard_normal(50) + 1e-3 * rng.standard_normal((4, 1))
    one, two = score_interval([scores]), score_interval([scores / 2, scores / 2])
    assert two.high - two.value == pytest.approx((one.high - one.value) / 2**0.5, rel=0.02)


def test_a_single_untrained_model_varies_with_the_problems_only():
    scores = np.random.default_rng(0).random(40)
    found = score_interval([scores])
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 39, scores.mean(), stats.sem(scores)))
    trained = np.array([[0.1], [0.2], [0.4]]) + scores
    difference = score_interval([trained - scores])
    by_hand = stats.t.interval(0.95, 2, 0.7 / 3, stats.sem([0.1, 0.2, 0.4]))
    assert (difference.low, difference.high) == pytest.approx(by_hand)


@pytest.mark.filterwarnings("error")
def test_scores_without_any_difference():
    """All solved: Clopper-Pearson leaves a share of at least 0.025^(1/n); a difference has no interval."""
    always, never = share_interval(np.ones((3, 30))), share_interval(np.zeros(30))
    assert (always.value, always.low, always.high) == pytest.approx((1, 0.025 ** (1 / 30), 1))
    assert (never.value, never.low, never.high) == pytest.approx((0, 0, 1 - 0.025 ** (1 / 30)))
    assert share_interval(np.ones(30)).low == pytest.approx(0.025 ** (1 / 30))
    same = score_interval([np.full((5, 30), 0.7) - 0.4])  # alike but for rounding
    assert same.value == pytest.approx(0.3)
    assert math.isnan(same.low)


@pytest.mark.parametrize(("name", "metric", "models"), [("normal", "pass", 2), ("one in five collapses", "avg", 1)])
def test_coverage_of_differences_in_scores(name, metric, models):
    for seeds in SEEDS[1:]:
        assert NOMINAL[0] < covered_scores(name, metric, seeds, models) < NOMINAL[1]


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("mean", [0.17, 0.83])
def test_coverage_of_a_methods_scores(seeds, mean):
    """Rates near the edges, where an interval on the scale of the scores would leave [0, 1]."""
    rng = np.random.default_rng(0)
    rates = rng.beta(2 * mean, 2 * (1 - mean), (4000, 1, 100)) + 0.03 * rng.standard_normal((4000, seeds, 1))
    found = share_interval(rng.binomial(16, rates.clip(0, 1)) / 16)
    truth = (rng.beta(2 * mean, 2 * (1 - mean), 2_000_000) + 0.03 * rng.standard_normal(2_000_000)).clip(0, 1).mean()
    assert CONSERVATIVE[0] < coverage(found, truth) < CONSERVATIVE[1]
    ends = np.array([found.low, found.value, found.high])[:, ~np.isnan(found.low)]  # seeds with the same mean have none
    assert ends.shape[1] > 3990
    assert (np.diff(ends, axis=0, prepend=0, append=1) >= 0).all()


# Other statistics


def test_how_effects_are_written():
    assert [averaged(seeds) for seeds in (3, 4, 5, 8)] == ["mean", "mean", "median", "median"]
    assert (rounded(1234567.0, 6), rounded(math.nan, 6), rounded(-math.inf, 6)) == (1234570, None, None)
    assert Interval(1, 0, 3).times(2).columns("gain") == {"gain": 2, "gain_low": 0, "gain_high": 6}
    assert Interval(1, 0, 3, spread=4.0, seeds=9, error=3.0).times(2) == Interval(2, 0, 6, 8.0, 9, 6.0)


def test_holm_by_hand():
    p = np.array([0.01, np.nan, 0.04, 0.03, 0.005])
    # In order 0.005 * 4, 0.01 * 3, 0.03 * 2, 0.04 * 1, which may not fall below the one before.
    assert holm(p) == pytest.approx([0.03, np.nan, 0.06, 0.06, 0.02], nan_ok=True)
    assert holm(np.array([0.6, 0.7])) == pytest.approx([1, 1])
    assert np.isnan(holm(np.full(3, np.nan))).all()


def test_holm_holds_the_error_of_a_whole_table():
    p = np.random.default_rng(0).random((4000, 20))
    assert np.mean([holm(one).min() < 0.05 for one in p]) == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize("true", [(0, 0, 0, 0, 0, 0), (0, 0.3, 1, 2, 5, 9), (0, 9, 9, 9, 9, 9)], ids=str)
def test_the_interval_of_the_smallest_of_six_effects_covers_it(true):
    effects = np.array(true)[:, None] + np.random.default_rng(0).standard_normal((1000, 6, 5))
    found = [smallest_effect([seed_interval(values) for values in row]) for row in effects]
    lows, highs = (np.array([getattr(interval, end) for interval in found]) for end in ("low", "high"))
    assert np.mean(lows > 0) < 0.04  # five seeds: 1 / 32 each
    assert np.mean(highs < 0) < 0.025  # the lowest of six upper ends without a correction: 15 %


def test_the_smallest_effect_by_hand():
    found = smallest_effect([Interval.normal(5.0, 2.0), Interval.normal(4.0, 0.5)])
    both = stats.norm.ppf(0.9**0.5)  # each of two is detected this often if both are nine times in ten
    assert found.detectable() == pytest.approx(2.0 * (stats.norm.ppf(0.975) + both))
    assert (found.value, found.low) == (4, pytest.approx(5 - 1.96 * 2, abs=1e-3))
    assert found.high == pytest.approx(4 + 2.2414 * 0.5, abs=1e-3)  # 98.75 %
    lower, upper = np.array([0.0, 1, 2, 3, 4]), np.array([5.0, 6, 7, 8, 9])
    found = smallest_effect([seed_interval(lower), seed_interval(upper)])
    error = (np.pi / 2 / 5 * 2.5) ** 0.5  # standard error of the median
    assert (found.value, found.low, found.high) == (2, 0, pytest.approx(2 + stats.t.ppf(0.9875, 4) * error))


# Over k at once


def test_a_band_over_all_k_is_that_of_passk_inference():
    """Its published example: the trained model gains at k = 1 to 10 and loses at k = 61 to 128.

    At k = 61 the upper bound is within the simulation error of zero.
    """
    counts = json.loads((Path(__file__).parent / "passk_inference.json").read_text())
    base, trained = (pass_curve(np.array(counts[name]), 128) for name in ("base", "rl"))
    band = simultaneous([trained - base])
    assert np.flatnonzero(band.low > 0).tolist() == list(range(10))
    losses = np.flatnonzero(band.high < 0) + 1
    assert losses[0] in (61, 62)
    assert losses.tolist() == list(range(losses[0], 129))
    for k, mean, low, high in (
        (1, 0.0759581, 0.0654665, 0.0864498),
        (61, -0.0123935, -0.0247579, -2.908e-05),
        (128, -0.0198113, -0.0359236, -0.0036990),
    ):
        found = band.value[k - 1], band.low[k - 1], band.high[k - 1]
        assert found == pytest.approx((mean, low, high), abs=1.2e-4)


def test_a_band_over_all_k_is_as_wide_as_the_largest_t_of_its_points():
    """Seeds move two points alike and problems oppositely, so the quantile is bivariate t's; a third never differs."""
    rng = np.random.default_rng(0)
    seeds, problems = rng.standard_normal((6, 1)), rng.standard_normal((1, 40))
    seeds, problems = (of - of.mean() for of in (seeds, problems))
    seeds, problems = seeds / seeds.std(ddof=1) * 6**0.5, problems / problems.std(ddof=1) * 40**0.5  # errors of 1
    columns = np.stack([seeds + problems, 2 * seeds - problems, 0 * (seeds + problems)])
    band = simultaneous([columns])
    points = [score_interval([of_k]) for of_k in columns[:2]]
    errors = [point.standard_error for point in points]
    t = stats.multivariate_t(shape=[[1, 1 / 10**0.5], [1 / 10**0.5, 1]], df=5)  # (2 - 1) / sqrt(2 * 5)
    widths = (band.high - band.value)[:2] / errors
    assert widths[0] == pytest.approx(widths[1])
    assert t.cdf(widths[:1].repeat(2), lower_limit=-widths[:1].repeat(2)) == pytest.approx(0.95, abs=0.006)
    assert np.isnan(band.low).tolist() == [False, False, True]
    assert band.seeds == 6
    alone = simultaneous([columns[:1]])
    assert alone.high - alone.value == pytest.approx(stats.t.ppf(0.975, 5) * errors[0], rel=0.03)


def test_a_band_over_all_k_covers_a_curve_where_its_points_do_not():
    """Two arms of one distribution: five seeds whose levels differ, and problems whose rates differ by seed."""
    rng, runs, outside, points_outside = np.random.default_rng(0), 150, 0, 0

    def arm(rates):
        of_seed = np.clip(rates * rng.uniform(0.4, 1.6, (5, 1)) * rng.uniform(0.5, 1.5, (5, len(rates))), 0, 1)
        return np.stack([pass_curve(rng.binomial(8, seed), 8) for seed in of_seed], axis=1)

    for _ in range(runs):
        rates = rng.beta(0.6, 2, 40)
        difference = arm(rates) - arm(rates)
        band = simultaneous([difference])
        outside += not ((band.low <= 0) & (band.high >= 0)).all()
        points = [score_interval([of_k]) for of_k in difference]
        points_outside += not all(point.low <= 0 <= point.high for point in points)
    assert outside / runs <= 0.08
    assert points_outside / runs > outside / runs + 0.02
