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

    `avg_front`, `pass_front`: no other row has at least its entropy and its score, and one of them higher.
    `avg_matched`, `pass_matched` with `_low` and `_high`: the score of the row's method at the entropy of the reference
    less that of the reference, in points; NaN for the method of the reference, and if no two strengths enclose it.
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
    metric: Metric, own: pd.DataFrame, frame: pd.DataFrame, experiment: Experiment[MatchedSpec], results: Results
) -> Interval:
    """The difference to the reference, linear between the two strengths whose entropies enclose the reference's.

    The interval takes the entropies as known.
    """
    (model,), reference = experiment.models, experiment.spec.reference
    shares = _shares(own["entropy"].to_numpy(), float(frame.loc[frame["run"] == reference, "entropy"].iloc[0]))
    if reference in set(own["run"]) or shares is None:
        return Interval()
    weights = {run: share for run, share in zip(own["run"], shares, strict=True) if share} | {reference: -1.0}
    return score_interval(
        [
            [weight * one for one in scores_of(metric, run, experiment.of(model, run), experiment, results)]
            for run, weight in weights.items()
        ]
    )


def _shares(entropies: Float[np.ndarray, " strength"], at: float) -> Float[np.ndarray, " strength"] | None:
    """The weights of linear interpolation between ascending entropies; None outside of them."""
    if len(entropies) < 2 or not entropies[0] <= at <= entropies[-1]:
        return None
    return np.array([np.interp(at, entropies, row) for row in np.eye(len(entropies))])
