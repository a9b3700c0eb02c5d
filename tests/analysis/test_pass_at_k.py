"""Pass@K against counting and binomials."""

import itertools
import math

import numpy as np
import pytest

from entropy_dynamics.analysis.pass_at_k import problem_pass_at_k


@pytest.mark.parametrize("n", range(1, 8))
def test_pass_at_k_is_the_share_of_subsets_with_a_correct_sample(n):
    """Problems with 0 to n correct samples. Pass@n is 1 if and only if any sample is correct."""
    counts = np.arange(n + 1)
    for k in range(1, n + 1):
        subsets = list(itertools.combinations(range(n), k))
        counted = [np.mean([min(subset) < c for subset in subsets]) for c in counts]
        assert problem_pass_at_k(counts, n, k) == pytest.approx(counted, rel=1e-12)
    assert problem_pass_at_k(counts, n, n).tolist() == (counts > 0).tolist()


def test_large_n_against_exact_integers():
    """Each problem with its own number of samples, and alone."""
    for n, c, k in ((1024, 3, 512), (1024, 512, 2), (4096, 1, 4095), (2000, 1999, 1), (32, 1, 8)):
        exact = [1 - math.comb(of - c, k) / math.comb(of, k) for of in (n, n + 7)]
        assert problem_pass_at_k(np.array([c, c]), np.array([n, n + 7]), k) == pytest.approx(exact, rel=1e-10)
        assert problem_pass_at_k(np.array([c]), n, k).tolist() == pytest.approx(exact[:1], rel=1e-10)


@pytest.mark.parametrize("k", [0, -1, 5])
def test_k_outside_the_samples_is_refused(k):
    with pytest.raises(ValueError, match="from 1 to the number of samples, 4"):
        problem_pass_at_k(np.array([1]), 4, k)
