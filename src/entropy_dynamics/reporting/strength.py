"""Figures of what each strength of a method buys: entropy and scores over its parameter."""

import textwrap

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from entropy_dynamics.analysis.experiments import Experiment, StrengthSpec
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.analysis.statistics import LEVEL
from entropy_dynamics.analysis.strength import strength_frame
from entropy_dynamics.reporting.style import CYCLE, LINE_LEGEND, WIDTH, Look, add_footer, pretty, what_ran

PANELS = {"entropy": "entropy (nats)", "avg": "Avg@K (%)", "pass": "Pass@K (%)"}


def draw_strength(experiment: Experiment[StrengthSpec], results: Results) -> tuple[Figure, pd.DataFrame]:
    """One row of panels per sweep, a line per model; ringed: the chosen value, horizontal: the baseline."""
    frame = strength_frame(experiment, results)
    swept = [rows for _, rows in frame[frame["value"].notna()].groupby(["method", "parameter"], sort=False)]
    references = frame[frame["run"] == experiment.spec.baseline]
    figure = Figure(figsize=(WIDTH, 0.75 + 1.2 * len(swept)), layout="constrained")
    axes = figure.subplots(len(swept), len(PANELS), squeeze=False)
    looks = dict(zip(experiment.models, CYCLE, strict=False))
    for row, sweep in zip(axes, swept, strict=True):
        for ax, (column, title) in zip(row, PANELS.items(), strict=True):
            for model, look in looks.items():
                of_model = sweep[sweep["model"] == model].sort_values("value")
                _draw_line(ax, of_model, references[references["model"] == model], column, look)
            shown = pd.concat([sweep[column], references[column]])
            margin = 0.5 * (shown.max() - shown.min()) or 0.5
            ax.set_ylim(shown.min() - margin, shown.max() + margin)  # intervals of two seeds would flatten the curves
            if ax in axes[0]:
                ax.set_title(title)
        row[0].set_ylabel(textwrap.fill(pretty(results.method_label(sweep["method"].iloc[0])), 16))
        row[1].set_xlabel(pretty(sweep["parameter"].iloc[0].replace("_", " ")))
    models = [Line2D([], [], label=results.model(model).ran, **look) for model, look in looks.items()]
    figure.legend(handles=models, loc="outside upper center", ncols=1, **LINE_LEGEND)
    baseline = pretty(results.method_label(experiment.spec.baseline))
    chosen = f"ring: highest Pass@k averaged over log k; dashed line: {baseline}"
    whiskers = "" if experiment.seeds == "one seed" else f"; whiskers: {LEVEL:.0%} intervals, cut off at the frame"
    sets = f"scores on {', '.join(experiment.evaluations)}{whiskers}"
    add_footer(figure, [*what_ran(experiment, results), sets, chosen])
    return figure, frame


def _draw_line(ax: Axes, sweep: pd.DataFrame, baseline: pd.DataFrame, column: str, look: Look) -> None:
    if sweep.empty:
        return
    ends = [sweep[column] - sweep[f"{column}_low"], sweep[f"{column}_high"] - sweep[column]]
    ax.errorbar(sweep["value"], sweep[column], ends, elinewidth=0.6, **look)
    best = sweep[sweep["chosen"]]
    ax.plot(best["value"], best[column], "o", markersize=7, markerfacecolor="none", color=look["color"])
    for value in baseline[column]:
        ax.axhline(value, color=look["color"], linewidth=0.7, linestyle="--", zorder=0.5)
