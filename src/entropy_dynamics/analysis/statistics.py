"""Intervals, paired differences and curves over seeds.

Scores are values in [0, 1], one per problem and seed. With one seed an interval covers other problems and samples, not
another training seed.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.special import betaincinv, stdtrit

DRAWS = 2000
LEVEL = 0.95
POWER = 0.9
MAX_DF = 30  # of t quantiles: an interval is at most 4 % too wide
ROUNDING = 1e-9  # smaller differences come from the order of additions

Scores = Float[np.ndarray, "seed problem"] | Float[np.ndarray, " problem"]
PerSeed = Float[np.ndarray, " seed"]


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its 95 % interval; NaN where they are unknown."""

    value: float = math.nan
    low: float = math.nan
    high: float = math.nan
    detectable: float = math.nan
    """The smallest distance from a threshold that is found with 90 % power."""

    @classmethod
    def of_error(cls, value: float, error: float, df: float) -> "Interval":
        """Student's t interval of an estimate with this standard error; with df = inf the normal one."""
        half = float(stdtrit(df, (1 + LEVEL) / 2)) * error
        return cls(value, value - half, value + half, half + float(stdtrit(df, POWER)) * error)

    @property
    def excludes_zero(self) -> bool:
        return self.low > ROUNDING or self.high < -ROUNDING


def bootstrap_interval(values: Scores, *, draws: int = DRAWS, level: float = LEVEL, seed: int = 0) -> Interval:
    """Mean of `values` (in [0, 1]) with its percentile interval.

    Each draw resamples the seeds, then the problems, keeping all samples of a problem together. The seeds share their
    problems, so a draw takes the same problems from all of them. Of S > 1 seeds a draw takes S - 1: with so few, taking
    S would show only (S - 1) / S of the variance between them (McCarthy and Snowden 1985).
    """
    values = _seeds_by_problems(values)
    rng = np.random.default_rng(seed)
    means = _resampled_problems(values, draws, rng, rng)
    return _interval(values.mean(), means, (values.min(), values.max()), values.shape[1], (0.0, 1.0), level)


def paired_difference(a: Scores, b: Scores, *, draws: int = DRAWS, level: float = LEVEL, seed: int = 0) -> Interval:
    """Mean of `a` minus mean of `b` with its percentile interval; the columns are the same problems in the same order.

    A draw takes the same problems from both, and seeds from each independently: runs of two methods are separate even
    if they share a seed's number, and a method may have more seeds than the other.

    Raises:
        ValueError: the numbers of problems differ.
    """
    a, b = _seeds_by_problems(a), _seeds_by_problems(b)
    if a.shape[1] != b.shape[1]:
        raise ValueError(f"paired methods need the same problems; they have {a.shape[1]} and {b.shape[1]}")
    seeds_rng = np.random.default_rng(seed)
    # Two generators in the same state draw the same problems.
    means = [_resampled_problems(v, draws, seeds_rng, np.random.default_rng([seed, 1])) for v in (a, b)]
    ends = (a.min(axis=0) - b.max(axis=0)).min(), (a.max(axis=0) - b.min(axis=0)).max()  # over all pairs of seeds
    return _interval(a.mean() - b.mean(), means[0] - means[1], ends, a.shape[1], (-1.0, 1.0), level)


def student_interval(
    groups: Sequence[tuple[float, PerSeed]],
    spread: Sequence[PerSeed] = (),
    more: Sequence[tuple[float, float]] = (),
) -> Interval:
    """Sum of weight * mean over the groups with its t interval, which is unknown if no group has two seeds.

    Args:
        groups: (weight, values of the seeds). The variance between seeds is pooled over them and `spread`.
        spread: values of the seeds of further methods, for that variance only.
        more: further variances of the sum with their degrees of freedom, added (Satterthwaite 1946).
    """
    value = float(sum(weight * values.mean() for weight, values in groups))
    pooled = [*(values for _, values in groups), *spread]
    df = float(sum(len(values) - 1 for values in pooled))
    if df == 0:
        return Interval(value)
    between = sum(((values - values.mean()) ** 2).sum() for values in pooled) / df
    parts = [(between * sum(weight**2 / len(values) for weight, values in groups), df), *more]
    variance = sum(part for part, _ in parts)
    if variance > 0:
        df = variance**2 / sum(part**2 / own for part, own in parts)
    return Interval.of_error(value, variance**0.5, min(int(df + ROUNDING), MAX_DF))


def block_bootstrap(
    rows: Float[np.ndarray, "row column"], statistic: Callable[[np.ndarray], float], block: int
) -> Interval:
    """A statistic of `rows` with its percentile interval; neighbours stay together in circular blocks."""
    n, rng = len(rows), np.random.default_rng(0)
    drawn = np.empty(DRAWS)
    for i in range(DRAWS):
        starts = rng.integers(0, n, -(-n // block))
        drawn[i] = statistic(rows[((starts[:, None] + np.arange(block)) % n).ravel()[:n]])
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    detectable = Interval.of_error(0.0, float(drawn.std()), math.inf).detectable
    return Interval(statistic(rows), float(low), float(high), detectable)


def curve_over_seeds(seeds: Sequence[pd.Series]) -> pd.DataFrame:
    """Columns value (mean over the seeds), low and high (lowest and highest seed; NaN for one seed), indexed by step.

    Values that are not finite count as missing, and only steps that every seed has are kept: a mean over changing seeds
    would jump where one ends.
    """
    table = pd.concat([values[np.isfinite(values)] for values in seeds], axis=1, join="inner").sort_index()
    curve = pd.DataFrame({"value": table.mean(axis=1), "low": table.min(axis=1), "high": table.max(axis=1)})
    return curve if len(seeds) > 1 else curve.assign(low=np.nan, high=np.nan)


def _resampled_problems(
    values: Float[np.ndarray, "seed problem"],
    draws: int,
    seeds_rng: np.random.Generator,
    problems_rng: np.random.Generator,
) -> Float[np.ndarray, " draw"]:
    """The mean of each bootstrap draw."""
    seeds, problems = values.shape
    # How often each seed is drawn, as weights: a draw's seeds are averaged before its problems are taken.
    taken = max(seeds - 1, 1)
    weights = seeds_rng.multinomial(taken, np.full(seeds, 1 / seeds), size=draws) / taken
    chosen = problems_rng.integers(0, problems, size=(draws, problems))
    means: np.ndarray = np.take_along_axis(weights @ values, chosen, axis=1).mean(axis=1)
    return means


def _interval(
    value: float,
    means: Float[np.ndarray, " draw"],
    ends: tuple[float, float],
    problems: int,
    bounds: tuple[float, float],
    level: float,
) -> Interval:
    """`ends`: lowest and highest value of any seed and problem."""
    tail = (1 - level) / 2
    if ends[1] - ends[0] < ROUNDING:
        # No spread to resample (say, every problem solved), which is no certainty. n of n problems have this value, so
        # by the one-sided Clopper-Pearson bound at least this share of all problems has it, and the others may lie
        # anywhere within the bounds.
        share = betaincinv(problems, 1, tail)
        low, high = (share * value + (1 - share) * bound for bound in bounds)
    else:
        low, high = np.quantile(means, [tail, 1 - tail])
    return Interval(float(value), float(low), float(high))


def _seeds_by_problems(values: Scores) -> Float[np.ndarray, "seed problem"]:
    values = np.atleast_2d(np.asarray(values, dtype=float))
    if values.ndim != 2 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"values should be finite, [seeds, problems]; they are {list(values.shape)}")
    return values
