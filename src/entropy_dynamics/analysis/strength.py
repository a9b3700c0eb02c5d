"""What each strength of a method buys: clipped tokens, entropy and scores over a parameter, and the value to choose."""

from typing import Any

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import Experiment, Run, SweepsSpec
from entropy_dynamics.analysis.problem_scores import Metric, problem_scores, with_seeds
from entropy_dynamics.analysis.results import Results, final_means
from entropy_dynamics.analysis.statistics import Scores, score_interval, seed_interval

SCORES: tuple[Metric, ...] = ("avg", "pass", "pass_area")


def strength_frame(experiment: Experiment[SweepsSpec], results: Results) -> pd.DataFrame:
    """One row per model, method and value of its swept parameter, NaN for runs outside the sweeps.

    `run` is a run's full name; `method` is the swept method's name, or outside the sweeps the full name. Columns
    `clip_fraction` (mean over all steps, per cent), `entropy` (mean over the last tenth, nats), `avg`, `pass` and
    `pass_area` (mean over the data sets, per cent), the last four with `_low` and `_high`. `chosen` marks the value of
    each swept parameter with the highest `pass_area`, the mean of Pass@k over log k.
    """
    rows = []
    swept = {
        run: (sweep.method, sweep.parameter, value)
        for sweep in experiment.spec.sweeps
        for run, value in sweep.methods(results.scale).items()
    }
    for model in experiment.models:
        for method in experiment.methods(model):
            name, parameter, value = swept.get(method, (method, "", np.nan))
            runs = experiment.of(model, method)
            row: dict[str, Any] = {"model": model, "model_that_ran": results.model(model).ran_with_size}
            row |= {"run": method, "method": name, "parameter": parameter, "value": float(value), "seeds": len(runs)}
            frames = [results.metrics(run, ("clip_fraction", "entropy")) for run in runs]
            ends = final_means(frame["entropy"].to_numpy() for frame in frames)
            row["clip_fraction"] = 100 * np.mean([frame["clip_fraction"].mean() for frame in frames])
            row |= seed_interval([ends]).columns("entropy")
            for metric in SCORES:
                row |= score_interval([scores_of(metric, method, runs, experiment, results)]).columns(metric)
            rows.append(row)
    frame = pd.DataFrame(rows)
    best = frame[frame["value"].notna()].groupby(["model", "method", "parameter"])["pass_area"].idxmax()
    return frame.assign(chosen=frame.index.isin(best))


def scores_of(
    metric: Metric, method: str, runs: list[Run], experiment: Experiment[SweepsSpec], results: Results
) -> list[Scores]:
    """Scores of a method's runs on each data set, in per cent of their mean: a group of `score_interval`."""
    share, scores = 100 / len(experiment.evaluations), []
    for dataset in experiment.evaluations:
        seeds = [problem_scores(metric, results.samples(run, dataset)) for run in runs]
        scores.append(share * with_seeds(method, seeds))
    return scores
