"""Pass@K against counting, binomials and the worked values N3 of the specification."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from entropy_dynamics.analysis.pass_at_k import problem_pass_at_k


def samples(n: int, c: int) -> np.ndarray:
    """One problem with c correct samples of n."""
    return (np.arange(n) < c)[None]


def pass_at_k(correct: np.ndarray, k: int) -> float:
    """Averaged over problems; correct is [problems, n]."""
    return problem_pass_at_k(correct.sum(axis=1), correct.shape[1], k).mean()


@pytest.mark.parametrize(("k", "expected"), [(1, 0.03125), (8, 0.25), (32, 1.0)])
def test_hand_worked_values_of_three_samples(k, expected):
    assert pass_at_k(samples(32, 1), k) == pytest.approx(expected, rel=1e-14)


def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample():
    correct = np.random.default_rng(0).random((5, 7)) < 0.3
    for k in range(1, 8):
        subsets = list(itertools.combinations(range(7), k))
        counted = np.mean([[row[list(subset)].any() for subset in subsets] for row in correct])
        assert pass_at_k(correct, k) == pytest.approx(counted, rel=1e-12)


@pytest.mark.parametrize(("n", "c", "k"), [(1024, 3, 512), (1024, 512, 2), (4096, 1, 4095), (2000, 1999, 1)])
def test_large_n_against_exact_integers(n, c, k):
    exact = 1 - math.comb(n - c, k) / math.comb(n, k)
    assert pass_at_k(samples(n, c), k) == pytest.approx(exact, rel=1e-10)
    assert problem_pass_at_k(np.array([c]), n, k).tolist() == pytest.approx([exact], rel=1e-10)


def test_hand_worked_values():
    correct = np.array([[1, 1, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]], dtype=bool)
    assert pass_at_k(correct, 1) == pytest.approx(0.5)
    # k = 2: 1 - C(2,2)/C(4,2) = 5/6 for the first
    np.testing.assert_allclose(problem_pass_at_k(np.array([2, 0, 4]), 4, 2), [5 / 6, 0, 1])
    assert problem_pass_at_k(np.array([2, 0, 4]), 4, 4).tolist() == [1, 0, 1]  # exactly "any of them"
    assert pass_at_k(correct, 2) == pytest.approx((5 / 6 + 1) / 3)


@settings(max_examples=50, deadline=None)
@given(hnp.arrays(bool, st.tuples(st.integers(1, 6), st.integers(1, 40))))
def test_pass_at_k_starts_at_avg_ends_at_any_and_never_falls(correct):
    curve = [pass_at_k(correct, k) for k in range(1, correct.shape[1] + 1)]
    assert curve[0] == pytest.approx(correct.mean())
    assert curve[-1] == correct.any(axis=1).mean()
    assert (np.diff(curve) >= -1e-12).all()


def test_pass_at_k_is_unbiased_where_best_of_a_resample_is_not():
    # Samples that are correct with probability 0.1: the true pass@4 is 1 - 0.9^4.
    correct = np.random.default_rng(1).random((20_000, 16)) < 0.1
    truth = 1 - 0.9**4
    standard_error = problem_pass_at_k(correct.sum(axis=1), 16, 4).std() / math.sqrt(len(correct))
    assert abs(pass_at_k(correct, 4) - truth) < 4 * standard_error
    with_replacement = np.mean(1 - (1 - correct.mean(axis=1)) ** 4)
    assert truth - with_replacement > 4 * standard_error


@pytest.mark.parametrize("k", [0, -1, 5])
def test_k_outside_the_samples_is_refused(k):
    with pytest.raises(ValueError, match="from 1 to the number of samples, 4"):
        pass_at_k(samples(4, 1), k)
