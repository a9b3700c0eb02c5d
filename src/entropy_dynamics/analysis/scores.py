"""Tables of scores: ours with an interval, the difference to the baseline, the paper's value."""

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from entropy_dynamics.analysis.experiments import Experiment, ScoresSpec
from entropy_dynamics.analysis.results import Results, Samples
from entropy_dynamics.analysis.statistics import Interval, bootstrap_interval, paired_difference


def scores_frame(experiment: Experiment[ScoresSpec], results: Results) -> pd.DataFrame:
    """One row per model and method, in the order of the experiment; scores and shares in per cent.

    Per data set and metric the columns <dataset>_<metric>, _low, _high, _paper, and _difference, _difference_low,
    _difference_high to the baseline on the same problems. Per data set _unreadable and _truncated, the shares of
    samples without an answer in the required format and cut off at the token limit, _problems, and _samples of each.
    """
    rows = []
    for model in experiment.models:
        samples = {dataset: results.paired_samples(experiment, model, dataset) for dataset in experiment.evaluations}
        for method in experiment.methods(model):
            row: dict[str, Any] = {"model": model, "model_that_ran": results.model(model).ran_with_size}
            row |= {"method": method, "label": results.method_label(method), "seeds": len(experiment.of(model, method))}
            for dataset, by_method in samples.items():
                for metric in experiment.spec.metrics:
                    values = {one: _values(samples, metric) for one, samples in by_method.items()}
                    name, baseline = f"{dataset}_{metric}", experiment.spec.baseline
                    compared = method != baseline and baseline in values
                    difference = paired_difference(values[method], values[baseline]) if compared else Interval()
                    row |= _per_cent(name, bootstrap_interval(values[method]))
                    row[f"{name}_paper"] = results.paper.score(model, method, dataset, metric)
                    row |= _per_cent(f"{name}_difference", difference)
            for dataset, by_method in samples.items():
                own = by_method[method]
                row[f"{dataset}_unreadable"] = 100 * np.mean([one.unreadable for one in own])
                row[f"{dataset}_truncated"] = 100 * np.mean([one.truncated for one in own])
                row |= {f"{dataset}_problems": len(own[0].correct), f"{dataset}_samples": own[0].k}
            rows.append(row)
    return pd.DataFrame(rows)


def _values(samples: list[Samples], metric: str) -> Float[np.ndarray, "seed problem"]:
    return np.stack([one.pass_rates if metric == "avg" else one.solved for one in samples])


def _per_cent(name: str, interval: Interval) -> dict[str, float]:
    return {name: 100 * interval.value, f"{name}_low": 100 * interval.low, f"{name}_high": 100 * interval.high}
