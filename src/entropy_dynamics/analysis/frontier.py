"""Avg@K against Pass@K over evaluation temperatures: a better policy, or one that only samples as if it were warmer?"""

import numpy as np
import pandas as pd
from jaxtyping import Float

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.problem_scores import on_shared_seeds
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.specs import METRICS, ComparedSpec, FrontierSpec
from entropy_dynamics.analysis.statistics import Interval, mean_interval, score_interval
from entropy_dynamics.analysis.sweeps import scores_of
from entropy_dynamics.analysis.temperatures import matched_pass
from entropy_dynamics.config import BASE


def frontier_frame(experiment: Experiment[FrontierSpec], results: Results) -> pd.DataFrame:
    """One row per model, method and temperature: `avg` and `pass` with `_low` and `_high`, means over data sets, %.

    At temperature 0 one sample is drawn: `avg` is the greedy accuracy and `pass` is NaN. `matched`, in the rows at the
    temperature of the tables, is the median over seeds of Avg@K minus the baseline's frontier at equal Pass@K, in
    percentage points; NaN if a seed's Pass@K is outside the frontier.
    """
    usual, rows = results.config.evaluation.temperature, []
    for model in experiment.models:
        for at in sorted({usual, *experiment.temperatures}):
            for dataset in experiment.evaluations:  # raises UserError if the runs' problems or K differ
                results.counts(experiment, dataset, model, at)
            for method in experiment.methods(model):
                row = results.about(model) | {"method": method, "temperature": at}
                for metric in METRICS:
                    scores = scores_of(metric, {(model, method): 1.0}, experiment, results, at)
                    known = at != 0 or metric == "avg"
                    row |= (score_interval(scores, mean_interval) if known else Interval()).columns(metric)
                if at == usual and method not in (BASE, experiment.spec.baseline):
                    row |= gain_interval(frontier_gain(model, method, experiment, results)).columns("matched")
                rows.append(row | {"seeds": len(experiment.of(model, method))})
    return pd.DataFrame(rows)


def frontier_gain(
    model: str, method: str, experiment: Experiment[ComparedSpec], results: Results
) -> list[Float[np.ndarray, "seed problem"]]:
    """Avg@K minus the baseline's frontier at equal Pass@K, in percentage points: the columns of `score_interval`.

    NaN for a seed whose Pass@K is outside the frontier.
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
