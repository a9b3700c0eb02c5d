"""Training curves: columns of metrics.parquet, their means over seeds, and what the lens shows of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.columns import KEPT, PARTS
from entropy_dynamics.analysis.run_data import Results, final_means
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


COLUMNS = {
    "entropy": Column("token entropy", "nats"),
    "accuracy": Column("accuracy", "%", 100),
    "validation_accuracy": Column("Avg@K, validation", "%", 100),
    "validation_pass": Column("Pass@K, validation", "%", 100),
    "clip_fraction": Column("clipped tokens", "%", 100),
    "s_star_mean": Column("batch mean", "nats", legend="$S_*$"),
    "s_centered_mean": Column("batch mean", "nats", legend="$S_* - \\mathrm{E}[S]$"),
    "s_centered_ratio": Column("ratio", "1", legend="observed"),
    "s_centered_noise": Column("ratio", "1", legend="from sampling alone"),
    "neg_cov": Column("$\\Delta H / \\eta$", "nats", legend="$-\\mathrm{Cov}_B(A, S_* - \\mathrm{E}[S])$"),
    "neg_cov_positive": Column("$\\Delta H / \\eta$", "nats", legend="its positive portion"),
    "neg_cov_negative": Column("$\\Delta H / \\eta$", "nats", legend="its negative portion"),
    "predicted_entropy_change": Column("Corollary 4", "nats"),
    "entropy_change_sgd": Column("SGD step", "nats"),
    "entropy_change_adam_no_momentum": Column("Adam, $\\beta_1 = 0$", "nats"),
    "entropy_change_first_order": Column("AdamW step", "nats"),
    "entropy_change": Column("measured", "nats"),
    "grad_norm": Column("gradient norm", "1"),
}
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
