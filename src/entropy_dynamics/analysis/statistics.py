"""Intervals of effects over seeds and problems. Arrays in, intervals out; further axes in front are repetitions.

The unit is the seed: an untrained model and the randomness of training. All methods of a seed start from the same
untrained model, so methods are compared by their differences per seed, and an effect is the median of these over seeds:
what a typical seed shows. Its interval lies between order statistics, so it assumes nothing about how seeds vary: some
may collapse or explode. It takes five seeds; three or four get Student's t, fewer no interval (docs/results.md).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from statistics import NormalDist
from typing import Any, Self

import numpy as np
import scipy  # imports scipy.special when it is first used
from jaxtyping import Float

LEVEL = 0.95
POWER = 0.9
T_SEEDS = 3  # the fewest with an interval: of two, Student's t is too wide to be of use
MIN_SEEDS = 5  # the fewest with an interval that assumes no distribution, and so with a verdict
MAX_SEEDS = 100  # more are not worth naming
ROUNDING = 1e-9  # smaller differences come from the order of additions
NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)

Number = Any  # a float, or an array of them if there are axes in front
PerSeed = Float[np.ndarray, "*repetition seed"]
Scores = Float[np.ndarray, "*repetition seed problem"] | Float[np.ndarray, " problem"]
"""Without the seed axis: a single untrained model."""


@dataclass(frozen=True)
class Interval:
    """An estimate with the ends of its 95 % interval; NaN where they are unknown."""

    value: Number = math.nan
    low: Number = math.nan
    high: Number = math.nan
    spread: Number = 0.0
    """Standard deviation between seeds."""
    seeds: int = 0
    error: Number = math.nan
    """Standard error that more seeds do not lower, that of the problems; NaN where the seeds do not differ at all."""

    @classmethod
    def normal(cls, value: Number, error: Number) -> Self:
        """The interval of an estimate with a known standard error."""
        return cls(value, value - NORMAL * error, value + NORMAL * error, error=error)

    def detectable(self, seeds: int | None = None) -> Number:
        """The smallest distance from a threshold found with 90 % power, by so many seeds, if seeds are normal."""
        from_problems = (NORMAL + scipy.special.ndtri(POWER)) * self.error
        return np.hypot(self.spread * _detectable(seeds or self.seeds), from_problems)

    @property
    def standard_error(self) -> Number:
        """If seeds are normal: a median of five or more then varies by sqrt(pi / 2) more than their mean."""
        factor = (math.pi / 2 if self.seeds >= MIN_SEEDS else 1) / max(1, self.seeds)
        return np.hypot(self.spread * factor**0.5, self.error)

    @property
    def df(self) -> float:
        """Degrees of freedom of the standard error."""
        return self.seeds - 1 if self.seeds else math.inf

    @property
    def p(self) -> Number:
        """Two-sided p value for a true value of zero, if seeds are normal."""
        return 2 * scipy.special.stdtr(self.df, -np.abs(self.value) / self.standard_error)

    def columns(self, name: str) -> dict[str, Number]:
        """The columns of a table of results: the value and its ends."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def times(self, factor: float) -> Self:
        names = ("value", "low", "high", "spread", "error")
        return replace(self, **{name: factor * getattr(self, name) for name in names})

    def widened(self, error: Number) -> Self:
        """With a further, independent standard error (MOVER: Zou and Donner 2008)."""
        low = self.value - np.hypot(self.value - self.low, NORMAL * error)
        high = self.value + np.hypot(self.high - self.value, NORMAL * error)
        return replace(self, low=low, high=high, error=np.hypot(self.error, error))


def seed_interval(values: PerSeed) -> Interval:
    """The median over seeds, with the interval between order statistics (Hettmansperger and Sheather 1986).

    Five seeds: the lowest and the highest, which enclose the median of any distribution with 93.75 %; more: between two
    order statistics, by 95 %. Three or four seeds: `mean_interval`. Fewer, or no spread at all: no ends.

    Args:
        values: a number per seed, such as a difference between methods of the same seed.
    """
    mean, seeds = mean_interval(values), values.shape[-1]
    if seeds < MIN_SEEDS:
        return mean
    (depth, share), ordered = _depth(seeds), np.sort(values, axis=-1)
    low, high = (
        mean.error + (1 - share) * side[..., depth - 1] + share * side[..., depth]
        for side in (ordered, ordered[..., ::-1])
    )
    return replace(mean, value=np.median(values, axis=-1), low=low, high=high)


def mean_interval(values: PerSeed) -> Interval:
    """The mean over seeds with Student's t interval, which assumes that seeds are normal; without ends below three."""
    value, seeds = values.mean(axis=-1), values.shape[-1]
    if seeds < T_SEEDS:
        return Interval(value, seeds=seeds)
    spread = values.std(axis=-1, ddof=1)
    known = np.where(spread > ROUNDING * np.maximum(1, np.abs(value)), 0.0, np.nan)
    half = known + _quantile(seeds - 1) * spread / seeds**0.5
    return Interval(value, value - half, value + half, spread, seeds, known)


