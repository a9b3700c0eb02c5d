"""What is left of a gain in Pass@K at equal Avg@K over the envelope of a baseline's points."""

from itertools import combinations, product

import numpy as np
import pytest

from entropy_dynamics.analysis.envelope import Left, envelope, left, pooled
from entropy_dynamics.analysis.statistics import t_quantile

# Avg@K and Pass@K: (10, 80) and (20, 60) are mixed to (14, 72); (16, 62) is below the line between them.
POINTS = np.array([[10, 80], [16, 62], [20, 60], [30, 20]]).T


@pytest.mark.parametrize(
    ("at", "passed", "share"),
    [
        (5, 80, 0),  # all have more Avg@K: the highest alone
        (10, 80, 0),
        (14, 72, 0.6),
        (25, 40, 0.5),
        (30, 20, 0),
        (31, np.nan, 0),  # no point has that Avg@K
    ],
)
def test_the_envelope_by_hand(at, passed, share):
    found = envelope(np.array(at), *POINTS)
    assert found.passed == pytest.approx(passed, nan_ok=True)
    assert found.share == pytest.approx(share)


def test_a_point_with_less_avg_and_less_pass_is_not_mixed():
    found = envelope(np.array(15), np.array([10, 20]), np.array([50, 60]))
    assert (found.passed, found.low, found.high) == (60, 1, 1)


@pytest.mark.filterwarnings("error")
def test_the_envelope_is_the_highest_of_all_mixtures():
    """By trying all pairs, also with ties, between points and with the Avg@K that is asked for."""
    rng = np.random.default_rng(0)
    avg, passed = rng.integers(0, 30, (2, 300, 12)).astype(float)
    at = rng.integers(0, 64, 300) / 2
    exact, *rounded = (envelope(at + error, avg, passed).passed for error in (0, 1e-13, -1e-13))
    for place, target in enumerate(at):
        x, y = avg[place], passed[place]
        heights = [y[i] for i in range(12) if x[i] >= target]
        for i, j in product(range(12), repeat=2):
            if x[i] < target <= x[j]:
                share = (x[j] - target) / (x[j] - x[i])
                heights.append(share * y[i] + (1 - share) * y[j])
        assert exact[place] == pytest.approx(max(heights, default=np.nan), nan_ok=True)
    for found in rounded:
        np.testing.assert_allclose(found, exact)


def test_halves_in_which_two_points_have_the_same_avg():
    """Both have the method's in one seed: there the points of the other seed have no share."""
    [first, second] = columns((14, 75), (10, 80), (20, 60), seeds=2)
    for column in (first, second):
        column[0, 1:, 1] = 7
    found = left([[first, second]])
    assert found.halved == pytest.approx(75 - 80)


def columns(*levels, seeds=6, problems=8):
    """Data sets on which each point has these (Avg@K, Pass@K), whatever the seed and the problem."""
    scores = np.array(levels, float).T[:, :, None, None] / 2
    return [np.broadcast_to(scores, (2, len(levels), seeds, problems)).copy() for _ in range(2)]


def test_left_without_any_noise():
    found = left([columns((14, 75), *POINTS.T)])
    assert (found.value, found.low, found.high) == pytest.approx((3, 3, 3))
    assert (found.single, found.halved, found.spare) == pytest.approx((75 - 62, 3, 0))
    assert found.mixtures == [(0, 2, pytest.approx(0.6))]
    assert found.verdict() == "left"


@pytest.mark.filterwarnings("error")
def test_beyond_and_at_most():
    beyond = left([columns((31, 75), *POINTS.T)])
    assert np.isnan(beyond.value)
    assert (beyond.verdict(), beyond.seeds) == ("beyond", 6)
    at_most = left([columns((8, 85), *POINTS.T)])
    assert (at_most.value, at_most.spare) == pytest.approx((5, 2))
    assert at_most.verdict() == "undecided"  # with its Avg@K to spare the baseline could have more Pass@K
    assert left([columns((8, 82), *POINTS.T)]).verdict() == "less than 3 points left"
    more = columns((7, 85), (12, 80), *POINTS.T[1:])
    assert left([columns((8, 85), *POINTS.T), more]).spare == pytest.approx(5)
    assert left([more, columns((14, 85), *POINTS.T)]).spare == pytest.approx(5)
    assert left([columns((10, 85), *POINTS.T)]).single == pytest.approx(5)  # a point at the same Avg@K


def test_the_verdict_needs_the_whole_interval():
    assert Left(2, 0.1, 4).verdict() == "left"
    assert Left(2, -0.1, 4).verdict() == "undecided"
    assert Left(2, 0, 4).verdict() == Left(2, -0.1, 3).verdict() == "undecided"
    assert Left(-2, -4, -1).verdict() == "less than 3 points left"


