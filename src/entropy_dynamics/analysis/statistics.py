"""Confidence intervals of effects over seeds and problems. Leading array axes are independent repetitions.

The unit of replication is the seed: an untrained model and the randomness of training. All methods with the same seed
start from the same untrained model, so methods are compared by their differences per seed, and an effect is the median
of these differences. Its interval is between order statistics, so it assumes no distribution: some seeds may collapse
or diverge. That takes five seeds; three or four get Student's t interval, fewer get none (docs/results.md).
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
T_SEEDS = 3  # minimum for an interval; with two seeds, Student's t is too wide to be useful
MIN_SEEDS = 5  # minimum for a distribution-free interval, and therefore for a verdict
MAX_SEEDS = 100  # `seeds_needed` reports no larger number
SIMULATED = 10_000  # curves
DIGITS = 9  # decimals of a score that do not depend on the order of summation
ROUNDING = 10.0**-DIGITS
NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)

Number = Any  # a float, or an array of floats if there are leading axes
PerSeed = Float[np.ndarray, "*repetition seed"]
Scores = Float[np.ndarray, "*repetition seed problem"] | Float[np.ndarray, " problem"]
"""Scores without a seed axis are those of a single untrained model."""


@dataclass(frozen=True)
class Interval:
    """An estimate with the bounds of its 95 % confidence interval; NaN if they are unknown."""

    value: Number = math.nan
    low: Number = math.nan
    high: Number = math.nan
    spread: Number = 0.0
    """Standard deviation between seeds."""
    seeds: int = 0
    error: Number = math.nan
    """Standard error due to the problems, which more seeds do not reduce; NaN if the seeds do not differ at all."""
    parts: Sequence[Self] = ()
    """The intervals that must all be above a threshold for this one to be, as in `smallest_effect`."""
    is_median: bool = False
    """Whether the estimate is a median over seeds, not a mean."""

    @classmethod
    def normal(cls, value: Number, error: Number) -> Self:
        """The normal interval of an estimate with a known standard error."""
        return cls(value, value - NORMAL * error, value + NORMAL * error, error=error)

    def detectable(self, seeds: int | None = None, power: float = POWER) -> Number:
        """The smallest distance from a threshold that this many normal seeds (None: the interval's) detect."""
        if self.parts:  # detected together if each is; seeds that they share only raise the power
            return np.max([part.detectable(seeds, power ** (1 / len(self.parts))) for part in self.parts])
        from_problems = (NORMAL + scipy.special.ndtri(power)) * self.error
        return np.hypot(self.spread * _detectable(seeds or self.seeds, power), from_problems)

    @property
    def standard_error(self) -> Number:
        """Standard error of the estimate, if seeds are normal; a median's is sqrt(pi / 2) times a mean's."""
        factor = (math.pi / 2 if self.is_median else 1) / max(1, self.seeds)
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
        """The value and its bounds as columns of a results table."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}

    def times(self, factor: float) -> Self:
        """The interval of the estimate times a factor > 0."""
        names = ("value", "low", "high", "spread", "error")
        return replace(self, **{name: factor * getattr(self, name) for name in names})

    def widened(self, error: Number) -> Self:
        """The interval widened by an additional, independent standard error (MOVER: Zou and Donner 2008)."""
        low = self.value - np.hypot(self.value - self.low, NORMAL * error)
        high = self.value + np.hypot(self.high - self.value, NORMAL * error)
        return replace(self, low=low, high=high, error=np.hypot(self.error, error))


def seed_interval(values: PerSeed) -> Interval:
    """Median over seeds, with an interval between order statistics (Hettmansperger and Sheather 1986).

    With five seeds the bounds are the lowest and the highest, which enclose the median of any distribution with 93.75 %
    probability. With more, they are interpolated between order statistics to a level of 95 %. Three or four seeds:
    `mean_interval`. Fewer, or no spread between seeds: NaN bounds.
    """
    mean, seeds = mean_interval(values), values.shape[-1]
    if seeds < MIN_SEEDS:
        return mean
    (depth, share), ordered = _depth(seeds), np.sort(values)
    ends = ordered, ordered[..., ::-1]
    low, high = (mean.error + (1 - share) * end[..., depth - 1] + share * end[..., depth] for end in ends)
    return replace(mean, value=np.median(values, axis=-1), low=low, high=high, is_median=True)


def averaged(seeds: int) -> str:
    """How `seed_interval` averages over this number of seeds."""
    return "median" if seeds >= MIN_SEEDS else "mean"


def mean_interval(values: PerSeed) -> Interval:
    """Mean over seeds with Student's t interval, which assumes normal seeds; NaN bounds below three seeds."""
    value, seeds = values.mean(axis=-1), values.shape[-1]
    if seeds < T_SEEDS:
        return Interval(value, seeds=seeds)
    spread = values.std(axis=-1, ddof=1)
    known = np.where(spread > ROUNDING * np.maximum(1, np.abs(value)), 0.0, np.nan)
    half = known + t_quantile(seeds - 1) * spread / seeds**0.5
    return Interval(value, value - half, value + half, spread, seeds, known)


def score_interval(columns: Sequence[Scores], over_seeds: Callable[[PerSeed], Interval] = seed_interval) -> Interval:
    """Interval of the sum of the data sets' mean scores, over seeds and over the sampling of problems.

    Problems are crossed with seeds. The variance between the problems' means over seeds includes the interaction of
    seeds and problems, and with it the sampling noise, both of which the spread between seeds already includes; so the
    interaction is subtracted (two-way crossed random effects: Searle, Casella and McCulloch 1992, chapter 4).

    Args:
        columns: for each data set, the scores, or the differences between methods with the same seed, times its weight.
        over_seeds: `seed_interval` for differences, `mean_interval` for the scores of one method.
    """
    if any(column.shape[-1] < 2 for column in columns):  # a single problem has no spread
        means = over_problems(columns)
        return Interval(means if columns[0].ndim == 1 else over_seeds(means).value)
    error = sum(problem_variance(column) for column in columns) ** 0.5
    if columns[0].ndim == 1:
        return Interval.normal(sum(column.mean() for column in columns), error)
    return over_seeds(over_problems(columns)).widened(error)


def simultaneous(columns: Sequence[Float[np.ndarray, "k *seed problem"]]) -> Interval:
    """Medians of curves over k as in `score_interval`, with a band that contains all of a curve with 95 % probability.

    Its half-width is the standard error times the quantile of the largest |t| over k (sup-t: Montiel Olea and
    Plagborg-Moller 2019), simulated with the correlation of the points of a curve over seeds and problems. NaN where
    all scores are equal, and below three seeds.
    """
    points = [score_interval([column[k] for column in columns]) for k in range(len(columns[0]))]
    value, error = np.array([[point.value, point.standard_error] for point in points]).T
    half, known, rng = np.full(len(points), np.nan), error > ROUNDING, np.random.default_rng(0)
    if known.any():
        columns = [column[known] for column in columns]
        means = [column.mean(axis=tuple(range(1, column.ndim - 1))) for column in columns]
        covariance = sum(np.cov(mean) / mean.shape[-1] for mean in means)
        if columns[0].ndim > 2:
            covariance = covariance + np.cov(over_problems(columns)) / points[0].seeds
        scale = np.sqrt(np.diag(np.atleast_2d(covariance)))
        correlation = covariance / np.outer(scale, scale)
        t = rng.multivariate_normal(np.zeros(len(scale)), correlation, SIMULATED, method="eigh")
        if math.isfinite(df := points[0].df):
            t /= np.sqrt(rng.chisquare(df, (SIMULATED, 1)) / df)
        half[known] = np.quantile(np.abs(t).max(axis=1), LEVEL) * error[known]
    return Interval(value, value - half, value + half, seeds=points[0].seeds)


def over_problems(columns: Sequence[Scores]) -> PerSeed:
    """The sum of the data sets' mean scores of each seed."""
    total: PerSeed = np.sum([column.mean(axis=-1) for column in columns], axis=0)
    return total


def problem_variance(scores: Scores) -> Number:
    """Variance of the mean score over random problems, without that of the interaction with seeds.

    Scaled by the squared ratio of Student's t quantile to the normal one, which matters with few problems.
    """
    problems = scores.shape[-1]
    share = (t_quantile(problems - 1) / NORMAL) ** 2 / problems
    if scores.ndim == 1:
        return share * scores.var(ddof=1)
    seeds = scores.shape[-2]
    by_problem, by_seed = scores.mean(axis=-2, keepdims=True), scores.mean(axis=-1, keepdims=True)
    residuals = scores - by_problem - by_seed + by_seed.mean(axis=-2, keepdims=True)
    between = by_problem[..., 0, :].var(axis=-1, ddof=1)
    interaction = (residuals**2).sum(axis=(-2, -1)) / max(1, seeds - 1) / (problems - 1)
    return share * np.maximum(0, between - interaction / seeds)


def share_interval(scores: Scores) -> Interval:
    """Mean of one method's scores in [0, 1]. The interval is on the logit scale, which keeps it within [0, 1].

    If all n scores are equal, problems with other scores are at most as frequent as the one-sided Clopper-Pearson bound
    for n of n allows, and those may have any score from 0 to 1.
    """
    interval = score_interval([scores], mean_interval)
    if scores.ndim > 1 and scores.shape[-2] < T_SEEDS:
        return interval
    bound = scipy.special.betaincinv(scores.shape[-1], 1, (1 - LEVEL) / 2)
    value = np.clip(interval.value, ROUNDING, 1 - ROUNDING)
    half = (interval.high - interval.value) / (value * (1 - value))
    axes = (-1,) if scores.ndim == 1 else (-2, -1)
    equal = scores.max(axis=axes) - scores.min(axis=axes) < ROUNDING
    low, high = (scipy.special.expit(scipy.special.logit(value) + side) for side in (-half, half))
    low, high = np.where(equal, bound * interval.value, low), np.where(equal, 1 - bound * (1 - interval.value), high)
    return replace(interval, low=low, high=high)


def smallest_effect(intervals: Sequence[Interval]) -> Interval:
    """The smallest of several effects; if it is above zero, all of them are.

    The lower bound is the lowest of the lower bounds, as that of the smallest effect is among them. Every upper bound
    is one of the smallest effect too, but the lowest of several would be too low too often, so it is the lowest after
    Bonferroni's correction. Order statistics of a few seeds do not reach the corrected level, so the corrected bounds
    are Student's t with the standard error of the median.
    """
    first = min(intervals, key=lambda interval: interval.value)
    level = 1 - (1 - LEVEL) / 2 / len(intervals)
    corrected = [each.value + scipy.special.stdtrit(each.df, level) * each.standard_error for each in intervals]
    highs = np.maximum(corrected, [each.high for each in intervals])
    return replace(first, low=np.min([each.low for each in intervals]), high=np.min(highs), parts=tuple(intervals))


def seeds_needed(interval: Interval, effect: float) -> int | None:
    """Minimum number of seeds, five or more, that detects an effect of this size; None: more than MAX_SEEDS."""
    return next((n for n in range(MIN_SEEDS, MAX_SEEDS + 1) if interval.detectable(n) <= effect), None)


def rounded(number: float, digits: int) -> float | None:
    """A number of this many significant digits; None for one that JSON cannot represent."""
    return float(f"{number:.{digits}g}") if math.isfinite(number) else None


def holm(p: Float[np.ndarray, " comparison"]) -> Float[np.ndarray, " comparison"]:
    """p values adjusted for multiple comparisons (Holm 1979). NaN entries are not counted and stay NaN."""
    known = np.flatnonzero(~np.isnan(p))
    ordered = known[np.argsort(p[known])]
    adjusted = np.full(len(p), np.nan)
    adjusted[ordered] = np.maximum.accumulate(p[ordered] * np.arange(len(ordered), 0, -1)).clip(max=1)
    return adjusted


def t_quantile(df: Number) -> Number:
    """Two-sided 95 % quantile of Student's t."""
    return scipy.special.stdtrit(df, (1 + LEVEL) / 2)


@cache
def _depth(seeds: int) -> tuple[int, float]:
    """Position of the interval's bounds: an order statistic, counted from 1 at either end, and the share of the next.

    A bound is (1 - share) times that order statistic plus share times the next one inward.
    """

    def level(depth: int) -> float:
        """Probability that the order statistics at this depth from both ends enclose the median."""
        return float(1 - 2 * scipy.special.bdtr(depth - 1, seeds, 0.5))

    depth = max(1, sum(level(d) >= LEVEL for d in range(1, seeds)))  # levels fall with the depth
    if level(depth) < LEVEL:  # five seeds
        return depth, 0.0
    excess = (level(depth) - LEVEL) / (level(depth) - level(depth + 1))
    return depth, (seeds - depth) * excess / (depth + (seeds - 2 * depth) * excess)


@cache
def _detectable(seeds: int, power: float) -> float:
    """Smallest effect that is detected with this power, in standard deviations of normal seeds."""
    if not seeds:
        return 0.0
    if seeds < MIN_SEEDS:  # the noncentrality at which t exceeds its quantile with this power
        return float(scipy.special.nctdtrinc(seeds - 1, 1 - power, t_quantile(seeds - 1)) / seeds**0.5)
    lowest = sum(_depth(seeds))  # the lower bound is above zero if all seeds but this many are
    return float(scipy.special.ndtri(scipy.special.betaincinv(seeds - lowest + 1, lowest, power)))
