"""Avg@K and Pass@K of graded samples (Section 5.1). NumPy only; sampling is in `stages/evaluate.py`.

Pass@k for k < n samples is the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374): the probability that k of the
n samples, drawn without replacement, include a correct one. For k = n, as in the paper, it is whether any is correct.
"""

import numpy as np


def avg_at_k(correct: np.ndarray) -> float:
    """Avg@K: the share of correct samples, bool [problems, K], averaged over problems.

    Raises ValueError if `correct` is not a non-empty boolean matrix.
    """
    return float(_checked(correct).mean(axis=1).mean())


def pass_at_k(correct: np.ndarray, k: int) -> float:
    """Pass@k: the unbiased estimator, averaged over problems.

    Raises ValueError if k is out of range, or if `correct` is not a non-empty boolean matrix.

    Args:
        correct: bool [problems, n].
        k: 1 <= k <= n.
    """
    correct = _checked(correct)
    return float(problem_pass_at_k(correct.sum(axis=1), correct.shape[1], k).mean())


def problem_pass_at_k(counts: np.ndarray, n: np.ndarray | int, k: int) -> np.ndarray:
    """Pass@k of each problem, [problems], given c correct samples out of n: 1 - C(n-c, k) / C(n, k).

    Raises ValueError if k is not in 1 ... n.

    Args:
        counts: c, int [problems].
        n: number of samples, of all problems or int [problems].
    """
    if not 1 <= k <= np.min(n):
        raise ValueError(f"k is {k}; it should be from 1 to the number of samples, {np.min(n)}")
    # C(n-c, k) / C(n, k) = prod_{j<k} (n-c-j) / (n-j): no overflow of binomials, and exactly 0 if n-c < k.
    samples, incorrect = np.asarray(n)[..., None] - np.arange(k), (n - np.asarray(counts))[:, None] - np.arange(k)
    all_incorrect: np.ndarray = np.prod(np.maximum(incorrect, 0) / samples, axis=1)
    return 1.0 - all_incorrect


def _checked(correct: np.ndarray) -> np.ndarray:
    correct = np.asarray(correct)
    if correct.dtype != bool or correct.ndim != 2 or correct.size == 0:
        raise ValueError(f"correct should be boolean [problems, samples], not {correct.dtype} {list(correct.shape)}")
    return correct
