"""Whether a series rose or fell by more than the noise of its steps, which may be autocorrelated."""

from functools import cache

import numpy as np
from jaxtyping import Float
from scipy.optimize import isotonic_regression

BLOCKS = 60  # a longer series is averaged over as many blocks
SIMULATED, NEAREST = 2000, 200
STRONGEST = 0.95  # lag-1 autocorrelation of the noise; stronger noise would pass for a trend


def monotone_fit(series: Float[np.ndarray, " step"]) -> Float[np.ndarray, " step"]:
    """The closest series that only rises, or only falls if the last tenth of the steps is below the first."""
    tenth = max(1, len(series) // 10)
    return isotonic_regression(series, increasing=series[-tenth:].mean() > series[:tenth].mean()).x


def trend_p(values: Float[np.ndarray, " step"]) -> float:
    """P value of the hypothesis that the series is a constant plus AR(1) noise, against any rise or fall.

    The statistic is the share of variance that a monotone fit explains (order-restricted inference: Robertson, Wright
    and Dykstra 1988). Its distribution depends on the noise's autocorrelation, which the fit's residuals underestimate.
    Series of noise are therefore simulated, with coefficients from 0 to 0.95, and the value is compared with those
    whose residuals have nearly the same lag-1 autocorrelation.
    """
    blocks = np.array([block.mean() for block in np.array_split(values, min(len(values), BLOCKS))])
    shares, correlations = _fits_of_noise(len(blocks))
    share, correlation = _explained(blocks)
    near = np.abs(correlations - correlation).argsort()[:NEAREST]
    return float((shares[near] >= share).mean())


@cache
def _fits_of_noise(steps: int) -> Float[np.ndarray, "2 series"]:
    rng = np.random.default_rng(0)
    coefficient = rng.uniform(0, STRONGEST, SIMULATED)
    noise = rng.standard_normal((steps, SIMULATED))
    for step in range(1, steps):
        noise[step] = coefficient * noise[step - 1] + np.sqrt(1 - coefficient**2) * noise[step]
    return np.array([_explained(series) for series in noise.T]).T


def _explained(series: Float[np.ndarray, " step"]) -> tuple[float, float]:
    """The share of variance that a monotone fit explains, and the lag-1 autocorrelation of its residuals."""
    residuals = series - monotone_fit(series)
    left, total = np.square(residuals).sum(), np.square(series - series.mean()).sum()
    if left <= 1e-12 * total:
        return 1.0, 0.0
    return 1 - left / total, float(residuals[1:] @ residuals[:-1]) / left
