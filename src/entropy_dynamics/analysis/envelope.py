"""What is left of a method's gain in Pass@K at equal Avg@K, over the envelope of a baseline's points.

A point is a policy at a temperature, with its Avg@K and Pass@K. A baseline has many: those of its checkpoints, learning
rates and temperatures, and the mixtures of any two, where one policy answers a share of the problems and the other the
rest. The envelope F(a) is the highest Pass@K of those with an Avg@K of at least a. A method with the point (A, P) has
P - F(A) left.

The highest of noisy points is too high. So each bootstrap resample of the seeds chooses its own mixture, and the mean
over the resamples corrects the estimate. The interval covers the sampling of the problems too, crossed with the seeds.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import scipy  # imports scipy.special when it is first used
from jaxtyping import Float, Int

from entropy_dynamics.analysis.problem_scores import problem_scores
from entropy_dynamics.analysis.run_data import Results, Samples
from entropy_dynamics.analysis.statistics import (
    POWER,
    ROUNDING,
    T_SEEDS,
    Interval,
    Number,
    problem_variance,
    t_quantile,
)
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import METRICS, LeftSpec

RESAMPLES = 2000
MARGIN = 3.0  # points of Pass@K, the smallest effect of interest
MEAN, DIFFERENCE = "mean", "difference"  # of the models

Seeds = Mapping[int, Mapping[str, Samples]]
"""Seed -> data set -> counts of one policy at one temperature."""
Columns = Sequence[Float[np.ndarray, "metric point seed problem"]]
"""Avg@K and Pass@K in points, one array per data set, times its weight. The first point is the method's."""


class Mixture(NamedTuple):
    """The envelope's points: `low`, whose Avg@K is too low, answers a `share` of the problems, and `high` the rest."""

    passed: Float[np.ndarray, "*repetition"]
    """NaN where no point has that Avg@K."""
    low: Int[np.ndarray, "*repetition"]
    high: Int[np.ndarray, "*repetition"]
    share: Float[np.ndarray, "*repetition"]
    """0 where a single point is highest, which is then both."""


