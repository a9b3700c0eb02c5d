"""Intervals against closed forms, simulated coverage and hand-worked cases."""

import time

import numpy as np
import pandas as pd
import pytest

from entropy_dynamics.analysis.statistics import Interval, bootstrap_interval, curve_over_seeds, paired_difference


def width(interval: Interval) -> float:
    return interval.high - interval.low


def test_one_seed_agrees_with_the_normal_interval():
    values = np.random.default_rng(0).random(400)
    got = bootstrap_interval(values, draws=20_000)
    half = 1.96 * values.std() / 20
    assert got.value == pytest.approx(values.mean())
    assert (got.low, got.high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.02 * half)


def test_coverage_over_new_problems():
    rng = np.random.default_rng(1)
    hits = [
        (interval := bootstrap_interval(rng.beta(2, 3, 80), draws=500, seed=i)).low <= 0.4 <= interval.high
        for i in range(400)
    ]
    assert 0.92 < np.mean(hits) < 0.975  # 0.95 within three standard errors, a little less for n = 80


def test_seeds_that_agree_do_not_make_more_problems():
    values = np.random.default_rng(2).random(50)
    alone = bootstrap_interval(values, draws=10_000)
    together = bootstrap_interval(np.tile(values, (10, 1)), draws=10_000)
    assert width(together) == pytest.approx(width(alone), rel=0.05)


def test_the_spread_between_seeds_by_hand():
    # Every problem alike, so all spread is between seeds. A draw takes 2 of 3 seeds: the mean of the same one twice has
    # chance 1/9 each, that of two different ones 2/9 each. Its variance is s^2 / 3 with the unbiased s^2.
    values = np.repeat([[0.1], [0.2], [0.6]], 40, axis=1)
    outer = bootstrap_interval(values, level=0.85)  # tails of 0.075 < 1/9
    assert (outer.value, outer.low, outer.high) == pytest.approx((0.3, 0.1, 0.6))
    inner = bootstrap_interval(values, level=0.6)  # 1/9 < 0.2 < 3/9
    assert (inner.low, inner.high) == pytest.approx((0.15, 0.4))


def test_pairing_removes_what_the_problems_share():
    rng = np.random.default_rng(4)
    difficulty = rng.uniform(0.1, 0.9, 200)
    a, b = (np.clip(difficulty + shift + 0.02 * rng.standard_normal(200), 0, 1) for shift in (0.03, 0.0))
    paired = paired_difference(a, b)
    assert paired.value == pytest.approx(a.mean() - b.mean())
    assert paired.excludes_zero
    half = 1.96 * (a - b).std() / np.sqrt(200)
    assert width(paired) == pytest.approx(2 * half, rel=0.1)
    assert not paired_difference(a, np.random.default_rng(5).permutation(b)).excludes_zero


def test_difference_with_unequal_numbers_of_seeds():
    rng = np.random.default_rng(6)
    a, b = rng.random((3, 60)), rng.random((1, 60))
    assert paired_difference(a, b).value == pytest.approx(a.mean() - b.mean())
    with pytest.raises(ValueError, match="same problems"):
        paired_difference(a, rng.random((1, 59)))


def test_separate_runs_widen_the_difference():
    # Two seeds of each method, far apart from one another: the interval has to cover zero.
    a = np.array([[0.4], [0.8]]) + 0.01 * np.random.default_rng(7).random((2, 500))
    b = a[:, ::-1] - 0.05
    assert not paired_difference(a, b).excludes_zero


def test_identical_values_are_not_certain():
    # Clopper-Pearson: n of n solved leaves a share of at least 0.025^(1/n).
    always = bootstrap_interval(np.ones((3, 30)))
    assert (always.value, always.low, always.high) == pytest.approx((1, 0.025 ** (1 / 30), 1))
    never = bootstrap_interval(np.zeros(30))
    assert (never.low, never.high) == pytest.approx((0, 1 - 0.025 ** (1 / 30)))
    same = paired_difference(np.ones(30), np.ones(30))
    assert (same.low, same.high) == pytest.approx((-(1 - 0.025 ** (1 / 30)), 1 - 0.025 ** (1 / 30)))
    shifted = paired_difference(np.full(30, 0.7), np.full(30, 0.4))  # alike but for rounding
    assert width(shifted) > 0.1
    # Seed for seed the same difference, but other pairs of seeds differ: there is something to resample.
    seeds = np.array([[0.2], [0.8]]).repeat(30, axis=1)
    between = paired_difference(seeds, seeds)
    assert (between.low, between.high) == pytest.approx((-0.6, 0.6))


def test_rounding_errors_are_not_an_effect():
    assert not Interval(0.1, 1e-16, 0.2).excludes_zero
    assert not Interval(0.0, 0.0, 0.0).excludes_zero
    assert Interval(-0.1, -0.2, -0.01).excludes_zero


def test_the_same_seed_gives_the_same_interval():
    values = np.random.default_rng(8).random((3, 40))
    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval(values) != bootstrap_interval(values, seed=1)


@pytest.mark.parametrize("values", [np.zeros((0, 5)), np.array([0.5, np.nan]), np.zeros((2, 2, 2))])
def test_values_that_cannot_be_resampled_are_refused(values):
    with pytest.raises(ValueError, match="finite"):
        bootstrap_interval(values)


def test_the_largest_case_takes_well_under_a_second():
    values = np.random.default_rng(9).random((10, 500))
    start = time.process_time()
    bootstrap_interval(values)
    paired_difference(values, values[:3])
    assert time.process_time() - start < 1


def test_curves():
    def seed(*values):
        return pd.Series(values, index=range(len(values)), dtype=float)

    one = curve_over_seeds([seed(1, np.nan, 3, 4)])
    assert one["value"].to_dict() == {0: 1, 2: 3, 3: 4}
    assert one[["low", "high"]].isna().all(axis=None)
    three = curve_over_seeds([seed(1, 2, 3, 4), seed(2, 4, 6), seed(3, np.inf, 0, 9)])
    # Step 1 is infinite in one seed, step 3 missing in another.
    assert three.T.to_dict("list") == {0: [2, 1, 3], 2: [3, 0, 6]}
    assert len(curve_over_seeds([seed(np.nan, np.nan), seed(1, 1)])) == 0