@pytest.mark.parametrize("seeds", [4, 12])
def test_over_a_single_point_the_interval_is_that_of_paired_differences(seeds):
    """No choice is left, so nothing is corrected; problems do not vary, so the error is that of the seeds."""
    rng = np.random.default_rng(0)
    gains = rng.normal(5, 2, seeds)
    scores = columns((14, 0), (15, 0), seeds=seeds)
    for column in scores:
        column[1, 0] += gains[:, None] / 2
    found = left([scores])
    assert found.single == pytest.approx(gains.mean())
    standard_error = gains.std(ddof=1) / seeds**0.5
    assert found.value == pytest.approx(gains.mean(), abs=0.1)
    assert found.standard_error == pytest.approx(standard_error, rel=0.05)
    assert found.high - found.value == pytest.approx(t_quantile(seeds - 1) * found.standard_error)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert found.on_these_problems == pytest.approx((found.low, found.high))


def test_the_error_of_the_problems_by_hand():
    """On half of the problems the method has 2 more Pass@K and 1 less Avg@K than the mixture, where 1 is worth 2."""
    scores = columns((15, 70), (10, 80), (20, 70))  # slope -1
    on_half = np.tile([1.0, -1.0], 4) / 2
    scores[0][1, 0] += 2 * on_half
    scores[0][0, 0] -= on_half
    found = left([scores])
    assert found.value == pytest.approx(70 - 75)
    held = (2 - 1) * on_half  # d = (P - Pmix) + (A - Amix)
    expected = t_quantile(7) / 1.959964 * (held.var(ddof=1) / 8) ** 0.5
    assert found.error == pytest.approx(expected, rel=1e-5)
    low, high = found.on_these_problems
    assert found.low == pytest.approx(found.value - t_quantile(5) * expected, rel=1e-5)
    assert (low, high) == pytest.approx((found.value, found.value))


def test_the_error_of_the_problems_includes_that_of_the_mixture():
    """At a slope of -1, d is -0.3 (P + A) of the low point and -0.7 (P + A) of the high one; of models, the mean."""
    scores = columns((17, 70), (10, 80), (20, 70))
    half, quarter = np.tile([1.0, -1.0], 4), np.tile([1.0, 1.0, -1.0, -1.0], 2)
    scores[0][1, 1] += 3 * half
    scores[0][0, 1] += quarter
    scores[1][1, 2] += 2 * quarter
    scores[1][0, 2] -= half

    def error(held):
        return t_quantile(7) / 1.959964 * (sum(of.var(ddof=1) for of in held) / 8) ** 0.5

    held = [-0.3 * (3 * half + quarter), -0.7 * (2 * quarter - half)]
    assert left([scores]).error == pytest.approx(error(held), rel=1e-5)
    single = columns((14, 75), (15, 70), (16, 0))  # of a single point what a problem has in Avg@K has no price
    single[0][1, 0] += half
    single[0][0, 0] += 5 * quarter
    assert left([single]).error == pytest.approx(error([half]), rel=1e-5)
    both = left([scores, single])
    assert both.error == pytest.approx(error([held[0] / 2 + half / 2, held[1] / 2]), rel=1e-5)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("seed", "noise"), [(1, 4), (5, 6), (11, 10)])
def test_halves_of_the_seeds_by_all_splits(seed, noise):
    """Two of five seeds choose the points; three set the share, in (5, 6) also beyond 0 and 1.

    In (11, 10) one split has no point. A second model has no noise, and 3 left in every split.
    """
    rng = np.random.default_rng(seed)
    of_seed = np.array([(14, 75), *POINTS.T], float).T[:, :, None] + rng.normal(0, noise, (2, 5, 5))
    expected = []
    for chosen in combinations(range(5), 2):
        here = of_seed[:, :, [*chosen]].mean(axis=-1)
        there = of_seed[:, :, [seed for seed in range(5) if seed not in chosen]].mean(axis=-1)
        mixture = envelope(here[0, 0], here[0, 1:], here[1, 1:])
        if np.isnan(mixture.passed):
            continue
        low, high = there[:, 1 + mixture.low], there[:, 1 + mixture.high]
        share = 0.0 if mixture.low == mixture.high else np.clip((high[0] - there[0, 0]) / (high[0] - low[0]), 0, 1)
        expected.append(there[1, 0] - share * low[1] - (1 - share) * high[1])
    assert len(expected) == (9 if seed == 11 else 10)
    without = np.broadcast_to(np.array([(14, 75), *POINTS.T], float).T[..., None, None], (2, 5, 5, 3))
    found = left([[np.repeat(of_seed[..., None], 3, axis=-1)], [without]])
    theta = (np.array(expected) + 3) / 2
    assert found.halved == pytest.approx(theta.mean(), abs=4 * theta.std() / 2000**0.5)


