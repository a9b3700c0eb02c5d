"""Figures of training curves: a grid of panels, one line per method and column."""

from itertools import chain

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from entropy_dynamics.analysis.curves import SPARSE, Line, column, curves_frame, panel_lines
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import CurvesSpec, Panel
from entropy_dynamics.figures import style

MARKERS = 6  # per line
APART = 0.03  # distance between the points of two lines at the same step, as a fraction of the axis


def draw_curves(experiment: Experiment[CurvesSpec], results: Results) -> style.Drawn:
    """The figure, with two panels per row, and the numbers in it."""
    panels = experiment.spec.panels
    lines = [panel_lines(experiment, results, panel) for panel in panels]
    labels = [[_line_label(experiment, results, line, drawn) for line in drawn] for drawn in lines]
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    share = all(left.columns == right.columns for left, right in zip(panels[::2], panels[1::2], strict=False))
    height = 2.4 if len(panels) == 1 else 0.8 + 1.4 * rows
    figure, axes = style.sheet(height, rows, columns, sharey="row" if share else False)
    for ax in axes.flat[len(panels) :]:
        ax.remove()
    baseline = style.pretty(results.label(experiment.spec, experiment.spec.baseline))
    styles = _styles(experiment, results, lines, labels)
    legends: list[tuple[str, dict[str, style.Look]]] = []
    cut = False
    plain: style.Look = {"marker": ""} if any(panel.points for panel in panels) else {}  # markers are the points
    for first in range(columns):  # the panels of a column share their legend
        below = range(first, len(panels), columns)
        shown = sorted(dict.fromkeys(label for i in below for label in labels[i]), key=lambda label: label != baseline)
        swept, texts = _without_method(shown, baseline)
        entries = {text: styles[label] | plain for label, text in zip(shown, texts, strict=True)}
        if plain:
            entries["validation problems"] = {"color": "0.4", "marker": "o", "linestyle": ""}
        for i in below:
            ax = axes.flat[i]
            _draw_lines(ax, panels[i], lines[i], [styles[label] | plain for label in labels[i]])
            if panels[i].title:
                ran = results.model(experiment.model_of(panels[i])).name
                ax.set_title(style.pretty(panels[i].title.replace("{model}", ran)))
            known = [name for name in panels[i].columns if name in results.paper.levels]
            levels = [column(name).factor * results.paper.levels[name].value for name in known]
            cut |= _set_axes(ax, panels[i], lines[i], levels)
            if first == 0 or not share:
                ax.set_ylabel(
                    column(panels[i].columns[0]).axis.replace("@K", f"@{results.config.training.validation_samples}")
                )
            look = {"color": "0.3", "linewidth": 0.9, "linestyle": (0, (1, 1))}
            for level in levels:
                ax.axhline(level, **look)
                entries[f"paper: about {level:g}"] = look
            if i == below[-1] or panels[i].x != panels[i + columns].x:
                ax.set_xlabel(column(panels[i].x).axis)
        legends.append((swept, entries))
    if len({(swept, *entries) for swept, entries in legends}) == 1:
        style.add_legend(figure, entries, style.legend_columns(entries, 52), **style.LINE_LEGEND, title=swept)
    else:
        for ax, (swept, entries) in zip(axes[0], legends, strict=True):
            place = _above_title(ax) | style.LINE_LEGEND | {"title": swept}
            style.add_legend(ax, entries, style.legend_columns(entries, 24), **place)
    drawn = {"shading": any(panel.x == "step" for panel in panels)}
    drawn["whiskers"] = any(panel.points or panel.x != "step" for panel in panels)
    spread = f"{' and '.join(name for name, some in drawn.items() if some)}: lowest to highest seed"
    notes = [] if experiment.has_one_seed else [spread + ", cut at the frame" * cut]
    return figure, curves_frame(experiment, results, lines), [*style.what_ran(experiment, results), *notes]


def _line_label(experiment: Experiment[CurvesSpec], results: Results, line: Line, lines: list[Line]) -> str:
    """The label of a line, by what distinguishes the lines of the panel: method, column, or both."""
    method, name = results.label(experiment.spec, line.method), column(line.column).legend or line.column
    methods, columns = {other.method for other in lines}, {other.column for other in lines}
    return style.pretty(method if len(columns) == 1 else name if len(methods) == 1 else f"{method}, {name}")


def _without_method(labels: list[str], baseline: str) -> tuple[str, list[str]]:
    """Clip_B and 'mu 1.5' for 'Clip_B (mu 1.5)' if the other lines are of Clip_B, too; else none, and the labels."""
    swept = [label.partition(" (") for label in labels if label != baseline]
    if len(swept) < 2 or len({method for method, *_ in swept}) > 1 or not all(values for *_, values in swept):
        return "", labels
    values = [label if label == baseline else label.partition(" (")[2].removesuffix(")") for label in labels]
    return swept[0][0], values


