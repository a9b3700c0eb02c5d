"""Avg@K and Pass@K of graded samples (Section 5.1): arrays in, numbers out; `stages/evaluate.py` samples. NumPy only.

Pass@k for k < n samples is the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374): the probability that k of the
n samples, drawn without replacement, include a correct one. For k = n, as in the paper, it is "any of them".
"""

import numpy as np


def avg_at_k(correct: np.ndarray) -> float:
    """Mean over the problems of their share of correct samples.

    Args:
        correct: bool [problems, K].
    """
    return float(_checked(correct).mean(axis=1).mean())


def pass_at_k(correct: np.ndarray, k: int) -> float:
    """Mean over the problems of the unbiased pass@k.

    Args:
        correct: bool [problems, n].
        k: 1 <= k <= n.

    Raises:
        ValueError: another k, or `correct` is no table of booleans.
    """
    correct = _checked(correct)
    return float(problem_pass_at_k(correct.sum(axis=1), correct.shape[1], k).mean())


def problem_pass_at_k(counts: np.ndarray, n: np.ndarray | int, k: int) -> np.ndarray:
    """Pass@k of each problem, [problems], from its number of correct samples out of n: 1 - C(n-c, k) / C(n, k).

    Args:
        n: samples of every problem, or [problems].

    Raises:
        ValueError: k is not in 1 ... n.
    """
    if not 1 <= k <= np.min(n):
        raise ValueError(f"k is {k}; it should be from 1 to the number of samples, {np.min(n)}")
    # C(n-c, k) / C(n, k) = prod_{j<k} (n-c-j) / (n-j): no binomial, so nothing overflows, and exactly 0 if n-c < k.
    samples, incorrect = np.asarray(n)[..., None] - np.arange(k), (n - np.asarray(counts))[:, None] - np.arange(k)
    all_incorrect: np.ndarray = np.prod(np.maximum(incorrect, 0) / samples, axis=1)
    return 1.0 - all_incorrect


def _checked(correct: np.ndarray) -> np.ndarray:
    correct = np.asarray(correct)
    if correct.dtype != bool or correct.ndim != 2 or correct.size == 0:
        raise ValueError(f"correct should be boolean [problems, samples], not {correct.dtype} {list(correct.shape)}")
    return correct
