"""Avg@K and Pass@K (Section 5.1). NumPy only, so the reports can use it.

`correct` is always boolean, [problems, n]: which of the n samples of each problem were right. Pass@k for k < n is the
unbiased estimator of Chen et al. 2021 (arXiv 2107.03374): the chance that k of the n samples, drawn without
replacement, hold a right one. For k = n that is "any of them", which is what the paper reports.
"""

import numpy as np


def problem_pass_rates(correct: np.ndarray) -> np.ndarray:
    """[problems, n] -> [problems]: each problem's share of right samples, c/n."""
    return _checked(correct).mean(axis=1)


def problem_pass_at_k(correct: np.ndarray, k: int) -> np.ndarray:
    """[problems, n] -> [problems]: 1 - C(n-c, k) / C(n, k), for 1 <= k <= n. Raises ValueError for another k."""
    correct = _checked(correct)
    if not 1 <= k <= correct.shape[1]:
        raise ValueError(f"k is {k}; it has to be from 1 to the number of samples, {correct.shape[1]}")
    return _problem_pass_curves(correct, k)[:, -1]


def avg_at_k(correct: np.ndarray) -> float:
    """Mean over the problems of their share of right samples, in [0, 1]."""
    return float(problem_pass_rates(correct).mean())


def pass_at_k(correct: np.ndarray, k: int) -> float:
    """Mean over the problems of the unbiased pass@k, in [0, 1]. Raises ValueError unless 1 <= k <= n."""
    return float(problem_pass_at_k(correct, k).mean())


def pass_curve(correct: np.ndarray) -> np.ndarray:
    """[problems, n] -> [n]: pass@k for k = 1 ... n; it starts at Avg@n and never falls."""
    correct = _checked(correct)
    return _problem_pass_curves(correct, correct.shape[1]).mean(axis=0)


def _problem_pass_curves(correct: np.ndarray, k: int) -> np.ndarray:
    # C(n-c, k) / C(n, k) = prod_{j<k} (n-c-j) / (n-j): no binomial, so nothing overflows, and exactly 0 once n-c < k.
    n = correct.shape[1]
    wrong = n - correct.sum(axis=1)
    drawn = np.arange(k)
    all_wrong = np.cumprod(np.maximum(wrong[:, None] - drawn, 0) / (n - drawn), axis=1)
    return 1.0 - all_wrong


def _checked(correct: np.ndarray) -> np.ndarray:
    correct = np.asarray(correct)
    if correct.dtype != bool or correct.ndim != 2 or correct.size == 0:
        raise ValueError(f"correct has to be a boolean [problems, samples], not {correct.dtype} {list(correct.shape)}")
    return correct
