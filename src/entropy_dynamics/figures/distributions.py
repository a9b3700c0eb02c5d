"""Draws Pass@k over k, and problems by their correct samples."""

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from entropy_dynamics.analysis.distributions import filter_frame, pass_frame, solved_frame
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.config import BASE
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import ComparedSpec, DataFilter, DistributionSpec
from entropy_dynamics.figures import style


def draw_pass_curves(experiment: Experiment[ComparedSpec], results: Results) -> style.Drawn:
    """A row of panels per model, one line per method with a band for its interval; and the numbers in the figure."""
    frame = pass_frame(experiment, results)
    methods = list(frame["method"].unique())
    trained = [method for method in methods if method != BASE]
    styles = {BASE: style.GRAY} | style.looks(trained, experiment.spec.baseline)
    figure = Figure(figsize=(style.WIDTH, 0.8 + 1.35 * len(experiment.models)), layout="constrained")
    rows = figure.subfigures(len(experiment.models), 1, squeeze=False)[:, 0]
    for row, model in zip(rows, experiment.models, strict=True):
        row.suptitle(results.model(model).name, fontsize=7)
        axes = row.subplots(1, len(experiment.evaluations), squeeze=False)[0]
        axes[0].set_ylabel("Pass@k (%)")
        for ax, dataset in zip(axes, experiment.evaluations, strict=True):
            _draw_panel(ax, frame[(frame["model"] == model) & (frame["dataset"] == dataset)], styles)
            ax.set_title(results.dataset_label(dataset), fontsize=6.5, pad=3)
            if row is rows[-1]:
                ax.set_xlabel("k", labelpad=1)
    entries = {style.pretty(results.method_label(method)): styles[method] for method in methods}
    style.add_legend(figure, entries, min(len(methods), 4), **style.LINE_LEGEND)
    note = f"shading: {style.intervals(experiment)}"
    return figure, frame, [*style.what_ran(experiment, results), note]


def _draw_panel(ax: Axes, panel: pd.DataFrame, styles: dict[str, style.Look]) -> None:
    for method, curve in panel.groupby("method", sort=False):
        look = styles[str(method)]
        ax.plot(curve["k"], curve["value"], **look)
        ax.fill_between(curve["k"], curve["low"], curve["high"], color=look["color"], alpha=style.BAND, linewidth=0)
    ax.set_xscale("log", base=2)
    ax.set_xticks(ks := sorted(panel["k"].unique()), ks)
    ax.minorticks_off()
    ax.locator_params("y", nbins=5, steps=style.ROUND)


def draw_distribution(experiment: Experiment[DistributionSpec], results: Results) -> style.Drawn:
    """Bars per method: the share of problems with 0, 1, ... K correct samples."""
    frame = solved_frame(experiment, results)
    (dataset,), methods = experiment.evaluations, list(frame["method"].unique())
    k, problems = (int(frame[name].max()) for name in ("samples", "problems"))
    figure, ax = _histogram(2.3, k, f"problems of {results.dataset_label(dataset)} (%)")
    for place, method in enumerate(methods):
        bars, width = frame[frame["method"] == method], 0.8 / len(methods)
        x, height = bars["correct"] + width * (place - (len(methods) - 1) / 2), bars["share"]
        look = style.BARS[place % len(style.BARS)]
        ax.bar(x, height, width, label=style.pretty(results.method_label(method)), **look)
        ax.errorbar(x, height, style.error_bars(bars, "share"), fmt="none", ecolor="black", elinewidth=0.6, capsize=1.2)
    ax.set_ylim(bottom=0)
    figure.legend(loc="outside upper center", ncols=len(methods))
    note = f"{problems} problems; whiskers: {style.intervals(experiment)}"
    return figure, frame, [*style.what_ran(experiment, results), note]


def _histogram(height: float, samples: int, counted: str) -> tuple[Figure, Axes]:
    """Empty axes over the number of correct samples."""
    figure, [[ax]] = style.sheet(height)
    ax.set(xticks=range(0, samples + 1, max(1, samples // 8)), xlabel=f"correct samples of {samples}", ylabel=counted)
    ax.grid(axis="x", visible=False)
    return figure, ax


def draw_data_filter(experiment: Experiment[DataFilter], results: Results) -> style.Drawn:
    """The training problems by the base model's pass rate; dropped ones are hatched."""
    frame = filter_frame(experiment, results)
    correct, kept, dropped, samples = frame["correct"], frame["kept"], frame["dropped"], int(frame["samples"].max())
    figure, ax = _histogram(2.1, samples, "training problems")
    ax.bar(correct, kept, 0.8, label=f"kept ({kept.sum()})", **style.BARS[0])
    some = dropped > 0  # an empty bar would still draw its edge
    ax.bar(correct[some], dropped[some], 0.8, kept[some], label=f"dropped ({dropped.sum()})", **style.BARS[1])
    figure.legend(loc="outside upper center", ncols=2)
    seed = int(frame["seed"][0])
    rates, bounds = results.pass_rates(seed)["rate"], results.config.pass_rates
    reasons = {"a prompt that is too long": rates.isna()}
    reasons |= {} if bounds.low is None else {f"rate ≤ {bounds.low:g}": rates <= bounds.low}
    reasons |= {} if bounds.high is None else {f"rate ≥ {bounds.high:g}": rates >= bounds.high}
    dropped_for = "; ".join(f"dropped for {reason}: {rows.sum()}" for reason, rows in reasons.items() if rows.any())
    (model,) = experiment.untrained
    ran = f"{results.scale}: {results.model(model).name}, untrained, seed {seed}"
    return figure, frame, [ran, dropped_for]
