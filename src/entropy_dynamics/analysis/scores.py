"""Scores and gains over the baseline with their intervals, next to the paper's values, and by difficulty."""

from itertools import product
from typing import Any, get_args

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.problem_scores import Third, score_columns, shared_seeds
from entropy_dynamics.analysis.run_data import Results, final_means
from entropy_dynamics.analysis.statistics import Interval, averaged, holm, mean_interval, score_interval, share_interval
from entropy_dynamics.config import BASE
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import METRICS, DifficultySpec, MetricsSpec, ScoresSpec

POOLED = "mean"
"""The name of the mean over the data sets in the columns of `scores_frame`."""

THIRDS = get_args(Third)


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
    rows, baseline = [], experiment.spec.baseline
    for model in experiment.models:
        samples = results.counts(experiment, model)
        for method in experiment.methods(model):
            row = results.about(model) | {"method": method, "label": results.label(experiment.spec, method)}
            seeds = len(experiment.of(model, method))
            arms = {(model, method): 1}
            if method != baseline and (model, baseline) in samples:
                arms[model, baseline] = -1
            paired = len(shared_seeds({arm: samples[arm] for arm in arms}))
            row |= {"seeds": seeds, "difference": f"{averaged(paired)} over seeds"}
            if isinstance(experiment.spec, ScoresSpec) and experiment.spec.entropy:
                row |= _entropy(experiment, results, model, method)
            for (column, shares), metric in product(scored_datasets(experiment).items(), experiment.spec.metrics):
                name = f"{column}_{metric}"
                ours = score_columns(samples, {(model, method): 1}, metric, shares)
                mean = share_interval(*ours) if len(ours) == 1 else score_interval(ours, mean_interval)
                row |= mean.times(100).columns(name)
                row[f"{name}_paper"] = results.paper.score(model, method, column, metric)
                difference = Interval()
                if len(arms) > 1:
                    difference = score_interval(score_columns(samples, arms, metric, shares))
                row |= difference.times(100).columns(f"{name}_difference")
                row[f"{name}_difference_p"] = difference.p
            for dataset in experiment.evaluations:
                of_seeds = [of[dataset] for of in samples[model, method].values()]
                row[f"{dataset}_unreadable"] = 100 * np.mean([seed.unreadable for seed in of_seeds])
                row[f"{dataset}_truncated"] = 100 * np.mean([seed.truncated for seed in of_seeds])
                row |= {f"{dataset}_problems": len(of_seeds[0].correct), f"{dataset}_samples": of_seeds[0].k}
            rows.append(row)
    frame = pd.DataFrame(rows)
    tests = [name for name in frame if name.endswith("_difference_p")]
    frame[tests] = holm(frame[tests].to_numpy().ravel()).reshape(-1, len(tests))
    return frame


def scored_datasets(experiment: Experiment[MetricsSpec]) -> dict[str, dict[str, float]]:
    """Name of each score column -> the weight of each data set in it."""
    spec = experiment.spec
    pooled = {POOLED: experiment.dataset_weights} if isinstance(spec, ScoresSpec) and spec.pooled else {}
    return {dataset: {dataset: 1.0} for dataset in experiment.evaluations} | pooled


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


def gains_frame(experiment: Experiment[MetricsSpec], results: Results) -> pd.DataFrame:
    """One row per model, metric, method and data set: gain, low, high and the paper's gain, in points."""
    scores = scores_frame(experiment, results).set_index(["model", "method"])
    baseline, rows = experiment.spec.baseline, []
    for model, method in scores.index:
        for metric in experiment.spec.metrics if method != baseline else ():
            for dataset in experiment.evaluations:
                ours, name = scores.loc[(model, method)], f"{dataset}_{metric}"
                theirs, base = (results.paper.score(model, side, dataset, metric) for side in (method, baseline))
                row = results.about(model) | {"metric": metric, "method": method, "dataset": dataset}
                row["gain"] = ours[f"{name}_difference"]
                row |= {end: ours[f"{name}_difference_{end}"] for end in ("low", "high")}
                rows.append(row | {"paper": np.nan if theirs is None or base is None else theirs - base})
    return pd.DataFrame(rows)


def difficulty_frame(experiment: Experiment[DifficultySpec], results: Results) -> pd.DataFrame:
    """One row per metric, method and third of the problems: the gain in points with its interval."""
    spec, models, samples = experiment.spec, experiment.models, results.counts(experiment)
    compared = [method for method in experiment.methods(models[0]) if method not in (BASE, spec.baseline)]
    ran = "; ".join(results.model(model).ran_with_size for model in models)
    rows = []
    for metric, method, third in product(METRICS, compared, THIRDS):
        sides = {method: 1, spec.baseline: -1}
        arms = {(model, side): sign / len(models) for model in models for side, sign in sides.items()}
        columns = score_columns(samples, arms, metric, experiment.dataset_weights, third)
        gain, problems = score_interval(columns).times(100), sum(column.shape[-1] for column in columns)
        row = {"metric": metric, "method": method, "baseline": spec.baseline, "third": third, "problems": problems}
        row |= {"gain": gain.value, "low": gain.low, "high": gain.high, "seeds": gain.seeds}
        rows.append({"models": "; ".join(models), "models_that_ran": ran} | row)
    return pd.DataFrame(rows)
