"""Figures of training curves: a grid of panels, one line for each method and column."""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullFormatter
from matplotlib.transforms import ScaledTranslation

from entropy_dynamics.analysis.experiments import Experiment, Panel, Run
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.analysis.statistics import Curve, curve_over_seeds
from entropy_dynamics.reporting.style import LINE_LEGEND, WIDTH, add_footer, column, line_styles, pretty

MARKERS = 6  # on a line


@dataclass(frozen=True)
class Line:
    """One line of a panel, in the units of its axis."""

    method: str
    runs: str  # the method's label
    column: str
    label: str  # in the legend
    curve: Curve
    points: Curve | None  # a second column of the same runs, drawn as separate points
    lengths: tuple[int, ...]  # steps of each seed's run


def draw_curves(experiment: Experiment, source: Results) -> tuple[Figure, pd.DataFrame]:
    """The figure, panels two to a row, and the numbers in it."""
    panels = experiment.panels
    lines = [panel_lines(experiment, source, panel) for panel in panels]
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(WIDTH, 2.4 if len(panels) == 1 else 0.8 + 1.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for ax in axes.flat[len(panels) :]:
        ax.remove()
    baseline = pretty(_label(experiment, source, experiment.baseline))
    legends = []
    for first in range(columns):  # panels above one another share their styles and legend
        below = range(first, len(panels), columns)
        labels = list(dict.fromkeys(line.label for i in below for line in lines[i]))
        labels.sort(key=lambda label: label != baseline)
        styles = line_styles(labels, baseline)
        for i in below:
            _draw_panel(axes.flat[i], panels[i], lines[i], styles, source)
        axes.flat[below[-1]].set_xlabel("step")
        legends.append([Line2D([], [], label=label, **styles[label]) for label in labels])
        legends[-1] += [handle for i in below for handle in _draw_paper_levels(axes.flat[i], panels[i], source)]
    _share_axes(axes, panels)
    if len({tuple(handle.get_label() for handle in handles) for handles in legends}) == 1:
        figure.legend(
            handles=legends[0], loc="outside upper center", ncols=_legend_columns(legends[0], 52), **LINE_LEGEND
        )
    else:
        for ax, handles in zip(axes[0], legends, strict=True):
            ax.legend(handles=handles, ncols=_legend_columns(handles, 24), **_above_title(ax), **LINE_LEGEND)
    add_footer(figure, [*source.provenance(experiment), *_notes(experiment, lines)])
    return figure, _frame(source, panels, lines)


def panel_lines(experiment: Experiment, source: Results, panel: Panel) -> list[Line]:
    """Read the runs of one panel and average them over the seeds."""
    lines = []
    for method in panel.methods:
        runs = [Run(panel.model, method, seed) for seed in experiment.seeds(panel.model, method)]
        stored = [*panel.columns, *([panel.points] if panel.points else [])]
        frames = [source.metrics(run, stored) for run in runs]
        for name in panel.columns:
            label = _label(experiment, source, method)
            runs_label = pretty(label)
            if len(panel.columns) > 1:
                own = column(name).legend or name
                label = own if len(panel.methods) == 1 else f"{label}, {own}"
            lines.append(
                Line(
                    method=method,
                    runs=runs_label,
                    column=name,
                    label=pretty(label),
                    curve=_curve(frames, name),
                    points=_curve(frames, panel.points) if panel.points else None,
                    lengths=tuple(len(frame) for frame in frames),
                )
            )
    return lines


def _curve(frames: list[pd.DataFrame], name: str) -> Curve:
    values = [column(name).factor * frame[name].to_numpy(float) for frame in frames]
    return curve_over_seeds([frame["step"].to_numpy() for frame in frames], values)


def _label(experiment: Experiment, source: Results, method: str) -> str:
    return experiment.labels.get(method) or source.method_label(method)


def _draw_panel(ax: Axes, panel: Panel, lines: list[Line], styles: dict[str, dict], source: Results) -> None:
    for i, line in enumerate(lines):
        style, curve = styles[line.label], line.curve
        apart = max(1, len(curve.step) // MARKERS)
        # Markers of different lines stand at different steps. Where points are drawn, the line itself has none.
        marks = {"marker": ""} if panel.points else {"markevery": (i * apart // len(lines), apart)}
        ax.plot(curve.step, curve.mean, **(style | marks))
        if curve.low is not None:
            ax.fill_between(curve.step, curve.low, curve.high, color=style["color"], alpha=0.18, linewidth=0)
        if line.points is not None:
            _draw_points(ax, line.points, style, shift=0.012 * (i - (len(lines) - 1) / 2) * np.ptp(curve.step))
    ax.set_ylabel(column(panel.columns[0]).axis)
    if panel.title:
        title = panel.title.replace("{model}", source.model(panel.model).ran.replace("stand-in of ", "stand-in of\n"))
        ax.set_title(pretty(title))
    ax.xaxis.set_major_locator(MaxNLocator(4, integer=True))
    if panel.log:
        ax.set_yscale("log")
        ax.yaxis.set_minor_formatter(NullFormatter())
        positive = np.concatenate([line.curve.mean[line.curve.mean > 0] for line in lines])
        if len(positive):  # whole decades, but not all those that a value happening to lie at zero would add
            levels = [source.paper["levels"][name]["value"] for name in panel.columns if name in source.paper["levels"]]
            low, high = np.log10([min([np.quantile(positive, 0.1), *levels]), max([positive.max(), *levels])])
            ax.set_ylim(10 ** np.floor(low), 10 ** max(np.ceil(high), np.floor(low) + 1))
    else:
        ax.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], min_n_ticks=3))
        low, high = ax.get_ylim()
        if low < 0 < high:
            ax.axhline(0, color="0.5", linewidth=0.6, zorder=0.5)


def _draw_paper_levels(ax: Axes, panel: Panel, source: Results) -> list[Line2D]:
    """A dotted line where the paper gives a level, and its legend entry."""
    handles = []
    for name in panel.columns:
        if level := source.paper["levels"].get(name):
            label = f"paper: about {level['value']:g}"
            handles.append(ax.axhline(level["value"], color="0.3", linewidth=0.9, linestyle=(0, (1, 1)), label=label))
    return handles


def _draw_points(ax: Axes, points: Curve, style: dict, shift: float) -> None:
    """Points with whiskers, those of different lines a little apart."""
    spread = None if points.low is None else [points.mean - points.low, points.high - points.mean]
    look = {"color": style["color"], "markersize": 3.5, "markeredgecolor": "white", "markeredgewidth": 0.5}
    ax.errorbar(points.step + shift, points.mean, spread, fmt=style["marker"] or "D", elinewidth=0.7, **look)


def _share_axes(axes: np.ndarray, panels: tuple[Panel, ...]) -> None:
    """Neighbours that draw the same quantity, whose levels a reader compares, get one y axis."""
    for row, ax in enumerate(axes[:, 1:].flat):
        left, right = panels[2 * row : 2 * row + 2] if 2 * row + 1 < len(panels) else (None, None)
        if left and left.columns == right.columns and column(left.columns[0]).same_axis:
            ax.sharey(axes[row, 0])
            ax.autoscale_view()
            ax.set_ylabel("")
            ax.tick_params(labelleft=False)


def _above_title(ax: Axes) -> dict:
    """Where a legend stands so that it clears the title, whose height is known in points and not in axes."""
    lines = 1 + ax.get_title().count("\n") if ax.get_title() else 0
    height = 4 + 1.25 * ax.title.get_fontsize() * lines
    above = ax.transAxes + ScaledTranslation(0, height / 72, ax.figure.dpi_scale_trans)
    return {"loc": "lower center", "bbox_to_anchor": (0.5, 1), "bbox_transform": above}


def _legend_columns(handles: list[Line2D], characters: int) -> int:
    """As many entries to a row as fit; mathtext counts for about half of its source."""
    widest = max(len(h.get_label()) * (0.5 if "$" in h.get_label() else 1) for h in handles) + 6
    return max(1, min(len(handles), int(characters / widest)))


def _notes(experiment: Experiment, lines: list[list[Line]]) -> list[str]:
    """What a reader has to know about these runs: seeds of unequal length, values that are missing."""
    notes = []
    if any(panel.points for panel in experiment.panels):
        notes.append("lines: training samples; points: validation problems")
    for line in (line for panel in lines for line in panel):
        if len(set(line.lengths)) > 1:
            ends = ", ".join(map(str, line.lengths))
            notes.append(f"{line.runs}: seeds end after {ends} steps; the mean is over those they share")
        if missing := min(line.lengths) - len(line.curve.step):
            notes.append(f"{line.runs}: {line.column} is not finite, or not shared by all seeds, at {missing} steps")
    return list(dict.fromkeys(notes))


def _frame(source: Results, panels: tuple[Panel, ...], lines: list[list[Line]]) -> pd.DataFrame:
    frames = []
    for number, (panel, panel_lines_) in enumerate(zip(panels, lines, strict=True), 1):
        model = source.model(panel.model)
        for line in panel_lines_:
            for name, curve in ((line.column, line.curve), (panel.points, line.points)):
                if curve is None:
                    continue
                frames.append(
                    pd.DataFrame(
                        {
                            "panel": number,
                            "model": panel.model,
                            "model_that_ran": model.ran_with_size,
                            "method": line.method,
                            "column": name,
                            "unit": column(name).unit,
                            "step": curve.step,
                            "value": curve.mean,
                            "low": curve.low,
                            "high": curve.high,
                            "seeds": curve.seeds,
                        }
                    )
                )
    return pd.concat(frames, ignore_index=True)
