"""Training curves: columns of metrics.parquet, their means over seeds, and what the lens shows of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.columns import KEPT, PARTS
from entropy_dynamics.analysis.run_data import Results, final_means
from entropy_dynamics.config import read_yaml
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import CurvesSpec, LensSpec, Panel


@dataclass(frozen=True)
class Column:
    """How a column of metrics.parquet is drawn."""

    quantity: str
    """Axis label."""
    unit: str = ""
    factor: float = 1.0
    """Conversion factor from the stored unit to `unit`."""
    legend: str = ""

    @property
    def axis(self) -> str:
        return f"{self.quantity} ({self.unit})" if self.unit not in ("", "1") else self.quantity


AXES = read_yaml(Path(__file__).with_name("axes.yaml"))
COLUMNS = {name: Column(**axis) for name, axis in AXES.items()}
# NaN by design on the steps between measurements
SPARSE = {name for name in COLUMNS if name.startswith(("entropy_change", "validation_"))}
SPARSE |= {"s_centered_after", "s_centered_reweighted"}


def column(name: str) -> Column:
    """The entry of a column; a column without one is shown under its own name."""
    return COLUMNS.get(name, Column(name.replace("_", " ")))


@dataclass(frozen=True)
class Line:
    """One line of a panel, in the units of its axis; its curves come from `curve_over_seeds`."""

    method: str
    column: str
    curve: pd.DataFrame
    """Columns of `curve_over_seeds`, and x, x_low and x_high, the position on the x axis."""
    points: pd.DataFrame | None
    """A second column of the same runs."""
    seeds: int


def panel_lines(experiment: Experiment[CurvesSpec], results: Results, panel: Panel) -> list[Line]:
    """One line per method and column, averaged over the seeds."""
    lines, model = [], experiment.model_of(panel)
    for method in experiment.methods(model, panel.methods):
        stored = [name for name in dict.fromkeys((*panel.columns, panel.points, panel.x)) if name]
        frames = [results.metrics(run, stored).set_index("step", drop=False) for run in experiment.of(model, method)]
        curves = {
            name: curve_over_seeds([column(name).factor * frame[name].astype(float) for frame in frames])
            for name in stored
        }
        points = curves.get(panel.points or "")
        for name in panel.columns:
            x = curves[panel.x].rename(columns={"value": "x", "low": "x_low", "high": "x_high"})
            lines.append(Line(method, name, curves[name].join(x, how="inner"), points, len(frames)))
    return lines


def curve_over_seeds(seeds: Sequence[pd.Series]) -> pd.DataFrame:
    """Columns value (mean over the seeds), low and high (lowest and highest seed; NaN for one seed), indexed by step.

    Non-finite values count as missing, and only steps that every seed has are kept: else the mean jumps where one ends.
    """
    table = pd.concat([values[np.isfinite(values)] for values in seeds], axis=1, join="inner").sort_index()
    curve = pd.DataFrame({"value": table.mean(axis=1), "low": table.min(axis=1), "high": table.max(axis=1)})
    return curve if len(seeds) > 1 else curve.assign(low=np.nan, high=np.nan)


def curves_frame(experiment: Experiment[CurvesSpec], results: Results, lines: list[list[Line]]) -> pd.DataFrame:
    """The curves of all panels, given the lines of each: one row per panel, line and step."""
    frames = []
    for number, (panel, drawn) in enumerate(zip(experiment.spec.panels, lines, strict=True), 1):
        model = experiment.model_of(panel)
        about = {"panel": number} | results.about(model)
        for line in drawn:
            for name, curve in ((line.column, line.curve), (panel.points or "", line.points)):
                if curve is not None:
                    shown = {"method": line.method, "column": name, "unit": column(name).unit, "step": curve.index}
                    if panel.x != "step":
                        shown |= {"x_column": panel.x, "x_unit": column(panel.x).unit, "x": curve["x"]}
                    numbers = dict(curve[["value", "low", "high"]]) | {"seeds": line.seeds}
                    frames.append(pd.DataFrame(about | shown | numbers))
    return pd.concat(frames, ignore_index=True)


def lens_frame(experiment: Experiment[LensSpec], results: Results) -> pd.DataFrame:
    """One row per method: the share of each quadrant's push that it keeps, and its final entropy; means over seeds.

    A share is kept / total, each summed over the steps of a run; NaN if the total is 0.
    """
    (model,), rows = experiment.models, []
    for method in experiment.methods(model):
        seeds = [results.metrics(run, ["entropy", *PARTS, *KEPT]) for run in experiment.of(model, method)]
        row = {"method": method, "label": results.label(experiment.spec, method), "seeds": len(seeds)}
        for part in PARTS:
            totals = np.array([seed[part].sum() for seed in seeds])
            kept = np.array([seed[f"{part}_kept"].sum() for seed in seeds])
            row[f"{part}_mean"] = np.mean([seed[part].mean() for seed in seeds])
            row[f"{part}_share"] = np.mean(np.divide(kept, totals, out=np.full_like(kept, np.nan), where=totals != 0))
        last = final_means(seed["entropy"].to_numpy() for seed in seeds)
        low, high = (last.min(), last.max()) if len(seeds) > 1 else (np.nan, np.nan)
        rows.append(row | {"final_entropy": last.mean(), "final_entropy_low": low, "final_entropy_high": high})
    return results.identified(pd.DataFrame(rows), model)
