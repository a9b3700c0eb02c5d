"""Intervals against textbook values, simulated coverage and power, and hand-worked cases."""

import math
from functools import cache

import numpy as np
import pytest
from scipy import stats
from scipy.special import expit, logit

from entropy_dynamics.analysis.statistics import (
    Interval,
    holm,
    score_interval,
    seed_interval,
    seeds_needed,
    share_interval,
    smallest,
)

REPETITIONS = 4000  # the standard error of a coverage of 95 % is then 0.34 %
NOMINAL = (0.935, 0.965)
CONSERVATIVE = (0.95, 0.975)


def coverage(found: Interval, truth: float) -> float:
    return float(np.mean((found.low <= truth) & (truth <= found.high)))


# Over seeds


def test_one_group_is_students_t():
    values = np.array([1.5, 2.5, 4.5])
    found = seed_interval([values])
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 2, values.mean(), stats.sem(values)))
    assert found.p == pytest.approx(stats.ttest_1samp(values, 0).pvalue)


def test_two_groups_are_welchs_t():
    a, b = np.array([1.5, 2.5, 4.5]), np.array([0.0, 0.1, 0.3, -0.2, 0.2])
    found, textbook = seed_interval([a, -b]), stats.ttest_ind(a, b, equal_var=False)
    assert (found.low, found.high) == pytest.approx(tuple(textbook.confidence_interval(0.95)))
    assert found.p == pytest.approx(textbook.pvalue)


def test_one_seed_has_no_interval():
    found = seed_interval([np.array([5.0]), np.array([0.0, -1.0, -2.0])])
    assert math.isnan(found.low)
    found = score_interval([[np.ones((1, 30))], [-np.random.default_rng(0).random((3, 30))]])
    assert math.isnan(found.low)
    assert math.isnan(share_interval(np.random.default_rng(0).random((1, 30))).low)


@pytest.mark.parametrize(
    ("seeds", "spread", "limits"),
    [
        ((5, 5), (1, 1), NOMINAL),
        ((5, 5), (1, 3), NOMINAL),
        ((3, 5), (30, 1), NOMINAL),  # an ablation that explodes
        ((3, 5), (3, 1), (0.93, 0.965)),  # Welch's approximation is worst where the few seeds vary somewhat more
        ((3, 3), (1, 3), NOMINAL),
        ((3, 3), (1, 1), (0.96, 0.972)),  # ... and conservative where three seeds vary alike: 96.6 %
    ],
)
def test_coverage_over_seeds(seeds, spread, limits):
    rng = np.random.default_rng(0)
    groups = [sd * rng.standard_normal((30_000, n)) for sd, n in zip(spread, seeds, strict=True)]
    assert limits[0] < coverage(seed_interval([groups[0], -groups[1]]), 0.0) < limits[1]


@pytest.mark.parametrize(("seeds", "correlation"), [(3, 0.4), (5, 0.2)])
def test_pairing_pays_above_a_correlation(seeds, correlation):
    """Below it the lost degrees of freedom cost more than the removed variance gains: why seeds are not paired."""

    def ratio(rho: float) -> float:
        rng = np.random.default_rng(0)
        shared, own = rng.standard_normal((10_000, 1, seeds)), rng.standard_normal((10_000, 2, seeds))
        pairs = rho**0.5 * shared + (1 - rho) ** 0.5 * own
        a, b = pairs[:, 0], pairs[:, 1]
        paired, unpaired = stats.ttest_rel(a, b, axis=1).confidence_interval(0.95), seed_interval([a, -b])
        return float(np.mean(paired.high - paired.low) / np.mean(unpaired.high - unpaired.low))

    assert ratio(correlation) == pytest.approx(1, abs=0.03)
    assert ratio(correlation - 0.2) > 1.08
    assert ratio(correlation + 0.2) < 0.92


@pytest.mark.parametrize("seeds", [3, 5])
def test_power_at_the_detectable_effect(seeds):
    """`detectable` of the true standard error: the effect that is found nine times in ten."""
    rng = np.random.default_rng(0)
    effect = Interval.of_error(0.0, seeds**-0.5, seeds - 1).detectable
    found = seed_interval([rng.normal(effect, 1, (50_000, seeds))])
    assert np.mean(found.low > 0) == pytest.approx(0.9, abs=0.004)
    assert Interval.of_error(0.0, 1.0, math.inf).detectable == pytest.approx(1.960 + 1.282, abs=1e-3)


def test_seeds_needed_by_the_textbook():
    # Two-sample t test, effect of one standard deviation, 90 % power: 23 per group (Cohen 1988, 22 by the normal one).
    values = np.array([-1.0, 1.0, 0.0])  # standard deviation 1
    assert seeds_needed(lambda n: seed_interval([values, values], seeds=n), 1.0) == 23
    assert seeds_needed(lambda n: seed_interval([values, values], seeds=n), 0.4) is None  # 133