def envelope(
    at: Float[np.ndarray, "*repetition"],
    avg: Float[np.ndarray, "*repetition point"],
    passed: Float[np.ndarray, "*repetition point"],
) -> Mixture:
    """The highest Pass@K of one point with an Avg@K of `at` or more, or of two points, mixed such that it is `at`.

    Two points, one on each side of `at`, take turns: each becomes the best partner of the other. Where neither changes,
    no point is above the line through both, so no other mixture is better. A point at `at`, up to rounding, is never
    half of a pair, as any partner is as good.
    """
    below, above = avg < at[..., None] - ROUNDING, avg > at[..., None] + ROUNDING

    def best_partner(point: np.ndarray, among: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The partner with the highest Pass@K at `at` on the line through both, which is -inf without a partner."""
        x, y = _take(avg, point)[..., None], _take(passed, point)[..., None]
        with np.errstate(divide="ignore", invalid="ignore"):
            lines = np.where(among, y + (at[..., None] - x) * (passed - y) / (avg - x), -np.inf)
        return lines.argmax(axis=-1), lines.max(axis=-1)

    single = np.where(below, -np.inf, passed)
    higher, mixed, better = np.where(above, passed, -np.inf).argmax(axis=-1), np.full(at.shape, -np.inf), np.array(True)
    while better.any():
        lower, _ = best_partner(higher, below)
        higher, value = best_partner(lower, above)
        better = below.any(axis=-1) & (value > mixed)
        mixed = np.where(better, value, mixed)
    best, alone = np.maximum(single.max(axis=-1), mixed), single.max(axis=-1) >= mixed
    low, high = (np.where(alone, single.argmax(axis=-1), point) for point in (lower, higher))
    return Mixture(np.where(np.isfinite(best), best, np.nan), low, high, _share(at, avg, low, high))


def _share(at: np.ndarray, avg: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """See `Mixture.share`."""
    lower, higher = _take(avg, low), _take(avg, high)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(low == high, 0.0, np.clip((higher - at) / (higher - lower), 0, 1))


def _take(of: np.ndarray, point: np.ndarray) -> Any:
    return np.take_along_axis(of, point[..., None], axis=-1)[..., 0]


@dataclass(frozen=True)
class Left(Interval):
    """What is left, in points, with Student's t interval; `error` is the standard error due to the problems."""

    on_these_problems: tuple[Number, Number] = (math.nan, math.nan)
    """The bounds without that error."""
    single: float = math.nan
    """What is left over the best single point, without mixtures and without correction."""
    halved: float = math.nan
    """Mean over random halves of the seeds: one half chooses the points, the other sets the share and is compared."""
    spare: float = 0.0
    """By how much all points of the baseline have a higher Avg@K; if they have, at most the value is left."""
    mixtures: Sequence[tuple[int, int, float]] = ()
    """`low`, `high` and `share` per model."""

    def detectable(self, seeds: int | None = None, power: float = POWER) -> Number:
        given = replace(self, seeds=seeds or self.seeds)
        if (df := given.seeds - 1) < T_SEEDS - 1:
            return math.nan
        return scipy.special.nctdtrinc(df, 1 - power, t_quantile(df)) * given.standard_error

    def verdict(self, margin: float = MARGIN) -> str:
        """'left', 'less than 3 points left', 'undecided', or 'beyond' where the baseline has no point to compare."""
        if math.isnan(self.value):
            return "beyond"
        if self.low > 0 and not self.spare:
            return "left"
        return f"less than {margin:g} points left" if self.high < margin else "undecided"


def left(models: Sequence[Columns], weights: Sequence[float] = ()) -> Left:
    """What is left of a method's Pass@K over a baseline's envelope.

    Args:
        models: the scores per model, on the same seeds, which are resampled together.
        weights: of the models: (1, -1) for the difference of two. By default their mean.
    """
    of_model = np.array(weights or [1 / len(models)] * len(models))
    columns = [np.stack(of) for of in zip(*models, strict=True)]  # [model, metric, point, seed, problem]
    scores = np.sum([column.mean(axis=-1) for column in columns], axis=0)
    seeds, rng = scores.shape[-1], np.random.default_rng(0)
    at, own, avg, passed = _means(scores, np.vstack([np.ones(seeds), resampled_seeds(seeds, rng)]))
    chosen = envelope(at, avg, passed)
    theta = of_model @ (own - chosen.passed)  # of all seeds, then of the resamples
    if math.isnan(theta[0]):
        return Left(seeds=seeds)
    resampled = theta[~np.isnan(theta)][1:]
    value = float(2 * theta[0] - resampled.mean())
    single = np.where(avg >= at[..., None] - ROUNDING, passed, -np.inf)[:, 0].max(axis=-1)
    mixtures = [(int(low[0]), int(high[0]), float(share[0])) for low, high, share in zip(*chosen[1:], strict=True)]
    spare = max(0.0, float((avg[:, 0].min(axis=-1) - at[:, 0]).max()))
    over_single, halved = float(of_model @ (own[:, 0] - single)), _halved(scores, of_model, rng)
    found = Left(value, seeds=seeds, single=over_single, halved=halved, spare=spare, mixtures=mixtures)
    if seeds < T_SEEDS:
        return found
    from_seeds = float((seeds / (seeds - 1) * resampled.var()) ** 0.5)
    held = [_held(column, scores.mean(axis=-1), mixtures, of_model) for column in columns]
    error = float(sum(problem_variance(of) for of in held) ** 0.5)
    alone, half = (t_quantile(seeds - 1) * of for of in (from_seeds, math.hypot(from_seeds, error)))
    bounds = {"low": value - half, "high": value + half, "on_these_problems": (value - alone, value + alone)}
    return replace(found, spread=from_seeds * seeds**0.5, error=error, **bounds)


def resampled_seeds(seeds: int, rng: np.random.Generator) -> Int[np.ndarray, "repetition seed"]:
    """How often each seed is in each of the bootstrap resamples."""
    return rng.multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES)


