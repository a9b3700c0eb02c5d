"""Avg@K against Pass@K over evaluation temperatures: a better policy, or one that only samples as if it were warmer?"""

import numpy as np
import pandas as pd
from jaxtyping import Float

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.problem_scores import on_shared_seeds, problem_scores, with_seeds
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.specs import METRICS, ComparedSpec, FrontierSpec
from entropy_dynamics.analysis.statistics import Interval, mean_interval, score_interval
from entropy_dynamics.analysis.temperatures import matched_pass
from entropy_dynamics.config import BASE


def frontier_frame(experiment: Experiment[FrontierSpec], results: Results) -> pd.DataFrame:
    """One row per model, method and temperature: `avg` and `pass` with `_low` and `_high`, means over data sets, %.

    At temperature 0 one sample is drawn: `avg` is the greedy accuracy and `pass` is NaN. `matched`, in the rows at the
    temperature of the tables, is the median over seeds of Avg@K minus the baseline's frontier at equal Pass@K, in
    percentage points; NaN if a seed's Pass@K is outside the frontier.
    """
    usual, datasets = results.config.evaluation.temperature, experiment.evaluations
    rows = []
    for model in experiment.models:
        for at in sorted([None, *experiment.temperatures], key=lambda at: usual if at is None else at):
            samples = [results.paired_samples(experiment, model, dataset, at) for dataset in datasets]
            for method in experiment.methods(model):
                row = results.about(model) | {"method": method, "temperature": usual if at is None else at}
                of_sets = [list(of_set[model, method].values()) for of_set in samples]
                for metric in METRICS:
                    scores = [[problem_scores(metric, seed) for seed in seeds] for seeds in of_sets]
                    share = 100 / len(datasets)
                    interval = score_interval([share * with_seeds(method, seeds) for seeds in scores], mean_interval)
                    known = interval if at != 0 or metric == "avg" else interval.times(float("nan"))
                    row |= known.columns(metric)
                if at is None and method not in (BASE, experiment.spec.baseline):
                    row |= gain_interval(frontier_gain(model, method, experiment, results)).columns("matched")
                rows.append(row | {"seeds": len(experiment.of(model, method))})
    return pd.DataFrame(rows)


def frontier_gain(
    model: str, method: str, experiment: Experiment[ComparedSpec], results: Results
) -> list[Float[np.ndarray, "seed problem"]]:
    """Avg@K minus the baseline's frontier at equal Pass@K, in percentage points.

    Returns:
        Columns of `score_interval`, one per data set; NaN for a seed whose Pass@K is outside the frontier.
    """
    baseline, shares = experiment.spec.baseline, dict.fromkeys(experiment.evaluations, 1 / len(experiment.evaluations))
    warm = sorted({results.config.evaluation.temperature, *filter(None, experiment.temperatures)})
    arms = {(model, name): {run.seed: run for run in experiment.of(model, name)} for name in (method, baseline)}
    seeds = []
    for run, other in zip(*on_shared_seeds(arms).values(), strict=True):
        policy = {dataset: results.samples(run, dataset) for dataset in shares}
        frontier = [{dataset: results.samples(other, dataset, at) for dataset in shares} for at in warm]
        outside = {dataset: np.full(len(samples.correct), np.nan) for dataset, samples in policy.items()}
        seeds.append(matched_pass(policy, frontier, shares) or outside)
    return [100 * share * np.stack([seed[dataset] for seed in seeds]) for dataset, share in shares.items()]


def gain_interval(columns: list[Float[np.ndarray, "seed problem"]]) -> Interval:
    """The interval of `frontier_gain`; NaN if any seed is outside the frontier."""
    return Interval() if any(np.isnan(column).any() for column in columns) else score_interval(columns)
