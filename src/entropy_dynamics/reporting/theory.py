"""The theory check: predicted against realised entropy change, token by token, and step by step (Corollary 4).

Changes on logits are shown per unit of the step, so that a first-order prediction gives one line for all step sizes.
"""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.reporting.style import BLACK, CYCLE, WIDTH, add_footer

BINS = 60  # to a side of a theorem's panel
FEWEST = 3  # pairs; below that a correlation says nothing
THEOREMS = {1: r"\epsilon", 2: r"\alpha"}  # and what its step size is called
IDENTITY = {"color": "#D55E00", "linewidth": 0.8, "linestyle": (0, (4, 2))}


def draw_theory(experiment: Experiment, source: Results) -> tuple[Figure, pd.DataFrame]:
    """A row of panels for each theorem, a panel for each step size, and one of GRPO's steps; the numbers in them."""
    steps = source.logit_steps()
    sizes = sorted(steps["step_size"].unique())
    figure = Figure(figsize=(WIDTH, 5.0), layout="constrained")
    grid = figure.add_gridspec(3, len(sizes), height_ratios=[1, 1, 1.15])
    frames = []
    for row, (theorem, step) in enumerate(THEOREMS.items()):
        rows = steps[steps["theorem"] == theorem]
        ends = _ends(np.concatenate([rows[name] / rows["step_size"] for name in ("predicted", "realised")]))
        for column, size in enumerate(sizes):
            ax = figure.add_subplot(grid[row, column])
            own = rows[rows["step_size"] == size]
            ax.set_title(f"${step}$ = {size:g}", fontsize=6.5, pad=3)
            frame = _draw_tokens(ax, own["predicted"].to_numpy(), own["realised"].to_numpy(), size, ends)
            ax.tick_params(labelleft=column == 0)
            if column == 0:
                ax.set_ylabel(f"Theorem {theorem}\nrealised (nats / ${step}$)")
            if column == len(sizes) // 2:
                ax.set_xlabel(f"predicted (nats / ${step}$)", labelpad=1)
            frames.append(frame.assign(panel=f"theorem {theorem}", step_size=size))
    frames.append(_draw_training(figure.add_subplot(grid[2, :]), experiment, source))
    (model,) = (source.model(name).ran_with_size for name in experiment.models)
    tokens = len(steps) // (len(THEOREMS) * len(sizes))
    notes = [
        f"{source.scale} scale: {model}",
        f"theorems: {tokens:,} sampled tokens of the untrained policy, darker where more (logarithmic); dashed: "
        "predicted = realised; s: slope through the origin, r: correlation",
        "Corollary 4 is about a plain gradient step on the logits; an optimizer's step on the weights has another "
        "size, so only its sign and correlation compare",
    ]
    add_footer(figure, notes)
    frame = pd.concat(frames, ignore_index=True)
    frame.insert(0, "model", experiment.models[0])
    frame.insert(1, "model_that_ran", model)
    order = ["panel", "step_size", "seed", "step", "predicted", "realised", "tokens", "slope", "correlation"]
    return figure, frame.reindex(columns=["model", "model_that_ran", *order])


def slope_and_correlation(predicted: np.ndarray, realised: np.ndarray) -> tuple[float, float]:
    """Least-squares slope of `realised` on `predicted` through the origin, and Pearson's r; NaN where undefined."""
    if len(predicted) < FEWEST or not np.ptp(predicted) or not np.ptp(realised):
        return np.nan, np.nan
    return float(predicted @ realised / (predicted @ predicted)), float(np.corrcoef(predicted, realised)[0, 1])


def _ends(values: np.ndarray) -> np.ndarray:
    low, high = float(np.min(values)), float(np.max(values))
    room = 0.04 * (high - low) or 1.0
    return np.array([low - room, high + room])


def _draw_tokens(ax: Axes, predicted: np.ndarray, realised: np.ndarray, size: float, ends: np.ndarray) -> pd.DataFrame:
    """How many tokens fall on each cell of the plane; the returned rows are the cells that have any."""
    edges = np.linspace(*ends, BINS + 1)
    counts, _, _ = np.histogram2d(predicted / size, realised / size, bins=[edges, edges])
    shown = np.ma.masked_equal(counts.T, 0)
    norm = LogNorm(0.3, max(counts.max(), 1))  # from below 1, so that a single token is not white
    ax.pcolormesh(edges, edges, shown, cmap="Greys", norm=norm, rasterized=True)
    ax.plot(ends, ends, **IDENTITY)
    ax.set(xlim=ends, ylim=ends)
    ax.set_box_aspect(1)
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(MaxNLocator(3))
    slope, correlation = slope_and_correlation(predicted, realised)
    place = {"transform": ax.transAxes, "va": "top", "fontsize": 6}
    ax.text(0.05, 0.95, f"s {_digits(slope)}\nr {_digits(correlation)}", **place)
    x, y = np.nonzero(counts)
    middle = (edges[:-1] + edges[1:]) / 2 * size
    cells = {"predicted": middle[x], "realised": middle[y], "tokens": counts[x, y].astype(int)}
    return pd.DataFrame(cells | {"slope": slope, "correlation": correlation})


def _digits(number: float) -> str:
    """Four decimals, but never a 1 that is none: 0.99997 is '> 0.9999'."""
    return "> 0.9999" if 0.99995 <= number < 1 else f"{number:.4f}"


def _draw_training(ax: Axes, experiment: Experiment, source: Results) -> pd.DataFrame:
    """Corollary 4: a mark for each step of GRPO whose entropy change was measured."""
    frames = []
    for run, look in zip(experiment.runs, [BLACK | {"marker": "x"}, *CYCLE] * len(experiment.runs), strict=False):
        metrics = source.metrics(run, ("predicted_entropy_change", "entropy_change")).dropna()
        predicted, realised = (metrics[name].to_numpy() for name in ("predicted_entropy_change", "entropy_change"))
        slope, correlation = slope_and_correlation(predicted, realised)
        numbers = f"$r$ {correlation:.2f}" if np.isfinite(correlation) else f"{len(metrics)} steps, too few"
        mark = {"marker": look["marker"], "color": look["color"], "linestyle": "", "markersize": 3}
        ax.plot(1e6 * predicted, 1e3 * realised, label=f"seed {run.seed}: {numbers}", **mark)
        frame = pd.DataFrame({"seed": run.seed, "step": metrics["step"], "predicted": predicted, "realised": realised})
        frames.append(frame.assign(slope=slope, correlation=correlation))
    frame = pd.concat(frames, ignore_index=True)
    slope, correlation = slope_and_correlation(frame["predicted"].to_numpy(), frame["realised"].to_numpy())
    for line in (ax.axhline, ax.axvline):
        line(0, color="0.6", linewidth=0.6, zorder=1)
    ax.set_title("Corollary 4, steps of GRPO", fontsize=6.5, pad=3)
    if np.isfinite(slope):
        ax.axline((0, 0), slope=1e-3 * slope, **IDENTITY)
        same = (np.sign(frame["predicted"]) == np.sign(frame["realised"])).sum()
        text = f"all: $r$ {correlation:.2f}, slope {slope:,.0f},\nsame sign at {same} of {len(frame)} steps"
        ax.text(0.02, 0.96, text, transform=ax.transAxes, va="top", fontsize=6)
    ax.set_xlabel("predicted ($10^{-6}$ nats)")
    ax.set_ylabel("measured ($10^{-3}$ nats)")
    ax.legend(fontsize=6, handlelength=1, loc="lower right", borderaxespad=0.3, labelspacing=0.2)
    return frame.assign(panel="corollary 4")
