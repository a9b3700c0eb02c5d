"""The theory check: densities of predicted and realized entropy changes, and measured steps of GRPO."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from entropy_dynamics.analysis.experiments import Experiment, TheorySpec
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.analysis.theory import (
    THEOREMS,
    Density,
    densities,
    slope_and_correlation,
    theory_frame,
    training_frame,
)
from entropy_dynamics.reporting.style import BLACK, CYCLE, WIDTH, Look, add_footer

SYMBOLS = {1: r"\epsilon", 2: r"\alpha"}  # the step size in each theorem
IDENTITY: Look = {"color": "#D55E00", "linewidth": 0.8, "linestyle": (0, (4, 2))}


def draw_theory(experiment: Experiment[TheorySpec], results: Results) -> tuple[Figure, pd.DataFrame]:
    """A row of panels per theorem, a panel per step size, and one of GRPO's steps; the numbers in them."""
    tokens, training = densities(results), training_frame(experiment, results)
    sizes = len(tokens) // len(THEOREMS)
    figure = Figure(figsize=(WIDTH, 5.0), layout="constrained")
    grid = figure.add_gridspec(len(THEOREMS) + 1, sizes, height_ratios=[*[1] * len(THEOREMS), 1.15])
    for place, density in enumerate(tokens):
        row, column = divmod(place, sizes)
        ax, step = figure.add_subplot(grid[row, column]), f"${SYMBOLS[density.theorem]}$"
        _draw_density(ax, density)
        ax.set_title(f"{step} = {density.step_size:g}", fontsize=6.5, pad=3)
        ax.tick_params(labelleft=column == 0)
        if column == 0:
            ax.set_ylabel(f"Theorem {density.theorem}\nrealized (nats / {step})")
        if column == sizes // 2:
            ax.set_xlabel(f"predicted (nats / {step})", labelpad=1)
    _draw_training(figure.add_subplot(grid[-1, :]), training)
    (model,) = experiment.models
    notes = [
        f"{results.scale} scale: {results.model(model).ran_with_size}",
        f"theorems: {int(tokens[0].counts.sum()):,} sampled tokens of the untrained policy, darker where more "
        "(logarithmic); dashed: predicted = realized; s: slope through the origin, r: correlation",
        "Corollary 4 is about a plain gradient step on the logits; an optimizer step on the weights has another size, "
        "so only its sign and correlation are comparable",
    ]
    add_footer(figure, notes)
    return figure, theory_frame(experiment, results, tokens, training)


def _draw_density(ax: Axes, density: Density) -> None:
    counts, edges = density.counts, density.edges
    norm = LogNorm(0.3, max(counts.max(), 1))  # from below 1, so that a single token is not white
    ax.pcolormesh(edges, edges, np.ma.masked_equal(counts.T, 0), cmap="Greys", norm=norm, rasterized=True)
    ends = edges[[0, -1]]
    ax.plot(ends, ends, **IDENTITY)
    ax.set(xlim=ends, ylim=ends)
    ax.set_box_aspect(1)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(3))
    text = f"s {_digits(density.slope)}\nr {_digits(density.correlation)}"
    ax.text(0.05, 0.95, text, transform=ax.transAxes, va="top", fontsize=6)


def _digits(number: float) -> str:
    """Four decimals; 0.99997 is '> 0.9999', not 1.0000."""
    return "> 0.9999" if 0.99995 <= number < 1 else f"{number:.4f}"


def _draw_training(ax: Axes, steps: pd.DataFrame) -> None:
    """Corollary 4: a mark per step of GRPO whose entropy change was measured."""
    looks = [BLACK | {"marker": "x"}, *CYCLE]
    for i, (seed, pairs) in enumerate(steps.groupby("seed")):
        correlation = pairs["correlation"].iloc[0]
        numbers = f"$r$ {correlation:.2f}" if np.isfinite(correlation) else f"{len(pairs)} steps, too few"
        look = looks[i % len(looks)]
        mark = {"marker": look["marker"], "color": look["color"], "linestyle": "", "markersize": 3}
        ax.plot(1e6 * pairs["predicted"], 1e3 * pairs["realised"], label=f"seed {seed}: {numbers}", **mark)
    for line in (ax.axhline, ax.axvline):
        line(0, color="0.6", linewidth=0.6, zorder=1)
    ax.set_title("Corollary 4, steps of GRPO", fontsize=6.5, pad=3)
    slope, correlation = slope_and_correlation(steps["predicted"].to_numpy(), steps["realised"].to_numpy())
    if np.isfinite(slope):
        ax.axline((0, 0), slope=1e-3 * slope, **IDENTITY)
        same = (np.sign(steps["predicted"]) == np.sign(steps["realised"])).sum()
        text = f"all: $r$ {correlation:.2f}, slope {slope:,.0f},\nsame sign at {same} of {len(steps)} steps"
        ax.text(0.02, 0.96, text, transform=ax.transAxes, va="top", fontsize=6)
    ax.set_xlabel("predicted ($10^{-6}$ nats)")
    ax.set_ylabel("measured ($10^{-3}$ nats)")
    ax.legend(fontsize=6, handlelength=1, loc="lower right", borderaxespad=0.3, labelspacing=0.2)
