"""Draws sweeps over the strength of a method, at matched entropy, and over evaluation temperatures."""

import textwrap
from collections.abc import Collection

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.statistics import LEVEL
from entropy_dynamics.analysis.sweeps import frontier_frame, matched_frame, strength_frame
from entropy_dynamics.analysis.temperatures import on_front
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import METRICS, FrontierSpec, MatchedSpec, SweepsSpec
from entropy_dynamics.figures import style

LONG_LABEL = 18  # characters; three longer labels do not fit side by side
BARRED = 4
FAINT: style.Look = {"linewidth": 0.5, "markersize": 2.2, "alpha": 0.6}
FRONT: style.Look = {"color": "0.4", "linewidth": 3, "alpha": 0.3, "solid_capstyle": "round"}
PANELS = {"entropy": "entropy (nats)", "avg": "Avg@K (%)", "pass": "Pass@K (%)"}


def draw_strength(experiment: Experiment[SweepsSpec], results: Results) -> style.Drawn:
    """A row of panels per sweep over the share of dropped tokens, a line per model; horizontal lines: the baseline."""
    frame = strength_frame(experiment, results)
    swept = [rows for _, rows in frame[frame["value"].notna()].groupby(["method", "parameter"], sort=False)]
    references = frame[frame["run"] == experiment.spec.baseline]
    figure, axes = style.sheet(0.75 + 1.2 * len(swept), len(swept), len(PANELS), sharex=True)
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
                for i, at in enumerate(dropping.to_dict("records") if column == "entropy" else ()):
                    offset = (0, (4, -10)[i % 2])  # doses may be close together
                    ax.annotate(
                        f"{at['value']:g}", (at["clip_fraction"], at[column]), offset, ha="center", **style.NOTE
                    )
            ax.set_ylim(limits[column])  # the same axis for all sweeps, so that methods can be compared
            ax.locator_params("y", nbins=5, steps=style.ROUND)
            ax.margins(x=0.15)
            ax.set_xscale("log")
            ax.xaxis.set_major_locator(LogLocator(numticks=4))
            ax.xaxis.set_major_formatter("{x:g}")
            if ax in axes[0]:
                ax.set_title(title)
        row[0].set_ylabel(style.pretty(textwrap.fill(results.method_label(sweep["method"].iloc[0]), 16)))
    axes[-1][1].set_xlabel("dropped tokens (%)")
    if several:
        models = {results.model(model).name: look for model, look in styles.items()}
        style.add_legend(figure, models, len(models), **style.LINE_LEGEND)
    baseline = style.pretty(results.method_label(experiment.spec.baseline))
    whiskers = [] if experiment.has_one_seed else [f"whiskers: {LEVEL:.0%} intervals, cut at the frame"]
    parameters = dict.fromkeys(style.pretty(rows["parameter"].iloc[0]) for rows in swept)
    lines = [f"numbers: {', '.join(parameters)}", f"horizontal: {baseline}"]
    return figure, frame, [*style.what_ran(experiment, results), *whiskers, *lines]


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
    labels = {method: style.pretty(results.method_label(method)) for method in methods}
    columns = style.legend_columns(labels.values(), 60)
    height = 2.6 + 0.1 * -(-len(methods) // columns) + 0.11 * len(differences)
    ratios = [2, 0.35 + 0.11 * len(differences)]
    figure, axes = style.sheet(height, 2, len(METRICS), height_ratios=ratios)
    for metric, (above, below) in zip(METRICS, axes.T, strict=True):
        front = frame[frame[f"{metric}_front"]].sort_values("entropy")
        above.plot(front["entropy"], front[metric], color="0.88", linewidth=4, solid_capstyle="round", zorder=0.6)
        above.axvline(reference["entropy"], color="0.5", linewidth=0.7, linestyle=":", zorder=0.7)
        for method, look in style.looks(methods, spec.baseline).items():
            rows = frame[frame["method"] == method]
            above.plot(rows["entropy"], rows[metric], **look | {"marker": "", "linewidth": 0.5, "alpha": 0.4})
            points = {"linestyle": "", "zorder": 4 if method == spec.baseline else 2}  # one point among many lines
            above.plot(rows["entropy"], rows[metric], label=labels[method], **look | points)
        above.set(title=f"{METRICS[metric]}@K (%)", xlabel="entropy at the end (nats)", xscale="log")
        above.set_xticks([0.1, 0.2, 0.3, 0.5, 1], ["0.1", "0.2", "0.3", "0.5", "1"])
        above.xaxis.set_minor_formatter("")
        above.set_ylim(*_around(frame.loc[~collapsed, metric], 0.06))
        above.set_xlim(*np.exp(_around(np.log(frame.loc[~collapsed, "entropy"]), 0.06)))
        _draw_differences(below, differences, metric)
    for ax in axes[1]:
        ax.set_xlabel(f"points over {style.pretty(results.method_label(spec.reference))}")
    axes[1, 0].set_yticks(range(len(differences)), [labels[name] for name in differences.index], fontsize=style.SMALL)
    axes[1, 1].set_yticks([])
    entries = axes[0, 0].get_legend_handles_labels()
    figure.legend(*entries, loc="outside upper center", ncols=columns, fontsize=style.SMALL, **style.LINE_LEGEND)
    shown = {*differences.index, of_run[spec.reference], spec.baseline}  # the baseline has one strength
    never = f", {n} miss it" if (n := len(set(methods) - shown)) else ""
    notes = ["gray: Pareto front", *_outside(collapsed.sum(), len(frame))]
    notes += [f"below: {LEVEL:.0%} intervals at dotted entropy{never}"]
    return figure, frame, [*style.what_ran(experiment, results), *notes]


def _outside(count: int, of: int) -> list[str]:
    return [f"outside: {count} of {of}"] if count else []


def _draw_differences(ax: Axes, rows: pd.DataFrame, metric: str) -> None:
    value, ends = rows[f"{metric}_matched"], style.error_bars(rows, f"{metric}_matched", f"{metric}_matched_")
    ax.errorbar(value, range(len(rows)), xerr=ends, fmt="o", color="black", markersize=2, elinewidth=0.6)
    ax.axvline(0, color="0.5", linewidth=0.7, linestyle=":")
    ax.set_ylim(max(len(rows), 1) - 0.5, -0.5)
    ax.set_xlim(*_around(pd.Series([0, *value, *(value - ends[0]), *(value + ends[1])]), 0.08))


def draw_frontier(experiment: Experiment[FrontierSpec], results: Results) -> style.Drawn:
    """A row of panels per model: a line per method through its temperatures, left its greedy accuracy if there is one.

    A method's checkpoints are drawn as a band, the front of all its points. Of more than `BARRED` methods only the
    baseline, Clip_B and Clip_V have bars.
    """
    frame, baseline = frontier_frame(experiment, results), experiment.spec.baseline
    every = list(frame["method"].unique())
    methods = [name for name in every if _last_policy(name) == name or _last_policy(name) not in every]
    barred = methods if len(methods) <= BARRED else [baseline, *style.FIXED[: style.OWN]]
    styles = {name: look | ({} if name in barred else FAINT) for name, look in style.looks(methods, baseline).items()}
    labels = [style.pretty(results.label(experiment.spec, method)) for method in methods]
    entries = dict(zip(labels, styles.values(), strict=True)) | (
        {"with checkpoints": FRONT} if methods != every else {}
    )
    columns = 3 if max(map(len, labels)) <= LONG_LABEL else 2
    lines = -(-len(entries) // columns)
    figure = Figure(figsize=(style.WIDTH, 0.6 + 0.1 * lines + 1.7 * len(experiment.models)), layout="constrained")
    rows = figure.subfigures(len(experiment.models), 1, squeeze=False)[:, 0]
    outside = points = 0
    for row, model in zip(rows, experiment.models, strict=True):
        row.suptitle(results.model(model).name, fontsize=7)
        of_model = frame[frame["model"] == model]
        shown = of_model[of_model["method"].isin(methods)]
        sampled, greedy = shown[shown["temperature"] > 0], shown[shown["temperature"] == 0]
        widths = [1, 3] if len(greedy) else [1]
        axes = row.subplots(1, len(widths), width_ratios=widths, sharey=True, squeeze=False)[0]
        left, right = axes[0], axes[-1]
        if len(greedy):
            _draw_greedy(left, greedy, methods, styles)
        _draw_fronts(right, of_model[of_model["temperature"] > 0], styles)
        _draw_sampled(right, sampled, styles, baseline, barred)
        near = sampled["pass"] >= sampled["pass"].max() / 2  # a method that collapsed would press the others together
        for limit, score, drawn in ((right.set_xlim, "pass", sampled[near]), (right.set_ylim, "avg", shown)):
            ends = drawn.loc[drawn["method"].isin(barred), [f"{score}_low", f"{score}_high"]].stack()
            limit(*_around(pd.concat([drawn[score], ends]), 0.08))
        outside, points = outside + (sampled["pass"] < right.get_xlim()[0]).sum(), points + len(sampled)
        left.set_ylabel("Avg@K (%)")
    style.add_legend(figure, entries, columns, **style.LINE_LEGEND)
    notes = ["numbers: temperatures", *_outside(outside, points)]
    notes += [] if experiment.has_one_seed else [f"bars: {style.intervals(experiment)}"]
    return figure, frame, [*style.what_ran(experiment, results), *notes]


def _last_policy(method: str) -> str:
    """The run of which this one is a checkpoint, or itself."""
    return method.partition("@training.steps=")[0]


def _draw_greedy(ax: Axes, rows: pd.DataFrame, methods: list[str], styles: dict[str, style.Look]) -> None:
    ax.set_title("greedy", fontsize=6.5, pad=3)
    ax.set_xticks([])
    ax.set_xlim(-1, len(methods))
    for place, method in enumerate(methods):
        row, look = rows[rows["method"] == method], styles[method] | {"linestyle": ""}
        ax.errorbar([place] * len(row), row["avg"], style.error_bars(row, "avg", "avg_"), elinewidth=0.6, **look)


def _draw_fronts(ax: Axes, rows: pd.DataFrame, styles: dict[str, style.Look]) -> None:
    for method, look in styles.items():
        points = rows[rows["method"].map(_last_policy) == method]
        if points["method"].nunique() > 1:
            front = points[on_front(points["pass"].to_numpy(), points["avg"].to_numpy())].sort_values("pass")
            ax.plot(front["pass"], front["avg"], **FRONT | {"color": look["color"]})


def _draw_sampled(
    ax: Axes, rows: pd.DataFrame, styles: dict[str, style.Look], baseline: str, barred: Collection[str]
) -> None:
    for method, of_method in rows.groupby("method", sort=False):
        line, look = of_method.sort_values("temperature"), {"linewidth": 0.7} | styles[str(method)]
        ax.plot(line["pass"], line["avg"], **look)
        for at in line.to_dict("records") if method == baseline else ():
            ax.annotate(f"{at['temperature']:g}", (at["pass"], at["avg"]), (-3, -3), ha="right", va="top", **style.NOTE)
        for axis, score in (("xerr", "pass"), ("yerr", "avg")) if method in barred else ():
            ends = {axis: style.error_bars(line, score, f"{score}_")}
            ax.errorbar(line["pass"], line["avg"], **ends, fmt="none", ecolor=look["color"], elinewidth=0.4, alpha=0.6)
    ax.set_title("sampled", fontsize=6.5, pad=3)
    ax.set_xlabel("Pass@K (%)")