def pooled(parts: Sequence[Left]) -> Left:
    """The mean of estimates, such as of two sizes of a model, weighted by inverse variance.

    The parts count as independent, though two sizes are evaluated on the same problems.
    """
    weights = np.array([part.standard_error**-2 for part in parts])
    value = float(weights @ [part.value for part in parts] / weights.sum())
    df = sum(part.seeds - 1 for part in parts)
    half = t_quantile(df) / weights.sum() ** 0.5
    return Left(value, value - half, value + half, seeds=df + len(parts), spare=max(part.spare for part in parts))


def point_columns(points: Sequence[Sequence[Seeds]], datasets: Mapping[str, float], seeds: Sequence[int]) -> Columns:
    """The scores of points, of which each is the mean of some policies, on these seeds.

    Args:
        datasets: the weight of each data set.
    """

    def scores(metric: Any, dataset: str, point: Sequence[Seeds]) -> Any:
        return np.mean([[problem_scores(metric, of[seed][dataset]) for seed in seeds] for of in point], axis=0)

    return [
        100 * weight * np.array([[scores(metric, dataset, point) for point in points] for metric in METRICS])
        for dataset, weight in datasets.items()
    ]


def mixed(mixture: tuple[int, int, float], names: Sequence[str]) -> str:
    """'30 % grpo at 1, 70 % grpo at 0.7', or the name of a single point."""
    low, high, share = mixture
    return f"{share:.0%} {names[low]}, {1 - share:.0%} {names[high]}" if share else names[high]


def left_frame(experiment: Experiment[LeftSpec], results: Results) -> pd.DataFrame:
    """One row per model, method and baseline, the mean of the models and, of two, their difference.

    - `over`: the key of `LeftSpec.grids` that widens the envelope last.
    - `left`: points of Pass@K, with `_low` and `_high`, and with `_low_here` and `_high_here` for these problems alone.
    - `single`, `halved`, `spare`: see `Left`; `points`: at the envelope.
    - `verdict`, with "at most" if one of the points is of `LeftSpec.edge`.

    If the scale `LeftSpec.beyond` has results, its rows follow, and the means of both, weighted by inverse variance.
    """
    found = _left_of(experiment, results)
    margin = experiment.spec.margin
    frames = [_rows(found, results.scale, margin)]
    if other := results.beyond(experiment):
        theirs = _left_of(*other)
        pairs = {key: (found[key], theirs[key]) for key in found if key in theirs}
        both = {key: (pooled([a, b]), "", at_a or at_b) for key, ((a, _, at_a), (b, _, at_b)) in pairs.items()}
        frames += [_rows(theirs, other[1].scale, margin), _rows(both, f"{results.scale} and {other[1].scale}", margin)]
    return pd.concat(frames, ignore_index=True)


Found = dict[tuple[str, str, str], tuple[Left, str, bool]]
"""Method, `over` and model -> what is left, the points at the envelope, and whether one is of `LeftSpec.edge`."""


def _rows(found: Found, scale: str, margin: float) -> pd.DataFrame:
    rows = []
    for (method, over, model), (interval, points, at_edge) in found.items():
        row = {"scale": scale, "model": model, "method": method, "over": over, "seeds": interval.seeds}
        row |= interval.columns("left")
        row["left_low_here"], row["left_high_here"] = interval.on_these_problems
        row |= {"single": interval.single, "halved": interval.halved, "spare": interval.spare, "points": points}
        verdict = interval.verdict(margin) + ", at most" * at_edge
        rows.append(row | {"verdict": "" if model == DIFFERENCE else verdict})
    return pd.DataFrame(rows)


def label_of(experiment: Experiment[LeftSpec], results: Results, name: str) -> str:
    """The label of a method; the name of an average."""
    return name if name in experiment.spec.averages else results.label(experiment.spec, name)


