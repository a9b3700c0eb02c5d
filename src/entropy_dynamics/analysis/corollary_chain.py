"""The chain behind Corollary 4: correlation of pairs of columns over the steps of a run."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.specs import LinksSpec
from entropy_dynamics.analysis.statistics import Interval, seed_interval
from entropy_dynamics.analysis.theory import slope_and_correlation


@dataclass(frozen=True)
class Link:
    """Two columns of metrics.parquet at the steps where both were measured."""

    x: str
    y: str
    steps: pd.DataFrame
    """One row per seed and step: seed, step, x, y (nats) and the correlation of the seed's run."""
    correlation: Interval
    """Over seeds; NaN if a run has too few steps."""

    def frame(self) -> pd.DataFrame:
        return self.steps.assign(x_column=self.x, y_column=self.y, **self.correlation.columns("correlation_over_seeds"))


def links(experiment: Experiment[LinksSpec], results: Results) -> list[Link]:
    """One link per pair of neighboring columns, and finally one between the first and the last column."""
    columns = experiment.spec.columns
    curves = [(run.seed, results.metrics(run, columns)) for run in experiment.runs]
    pairs = [*pairwise(columns), (columns[0], columns[-1])]
    return [_link(x, y, curves) for x, y in dict.fromkeys(pairs)]


def _link(x: str, y: str, curves: list[tuple[int, pd.DataFrame]]) -> Link:
    frames, correlations = [], []
    for seed, curve in curves:
        measured = curve[["step", x, y]].dropna()
        _, correlation = slope_and_correlation(measured[x].to_numpy(), measured[y].to_numpy())
        correlations.append(correlation)
        columns = {"seed": seed, "step": measured["step"], "x": measured[x], "y": measured[y]}
        frames.append(pd.DataFrame(columns | {"correlation": correlation}))
    return Link(x, y, pd.concat(frames, ignore_index=True), seed_interval(np.array(correlations)))


def links_frame(experiment: Experiment[LinksSpec], results: Results, drawn: list[Link]) -> pd.DataFrame:
    """All links in one table."""
    frame = pd.concat([link.frame() for link in drawn], ignore_index=True)
    order = ["x_column", "y_column", "seed", "step", "x", "y", "correlation"]
    order += [f"correlation_over_seeds{end}" for end in ("", "_low", "_high")]
    return results.identified(frame[order], experiment.models[0])