def test_more_seeds_do_not_replace_problems():
    rng = np.random.default_rng(0)
    problems, seeds, noise = rng.standard_normal((1, 100)), rng.standard_normal((4, 1)), rng.standard_normal((4, 100))
    scores = 0.3 * problems + 0.1 * seeds + 0.2 * noise
    now, many = score_interval([[scores]]), score_interval([[scores]], seeds=10**6)
    assert now.detectable > many.detectable
    error = math.sqrt((0.3**2) / 100)  # from problems alone
    assert many.high - many.value == pytest.approx(1.96 * error, rel=0.2)


# Over seeds and problems


def test_score_interval_by_hand():
    """Two seeds, three problems; mean squares of the two-way layout: problems 0.02, seeds 0.06, interaction 0.005."""
    scores = np.array([[0.1, 0.3, 0.2], [0.2, 0.5, 0.5]])
    found = score_interval([[scores]])
    problems, seeds = np.array([0.15, 0.4, 0.35]), np.array([0.2, 0.4])
    residuals = scores - problems - seeds[:, None] + 0.3
    parts = [(problems.var(ddof=1) / 3, 2), (seeds.var(ddof=1) / 2, 1), (-(residuals**2).sum() / 2 / 6, 2)]
    variance = sum(part for part, _ in parts)
    df = max(1, variance**2 / sum(part**2 / own for part, own in parts))
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, df, 0.3, variance**0.5))


def test_data_sets_share_their_seeds():
    """Two copies of a data set, each with half the weight: the seeds' variance stays, that of the problems halves."""
    rng = np.random.default_rng(0)
    scores = rng.standard_normal((4, 1)) + np.zeros((4, 50))
    one, two = score_interval([[scores]]), score_interval([[scores / 2, scores / 2]])
    assert two == one
    scores = rng.standard_normal(50) + np.zeros((4, 1))
    one, two = score_interval([[scores]]), score_interval([[scores / 2, scores / 2]])
    assert two.high - two.value == pytest.approx((one.high - one.value) / 2**0.5, rel=0.02)


def test_pairing_removes_what_the_problems_share():
    rng = np.random.default_rng(4)
    difficulty = rng.uniform(0.1, 0.9, 200)
    a, b = (difficulty + shift + 0.02 * rng.standard_normal((3, 200)) for shift in (0.03, 0.0))
    assert score_interval([[a], [-b]]).low > 0
    assert score_interval([[a], [-b[:, ::-1]]]).low < 0


def test_an_untrained_model_varies_with_the_problems_only():
    scores = np.random.default_rng(0).random(40)
    found = score_interval([[scores]])
    assert (found.low, found.high) == pytest.approx(stats.t.interval(0.95, 39, scores.mean(), stats.sem(scores)))
    trained = np.array([[0.1], [0.2], [0.4]]) + scores
    difference = score_interval([[trained], [-scores]])
    assert (difference.low, difference.high) == pytest.approx(
        stats.t.interval(0.95, 2, 0.7 / 3, stats.sem([0.1, 0.2, 0.4]))
    )


def test_other_problems_are_an_error():
    with pytest.raises(ValueError, match="shape"):
        score_interval([[np.random.default_rng(0).random((3, 60))], [np.zeros((3, 59))]])


def test_scores_without_any_difference():
    """All solved: Clopper-Pearson leaves a share of at least 0.025^(1/n); a difference has no interval."""
    always, never = share_interval(np.ones((3, 30))), share_interval(np.zeros(30))
    assert (always.value, always.low, always.high) == pytest.approx((1, 0.025 ** (1 / 30), 1))
    assert (never.value, never.low, never.high) == pytest.approx((0, 0, 1 - 0.025 ** (1 / 30)))
    same = score_interval([[np.full((3, 30), 0.7)], [np.full((3, 30), -0.4)]])  # alike but for rounding
    assert same.value == pytest.approx(0.3)
    assert math.isnan(same.low)


# Coverage over seeds, problems and samples


