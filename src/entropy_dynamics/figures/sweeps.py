"""Draws sweeps over the strength of a method, at matched entropy, and over evaluation temperatures."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.statistics import LEVEL
from entropy_dynamics.analysis.sweeps import frontier_frame, matched_frame, strength_frame
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import METRICS, FrontierSpec, MatchedSpec, StrengthSpec
from entropy_dynamics.figures import style

LONG_LABEL = 18  # characters; three longer labels do not fit side by side
PANELS = {"entropy": "entropy (nats)", "avg": "Avg@K (%)", "pass": "Pass@K (%)"}


def draw_strength(experiment: Experiment[StrengthSpec], results: Results) -> style.Drawn:
    """A row of panels per sweep over the share of dropped tokens, a line per model; horizontal lines: the baseline."""
    frame = strength_frame(experiment, results)
    swept = [rows for _, rows in frame[frame["value"].notna()].groupby(["method", "parameter"], sort=False)]
    references = frame[frame["run"] == experiment.spec.baseline]
    figure = Figure(figsize=(style.WIDTH, 0.75 + 1.2 * len(swept)), layout="constrained")
    axes = figure.subplots(len(swept), len(PANELS), squeeze=False, sharex=True)
    several = len(experiment.models) > 1
    styles = {model: style.cycle(style.OWN + place) for place, model in enumerate(experiment.models)}
    of_method = style.looks([rows["method"].iloc[0] for rows in swept], experiment.spec.baseline)
    limits = {column: _around(frame[column]) for column in PANELS}
    for row, sweep in zip(axes, swept, strict=True):
        for ax, (column, title) in zip(row, PANELS.items(), strict=True):
            for model, of_model in styles.items():
                look = of_model if several else of_method[sweep["method"].iloc[0]] | {"linestyle": "-"}
                dropping = sweep[(sweep["model"] == model) & (sweep["clip_fraction"] > 0)].sort_values("clip_fraction")
                if len(dropping):
                    ends = style.error_bars(dropping, column, f"{column}_")
                    ax.errorbar(dropping["clip_fraction"], dropping[column], ends, elinewidth=0.6, **look)
                for value in references.loc[references["model"] == model, column]:
                    ax.axhline(value, color=look["color"] if several else "0.4", linewidth=0.7, zorder=0.5)
                for at in dropping.to_dict("records") if column == "entropy" else ():
                    ax.annotate(f"{at['value']:g}", (at["clip_fraction"], at[column]), (3, -7), **style.NOTE)
            ax.set_ylim(limits[column])  # the same axis for all sweeps, so that methods can be compared
            ax.locator_params("y", nbins=5, steps=style.ROUND)
            ax.set_xscale("log")
            ax.xaxis.set_major_locator(LogLocator(numticks=9))  # every decade
            ax.xaxis.set_major_formatter("{x:g}")
            if ax in axes[0]:
                ax.set_title(title)
        row[0].set_ylabel(style.pretty(textwrap.fill(results.method_label(sweep["method"].iloc[0]), 16)))
    axes[-1][1].set_xlabel("dropped tokens (%)")
    if several:
        models = {results.model(model).ran: look for model, look in styles.items()}
        style.add_legend(figure, models, 1, **style.LINE_LEGEND)
    baseline = style.pretty(results.method_label(experiment.spec.baseline))
    whiskers = "" if experiment.has_one_seed else f"; whiskers: {LEVEL:.0%} intervals, cut off at the frame"
    parameters = dict.fromkeys(style.pretty(rows["parameter"].iloc[0]) for rows in swept)
    sets = f"scores on {', '.join(map(results.dataset_label, experiment.evaluations))}{whiskers}"
    lines = f"numbers: the dose, {', '.join(parameters)}; horizontal line: {baseline}"
    return figure, frame, [*style.what_ran(experiment, results), sets, lines]


def _around(values: pd.Series, share: float = 0.5) -> tuple[float, float]:
    """Axis limits with a margin of half the range, as the wide intervals of few seeds would flatten the values."""
    margin = share * (values.max() - values.min()) or share
    return values.min() - margin, values.max() + margin


def draw_matched(experiment: Experiment[MatchedSpec], results: Results) -> style.Drawn:
    """Top: a line per method through its strengths, with a band along the Pareto front. Bottom: all at one entropy."""
    frame, spec = matched_frame(experiment, results), experiment.spec
    of_run = dict(zip(frame["run"], frame["method"], strict=True))
    methods = list(dict.fromkeys(of_run[run.method] for run in experiment.runs))
    reference = frame[frame["run"] == spec.reference].iloc[0]
    differences = frame.drop_duplicates("method").set_index("method").reindex(methods)
    differences = differences.dropna(how="all", subset=[f"{metric}_matched" for metric in METRICS])
    collapsed = (frame[list(METRICS)] < frame[list(METRICS)].max() / 2).any(axis=1)
    figure = Figure(figsize=(style.WIDTH, 3.1 + 0.11 * len(differences)), layout="constrained")
    axes = figure.subplots(2, len(METRICS), height_ratios=[2, 0.35 + 0.11 * len(differences)])
    for metric, (above, below) in zip(METRICS, axes.T, strict=True):
        front = frame[frame[f"{metric}_front"]].sort_values("entropy")
        above.plot(front["entropy"], front[metric], color="0.88", linewidth=4, solid_capstyle="round", zorder=0.6)
        above.axvline(reference["entropy"], color="0.5", linewidth=0.7, linestyle=":", zorder=0.7)
        for method, look in style.looks(methods, spec.baseline).items():
            rows = frame[frame["method"] == method]
            above.plot(rows["entropy"], rows[metric], **look | {"marker": "", "linewidth": 0.5, "alpha": 0.4})
            points = {"linestyle": "", "zorder": 4 if method == spec.baseline else 2}  # one point among many lines
            above.plot(rows["entropy"], rows[metric], label=style.pretty(results.method_label(method)), **look | points)
        above.set(title=f"{METRICS[metric]}@K (%)", xlabel="entropy at the end (nats)", xscale="log")
        above.set_xticks([0.1, 0.2, 0.3, 0.5, 1], ["0.1", "0.2", "0.3", "0.5", "1"])
        above.xaxis.set_minor_formatter("")
        above.set_ylim(*_around(frame.loc[~collapsed, metric], 0.06))
        above.set_xlim(*np.exp(_around(np.log(frame.loc[~collapsed, "entropy"]), 0.06)))
        _draw_differences(below, differences, metric)
    label = style.pretty(results.method_label(spec.reference))
    for ax in axes[1]:
        ax.set_xlabel(f"points over {label}")
    names = [style.pretty(results.method_label(method)) for method in differences.index]
    axes[1, 0].set_yticks(range(len(names)), names, fontsize=5)
    axes[1, 1].set_yticks([])
    entries = axes[0, 0].get_legend_handles_labels()
    figure.legend(*entries, loc="outside upper center", ncols=4, fontsize=5, **style.LINE_LEGEND)
    shown = (spec.baseline, of_run[spec.reference])
    without = [style.pretty(results.method_label(m)) for m in methods if m not in (*shown, *differences.index)]
    sets = ", ".join(map(results.dataset_label, experiment.evaluations))
    count = f"{collapsed.sum()} of {len(frame)} strengths"
    outside = f"; outside: {count}, with less than half of the highest score" if any(collapsed) else ""
    notes = [
        "; ".join([*style.what_ran(experiment, results), f"scores on {sets}", f"gray: Pareto front{outside}"]),
        f"dotted: {label}'s entropy, {reference['entropy']:.3f} nats, at which the methods are compared below: linear "
        f"between two strengths, {LEVEL:.0%} intervals, cut off at the frame",
    ]
    notes += [f"without a strength that reaches it: {', '.join(without)}"] if without else []
    return figure, frame, notes


def _draw_differences(ax: Axes, rows: pd.DataFrame, metric: str) -> None:
    value, ends = rows[f"{metric}_matched"], style.error_bars(rows, f"{metric}_matched", f"{metric}_matched_")
    ax.errorbar(value, range(len(rows)), xerr=ends, fmt="o", color="black", markersize=2, elinewidth=0.6)
    ax.axvline(0, color="0.5", linewidth=0.7, linestyle=":")
    ax.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    ax.set_xlim(*_around(pd.Series([0, *value])))


def draw_frontier(experiment: Experiment[FrontierSpec], results: Results) -> style.Drawn:
    """A row of panels per model: a line per method through its sampling temperatures, left its greedy accuracy."""
    frame = frontier_frame(experiment, results)
    methods = list(frame["method"].unique())
    styles = style.looks(methods, experiment.spec.baseline)
    labels = [style.pretty(results.label(experiment.spec, method)) for method in methods]
    columns = 3 if max(map(len, labels)) <= LONG_LABEL else 2
    lines = -(-len(labels) // columns)
    figure = Figure(figsize=(style.WIDTH, 0.7 + 0.1 * lines + 1.7 * len(experiment.models)), layout="constrained")
    rows = figure.subfigures(len(experiment.models), 1, squeeze=False)[:, 0]
    for row, model in zip(rows, experiment.models, strict=True):
        row.suptitle(style.pretty(results.model(model).ran), fontsize=7)
        of_model = frame[frame["model"] == model]
        left, right = row.subplots(1, 2, width_ratios=[1, 3], sharey=True)
        _draw_greedy(left, of_model[of_model["temperature"] == 0], methods, styles)
        _draw_sampled(right, of_model[of_model["temperature"] > 0], styles, experiment.spec.baseline)
        left.set_ylabel("Avg@K (%)")
    handles, _ = rows[0].axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=columns, **style.LINE_LEGEND)
    baseline = style.pretty(results.label(experiment.spec, experiment.spec.baseline))
    notes = [
        f"numbers: temperatures of {baseline}, in the same order on every line; bars: {style.intervals(experiment)}",
        "cut off at the frame, which leaves out points with less than half of the highest Pass@K",
        f"means over {', '.join(map(results.dataset_label, experiment.evaluations))}",
    ]
    return figure, frame, [*style.what_ran(experiment, results), *notes]


def _draw_greedy(ax: Axes, rows: pd.DataFrame, methods: list[str], styles: dict[str, style.Look]) -> None:
    ax.set_title("greedy", fontsize=6.5, pad=3)
    ax.set_xticks([])
    ax.set_xlim(-1, len(methods))
    for place, method in enumerate(methods):
        row, look = rows[rows["method"] == method], styles[method] | {"linestyle": ""}
        ax.errorbar([place] * len(row), row["avg"], style.error_bars(row, "avg", "avg_"), elinewidth=0.6, **look)


def _draw_sampled(ax: Axes, rows: pd.DataFrame, styles: dict[str, style.Look], baseline: str) -> None:
    for method, of_method in rows.groupby("method", sort=False):
        line, look = of_method.sort_values("temperature"), styles[str(method)] | {"linewidth": 0.7}
        ax.plot(line["pass"], line["avg"], label=method, **look)
        for at in line.to_dict("records") if method == baseline else ():
            ax.annotate(f"{at['temperature']:g}", (at["pass"], at["avg"]), (2, 3), **style.NOTE)
        for axis, score in (("xerr", "pass"), ("yerr", "avg")):
            ends = {axis: style.error_bars(line, score, f"{score}_")}
            ax.errorbar(line["pass"], line["avg"], **ends, fmt="none", ecolor=look["color"], elinewidth=0.4)
    near = rows[rows["pass"] >= rows["pass"].max() / 2]  # a method that collapsed would press the others together
    for limit, score in ((ax.set_xlim, "pass"), (ax.set_ylim, "avg")):
        low, high = near[score].min(), near[score].max()
        limit(max(0, low - 0.15 * (high - low) - 1), high + 0.15 * (high - low) + 1)
    ax.set_title("sampled", fontsize=6.5, pad=3)
    ax.set_xlabel("Pass@K (%)")
