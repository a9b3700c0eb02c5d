"""Draws scores, entropy and gains over model size, with the predictions from smaller models."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from entropy_dynamics.analysis.ladder import PER_DECADE, ladder_frame
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import LadderSpec
from entropy_dynamics.figures.style import LINE_LEGEND, Drawn, Look, intervals, looks, pretty, sheet

ROWS = {  # column on the left -> its label; the gain on the right, and its label
    "avg": ("Avg@K (%)", "avg", "gain (points)"),
    "pass": ("Pass@K (%)", "pass", "gain (points)"),
    "greedy": ("greedy accuracy (%)", "greedy", "gain (points)"),
    "accuracy": ("validation accuracy (%)", "matched", "at equal Pass@K\n(points of Avg@K)"),
    "entropy": ("entropy (nats)", "entropy", "gain (nats)"),
}


def draw_ladder(experiment: Experiment[LadderSpec], results: Results) -> Drawn:
    """Left: each method over the number of parameters, predictions dashed. Right: its difference from the baseline.

    Models of another scale (`LadderSpec.beyond`) have hollow marks, on the right only: they solve other problems.
    """
    frame = ladder_frame(experiment, results)
    own = frame["scale"] == results.scale
    rungs, larger = frame[own & (frame["model"] != PER_DECADE)], frame[~own]
    methods = list(rungs["method"].unique())
    styles = looks(methods, experiment.spec.baseline)
    shown = {name: row for name, row in ROWS.items() if frame[f"{row[1]}_gain"].notna().any()}
    figure, axes = sheet(1 + 1.15 * len(shown), len(shown), 2, sharex="col")
    baseline = pretty(results.method_label(experiment.spec.baseline))
    axes[0, 0].set_title("each method")
    axes[0, 1].set_title(f"gain over {baseline}")
    last_fitted = rungs.loc[rungs["model"].isin(experiment.spec.fitted), "parameters"].max()
    for (left, right), (column, (label, gain, of_gain)) in zip(axes, shown.items(), strict=True):
        for place, method in enumerate(methods):
            rows, look = rungs[rungs["method"] == method], styles[method] | {"linewidth": 0.7}
            shifted = rows["parameters"] * 1.04 ** (place - len(methods) / 2)  # intervals would overlap
            _draw(left, shifted, rows, column, look | {"linestyle": ""}, method)
            if f"{column}_predicted" in rows:
                predicted = look | {"marker": "", "linestyle": (0, (2, 2)), "linewidth": 0.6}
                left.plot(rows["parameters"], rows[f"{column}_predicted"], **predicted)
            if method != experiment.spec.baseline:
                _draw(right, shifted, rows, f"{gain}_gain", look, method)
                if len(end := larger[larger["method"] == method]):
                    beside = end["parameters"] * 1.15 ** (place - len(methods) / 2)
                    _draw(right, beside, end, f"{gain}_gain", look | {"markerfacecolor": "white", "linestyle": ""}, "")
        left.set_ylabel(label)
        right.set_ylabel(of_gain)
        right.axhline(0, color="black", linewidth=0.6)
        if experiment.spec.fitted:
            left.axvline(last_fitted * 1.2, color="0.7", linewidth=0.6)
    for ax in axes[-1]:
        ax.set_xscale("log")
        ax.set_xlabel("parameters")
        ax.xaxis.set_major_formatter(lambda size, _: f"{size / 1e6:.3g} M")
        ax.xaxis.set_minor_locator(NullLocator())
        if rungs["parameters"].nunique() == 1:  # no power of ten may be in sight
            ax.set_xticks(rungs["parameters"].unique())
    handles, _ = axes[0, 0].get_legend_handles_labels()
    labels = [pretty(results.method_label(method)) for method in methods]
    figure.legend(handles, labels, loc="outside upper center", ncols=len(methods), **LINE_LEGEND)
    notes = [f"{results.scale}: {experiment.seeds_in_words}; bars: {intervals(experiment)}"]
    if experiment.spec.fitted:
        notes.append("dashed: fit left of the gray line")
    if len(larger):
        notes.append(f"hollow: {larger['scale'].iloc[0]}, other problems")
    return figure, frame, notes


def _draw(ax: Axes, x: pd.Series, rows: pd.DataFrame, column: str, look: Look, label: str) -> None:
    low, high = (rows.get(f"{column}_{end}", rows[column]) for end in ("low", "high"))
    ends = np.array([rows[column] - low, high - rows[column]])
    ax.errorbar(x, rows[column], ends, elinewidth=0.5, label=label, **look)