def score_interval(columns: Sequence[Scores], over_seeds: Callable[[PerSeed], Interval] = seed_interval) -> Interval:
    """The interval over seeds of the sum of the data sets' mean scores, widened by what other problems would change.

    Problems are crossed with seeds. The mean square between the problems' means over seeds contains the interaction of
    seeds and problems, and with it the noise of sampling, which the spread between seeds contains already; so it is
    subtracted (two-way crossed random effects: Searle, Casella and McCulloch 1992, chapter 4).

    Args:
        columns: per data set the scores, or their differences between methods of a seed, times their weight in the sum.
        over_seeds: `seed_interval` for differences, `mean_interval` for the scores of one method.
    """
    if any(column.shape[-1] < 2 for column in columns):  # one problem has no spread
        return Interval(sum(column.mean() for column in columns))
    error = sum(_problem_variance(column) for column in columns) ** 0.5
    if columns[0].ndim == 1:
        return Interval.normal(sum(column.mean() for column in columns), error)
    return over_seeds(sum(column.mean(axis=-1) for column in columns)).widened(error)


def _problem_variance(scores: Scores) -> Number:
    """The variance of the mean score over other problems, without that of the interaction with seeds.

    Times what Student's t adds to the normal quantile for a few problems.
    """
    problems = scores.shape[-1]
    share = (_quantile(problems - 1) / NORMAL) ** 2 / problems
    if scores.ndim == 1:
        return share * scores.var(ddof=1)
    seeds = scores.shape[-2]
    by_problem, by_seed = scores.mean(axis=-2, keepdims=True), scores.mean(axis=-1, keepdims=True)
    residuals = scores - by_problem - by_seed + by_seed.mean(axis=-2, keepdims=True)
    between = by_problem[..., 0, :].var(axis=-1, ddof=1)
    interaction = (residuals**2).sum(axis=(-2, -1)) / max(1, seeds - 1) / (problems - 1)
    return share * np.maximum(0, between - interaction / seeds)


def share_interval(scores: Scores) -> Interval:
    """Mean of one method's scores in [0, 1], with its interval on the logit scale, which keeps it within [0, 1].

    If all scores are 0 or all are 1, n of n problems have this value: the one-sided Clopper-Pearson bound.
    """
    interval = score_interval([scores], mean_interval)
    if scores.ndim > 1 and scores.shape[-2] < T_SEEDS:
        return interval
    bound = scipy.special.betaincinv(scores.shape[-1], 1, (1 - LEVEL) / 2)
    value = np.clip(interval.value, ROUNDING, 1 - ROUNDING)
    half = (interval.high - interval.value) / (value * (1 - value))
    extremes = [interval.value < ROUNDING, interval.value > 1 - ROUNDING]
    low = np.select(extremes, (0, bound), scipy.special.expit(scipy.special.logit(value) - half))
    high = np.select(extremes, (1 - bound, 1), scipy.special.expit(scipy.special.logit(value) + half))
    return replace(interval, low=low, high=high)


def smallest_effect(intervals: Sequence[Interval]) -> Interval:
    """The smallest of several effects: above zero, all are.

    The lower end is the lowest of theirs, since the one of the smallest effect is among them. Any upper end bounds the
    smallest effect from above, but the lowest of several would be too low too often: the lowest after Bonferroni's
    correction. Order statistics of a few seeds do not reach its level, so it is Student's t with the median's error.
    """
    first = min(intervals, key=lambda interval: interval.value)
    level = 1 - (1 - LEVEL) / 2 / len(intervals)
    corrected = [each.value + scipy.special.stdtrit(each.df, level) * each.standard_error for each in intervals]
    highs = np.maximum(corrected, [each.high for each in intervals])
    return replace(first, low=np.min([each.low for each in intervals]), high=np.min(highs))


def seeds_needed(interval: Interval, effect: float) -> int | None:
    """The fewest seeds, five or more, that detect an effect of this size; None: more than MAX_SEEDS."""
    return next((n for n in range(MIN_SEEDS, MAX_SEEDS + 1) if interval.detectable(n) <= effect), None)


def holm(p: Float[np.ndarray, " comparison"]) -> Float[np.ndarray, " comparison"]:
    """p values adjusted for their number (Holm 1979). NaN counts as no comparison."""
    known = np.flatnonzero(~np.isnan(p))
    ordered = known[np.argsort(p[known], kind="stable")]
    adjusted = np.full(len(p), np.nan)
    adjusted[ordered] = np.maximum.accumulate(p[ordered] * np.arange(len(ordered), 0, -1)).clip(max=1)
    return adjusted


def _quantile(df: Number) -> Number:
    return scipy.special.stdtrit(df, (1 + LEVEL) / 2)


@cache
def _depth(seeds: int) -> tuple[int, float]:
    """The interval begins between these order statistics from the ends: the number, and the share of the next."""

    def level(depth: int) -> float:
        """The probability that the order statistics of this depth enclose the median."""
        return float(1 - 2 * scipy.special.bdtr(depth - 1, seeds, 0.5))

    depth = max([d for d in range(1, seeds // 2 + 1) if level(d) >= LEVEL], default=1)
    if level(depth) < LEVEL:  # five seeds
        return depth, 0.0
    excess = (level(depth) - LEVEL) / (level(depth) - level(depth + 1))
    return depth, (seeds - depth) * excess / (depth + (seeds - 2 * depth) * excess)


@cache
def _detectable(seeds: int) -> float:
    """The smallest effect on normal seeds that is found with 90 % power, in their standard deviations."""
    if not seeds:
        return 0.0
    if seeds < MIN_SEEDS:  # the noncentrality at which t exceeds its quantile with this power
        return float(scipy.special.nctdtrinc(seeds - 1, 1 - POWER, _quantile(seeds - 1)) / seeds**0.5)
    # The lower end is above zero if so many seeds are.
    return float(
        scipy.special.ndtri(scipy.special.betaincinv(seeds - sum(_depth(seeds)) + 1, sum(_depth(seeds)), POWER))
    )
