"""Draws Pass@k over k: a row of panels per model, a panel per data set."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from entropy_dynamics.analysis.distributions import pass_frame
from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.specs import PassSpec
from entropy_dynamics.config import BASE
from entropy_dynamics.reporting.style import (
    GRAY,
    LINE_LEGEND,
    ROUND,
    WIDTH,
    Look,
    add_footer,
    intervals,
    looks,
    pretty,
    what_ran,
)


def draw_pass_curves(experiment: Experiment[PassSpec], results: Results) -> tuple[Figure, pd.DataFrame]:
    """One line per method with a band for its interval; and the numbers in the figure."""
    frame = pass_frame(experiment, results)
    methods = list(frame["method"].unique())
    styles = {BASE: GRAY} | looks([method for method in methods if method != BASE], experiment.spec.baseline)
    figure = Figure(figsize=(WIDTH, 0.8 + 1.35 * len(experiment.models)), layout="constrained")
    rows = figure.subfigures(len(experiment.models), 1, squeeze=False)[:, 0]
    for row, model in zip(rows, experiment.models, strict=True):
        row.suptitle(pretty(results.model(model).ran), fontsize=7)
        axes = row.subplots(1, len(experiment.evaluations), squeeze=False)[0]
        axes[0].set_ylabel("Pass@k (%)")
        for ax, dataset in zip(axes, experiment.evaluations, strict=True):
            _draw_panel(ax, frame[(frame["model"] == model) & (frame["dataset"] == dataset)], styles)
            ax.set_title(results.dataset_label(dataset), fontsize=6.5, pad=3)
            if row is rows[-1]:
                ax.set_xlabel("k", labelpad=1)
    handles = [Line2D([], [], label=pretty(results.method_label(method)), **styles[method]) for method in methods]
    figure.legend(handles=handles, loc="outside upper center", ncols=len(methods), **LINE_LEGEND)
    note = f"unbiased Pass@k from K samples per problem; shading: {intervals(experiment)}"
    add_footer(figure, [*what_ran(experiment, results), note])
    return figure, frame


def _draw_panel(ax: Axes, panel: pd.DataFrame, styles: dict[str, Look]) -> None:
    for method, curve in panel.groupby("method", sort=False):
        style = styles[str(method)]
        ax.plot(curve["k"], curve["value"], **style)
        ax.fill_between(curve["k"], curve["low"], curve["high"], color=style["color"], alpha=0.18, linewidth=0)
    ax.set_xscale("log", base=2)
    ax.set_xticks(ks := sorted(panel["k"].unique()), ks)
    ax.minorticks_off()
    ax.yaxis.set_major_locator(MaxNLocator(5, steps=ROUND))
