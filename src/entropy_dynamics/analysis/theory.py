"""Predicted and realized entropy changes: of single tokens (Theorems 1 and 2), and the chain behind Corollary 4."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from jaxtyping import Float

from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.statistics import Interval, seed_interval
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import LinksSpec, TheorySpec

MIN_PAIRS = 3  # minimum for a correlation
THEOREMS = (1, 2)


def scaled_steps(results: Results) -> pd.DataFrame:
    """The logit steps, with changes per unit of step size, so that a first-order prediction is the same line for all.

    Raises UserError if a theorem has no tokens, or if an entropy change is not finite.
    """
    steps, changes = results.logit_steps(), ["predicted", "realised"]
    steps[changes] = steps[changes].div(steps["step_size"], axis=0)
    for theorem in THEOREMS:
        rows = steps.loc[steps["theorem"] == theorem, changes]
        if not len(rows) or not np.isfinite(rows.to_numpy()).all():
            path = results.layout.logit_steps
            raise UserError(f"{path}: Theorem {theorem} has no rows, or changes that are not finite")
    return steps


def theory_frame(experiment: Experiment[TheorySpec], results: Results, steps: pd.DataFrame) -> pd.DataFrame:
    """One row per theorem and step size, in this order, given the `scaled_steps`."""
    rows = []
    for (theorem, size), tokens in steps.groupby(["theorem", "step_size"]):
        slope, r = slope_and_r(tokens["predicted"].to_numpy(), tokens["realised"].to_numpy())
        about = {"panel": f"theorem {theorem}", "step_size": size, "tokens": len(tokens)}
        rows.append(about | {"slope": slope, "correlation": r})
    return results.identified(pd.DataFrame(rows), *experiment.untrained)


def slope_and_r(predicted: Float[np.ndarray, " pair"], realized: Float[np.ndarray, " pair"]) -> tuple[float, float]:
    """Least-squares slope of `realized` on `predicted` through the origin, and Pearson's r; NaN if undefined."""
    if len(predicted) < MIN_PAIRS or not np.ptp(predicted) or not np.ptp(realized):
        return np.nan, np.nan
    return float(predicted @ realized / (predicted @ predicted)), float(np.corrcoef(predicted, realized)[0, 1])


@dataclass(frozen=True)
class Link:
    """Two columns of metrics.parquet at the steps where both were measured."""

    x: str
    y: str
    steps: pd.DataFrame
    """One row per seed and step: x_column, y_column, seed, step, x, y (nats) and the correlation of the seed's run."""
    correlation: Interval
    """Over seeds; NaN if a run has too few steps."""


def links(experiment: Experiment[LinksSpec], results: Results) -> list[Link]:
    """One link per pair of neighboring columns, and finally one between the first and the last column."""
    columns = experiment.spec.columns
    curves = [(run.seed, results.metrics(run, columns)) for run in experiment.runs]
    found = []
    for x, y in dict.fromkeys([*pairwise(columns), (columns[0], columns[-1])]):
        frames, correlations = [], []
        for seed, curve in curves:
            measured = curve[["step", x, y]].dropna()
            _, correlation = slope_and_r(measured[x].to_numpy(), measured[y].to_numpy())
            correlations.append(correlation)
            numbers = {"seed": seed, "step": measured["step"], "x": measured[x], "y": measured[y]}
            frames.append(pd.DataFrame({"x_column": x, "y_column": y} | numbers | {"correlation": correlation}))
        found.append(Link(x, y, pd.concat(frames, ignore_index=True), seed_interval(np.array(correlations))))
    return found


def links_frame(experiment: Experiment[LinksSpec], results: Results, drawn: list[Link]) -> pd.DataFrame:
    """All links in one table."""
    frames = [link.steps.assign(**link.correlation.columns("correlation_over_seeds")) for link in drawn]
    return results.identified(pd.concat(frames, ignore_index=True), experiment.models[0])