def _styles(
    experiment: Experiment[CurvesSpec], results: Results, lines: list[list[Line]], labels: list[list[str]]
) -> dict[str, style.Look]:
    """The look of each label: that of its method, or a separate one if lines differ by column."""
    series = {}
    for line, label in zip(chain(*lines), chain(*labels), strict=True):
        of_method = label == style.pretty(results.label(experiment.spec, line.method))
        series.setdefault(label, line.method if of_method else label)
    styles = style.looks(list(series.values()), experiment.spec.baseline)
    return {label: styles[name] for label, name in series.items()}


def _draw_lines(ax: Axes, panel: Panel, lines: list[Line], styles: list[style.Look]) -> None:
    for i, (line, look) in enumerate(zip(lines, styles, strict=True)):
        curve, trajectory = line.curve, panel.x != "step"
        apart = max(1, len(curve) // MARKERS)
        marks: style.Look = {"markevery": (i * apart // len(lines), apart)}  # each line has its markers at other steps
        if trajectory:  # a marker at its start
            marks = {"markevery": slice(1)}
        elif line.column in SPARSE:  # at each measurement
            marks = {}
        ax.plot(curve["x"], curve["value"], **(look | marks))
        if trajectory and len(curve) > 1:  # and at its end an arrow for its direction, and the spread of the seeds
            before, end = curve[["x", "value"]].to_numpy()[-2:]
            arrow = {"arrowstyle": "-|>", "color": look["color"], "linewidth": 1.1, "shrinkB": 0, "mutation_scale": 6}
            ax.annotate("", end, before, arrowprops=arrow)
            last = curve[-1:]
            spread = {"xerr": style.error_bars(last, "x", "x_"), "yerr": style.error_bars(last, "value")}
            ax.errorbar(*end, **spread, fmt="none", ecolor=look["color"], elinewidth=0.5, alpha=0.5)
            if line is lines[0]:
                ax.annotate("start", curve[["x", "value"]].iloc[0], (-4, -2), ha="right", **style.NOTE)
        if line.seeds > 1 and not trajectory:
            ax.fill_between(
                curve.index, curve["low"], curve["high"], color=look["color"], alpha=style.BAND, linewidth=0
            )
        if line.points is not None:  # with whiskers, and with the lines' points side by side
            shift = APART * (i - (len(lines) - 1) / 2) * np.ptp(curve.index)
            points, spread = line.points, style.error_bars(line.points, "value") if line.seeds > 1 else None
            mark = {"color": look["color"], "markersize": 3.5, "markeredgecolor": "white", "markeredgewidth": 0.5}
            ax.errorbar(points.index + shift, points["value"], spread, fmt="o", elinewidth=0.7, **mark)


def _set_axes(ax: Axes, panel: Panel, lines: list[Line], levels: list[float]) -> bool:
    """Scales and limits, with the paper's `levels` in view. Returns whether a band is cut at the top."""
    cut = False
    ax.xaxis.set_major_locator(MaxNLocator(6 if panel.x == "step" else 5, steps=style.ROUND))
    if panel.log:
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(NullFormatter())
        values = np.concatenate([line.curve["value"] for line in lines])
        positive = values[values > 0]
        if len(positive):  # whole decades; a quantile, since a value near zero would add many
            marked = [factor * level for level in levels for factor in (0.9, 1.1)]  # not on the frame
            low, high = np.log10([min([np.quantile(positive, 0.1), *marked]), max([positive.max(), *marked])])
            ax.set_ylim(10 ** np.floor(low), 10 ** max(np.ceil(high), np.floor(low) + 1))
    else:
        ax.yaxis.set_major_locator(MaxNLocator(5, steps=style.ROUND, min_n_ticks=3))
        low, high = ax.get_ylim()
        every = pd.concat([line.curve[["value", "high"]] for line in lines])  # empty without a validation, for example
        highs = every.max(axis=1)
        usual = max(highs.quantile(0.9), 1.05 * every["value"].max())
        cut = panel.x == "step" and bool(1.5 * usual < highs.max())  # spikes would press the lines together
        if cut:
            ax.set_ylim(top=usual)
        if low < 0 < high:
            ax.axhline(0, color="0.5", linewidth=0.6, zorder=0.5)
    return cut


def _above_title(ax: Axes) -> style.Look:
    """Position of a legend above the title, whose height is known in points, not in axes coordinates."""
    lines = 1 + ax.get_title().count("\n") if ax.get_title() else 0
    height = 4 + 1.25 * ax.title.get_fontsize() * lines
    above = ax.transAxes + ScaledTranslation(0, height / 72, ax.figure.dpi_scale_trans)
    return {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "bbox_transform": above}