def test_points_are_those_of_the_mean_over_seeds():
    """However the resamples choose."""
    rng = np.random.default_rng(9)  # with which the first resamples choose others
    of_seed = np.array([(14, 75), *POINTS.T], float).T[:, :, None] + rng.normal(0, 6, (2, 5, 6))
    means = of_seed.mean(axis=-1)
    exact = envelope(means[0, 0], means[0, 1:], means[1, 1:])
    found = left([[np.repeat(of_seed[..., None], 3, axis=-1)]])
    assert found.mixtures == [(exact.low, exact.high, pytest.approx(float(exact.share)))]
    enough = means[0, 1:] >= means[0, 0]
    assert found.single == pytest.approx(means[1, 0] - means[1, 1:][enough].max())
    assert found.value == pytest.approx(means[1, 0] - exact.passed, abs=3)
    of_seed[0, 0] -= 20  # with more Avg@K everywhere
    means = of_seed.mean(axis=-1)
    found = left([[np.repeat(of_seed[..., None], 3, axis=-1)]])
    assert found.spare == pytest.approx(means[0, 1:].min() - means[0, 0])


def test_models_are_averaged_or_compared():
    one, other = columns((14, 75), *POINTS.T), columns((14, 73), *POINTS.T)
    assert left([one, other]).value == pytest.approx(2)
    singles = left([one, columns((25, 50), *POINTS.T)]).single
    assert singles == pytest.approx((75 - 62 + 50 - 20) / 2)
    assert left([one, other], weights=(1, -1)).value == pytest.approx(2)
    assert left([one, columns((31, 73), *POINTS.T)]).verdict() == "beyond"


def test_sizes_are_pooled_by_inverse_variance():
    found = pooled([Left(6, spread=8, seeds=16, error=0.0), Left(3, spread=3, seeds=9, error=0.0)])  # errors 2 and 1
    assert found.value == pytest.approx((6 / 4 + 3) / (1 / 4 + 1))
    assert found.high - found.value == pytest.approx(t_quantile(15 + 8) / (1 / 4 + 1) ** 0.5)
    assert found.value - found.low == pytest.approx(found.high - found.value)
    assert (found.seeds, found.spare) == (16 + 9, 0)
    parts = [Left(6, spread=8, seeds=16, error=0.0, spare=spare) for spare in (2.0, 0.0)]
    assert pooled(parts).spare == 2


def test_few_seeds_have_no_interval():
    found = left([columns((14, 75), *POINTS.T, seeds=2)])
    assert (found.value, found.halved, found.seeds) == (pytest.approx(3), pytest.approx(3), 2)
    assert np.isnan(found.low)
    assert np.isnan(found.detectable())
    three = left([columns((14, 75), *POINTS.T, seeds=3)])
    assert (three.low, three.detectable()) == pytest.approx((3, 0))


def test_what_can_be_detected():
    """Ten seeds with a standard deviation of 4: 90 % power for about 3.6 times the standard error (t, nine df)."""
    found = Left(0, spread=4, seeds=10, error=0.0)
    assert found.detectable() == pytest.approx(3.64 * 4 / 10**0.5, rel=0.01)
    assert found.detectable(40) < found.detectable() / 2
    assert np.isnan(found.detectable(2))


def test_intervals_cover_the_truth():
    """Seeds, problems and their interaction vary; the truth is that of infinitely many of both."""
    rng, repetitions, (seeds, problems) = np.random.default_rng(0), 200, (8, 100)
    truth = np.array([[31, 60], [25, 64], [30, 62], [33, 57], [36, 50], [34, 54], [50, 15]], float)  # near the envelope
    exact = truth[0, 1] - envelope(truth[0, 0], *truth[1:].T).passed
    covered, alone, values = [], [], []
    for _ in range(repetitions):
        shape = (2, len(truth))
        scores = truth.T[:, :, None, None] + rng.normal(0, 2.5, (*shape, seeds, 1))
        scores = scores + rng.normal(0, 25, (*shape, 1, problems)) + rng.normal(0, 30, (*shape, seeds, problems))
        found = left([[scores]])
        values.append(found.value)
        covered.append(found.low <= exact <= found.high)
        alone.append(found.on_these_problems[0] <= exact <= found.on_these_problems[1])
    assert 0.91 < np.mean(covered) < 0.995
    assert np.mean(alone) < np.mean(covered) - 0.1
    assert np.mean(values) == pytest.approx(exact, abs=1.5)
