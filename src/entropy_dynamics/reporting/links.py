"""The chain from Corollary 4 to the measured entropy change: a panel per link, a mark per step and seed."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from entropy_dynamics.analysis.corollary_chain import Link, links, links_frame
from entropy_dynamics.analysis.curves import column
from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.specs import LinksSpec
from entropy_dynamics.analysis.statistics import LEVEL
from entropy_dynamics.reporting.style import IDENTITY, ROUND, WIDTH, add_footer, cycle

SAME_UNITS = ("entropy_change_first_order", "entropy_change")
PER_ROW = 2


def draw_links(experiment: Experiment[LinksSpec], results: Results) -> tuple[Figure, pd.DataFrame]:
    """Panels in the order of the chain, the last one for its two ends; and the numbers in them."""
    drawn = links(experiment, results)
    rows = -(-len(drawn) // PER_ROW)
    figure = Figure(figsize=(WIDTH, 1.55 * rows + 0.3), layout="constrained")
    axes = figure.subplots(rows, PER_ROW).flatten()
    for ax, link, letter in zip(axes, drawn, "abcdefgh", strict=False):
        _draw_link(ax, link, letter)
    for ax in axes[len(drawn) :]:
        ax.axis("off")
        ax.legend(*axes[0].get_legend_handles_labels(), loc="center", title="steps of GRPO", handlelength=1)
    (model,) = experiment.models
    seeds = "" if experiment.seeds == "one seed" else f"; brackets: {LEVEL:.0%} intervals over {experiment.seeds}"
    notes = [
        f"{results.scale} scale: {results.model(model).ran_with_size}",
        f"a mark per step and seed, without the outermost 1% at each end of an axis; r: correlation over all steps of "
        f"a run, median over runs{seeds}; dashed: equal changes",
    ]
    add_footer(figure, notes)
    return figure, links_frame(experiment, results, drawn)


def _draw_link(ax: Axes, link: Link, letter: str) -> None:
    unit = {name: _power_of_ten(link.steps[name]) for name in ("x", "y")}
    for place, (seed, steps) in enumerate(link.steps.groupby("seed")):
        look = cycle(place) | {"linestyle": "", "markersize": 1.8, "markeredgewidth": 0, "alpha": 0.7}
        ax.plot(steps["x"] / 10 ** unit["x"], steps["y"] / 10 ** unit["y"], label=f"seed {seed}", **look)
    for line in (ax.axhline, ax.axvline):
        line(0, color="0.6", linewidth=0.6, zorder=1)
    if (link.x, link.y) == SAME_UNITS:
        ax.axline((0, 0), slope=10 ** (unit["x"] - unit["y"]), **IDENTITY)
    r = link.correlation
    ends = "" if np.isnan(r.low) else f" [{r.low:.2f}, {r.high:.2f}]"
    names = f"({letter}) {column(link.x).quantity} → {column(link.y).quantity}\n"
    ax.set_title(names + (f"$r$ {r.value:.2f}{ends}" if np.isfinite(r.value) else "too few steps"), fontsize=6)
    for axis, name in ((ax.set_xlim, "x"), (ax.set_ylim, "y")):
        if len(link.steps):
            axis(_frame(link.steps[name] / 10 ** unit[name]))
    ax.set_xlabel(f"{column(link.x).quantity} ($10^{{{unit['x']}}}$ nats)", fontsize=6)
    ax.set_ylabel(f"{column(link.y).quantity}\n($10^{{{unit['y']}}}$ nats)", fontsize=6)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(4, steps=ROUND))


def _frame(values: pd.Series) -> tuple[float, float]:
    """Axis limits around most of the values: a few far away would press the others together."""
    low, high = values.quantile([0.01, 0.99])
    margin = 0.15 * (high - low) or 1.0
    return min(low, 0) - margin, max(high, 0) + margin


def _power_of_ten(values: pd.Series) -> int:
    """The exponent of the largest value that is drawn."""
    largest = values.abs().quantile(0.99)
    return int(np.floor(np.log10(largest))) if largest > 0 else 0
