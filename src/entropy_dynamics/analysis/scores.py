"""Tables of scores: ours with an interval, the difference to the baseline, the paper's value."""

from typing import Any

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import Experiment, MetricsSpec, ScoresSpec
from entropy_dynamics.analysis.problem_scores import problem_scores, with_seeds
from entropy_dynamics.analysis.results import Results, final_means
from entropy_dynamics.analysis.statistics import Interval, holm, score_interval, seed_interval, share_interval
from entropy_dynamics.config import BASE


def scores_frame(experiment: Experiment[MetricsSpec], results: Results) -> pd.DataFrame:
    """One row per model and method, in the order of the experiment; scores and shares in per cent.

    Per data set and metric the columns <dataset>_<metric>, _low, _high, _paper, and _difference, _difference_low,
    _difference_high to the baseline on the same problems, with _difference_p, the p value after Holm's correction for
    all differences of the table. Per data set _unreadable and _truncated, the shares of samples without an answer in
    the required format and cut off at the token limit, _problems, and _samples, their number per problem. A table with
    `entropy` also has the columns of `_entropy`.
    """
    rows = []
    for model in experiment.models:
        samples = {dataset: results.paired_samples(experiment, model, dataset) for dataset in experiment.evaluations}
        values = {
            (dataset, metric, method): with_seeds(method, [problem_scores(metric, seed) for seed in seeds])
            for dataset, by_method in samples.items()
            for metric in experiment.spec.metrics
            for method, seeds in by_method.items()
        }
        baseline = experiment.spec.baseline
        for method in experiment.methods(model):
            row: dict[str, Any] = {"model": model, "model_that_ran": results.model(model).ran_with_size}
            label = results.label(experiment.spec, method)
            row |= {"method": method, "label": label, "seeds": len(experiment.of(model, method))}
            if isinstance(experiment.spec, ScoresSpec) and experiment.spec.entropy:
                row |= _entropy(experiment, results, model, method)
            for dataset in samples:
                for metric in experiment.spec.metrics:
                    name, ours = f"{dataset}_{metric}", values[dataset, metric, method]
                    theirs = values.get((dataset, metric, baseline)) if method != baseline else None
                    difference = Interval() if theirs is None else score_interval([[ours], [-theirs]])
                    row |= share_interval(ours).times(100).columns(name)
                    row[f"{name}_paper"] = results.paper.score(model, method, dataset, metric)
                    row |= difference.times(100).columns(f"{name}_difference")
                    row[f"{name}_difference_p"] = difference.p
            for dataset, by_method in samples.items():
                seeds = by_method[method]
                row[f"{dataset}_unreadable"] = 100 * np.mean([seed.unreadable for seed in seeds])
                row[f"{dataset}_truncated"] = 100 * np.mean([seed.truncated for seed in seeds])
                row |= {f"{dataset}_problems": len(seeds[0].correct), f"{dataset}_samples": seeds[0].k}
            rows.append(row)
    frame = pd.DataFrame(rows)
    tests = [name for name in frame if name.endswith("_difference_p")]
    frame[tests] = holm(frame[tests].to_numpy().ravel()).reshape(-1, len(tests))
    return frame


def _entropy(experiment: Experiment[MetricsSpec], results: Results, model: str, method: str) -> dict[str, Any]:
    """Entropy at the end, nats (NaN without steps), and whether every step of every seed equals the baseline's."""
    baseline = experiment.spec.baseline
    curves, compared = (
        [results.metrics(run, ["entropy"])["entropy"].to_numpy() for run in experiment.of(model, name) if name != BASE]
        for name in (method, baseline)
    )
    equal = [np.array_equal(*pair) for pair in zip(curves, compared, strict=False)]
    interval = seed_interval([final_means(curves)]) if curves else Interval()
    return interval.columns("entropy") | {"equals_baseline": method != baseline and bool(equal) and all(equal)}
