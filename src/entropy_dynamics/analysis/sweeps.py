"""What each strength of a method buys: clipped tokens, entropy and scores over a parameter, and at matched entropy."""

from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from entropy_dynamics.analysis.experiments import METRICS, Experiment, MatchedSpec, Run, SweepsSpec
from entropy_dynamics.analysis.problem_scores import Metric, problem_scores, with_seeds
from entropy_dynamics.analysis.results import Results, final_means
from entropy_dynamics.analysis.statistics import Interval, Scores, score_interval, seed_interval

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
    """Scores of a method's runs on each data set, as shares of their mean in per cent: a group of `score_interval`."""
    counts = [[results.samples(run, dataset) for run in runs] for dataset in experiment.evaluations]
    scores = [[problem_scores(metric, seed) for seed in seeds] for seeds in counts]
    return [100 / len(counts) * with_seeds(method, seeds) for seeds in scores]


def matched_frame(experiment: Experiment[MatchedSpec], results: Results) -> pd.DataFrame:
    """The rows of `strength_frame`, one per method and strength, sorted by entropy within a method.

    `avg_front`, `pass_front`: whether the row is on the Pareto front of entropy and score.
    `avg_matched`, `pass_matched` with `_low` and `_high`: the score of the row's method at the reference's entropy
    minus the reference's score, in points; NaN for the reference's method, and if no two strengths enclose it.
    """
    frame = strength_frame(experiment, results).drop(columns="chosen").sort_values(["method", "entropy"], kind="stable")
    frame = frame.reset_index(drop=True)
    for metric in METRICS:
        frame[f"{metric}_front"] = _front(frame["entropy"].to_numpy(), frame[metric].to_numpy())
        matched = {
            method: _matched(metric, rows, frame, experiment, results).columns(f"{metric}_matched")
            for method, rows in frame.groupby("method")
        }
        frame = frame.join(pd.DataFrame.from_dict(matched, orient="index").astype(float), on="method")
    return frame


def _front(x: Float[np.ndarray, " row"], y: Float[np.ndarray, " row"]) -> Bool[np.ndarray, " row"]:
    """The Pareto front, where more of both is better."""
    at_least = (x[None] >= x[:, None]) & (y[None] >= y[:, None])
    better = at_least & ((x[None] > x[:, None]) | (y[None] > y[:, None]))
    front: np.ndarray = ~better.any(axis=1) & np.isfinite(x) & np.isfinite(y)
    return front


def _matched(
    metric: Metric, rows: pd.DataFrame, frame: pd.DataFrame, experiment: Experiment[MatchedSpec], results: Results
) -> Interval:
    """The difference to the reference, linear between the two strengths whose entropies enclose the reference's.

    The interval takes the entropies as known.
    """
    (model,), reference = experiment.models, experiment.spec.reference
    entropies = rows["entropy"].to_numpy()  # ascending
    matched = float(frame.loc[frame["run"] == reference, "entropy"].iloc[0])
    if reference in set(rows["run"]) or len(rows) < 2 or not entropies[0] <= matched <= entropies[-1]:
        return Interval()
    shares = [np.interp(matched, entropies, row) for row in np.eye(len(entropies))]
    weights = {run: share for run, share in zip(rows["run"], shares, strict=True) if share} | {reference: -1.0}
    scores = {run: scores_of(metric, run, experiment.of(model, run), experiment, results) for run in weights}
    return score_interval([[weight * of_set for of_set in scores[run]] for run, weight in weights.items()])
