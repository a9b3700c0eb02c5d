"""Scores per problem, from its number of correct samples. Tables and claims average these over problems."""

from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from entropy_dynamics.analysis.pass_at_k import problem_pass_at_k
from entropy_dynamics.analysis.run_data import Arm, Evaluated, Samples
from entropy_dynamics.analysis.statistics import DIGITS, Scores
from entropy_dynamics.config import BASE
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.specs import Metric

Third = Literal["hard", "middle", "easy"]
Selection = Literal["all"] | Third
BySeed = Mapping[int, Float[np.ndarray, " problem"]]


def problem_scores(metric: Metric, samples: Samples) -> Float[np.ndarray, " problem"]:
    """The metric of each problem, from -1 to 1."""
    match metric:
        case "avg":
            return samples.pass_rates
        case "pass":
            return samples.solved
        case "pass_minus_avg":
            return np.asarray(samples.solved - samples.pass_rates)
        case "pass_area":
            curve, log_k = pass_curve(samples.correct, samples.k), np.log(np.arange(1, samples.k + 1))
            return curve[0] if samples.k == 1 else np.asarray(np.trapezoid(curve, log_k, axis=0) / log_k[-1])
        case "majority" | "unique" | "answer_entropy":
            return np.asarray(getattr(samples, metric))
        case "all_correct":
            return np.where(samples.correct == samples.k, 1.0, 0.0)
        case "middle":
            return np.where(np.abs(samples.pass_rates - 0.5) <= 0.25, 1.0, 0.0)


def with_seeds(method: str, by_seed: BySeed, seeds: Iterable[int] | None = None) -> Scores:
    """One method's scores of these seeds (None: all), without the seed axis for a single untrained model."""
    if method == BASE and len(by_seed) == 1:  # all seeds start from it
        return next(iter(by_seed.values()))
    return np.stack([by_seed[seed] for seed in (by_seed if seeds is None else seeds)])


def paired(scores: Mapping[Arm, BySeed], weights: Mapping[Arm, float]) -> Scores:
    """The weighted sum of arms on the seeds that they share. Raises UserError if they share none."""
    seeds = shared_seeds({arm: scores[arm] for arm in weights})
    if not seeds:
        raise UserError(f"{', '.join(dict.fromkeys(method for _, method in weights))} have no seed in common")
    terms = (weight * with_seeds(arm[1], scores[arm], seeds) for arm, weight in weights.items())
    total: Scores = sum(terms, np.array(0.0))
    return total


def shared_seeds(arms: Mapping[Arm, Mapping[int, object]]) -> list[int]:
    """The seeds that all arms have, ascending; a single untrained model counts for all."""
    trained = [by_seed for (_, method), by_seed in arms.items() if method != BASE or len(by_seed) != 1]
    return sorted(set.intersection(*map(set, trained or arms.values())))


def pass_curve(correct: Int[np.ndarray, " problem"], samples: int) -> Float[np.ndarray, "k problem"]:
    """The unbiased Pass@k of each problem for k = 1 ... `samples`; the first row is Avg@K, the last Pass@K."""
    return np.stack([problem_pass_at_k(correct, samples, k) for k in range(1, samples + 1)])


def score_columns(
    samples: Evaluated,
    arms: Mapping[Arm, float],
    metric: Metric,
    datasets: Mapping[str, float],
    problems: Selection = "all",
) -> list[Scores]:
    """The columns of `score_interval` for a weighted sum of arms, one per data set; scores are from -1 to 1.

    Raises UserError if the arms share no seed.

    Args:
        samples: must include the untrained models if `problems` selects a third. Difficulty is the pass rate averaged
            over the untrained models, so that all models have the same thirds. These samples do not enter the
            difference between two trained methods, so they cause no regression to the mean in it.
        arms: the weight of each arm in the sum.
        datasets: the weight of each data set.
    """
    columns = []
    for dataset, share in datasets.items():
        scores = {arm: {seed: problem_scores(metric, of[dataset]) for seed, of in samples[arm].items()} for arm in arms}
        chosen = _chosen(samples, dict.fromkeys(model for model, _ in arms), dataset, problems)
        columns.append(share * paired(scores, arms)[..., chosen])
    return columns


def _chosen(samples: Evaluated, models: Iterable[str], dataset: str, problems: Selection) -> Any:
    """The indices of the selected problems of a data set; problems of equal difficulty stay in order."""
    if problems == "all":
        return slice(None)
    untrained = [seed[dataset].pass_rates for model in models for seed in samples[model, BASE].values()]
    difficulty = np.mean(untrained, axis=0).round(DIGITS)  # a tie must not depend on the order of summation
    thirds = np.array_split(np.argsort(difficulty, kind="stable"), 3)
    return dict(zip(get_args(Third), thirds, strict=True))[problems]
