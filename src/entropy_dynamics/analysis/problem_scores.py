"""Scores per problem, from the counts of its correct samples: what tables and claims average over problems."""

from typing import Literal

import numpy as np
from jaxtyping import Float, Int

from entropy_dynamics.analysis.results import Samples
from entropy_dynamics.analysis.statistics import Scores
from entropy_dynamics.config import BASE
from entropy_dynamics.evaluation import problem_pass_at_k

Metric = Literal["avg", "pass", "pass_minus_avg", "pass_area", "extremes"]
Selection = Literal["hard", "easy", "hard_minus_easy"]


def problem_scores(metric: Metric, samples: Samples) -> Float[np.ndarray, " problem"]:
    """The metric of each problem, in [-1, 1]."""
    scores: np.ndarray
    match metric:
        case "avg":
            scores = samples.pass_rates
        case "pass":
            scores = samples.solved
        case "pass_minus_avg":
            scores = samples.solved - samples.pass_rates
        case "pass_area":
            scores = mean_along(pass_curve(samples.correct, samples.k), np.log(np.arange(1, samples.k + 1)))
        case "extremes":
            scores = np.isin(samples.correct, (0, samples.k)).astype(float)
    return scores


def with_seeds(method: str, seeds: list[Float[np.ndarray, " problem"]]) -> Scores:
    """One method's scores; those of the untrained model without the axis of the seeds."""
    return seeds[0] if method == BASE else np.stack(seeds)


def pass_curve(correct: Int[np.ndarray, " problem"], samples: int) -> Float[np.ndarray, "k problem"]:
    """The unbiased Pass@k of each problem for k = 1 ... samples; the first row is Avg@K, the last Pass@K."""
    return np.stack([problem_pass_at_k(correct, samples, k) for k in range(1, samples + 1)])


def mean_along(curve: Float[np.ndarray, "point ..."], x: Float[np.ndarray, " point"]) -> Float[np.ndarray, "..."]:
    """The mean height of a curve over its first axis, by the trapezoidal rule.

    Of Pass@k over log k it is one number for all k; of the scores of checkpoints over their steps it says who learns
    faster, where the last checkpoint says who ends higher.
    """
    mean: np.ndarray = curve[0] if len(x) == 1 else np.trapezoid(curve, x, axis=0) / (x[-1] - x[0])
    return mean


def thirds(selection: Selection, rates: Float[np.ndarray, " problem"]) -> list[tuple[float, Int[np.ndarray, " some"]]]:
    """(weight, numbers of problems) of thirds of the problems by difficulty, ties in the order of the problems.

    Args:
        rates: the untrained model's pass rates. It takes no part in the difference between two trained methods, so
            thirds by its samples bring no regression to the mean into it.
    """
    hard, _, easy = np.array_split(np.argsort(rates, kind="stable"), 3)
    weights = {"hard": [(1.0, hard)], "easy": [(1.0, easy)], "hard_minus_easy": [(1.0, hard), (-1.0, easy)]}
    return weights[selection]
