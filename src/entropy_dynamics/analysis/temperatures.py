"""Comparison of policies at a temperature, or a checkpoint and a temperature, chosen for each of them."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

import numpy as np
from jaxtyping import Bool, Float

from entropy_dynamics.analysis.problem_scores import problem_scores
from entropy_dynamics.analysis.run_data import Samples
from entropy_dynamics.analysis.statistics import DIGITS
from entropy_dynamics.experiments.specs import Metric

Evaluation = Mapping[str, Samples]
"""Data set -> counts of one policy at one temperature."""
P = TypeVar("P")


def mean_score(metric: Metric, seeds: Sequence[Samples]) -> float:
    """Mean over seeds and problems, rounded, so that a tie does not depend on the order of summation."""
    return round(float(np.mean([problem_scores(metric, samples).mean() for samples in seeds])), DIGITS)


def best_point(metric: Metric, validation: Mapping[P, Sequence[Samples]], least: float = 0.0) -> P:
    """The temperature, or checkpoint and temperature, with the highest mean metric on the validation set.

    Ties go to the first.

    Args:
        validation: counts on the validation set, one per seed, by point.
        least: points with a lower mean Avg@K do not count, unless none reaches it; then the highest Avg@K decides.
    """
    reaching = [point for point, seeds in validation.items() if mean_score("avg", seeds) >= least]
    chosen: Metric = metric if reaching else "avg"
    return max(reaching or validation, key=lambda point: mean_score(chosen, validation[point]))


def matched_pass(
    policy: Evaluation, others: Sequence[Evaluation], weights: Mapping[str, float]
) -> dict[str, Float[np.ndarray, " problem"]]:
    """Avg@K of a policy minus that of another policy at equal Pass@K, as a score per problem of each data set.

    The other policy's frontier is the linear interpolation of its non-dominated points (Pass@K, Avg@K) over
    temperatures. The means of the scores, weighted by `weights`, sum to f - f*, where f is the policy's Avg@K and f*
    the frontier at its Pass@K. A score is the problem's contribution to first order: a - m p of the policy, minus that
    interpolated between the two neighboring points, where a and p are the problem's Avg@K and Pass@K and m is the slope
    of the frontier, since sampling error in Pass@K moves the point along the frontier.

    All are NaN if the policy's Pass@K is outside the frontier, which is not extrapolated.

    Args:
        others: the other policy at each of its temperatures.
        weights: the weight of each data set.
    """
    passed, _ = _pooled(policy, weights)
    points = np.array([_pooled(other, weights) for other in others])
    front = sorted((*points[i], i) for i in np.flatnonzero(on_front(*points.T)))
    for (pass_low, avg_low, low), (pass_high, avg_high, high) in pairwise(front):
        if pass_low <= passed <= pass_high and pass_low < pass_high:
            share, slope = (passed - pass_low) / (pass_high - pass_low), (avg_high - avg_low) / (pass_high - pass_low)
            ours, below, above = (
                {dataset: of[dataset].pass_rates - slope * of[dataset].solved for dataset in weights}
                for of in (policy, others[low], others[high])
            )
            return {name: ours[name] - (1 - share) * below[name] - share * above[name] for name in weights}
    return {dataset: np.full(len(policy[dataset].correct), np.nan) for dataset in weights}


def on_front(x: Float[np.ndarray, " point"], y: Float[np.ndarray, " point"]) -> Bool[np.ndarray, " point"]:
    """Whether each point is on the Pareto front, where more of both is better."""
    at_least = (x[None] >= x[:, None]) & (y[None] >= y[:, None])
    better = at_least & ((x[None] > x[:, None]) | (y[None] > y[:, None]))
    front: np.ndarray = ~better.any(axis=1) & np.isfinite(x) & np.isfinite(y)
    return front


def reached(policy: Evaluation, others: Sequence[Evaluation], weights: Mapping[str, float]) -> bool:
    """Whether another policy has at least the Pass@K of a policy at any of its temperatures."""
    return _pooled(policy, weights)[0] <= max(_pooled(other, weights)[0] for other in others)


def _pooled(policy: Evaluation, weights: Mapping[str, float]) -> tuple[float, float]:
    """Weighted sums of Pass@K and Avg@K over the data sets, rounded as in `mean_score`."""
    passed = sum(weight * policy[dataset].solved.mean() for dataset, weight in weights.items())
    avg = sum(weight * policy[dataset].pass_rates.mean() for dataset, weight in weights.items())
    return round(float(passed), DIGITS), round(float(avg), DIGITS)
