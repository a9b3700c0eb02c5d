"""Draws the theory check: densities of predicted and realized entropy changes of single tokens."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.specs import TheorySpec
from entropy_dynamics.analysis.theory import THEOREMS, Density, densities, theory_frame
from entropy_dynamics.reporting.style import IDENTITY, WIDTH, add_footer

SYMBOLS = {1: r"\epsilon", 2: r"\alpha"}  # the step size in each theorem


def draw_theory(experiment: Experiment[TheorySpec], results: Results) -> tuple[Figure, pd.DataFrame]:
    """A row of panels per theorem, a panel per step size; and the numbers in them."""
    tokens = densities(results)
    sizes = len(tokens) // len(THEOREMS)
    figure = Figure(figsize=(WIDTH, 3.3), layout="constrained")
    axes = figure.subplots(len(THEOREMS), sizes, squeeze=False)
    for place, density in enumerate(tokens):
        row, column = divmod(place, sizes)
        ax, step = axes[row, column], f"${SYMBOLS[density.theorem]}$"
        _draw_density(ax, density)
        ax.set_title(f"{step} = {density.step_size:g}", fontsize=6.5, pad=3)
        ax.tick_params(labelleft=column == 0)
        if column == 0:
            ax.set_ylabel(f"Theorem {density.theorem}\nrealized (nats / {step})")
        if column == sizes // 2:
            ax.set_xlabel(f"predicted (nats / {step})", labelpad=1)
    (model,) = experiment.untrained
    notes = [
        f"{results.scale} scale: {results.model(model).ran_with_size}",
        f"{int(tokens[0].counts.sum()):,} sampled tokens of the untrained policy, darker where more (logarithmic); "
        "dashed: predicted = realized; s: slope through the origin, r: correlation",
    ]
    add_footer(figure, notes)
    return figure, theory_frame(experiment, results, tokens)


def _draw_density(ax: Axes, density: Density) -> None:
    counts, edges = density.counts, density.edges
    norm = LogNorm(0.3, max(counts.max(), 1))  # starts below 1, so that a single token is not white
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
    """The number with four decimals; 0.99997 becomes '> 0.9999' rather than 1.0000."""
    return "> 0.9999" if 0.99995 <= number < 1 else f"{number:.4f}"
