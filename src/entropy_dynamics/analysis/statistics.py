"""Student's t intervals of means and differences over training seeds and problems. Arrays in, intervals out.

Arrays may have further axes in front (repetitions of a simulation); intervals then contain arrays.
Every method's variance is estimated from its own seeds: an ablation whose entropy explodes varies between seeds as no
other method does. One seed gives no interval. Seeds of two methods are not paired (docs/decisions.md).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from jaxtyping import Float
from scipy.special import betaincinv, expit, logit, nctdtrinc, stdtr, stdtrit

LEVEL = 0.95
POWER = 0.9
MAX_SEEDS = 100  # more are not worth naming
ROUNDING = 1e-9  # smaller differences come from the order of additions

Number = Any  # a float, or an array of them if there are axes in front
MeanSquares = Sequence[tuple[Number, float]]
PerSeed = Float[np.ndarray, "*repetition seed"]
Scores = Float[np.ndarray, "*repetition seed problem"] | Float[np.ndarray, " problem"]
"""An untrained model has no seeds."""


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its 95 % interval; NaN where they are unknown."""

    value: Number = math.nan
    low: Number = math.nan
    high: Number = math.nan
    error: Number = math.nan
    """Standard error."""
    df: Number = math.inf
    """Degrees of freedom of the standard error."""

    @classmethod
    def of_error(cls, value: Number, error: Number, df: Number) -> Self:
        """Student's t interval, with df = inf the normal one."""
        half = _quantile(df) * error
        return cls(value, value - half, value + half, error, df)

    @classmethod
    def of_mean_squares(
        cls, value: Number, parts: MeanSquares, twice: MeanSquares = (), sampling: Number = 0.0
    ) -> Self:
        """The interval of an estimate whose variance is a sum of independent mean squares (Satterthwaite 1946).

        Args:
            parts: (variance, degrees of freedom).
            twice: what the parts contain twice, and so is subtracted.
            sampling: a part of the variance that is known well; the interval is at least the normal one of it alone.
        """
        rounding = (ROUNDING * np.maximum(1, np.abs(value))) ** 2
        variance = sum(part for part, _ in parts) - sum(part for part, _ in twice)
        variance, sampling = (np.where(part > rounding, part, np.nan) for part in (variance, sampling))
        df = variance**2 / sum(part**2 / part_df for part, part_df in (*parts, *twice))
        df = np.maximum(df, min(part_df for _, part_df in parts))
        normal = np.isnan(variance) | (_quantile(math.inf) * sampling**0.5 > _quantile(df) * variance**0.5)
        return cls.of_error(value, np.where(normal, sampling, variance) ** 0.5, np.where(normal, math.inf, df))

    @property
    def detectable(self) -> Number:
        """The smallest distance from a threshold that is found with 90 % power."""
        # The noncentrality at which t exceeds its quantile with this power. SciPy has none for df = inf.
        return nctdtrinc(np.minimum(self.df, 1e6), 1 - POWER, _quantile(self.df)) * self.error

    @property
    def p(self) -> Number:
        """Two-sided p value for a true value of zero."""
        return 2 * stdtr(self.df, -np.abs(self.value) / self.error)

    def columns(self, name: str) -> dict[str, Number]:
        """The columns of a table of results: the value and its ends."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def times(self, factor: float) -> Self:
        return replace(self, **{name: factor * getattr(self, name) for name in ("value", "low", "high", "error")})


def seed_interval(groups: Sequence[PerSeed], *, seeds: int | None = None) -> Interval:
    """Sum of the groups' means with the t interval of Welch (1947); without ends if a group has one seed.

    Args:
        groups: a number per seed, times the group's weight in the sum (-1 for what is subtracted).
        seeds: as if every group had this many, with the same variance.
    """
    value = sum(group.mean(axis=-1) for group in groups)
    if min(group.shape[-1] for group in groups) < 2:
        return Interval(value)
    counted = [(group, seeds or group.shape[-1]) for group in groups]
    return Interval.of_mean_squares(value, [(group.var(axis=-1, ddof=1) / n, n - 1) for group, n in counted])


def score_interval(groups: Sequence[Sequence[Scores]], *, seeds: int | None = None) -> Interval:
    """Sum of the means of scores with its t interval over other seeds, problems and samples.

    Problems are random and crossed with everything, seeds are random within a group. With S seeds and P problems the
    mean square between problems (of the sum over all groups) and that between the seeds of each group both contain
    their interaction, which includes sampling noise; so the variance of the sum is that of its means per problem / P,
    plus for each group that of its means per seed / S, minus the interaction's / (S P): the textbook estimator of
    two-way crossed random effects (Searle, Casella and McCulloch 1992, chapter 4).

    Args:
        groups: per method and model the scores on each data set, times their weight in the sum. All groups have the
            same problems, in the same order.
        seeds: as for `seed_interval`.

    Raises:
        ValueError: the groups' numbers of problems differ.
    """
    per_problem = [
        sum(scores.mean(axis=-2) if scores.ndim > 1 else scores for scores in column)
        for column in zip(*groups, strict=True)
    ]
    value = sum(column.mean(axis=-1) for column in per_problem)
    if any(column.shape[-1] < 2 for column in per_problem):  # one problem has no spread
        return Interval(value)
    parts = [(column.var(axis=-1, ddof=1) / column.shape[-1], column.shape[-1] - 1) for column in per_problem]
    interactions, sampling = [], 0.0
    for group in (group for group in groups if group[0].ndim > 1):
        count = group[0].shape[-2]
        if count < 2:
            return Interval(value)
        n = seeds or count
        means = sum(scores.mean(axis=-1) for scores in group)
        parts.append((means.var(axis=-1, ddof=1) / n, n - 1))
        # With other numbers of seeds the problems' mean square, too, contains another share of the interaction, so the
        # difference of the two stays as it is.
        within = [_interaction(scores) for scores in group]
        interactions += within
        sampling += sum(variance for variance, _ in within) * count / n
    return Interval.of_mean_squares(value, parts, interactions, sampling)


def _interaction(scores: Float[np.ndarray, "*repetition seed problem"]) -> tuple[Number, float]:
    """The variance of the mean that comes from the interaction of seeds and problems, with its degrees of freedom."""
    seeds, problems = scores.shape[-2:]
    by_problem, by_seed = scores.mean(axis=-2, keepdims=True), scores.mean(axis=-1, keepdims=True)
    residuals = scores - by_problem - by_seed + by_seed.mean(axis=-2, keepdims=True)
    df = (seeds - 1) * (problems - 1)
    return (residuals**2).sum(axis=(-2, -1)) / df / (seeds * problems), df


def share_interval(scores: Scores) -> Interval:
    """Mean of one method's scores in [0, 1] with its t interval on the logit scale, which keeps it within [0, 1].

    If all scores are 0 or all are 1, n of n problems have this value: the one-sided Clopper-Pearson bound.
    """
    interval = score_interval([[scores]])
    if scores.ndim > 1 and scores.shape[-2] < 2:
        return interval
    bound = betaincinv(scores.shape[-1], 1, (1 - LEVEL) / 2)
    value = np.clip(interval.value, ROUNDING, 1 - ROUNDING)
    half = (interval.high - interval.value) / (value * (1 - value))
    extremes = [interval.value < ROUNDING, interval.value > 1 - ROUNDING]
    low = np.select(extremes, (0, bound), expit(logit(value) - half))
    high = np.select(extremes, (1 - bound, 1), expit(logit(value) + half))
    return replace(interval, low=low, high=high)


def smallest(intervals: Sequence[Interval]) -> Interval:
    """The smallest of several effects: above zero, all are.

    The lower end is the lowest of theirs, since the one of the smallest effect is among them. Any upper end bounds the
    smallest effect from above, but the lowest of several would be too low too often: the lowest after Bonferroni's
    correction.
    """
    first = min(intervals, key=lambda interval: interval.value)
    quantiles = [stdtrit(interval.df, 1 - (1 - LEVEL) / 2 / len(intervals)) for interval in intervals]
    highs = [one.value + quantile * one.error for one, quantile in zip(intervals, quantiles, strict=True)]
    return replace(first, low=np.min([interval.low for interval in intervals]), high=np.min(highs))


def seeds_needed(at: Callable[[int], Interval], distance: float) -> int | None:
    """The fewest seeds with which the interval `at(seeds)` detects an effect at this distance; None: over MAX_SEEDS."""
    return next((seeds for seeds in range(2, MAX_SEEDS + 1) if at(seeds).detectable <= distance), None)


def holm(p: Float[np.ndarray, " comparison"]) -> Float[np.ndarray, " comparison"]:
    """p values adjusted for their number (Holm 1979). NaN counts as no comparison."""
    known = np.flatnonzero(~np.isnan(p))
    ordered = known[np.argsort(p[known], kind="stable")]
    adjusted = np.full(len(p), np.nan)
    adjusted[ordered] = np.maximum.accumulate(p[ordered] * np.arange(len(ordered), 0, -1)).clip(max=1)
    return adjusted


def _quantile(df: Number) -> Number:
    return stdtrit(df, (1 + LEVEL) / 2)
