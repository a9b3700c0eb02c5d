"""Methods at matched entropy: scores over the entropy that each strength ends with, and compared at one entropy."""

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float

from entropy_dynamics.analysis.experiments import METRICS, Experiment, MatchedSpec
from entropy_dynamics.analysis.problem_scores import Metric
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.analysis.statistics import Interval, score_interval
from entropy_dynamics.analysis.strength import scores_of, strength_frame


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
