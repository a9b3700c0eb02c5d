"""Gains over the baseline: per data set, next to the paper's, and by difficulty of the problems."""

from itertools import product
from typing import get_args

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.problem_scores import Third, score_columns
from entropy_dynamics.analysis.run_data import Results, Samples
from entropy_dynamics.analysis.scores import scores_frame
from entropy_dynamics.analysis.specs import METRICS, DifficultySpec, GainsSpec
from entropy_dynamics.analysis.statistics import score_interval
from entropy_dynamics.config import BASE

THIRDS = get_args(Third)


def gains_frame(experiment: Experiment[GainsSpec], results: Results) -> pd.DataFrame:
    """One row per model, metric, method and data set: gain, low, high and the paper's gain, in points."""
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


def difficulty_frame(experiment: Experiment[DifficultySpec], results: Results) -> pd.DataFrame:
    """One row per metric, method and third of the problems: the gain in points with its interval."""
    spec, models = experiment.spec, experiment.models
    counts = {dataset: results.same_problems(experiment.runs, dataset) for dataset in spec.evaluations}
    samples: dict[tuple[str, str], dict[int, dict[str, Samples]]] = {}
    for run in experiment.runs:
        of_run = {dataset: of_runs[run] for dataset, of_runs in counts.items()}
        samples.setdefault((run.model, run.method), {})[run.seed] = of_run
    compared = [method for method in experiment.methods(models[0]) if method not in (BASE, spec.baseline)]
    ran = "; ".join(results.model(model).ran_with_size for model in models)
    rows = []
    for metric, method, third in product(METRICS, compared, THIRDS):
        columns = score_columns(samples, {method: 1, spec.baseline: -1}, metric, third)
        gain, problems = score_interval(columns), sum(column.shape[-1] for column in columns)
        row = {"metric": metric, "method": method, "baseline": spec.baseline, "third": third, "problems": problems}
        row |= {"gain": gain.value, "low": gain.low, "high": gain.high, "seeds": gain.seeds}
        rows.append({"models": "; ".join(models), "models_that_ran": ran} | row)
    return pd.DataFrame(rows)
