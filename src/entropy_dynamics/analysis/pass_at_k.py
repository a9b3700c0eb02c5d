"""Pass@K of graded samples (Section 5.1). NumPy only; sampling is in `stages/evaluate.py`.

Pass@k for k < n samples is the unbiased estimator of Chen et al. 2021 (arXiv 2107.03374): the probability that k of the
n samples, drawn without replacement, include a correct one. For k = n, as in the paper, it is whether any is correct.
"""

import numpy as np


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
