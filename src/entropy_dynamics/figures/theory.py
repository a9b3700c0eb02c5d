"""Draws predicted against realized entropy changes: densities over single tokens, and the chain from Corollary 4."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from entropy_dynamics.analysis.curves import column
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.statistics import LEVEL
from entropy_dynamics.analysis.theory import THEOREMS, Link, links, links_frame, scaled_steps, theory_frame
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import LinksSpec, TheorySpec
from entropy_dynamics.figures.style import COLORS, IDENTITY, ROUND, WIDTH, Drawn, sizes, what_ran

SYMBOLS = {1: r"\epsilon", 2: r"\alpha"}  # the step size in each theorem
SAME_UNITS = ("entropy_change_first_order", "entropy_change")
PER_ROW = 2
BINS = 60  # per axis of a density


def draw_theory(experiment: Experiment[TheorySpec], results: Results) -> Drawn:
    """A row of panels per theorem, a panel per step size; and the numbers in them."""
    steps = scaled_steps(results)
    frame = theory_frame(experiment, results, steps)
    number = len(frame) // len(THEOREMS)
    figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
    axes = figure.subplots(len(THEOREMS), number, squeeze=False)
    for row, (theorem, of_theorem) in zip(axes, steps.groupby("theorem"), strict=True):
        changes, step = of_theorem[["predicted", "realised"]].to_numpy(), f"${SYMBOLS[theorem]}$"
        room = 0.04 * np.ptp(changes) or 1.0
        ends = changes.min() - room, changes.max() + room
        for ax, (size, tokens) in zip(row, of_theorem.groupby("step_size"), strict=True):
            norm = LogNorm(0.3)  # starts below 1, so that a single token is not white
            look = {"cmap": "Greys", "cmin": 1, "norm": norm, "rasterized": True}
            ax.hist2d(tokens["predicted"], tokens["realised"], bins=BINS, range=[ends, ends], **look)
            ax.plot(ends, ends, **IDENTITY, zorder=0.5)  # behind the data
            ax.set_box_aspect(1)
            for axis in (ax.xaxis, ax.yaxis):
                axis.set_major_locator(MaxNLocator(3))
            ax.set_title(f"{step} = {size:g}", fontsize=6.5, pad=3)
            ax.tick_params(labelleft=ax is row[0])
        row[0].set_ylabel(f"Theorem {theorem}\nrealized (nats / {step})")
        row[number // 2].set_xlabel(f"predicted (nats / {step})", labelpad=1)
    for ax, fit in zip(axes.flat, frame.itertuples(), strict=True):
        text = f"s {_digits(fit.slope)}\nr {_digits(fit.correlation)}"
        ax.text(0.05, 0.95, text, transform=ax.transAxes, va="top", fontsize=6)
    (model,) = experiment.untrained
    notes = [
        sizes(results.scale, [results.model(model)]),
        f"{frame['tokens'][0]:,} tokens before training, darker where more",
        "dashed: predicted = realized",
        "s: slope through 0, r: correlation",
    ]
    return figure, frame, notes


def _digits(number: float) -> str:
    """The number with four decimals; 0.99997 becomes '> 0.9999' rather than 1.0000."""
    return "> 0.9999" if 0.99995 <= number < 1 else f"{number:.4f}"


def draw_links(experiment: Experiment[LinksSpec], results: Results) -> Drawn:
    """Panels in the order of the chain, the last one for its two ends; and the numbers in them."""
    drawn = links(experiment, results)
    rows = -(-len(drawn) // PER_ROW)
    figure = Figure(figsize=(WIDTH, 1.45 * rows + 0.3), layout="constrained")
    letters = "abcdefgh"[: len(drawn)]
    mosaic = [list(letters[i : i + PER_ROW].ljust(PER_ROW, letters[-1])) for i in range(0, len(drawn), PER_ROW)]
    axes = figure.subplot_mosaic(mosaic)  # the last panel fills its row
    for link, letter in zip(drawn, letters, strict=True):
        _draw_link(axes[letter], link, letter)
    spread = "" if experiment.has_one_seed else f" [{LEVEL:.0%} interval]"
    dashed = ["dashed: equal changes"] if SAME_UNITS in [(link.x, link.y) for link in drawn] else []
    marks = ["steps without the outermost 1%", f"r: correlation{spread}"]
    return figure, links_frame(experiment, results, drawn), [*what_ran(experiment, results, True), *marks, *dashed]


def _draw_link(ax: Axes, link: Link, letter: str) -> None:
    unit = {name: _power_of_ten(link.steps[name]) for name in ("x", "y")}
    steps = link.steps[["x", "y"]] / [10 ** unit["x"], 10 ** unit["y"]]
    low, high = _frame(steps)
    inside = steps[((steps >= low) & (steps <= high)).all(axis=1)]
    ax.plot(inside["x"], inside["y"], "o", color=COLORS[0], markersize=1.8, markeredgewidth=0, alpha=0.5, clip_on=False)
    for line in (ax.axhline, ax.axvline):
        line(0, color="0.6", linewidth=0.6, zorder=1)
    if (link.x, link.y) == SAME_UNITS:
        ax.axline((0, 0), slope=10 ** (unit["x"] - unit["y"]), **IDENTITY)
    r = link.correlation
    ends = "" if np.isnan(r.low) else f" [{r.low:.2f}, {r.high:.2f}]"
    ax.set_title(f"({letter}) " + (f"r {r.value:.2f}{ends}" if np.isfinite(r.value) else "too few steps"))
    if len(steps):
        ax.set(xlim=(low["x"], high["x"]), ylim=(low["y"], high["y"]))
    ax.set_xlabel(f"{column(link.x).quantity} ($10^{{{unit['x']}}}$ nats)", fontsize=6)
    ax.set_ylabel(f"{column(link.y).quantity}\n($10^{{{unit['y']}}}$ nats)", fontsize=6)
    ax.locator_params(nbins=4, steps=ROUND)


def _frame(steps: pd.DataFrame) -> tuple[pd.Series, pd.Series]:
    """Axis limits around most of the steps: a few far away would press the others together."""
    low, high = steps.quantile(0.01), steps.quantile(0.99)
    margin = (0.15 * (high - low)).replace(0, 1.0)
    return low.clip(upper=0) - margin, high.clip(lower=0) + margin


def _power_of_ten(values: pd.Series) -> int:
    """The exponent of the largest value that is drawn."""
    largest = values.abs().quantile(0.99)
    return int(np.floor(np.log10(largest))) if largest > 0 else 0
