"""Gains over the baseline, beside those that the paper states."""

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import Experiment, GainsSpec
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.analysis.scores import scores_frame


def gains_frame(experiment: Experiment[GainsSpec], results: Results) -> pd.DataFrame:
    """A row per model, metric, method and data set: gain, low and high, and the paper's gain, all in points."""
    scores = scores_frame(experiment, results).set_index(["model", "method"])
    baseline, rows = experiment.spec.baseline, []
    for model, method in scores.index:
        for metric in experiment.spec.metrics if method != baseline else ():
            for dataset in experiment.evaluations:
                ours, name = scores.loc[(model, method)], f"{dataset}_{metric}"
                theirs, base = (results.paper.score(model, side, dataset, metric) for side in (method, baseline))
                row = {"model": model, "model_that_ran": ours["model_that_ran"], "metric": metric, "method": method}
                row |= {"dataset": dataset, "gain": ours[f"{name}_difference"]}
                row |= {end: ours[f"{name}_difference_{end}"] for end in ("low", "high")}
                rows.append(row | {"paper": np.nan if theirs is None or base is None else theirs - base})
    return pd.DataFrame(rows)
