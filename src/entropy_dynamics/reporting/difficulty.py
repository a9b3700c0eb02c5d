"""Gains over the baseline on hard, middle and easy problems, for Avg@K and Pass@K."""

import pandas as pd
from matplotlib.figure import Figure

from entropy_dynamics.analysis.difficulty import THIRDS, difficulty_frame
from entropy_dynamics.analysis.experiments import METRICS, DifficultySpec, Experiment
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.reporting.style import WIDTH, add_footer, intervals, point_look, pretty, what_ran


def draw_difficulty(experiment: Experiment[DifficultySpec], results: Results) -> tuple[Figure, pd.DataFrame]:
    """A panel per metric, a point with whiskers per method and third of the problems."""
    frame = difficulty_frame(experiment, results)
    methods = list(frame["method"].unique())
    figure = Figure(figsize=(WIDTH, 2.2), layout="constrained")
    axes = figure.subplots(1, len(METRICS), sharey=True)
    for ax, (metric, heading) in zip(axes, METRICS.items(), strict=True):
        ax.axhline(0, color="0.5", linewidth=0.6, zorder=0.5)
        for place, method in enumerate(methods):
            gains = frame[(frame["metric"] == metric) & (frame["method"] == method)]
            x = [third + 0.2 * (place - (len(methods) - 1) / 2) for third in range(len(THIRDS))]
            ends = [gains["gain"] - gains["low"], gains["high"] - gains["gain"]]
            label = pretty(results.method_label(method))
            ax.errorbar(x, gains["gain"], ends, elinewidth=0.8, capsize=1.5, label=label, **point_look(place))
        ax.set_xticks(range(len(THIRDS)), THIRDS)
        ax.set_xlim(-0.5, len(THIRDS) - 0.5)
        ax.set_title(f"{heading}@K")
        ax.grid(axis="x", visible=False)
    axes[0].set_ylabel(f"gain over {pretty(results.method_label(experiment.spec.baseline))} (points)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(methods))
    notes = [
        "thirds of each data set by the mean pass rate of the untrained models; gains are averaged with equal weight "
        "over data sets and models",
        f"whiskers: {intervals(experiment)}",
    ]
    add_footer(figure, [*what_ran(experiment, results), *notes])
    return figure, frame
