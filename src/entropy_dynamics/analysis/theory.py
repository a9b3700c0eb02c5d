"""Predicted and realized entropy changes of single tokens (Theorems 1 and 2)."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from jaxtyping import Float

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.specs import TheorySpec
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

    def frame(self) -> pd.DataFrame:
        """One row per non-empty cell, with its center in nats."""
        x, y = np.nonzero(self.counts)
        middle = (self.edges[:-1] + self.edges[1:]) / 2 * self.step_size
        cells = {"predicted": middle[x], "realised": middle[y], "tokens": self.counts[x, y].astype(int)}
        about = {"slope": self.slope, "correlation": self.correlation}
        return pd.DataFrame(cells | about | {"panel": f"theorem {self.theorem}", "step_size": self.step_size})


def densities(results: Results) -> list[Density]:
    """One density per theorem and step size, in this order; all densities of a theorem share their edges.

    Raises:
        UserError: a theorem has no tokens, or an entropy change is not finite.
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
    """All densities in one table."""
    frame = pd.concat([density.frame() for density in tokens], ignore_index=True)
    order = ["panel", "step_size", "predicted", "realised", "tokens", "slope", "correlation"]
    return results.identified(frame[order], *experiment.untrained)


def slope_and_correlation(
    predicted: Float[np.ndarray, " pair"], realized: Float[np.ndarray, " pair"]
) -> tuple[float, float]:
    """Least-squares slope of `realized` on `predicted` through the origin, and Pearson's r; NaN if undefined."""
    if len(predicted) < MIN_PAIRS or not np.ptp(predicted) or not np.ptp(realized):
        return np.nan, np.nan
    return float(predicted @ realized / (predicted @ predicted)), float(np.corrcoef(predicted, realized)[0, 1])
