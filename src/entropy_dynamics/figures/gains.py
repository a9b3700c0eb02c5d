"""Draws gains over the baseline: per data set, next to the paper's, and by difficulty of the problems."""

from itertools import product

from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.scores import THIRDS, difficulty_frame, gains_frame
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import HEADINGS, METRICS, DifficultySpec, MetricsSpec
from entropy_dynamics.figures.style import ROUND, Drawn, error_bars, intervals, looks, pretty, sheet, what_ran


def draw_gains(experiment: Experiment[MetricsSpec], results: Results) -> Drawn:
    """A row of panels per model, a panel per metric; filled marks are ours, hollow ones the paper's."""
    frame, spec = gains_frame(experiment, results), experiment.spec
    methods = list(frame["method"].unique())
    styles = looks([spec.baseline, *methods], spec.baseline)
    rows, columns = len(experiment.models), len(spec.metrics)
    figure, axes = sheet(0.9 + 1.3 * rows, rows, columns, sharex="col", sharey=True)
    for (model, metric), ax in zip(product(experiment.models, spec.metrics), axes.flat, strict=True):
        ax.axvline(0, color="0.5", linewidth=0.6, zorder=0.5)
        for place, method in enumerate(methods):
            ours = frame[(frame["model"] == model) & (frame["metric"] == metric) & (frame["method"] == method)]
            y = [row + 0.07 + 0.34 * (place - (len(methods) - 1) / 2) for row in range(len(ours))]
            look = styles[method] | {"linestyle": ""}
            label = pretty(results.method_label(method))
            ends = error_bars(ours, "gain")
            ax.errorbar(ours["gain"], y, xerr=ends, elinewidth=0.8, capsize=1.5, label=label, **look)
            above = [height - 0.14 for height in y]  # otherwise ours would hide it
            ax.plot(ours["paper"], above, label=f"{label}, the paper", **look | {"markerfacecolor": "white"})
        ax.set_yticks(range(len(spec.evaluations)), [results.dataset_label(name) for name in spec.evaluations])
        ax.set_ylim(len(spec.evaluations) - 0.5, -0.5)
        ax.set_title(f"{results.model(model).name}: {HEADINGS[metric]}@K")
        ax.grid(axis="y", visible=False)
    for ax in axes[-1]:
        ax.locator_params("x", nbins=5, steps=ROUND)
        ax.set_xlabel(f"gain over {pretty(results.method_label(spec.baseline))} (points)")
    entries = sorted(zip(*axes[0, 0].get_legend_handles_labels(), strict=True), key=lambda entry: entry[1])
    figure.legend(*zip(*entries, strict=True), loc="outside upper center", ncols=len(methods))  # a column per method
    whiskers = [] if experiment.has_one_seed else [f"whiskers: {intervals(experiment)}"]
    return figure, frame, [*what_ran(experiment, results, differences=True), *whiskers]


def draw_difficulty(experiment: Experiment[DifficultySpec], results: Results) -> Drawn:
    """A panel per metric, a point with whiskers per method and third of the problems."""
    frame = difficulty_frame(experiment, results)
    methods = list(frame["method"].unique())
    styles = looks([experiment.spec.baseline, *methods], experiment.spec.baseline)
    figure, [axes] = sheet(2.2, 1, len(METRICS), sharey=True)
    for ax, (metric, heading) in zip(axes, METRICS.items(), strict=True):
        ax.axhline(0, color="0.5", linewidth=0.6, zorder=0.5)
        for place, method in enumerate(methods):
            gains = frame[(frame["metric"] == metric) & (frame["method"] == method)]
            x = [third + 0.2 * (place - (len(methods) - 1) / 2) for third in range(len(THIRDS))]
            look = styles[method] | {"linestyle": "", "label": pretty(results.method_label(method))}
            ax.errorbar(x, gains["gain"], error_bars(gains, "gain"), elinewidth=0.8, capsize=1.5, **look)
        ax.set_xticks(range(len(THIRDS)), THIRDS)
        ax.set_xlim(-0.5, len(THIRDS) - 0.5)
        ax.set_xlabel("by untrained pass rate")
        ax.set_title(f"{heading}@K")
        ax.grid(axis="x", visible=False)
    axes[0].set_ylabel(f"gain over {pretty(results.method_label(experiment.spec.baseline))} (points)")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(methods))
    whiskers = [] if experiment.has_one_seed else [f"whiskers: {intervals(experiment)}"]
    return figure, frame, [*what_ran(experiment, results, differences=True), *whiskers]
