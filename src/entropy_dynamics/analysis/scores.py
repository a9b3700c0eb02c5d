"""Tables of scores: our value with its interval, the difference from the baseline, and the paper's value."""

from typing import Any

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.problem_scores import paired, problem_scores, with_seeds
from entropy_dynamics.analysis.run_data import Results, final_means
from entropy_dynamics.analysis.specs import MetricsSpec, ScoresSpec
from entropy_dynamics.analysis.statistics import (
    MIN_SEEDS,
    Interval,
    holm,
    mean_interval,
    score_interval,
    share_interval,
)
from entropy_dynamics.config import BASE

POOLED = "mean"
"""The name of the mean over the data sets in the columns of `scores_frame`."""


def scores_frame(experiment: Experiment[MetricsSpec], results: Results) -> pd.DataFrame:
    """One row per model and method, in the order of the experiment; scores and shares in percent.

    For each data set and metric: <dataset>_<metric>, _low, _high and _paper; _difference, _difference_low and
    _difference_high, the difference from the baseline on the same seeds and problems; and _difference_p, its p value
    after Holm's correction for all differences of the table. Scores are means over seeds. The column difference says
    whether differences are: with few seeds they are, with more they are medians, as in the claims. For each data set:
    _unreadable and _truncated, the shares of samples without an answer in the required format and of those cut off at
    the token limit; _problems; and _samples, the number of samples per problem. A table with `entropy` also has the
    columns of `_entropy`; a pooled table has those of the mean over data sets, under the data set name POOLED.
    """
    rows, columns = [], score_columns(experiment)
    for model in experiment.models:
        samples = {dataset: results.paired_samples(experiment, model, dataset) for dataset in experiment.evaluations}
        values = {
            (dataset, metric): {
                (model, method): {
                    run.seed: problem_scores(metric, of_seed)
                    for run, of_seed in zip(experiment.of(model, method), seeds, strict=True)
                }
                for method, seeds in by_method.items()
            }
            for dataset, by_method in samples.items()
            for metric in experiment.spec.metrics
        }
        baseline = experiment.spec.baseline
        for method in experiment.methods(model):
            row: dict[str, Any] = {"model": model, "model_that_ran": results.model(model).ran_with_size}
            label = results.label(experiment.spec, method)
            seeds = len(experiment.of(model, method))
            averaged = "median over seeds" if seeds >= MIN_SEEDS else "mean over seeds"  # as `seed_interval`
            row |= {"method": method, "label": label, "seeds": seeds, "difference": averaged}
            if isinstance(experiment.spec, ScoresSpec) and experiment.spec.entropy:
                row |= _entropy(experiment, results, model, method)
            for column, datasets in columns.items():
                for metric in experiment.spec.metrics:
                    name, scores = f"{column}_{metric}", [values[dataset, metric] for dataset in datasets]
                    weights = {(model, method): 1 / len(datasets), (model, baseline): -1 / len(datasets)}
                    comparable = method != baseline and (model, baseline) in scores[0]
                    pairs = [paired(of_set, weights) for of_set in scores] if comparable else []
                    difference = score_interval(pairs) if comparable else Interval()
                    ours = [
                        with_seeds(method, list(of_set[model, method].values())) / len(datasets) for of_set in scores
                    ]
                    mean = share_interval(*ours) if len(ours) == 1 else score_interval(ours, mean_interval)
                    row |= mean.times(100).columns(name)
                    row[f"{name}_paper"] = results.paper.score(model, method, column, metric)
                    row |= difference.times(100).columns(f"{name}_difference")
                    row[f"{name}_difference_p"] = difference.p
            for dataset, by_method in samples.items():
                of_seeds = by_method[method]
                row[f"{dataset}_unreadable"] = 100 * np.mean([seed.unreadable for seed in of_seeds])
                row[f"{dataset}_truncated"] = 100 * np.mean([seed.truncated for seed in of_seeds])
                row |= {f"{dataset}_problems": len(of_seeds[0].correct), f"{dataset}_samples": of_seeds[0].k}
            rows.append(row)
    frame = pd.DataFrame(rows)
    tests = [name for name in frame if name.endswith("_difference_p")]
    frame[tests] = holm(frame[tests].to_numpy().ravel()).reshape(-1, len(tests))
    return frame


def score_columns(experiment: Experiment[MetricsSpec]) -> dict[str, list[str]]:
    """Name of each score column -> data sets over whose scores it is a mean."""
    spec = experiment.spec
    pooled = {POOLED: list(experiment.evaluations)} if isinstance(spec, ScoresSpec) and spec.pooled else {}
    return {dataset: [dataset] for dataset in experiment.evaluations} | pooled


def _entropy(experiment: Experiment[MetricsSpec], results: Results, model: str, method: str) -> dict[str, Any]:
    """Final entropy, nats (NaN without training), and whether every step of every seed equals the baseline's."""
    baseline = experiment.spec.baseline
    curves, compared = (
        [results.metrics(run, ["entropy"])["entropy"].to_numpy() for run in experiment.of(model, name) if name != BASE]
        for name in (method, baseline)
    )
    equal = [np.array_equal(*pair) for pair in zip(curves, compared, strict=False)]
    interval = mean_interval(final_means(curves)) if curves else Interval()
    return interval.columns("entropy") | {"equals_baseline": method != baseline and bool(equal) and all(equal)}
