"""Predicted and realized entropy changes: of single tokens (Theorems 1 and 2), and the chain behind Corollary 4."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd
from jaxtyping import Float

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.specs import LinksSpec, TheorySpec
from entropy_dynamics.analysis.statistics import Interval, seed_interval
from entropy_dynamics.errors import UserError

BINS = 60  # per axis of a density
MIN_PAIRS = 3  # minimum for a correlation
THEOREMS = (1, 2)


@dataclass(frozen=True)
class Density:
    """Two-dimensional histogram of (predicted, realized) entropy changes for one theorem and step size."""

    theorem: int
    step_size: float
    edges: Float[np.ndarray, " edge"]
    """Bin edges of both axes, nats per unit of step size, so that a first-order prediction is the same line for all."""
    counts: Float[np.ndarray, "predicted realized"]
    slope: float
    correlation: float


def densities(results: Results) -> list[Density]:
    """One density per theorem and step size, in this order; all densities of a theorem share their edges.

    Raises UserError if a theorem has no tokens, or if an entropy change is not finite.
    """
    steps, tokens = results.logit_steps(), []
    for theorem in THEOREMS:
        rows = steps[steps["theorem"] == theorem]
        scaled = np.concatenate([rows[name] / rows["step_size"] for name in ("predicted", "realised")])
        if not len(rows) or not np.isfinite(scaled).all():
            path = results.layout.logit_steps
            raise UserError(f"{path}: Theorem {theorem} has no rows, or changes that are not finite")
        room = 0.04 * np.ptp(scaled) or 1.0
        edges = np.linspace(scaled.min() - room, scaled.max() + room, BINS + 1)
        for size in sorted(steps["step_size"].unique()):
            of_size = rows[rows["step_size"] == size]
            predicted, realized = (of_size[name].to_numpy() for name in ("predicted", "realised"))
            counts, _, _ = np.histogram2d(predicted / size, realized / size, bins=[edges, edges])
            tokens.append(Density(theorem, size, edges, counts, *slope_and_correlation(predicted, realized)))
    return tokens


def theory_frame(experiment: Experiment[TheorySpec], results: Results, tokens: list[Density]) -> pd.DataFrame:
    """All densities in one table: one row per non-empty cell, with its center in nats."""
    frames = []
    for density in tokens:
        x, y = np.nonzero(density.counts)
        middle = (density.edges[:-1] + density.edges[1:]) / 2 * density.step_size
        cells = {"predicted": middle[x], "realised": middle[y], "tokens": density.counts[x, y].astype(int)}
        about = {"panel": f"theorem {density.theorem}", "step_size": density.step_size}
        frames.append(pd.DataFrame(about | cells | {"slope": density.slope, "correlation": density.correlation}))
    return results.identified(pd.concat(frames, ignore_index=True), *experiment.untrained)


def slope_and_correlation(
    predicted: Float[np.ndarray, " pair"], realized: Float[np.ndarray, " pair"]
) -> tuple[float, float]:
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
            _, correlation = slope_and_correlation(measured[x].to_numpy(), measured[y].to_numpy())
            correlations.append(correlation)
            numbers = {"seed": seed, "step": measured["step"], "x": measured[x], "y": measured[y]}
            frames.append(pd.DataFrame({"x_column": x, "y_column": y} | numbers | {"correlation": correlation}))
        found.append(Link(x, y, pd.concat(frames, ignore_index=True), seed_interval(np.array(correlations))))
    return found


def links_frame(experiment: Experiment[LinksSpec], results: Results, drawn: list[Link]) -> pd.DataFrame:
    """All links in one table."""
    frames = [link.steps.assign(**link.correlation.columns("correlation_over_seeds")) for link in drawn]
    return results.identified(pd.concat(frames, ignore_index=True), experiment.models[0])