def _left_of(experiment: Experiment[LeftSpec], results: Results) -> Found:
    spec, usual, models = experiment.spec, results.config.evaluation.temperature, experiment.models
    counts = {}
    for at in sorted({usual, *experiment.temperatures}):
        read = tuple(run for run in experiment.runs if at in (usual, *experiment.temperatures_of(run.method)))
        counts[at] = results.counts(replace(experiment, runs=read), at=at)
    seeds = sorted(set.intersection(*(set(of) for at in counts.values() for of in at.values())))
    grids, names = {}, [(method, usual) for method in spec.compared]
    for over, patterns in spec.grids.items():  # each widens the one before
        averages = [name for name in spec.averages if name in patterns]
        names += [(of, at) for of in [*experiment.methods(models[0], patterns), *averages] for at in counts]
        grids[over] = len(names)
    theirs = names[len(spec.compared) :]
    edge = {place for place, (name, _) in enumerate(theirs) if any(fnmatchcase(name, of) for of in spec.edge)}
    labels = [f"{label_of(experiment, results, name)} at {at:g}" for name, at in theirs]
    columns = []
    for model in models:
        points = [[counts[at][model, of] for of in spec.averages.get(method, [method])] for method, at in names]
        columns.append(point_columns(points, experiment.dataset_weights, seeds))
    weights = {model: [float(model == of) for of in models] for model in models}
    weights |= {MEAN: [1 / len(models)] * len(models)} if len(models) > 1 else {}
    weights |= {DIFFERENCE: [1.0, -1.0]} if len(models) == 2 else {}
    found: Found = {}
    for place, method in enumerate(spec.compared):
        for over, end in grids.items():
            chosen = [place, *range(len(spec.compared), end)]
            for name, of_model in weights.items():
                used = [model for model, weight in enumerate(of_model) if weight]
                scores = [[column[:, chosen] for column in columns[model]] for model in used]
                interval = left(scores, [of_model[model] for model in used])
                own = "".join(mixed(of, labels) for of in interval.mixtures if name in models)
                at_edge = any(high in edge or (share and low in edge) for low, high, share in interval.mixtures)
                found[method, over, name] = (interval, own, at_edge)
    return found


def _means(scores: np.ndarray, seeds: Float[np.ndarray, "repetition seed"]) -> list[np.ndarray]:
    """Avg@K and Pass@K of the method, and of the baseline's points, as means over seeds with these weights."""
    means = scores @ (seeds / seeds.sum(axis=1, keepdims=True)).T  # [model, metric, point, repetition]
    avg, passed = np.moveaxis(means, 1, 0)
    return [avg[:, 0], passed[:, 0], np.moveaxis(avg[:, 1:], 1, -1), np.moveaxis(passed[:, 1:], 1, -1)]


def _halved(scores: np.ndarray, of_model: np.ndarray, rng: np.random.Generator) -> float:
    """See `Left.halved`."""
    seeds = scores.shape[-1]
    half = rng.permuted(np.tile(np.arange(seeds) < seeds // 2, (RESAMPLES, 1)), axis=1)
    if seeds < 2:
        return math.nan
    at, _, avg, passed = _means(scores, half)
    chosen = envelope(at, avg, passed)
    at, own, avg, passed = _means(scores, ~half)
    share = _share(at, avg, chosen.low, chosen.high)
    theta = own - share * _take(passed, chosen.low) - (1 - share) * _take(passed, chosen.high)
    known = ~np.isnan(chosen.passed + theta).any(axis=0)  # a half in which two points have the same Avg@K sets no share
    return float((of_model @ theta)[known].mean()) if known.any() else math.nan


def _held(
    column: np.ndarray, means: np.ndarray, mixtures: Sequence[tuple[int, int, float]], of_model: np.ndarray
) -> Float[np.ndarray, "seed problem"]:
    """What is left per problem to first order, with each model's mixture and the envelope's slope there held."""
    total = np.zeros(column.shape[-2:])
    for model, (low, high, share) in enumerate(mixtures):
        places = [0, low + 1, high + 1]
        avg, passed = np.tensordot([1.0, -share, share - 1], column[model][:, places], axes=(0, 1))
        rise = means[model][:, high + 1] - means[model][:, low + 1]
        slope = rise[1] / rise[0] if low != high else 0.0
        total += of_model[model] * (passed - slope * avg)
    return total
