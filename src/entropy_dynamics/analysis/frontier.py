"""Avg@K against Pass@K over the temperature of the evaluation: a better policy, or one that samples as if warmer."""

import pandas as pd

from entropy_dynamics.analysis.experiments import METRICS, Experiment, FrontierSpec
from entropy_dynamics.analysis.problem_scores import problem_scores, with_seeds
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.analysis.statistics import mean_interval, score_interval


def frontier_frame(experiment: Experiment[FrontierSpec], results: Results) -> pd.DataFrame:
    """One row per model, method and temperature: `avg` and `pass` with `_low` and `_high`, means over the data sets, %.

    `pass` is NaN at temperature 0, where one sample is drawn, and `avg` is the greedy accuracy.
    """
    usual, datasets = results.config.evaluation.temperature, experiment.evaluations
    rows = []
    for model in experiment.models:
        about = {"model": model, "model_that_ran": results.model(model).ran_with_size}
        for at in sorted([None, *experiment.temperatures], key=lambda at: usual if at is None else at):
            samples = [results.paired_samples(experiment, model, dataset, at) for dataset in datasets]
            for method in experiment.methods(model):
                row = about | {"method": method, "temperature": usual if at is None else at}
                for metric in METRICS:
                    scores = [[problem_scores(metric, seed) for seed in of_set[method]] for of_set in samples]
                    share = 100 / len(datasets)
                    interval = score_interval([share * with_seeds(method, seeds) for seeds in scores], mean_interval)
                    known = interval if at != 0 or metric == "avg" else interval.times(float("nan"))
                    row |= known.columns(metric)
                rows.append(row | {"seeds": len(experiment.of(model, method))})
    return pd.DataFrame(rows)
