"""Scores per problem, from the counts of its correct samples: what tables and claims average over problems."""

from collections.abc import Mapping
from itertools import product
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from entropy_dynamics.analysis.results import Samples
from entropy_dynamics.analysis.statistics import Scores
from entropy_dynamics.config import BASE
from entropy_dynamics.evaluation import problem_pass_at_k

Metric = Literal["avg", "pass", "pass_minus_avg", "pass_area", "all_correct"]
Third = Literal["hard", "middle", "easy"]
Selection = Literal["all"] | Third
Evaluated = Mapping[tuple[str, str], list[dict[str, Samples]]]
"""(model, method) -> for each seed {data set: counts}; all on the same problems."""


def problem_scores(metric: Metric, samples: Samples) -> Float[np.ndarray, " problem"]:
    """The metric of each problem, in [-1, 1]."""
    match metric:
        case "avg":
            return samples.pass_rates
        case "pass":
            return samples.solved
        case "pass_minus_avg":
            difference: np.ndarray = samples.solved - samples.pass_rates
            return difference
        case "pass_area":
            return mean_along(pass_curve(samples.correct, samples.k), np.log(np.arange(1, samples.k + 1)))
        case "all_correct":
            return np.where(samples.correct == samples.k, 1.0, 0.0)


def with_seeds(method: str, seeds: list[Float[np.ndarray, " problem"]]) -> Scores:
    """One method's scores; for the untrained model without the seed axis."""
    return seeds[0] if method == BASE else np.stack(seeds)


def pass_curve(correct: Int[np.ndarray, " problem"], samples: int) -> Float[np.ndarray, "k problem"]:
    """The unbiased Pass@k of each problem for k = 1 ... samples; the first row is Avg@K, the last Pass@K."""
    return np.stack([problem_pass_at_k(correct, samples, k) for k in range(1, samples + 1)])


def mean_along(curve: Float[np.ndarray, "point ..."], x: Float[np.ndarray, " point"]) -> Float[np.ndarray, "..."]:
    """The mean height of a curve over its first axis, by the trapezoidal rule."""
    mean: np.ndarray = curve[0] if len(x) == 1 else np.trapezoid(curve, x, axis=0) / (x[-1] - x[0])
    return mean


def score_groups(
    samples: Evaluated,
    weights: Mapping[str, float],
    metric: Metric,
    problems: Selection = "all",
    of_datasets: Mapping[str, float] | None = None,
) -> list[list[Scores]]:
    """The groups of `score_interval` for a weighted sum of methods, in points: the mean over data sets and models.

    Args:
        samples: with the untrained model, if only some problems are selected. Their difficulty is its pass rate,
            averaged over the models, so that all models have the same thirds. It takes no part in the difference
            between two trained methods, so its samples bring no regression to the mean into that.
        weights: the weight of each method in the sum.
        of_datasets: the weight of each data set in place of the mean over all.
    """
    models = list(dict.fromkeys(model for model, _ in samples))
    known = list(next(iter(samples.values()))[0])
    datasets = of_datasets or dict.fromkeys(known, 1 / len(known))
    strata = [(dataset, weight, _chosen(samples, models, dataset, problems)) for dataset, weight in datasets.items()]
    share = 100 / len(models)
    groups = []
    for model, (method, weight) in product(models, weights.items()):
        scores = {
            dataset: with_seeds(method, [problem_scores(metric, seed[dataset]) for seed in samples[model, method]])
            for dataset in datasets
        }
        groups.append([share * weight * factor * scores[dataset][..., chosen] for dataset, factor, chosen in strata])
    return groups


def _chosen(samples: Evaluated, models: list[str], dataset: str, problems: Selection) -> Any:
    """The indices of these problems of one data set; ties of difficulty in the order of the problems."""
    if problems == "all":
        return slice(None)
    rates = np.mean([samples[model, BASE][0][dataset].pass_rates for model in models], axis=0)
    thirds = np.array_split(np.argsort(rates, kind="stable"), 3)
    return dict(zip(get_args(Third), thirds, strict=True))[problems]