@cache
def counts(
    difficulty: tuple[float, float], problems: int, samples: int, seed_spread: float, seeds: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """Correct samples [repetition, seed, problem] of two methods that do not differ on average.

    The problems' logits have Beta rates; each method adds an effect to each problem, each seed one to all problems and
    one to each. A spread of 0.15 between seeds is about 2 points of Avg@K.
    """
    rng = np.random.default_rng(0)
    rates = np.clip(rng.beta(*difficulty, (REPETITIONS, 1, problems)), 1e-6, 1 - 1e-6)
    shape, found = (REPETITIONS, seeds, problems), []
    for _ in range(2):
        logits = (logit(rates) + 0.3 * rng.standard_normal(rates.shape)).astype(np.float32)
        logits = logits + seed_spread * rng.standard_normal((REPETITIONS, seeds, 1), np.float32)
        success = expit(logits + 0.3 * rng.standard_normal(shape, np.float32))
        correct = np.zeros(shape, np.int8)
        for _ in range(samples):
            correct += rng.random(shape, np.float32) < success
        found.append(correct)
    return found[0], found[1]


def scores(correct: np.ndarray, metric: str, samples: int, seeds: int, problems: int) -> np.ndarray:
    correct = correct[:, :seeds, :problems]
    return correct / samples if metric == "avg" else (correct > 0).astype(float)


MIXED, HARD, CEILING = (0.6, 1.2), (0.15, 0.75), (3.0, 0.6)  # mean rates of 33, 17 and 83 %


@pytest.mark.parametrize(
    ("seeds", "problems", "metric", "limits"),
    [
        (5, 30, "avg", NOMINAL),
        (5, 200, "avg", NOMINAL),
        (5, 500, "avg", NOMINAL),
        (5, 200, "pass", NOMINAL),
        (3, 500, "avg", NOMINAL),
        # Three seeds: conservative by up to two points, as Welch's t is.
        (3, 30, "avg", CONSERVATIVE),
        (3, 200, "pass", CONSERVATIVE),
        # Solved or not, on 30 problems: more conservative, because sampling alone sets the least width.
        (5, 30, "pass", (0.95, 0.99)),
        (3, 30, "pass", (0.95, 0.995)),
    ],
)
def test_coverage_of_differences(seeds, problems, metric, limits):
    simulated, samples = (30, 32) if problems == 30 else (500, 8)
    a, b = (scores(one, metric, samples, seeds, problems) for one in counts(MIXED, simulated, samples, 0.15))
    assert limits[0] < coverage(score_interval([[a], [-b]]), 0.0) < limits[1]


@pytest.mark.parametrize(
    ("difficulty", "problems", "samples", "seeds", "metric", "limits"),
    [
        (MIXED, 30, 32, 5, "avg", NOMINAL),
        (MIXED, 500, 8, 3, "pass", NOMINAL),
        (HARD, 30, 32, 3, "avg", NOMINAL),
        (HARD, 30, 32, 5, "pass", NOMINAL),
        (CEILING, 30, 32, 3, "avg", NOMINAL),
        # Pass@8 is 99.6 %, and all problems are solved in many repetitions: the interval is too wide, not too narrow.
        (CEILING, 200, 8, 3, "pass", (0.95, 0.995)),
        (CEILING, 200, 8, 5, "pass", (0.95, 0.995)),
    ],
)
def test_coverage_of_scores(difficulty, problems, samples, seeds, metric, limits):
    correct, _ = counts(difficulty, problems, samples, 0.15)
    found = share_interval(scores(correct, metric, samples, seeds, problems))
    rng = np.random.default_rng(1)
    rates = np.clip(rng.beta(*difficulty, 500_000), 1e-6, 1 - 1e-6)
    rates = expit(logit(rates) + (0.3**2 + 0.15**2 + 0.3**2) ** 0.5 * rng.standard_normal(rates.shape))
    truth = rates.mean() if metric == "avg" else (1 - (1 - rates) ** samples).mean()
    assert limits[0] < coverage(found, truth) < limits[1]
    assert (np.diff([0 * found.low, found.low, found.value, found.high, 0 * found.high + 1], axis=0) >= 0).all()


def test_differences_at_the_ceiling_are_never_too_narrow():
    a, b = (scores(one, "pass", 8, 3, 200) for one in counts(CEILING, 200, 8, 0.15))
    found = score_interval([[a], [-b]])
    unknown = np.isnan(found.low)
    assert np.mean(unknown) < 0.05  # both methods have the same scores on every problem
    assert coverage(found, 0.0) > 0.95 * np.mean(~unknown)


# Other statistics


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
    rng, df = np.random.default_rng(0), 9
    effects = np.array(true) + rng.standard_t(df, (REPETITIONS, 6))
    found = [smallest([Interval.of_error(value, 1.0, df) for value in row]) for row in effects]
    lows, highs = (np.array([getattr(interval, end) for interval in found]) for end in ("low", "high"))
    assert np.mean(lows > 0) < 0.03
    assert np.mean(highs < 0) < 0.03  # the lowest of six upper ends without a correction: 14 %


def test_the_smallest_effect_by_hand():
    found = smallest([Interval.of_error(5.0, 2.0, math.inf), Interval.of_error(4.0, 0.5, math.inf)])
    assert (found.value, found.low) == (4, pytest.approx(5 - 1.96 * 2, abs=1e-3))
    assert found.high == pytest.approx(4 + 2.2414 * 0.5, abs=1e-3)  # 98.75 %
