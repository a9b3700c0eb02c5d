"""The style of all figures: one column wide, readable in gray and by color-blind readers, reproducible bytes."""

import re
import textwrap
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.analysis.specs import CurvesSpec, Spec
from entropy_dynamics.analysis.statistics import LEVEL
from entropy_dynamics.results.files import written_whole

Look = dict[str, Any]  # keyword arguments of matplotlib

WIDTH = 3.5  # inches: one column of a two-column page
DPI = 200

RC: Any = {
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "legend.frameon": False,
    "legend.handlelength": 2.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "axes.grid": True,
    "grid.color": "0.9",
    "grid.linewidth": 0.5,
    "axes.axisbelow": True,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.1,
    "lines.markersize": 3,
    "hatch.linewidth": 0.5,
    "savefig.dpi": DPI,
    "pdf.fonttype": 42,  # TrueType: journals refuse matplotlib's default, Type 3
    "svg.hashsalt": "entropy-dynamics",  # element ids are the same in every run
}
LINE_LEGEND: Look = {"columnspacing": 1.2, "handletextpad": 0.5, "labelspacing": 0.3}
FOOTER_CHARACTERS = 84

BLACK: Look = {"color": "black", "linestyle": "-", "marker": ""}
IDENTITY: Look = {"color": "#D55E00", "linewidth": 0.8, "linestyle": (0, (4, 2))}
GRAY: Look = {"color": "0.55", "linestyle": (0, (1, 1)), "marker": ""}  # the untrained model
# Okabe-Ito without its yellow, which is invisible on white; line style and marker distinguish the lines in gray.
CYCLE: list[Look] = [
    {"color": "#0072B2", "linestyle": (0, (5, 1.5)), "marker": "o"},
    {"color": "#D55E00", "linestyle": (0, (5, 1.5, 1, 1.5)), "marker": "s"},
    {"color": "#009E73", "linestyle": (0, (1.2, 1.2)), "marker": "^"},
    {"color": "#CC79A7", "linestyle": (0, (8, 2)), "marker": "D"},
    {"color": "#E69F00", "linestyle": (0, (3, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#56B4E9", "linestyle": "-", "marker": "P"},
]
BARS: list[Look] = [{"color": "0.35"}, {"color": "#8EC1DF", "hatch": "////", "edgecolor": "#0072B2", "linewidth": 0.5}]


def pretty(label: str) -> str:
    """'Clip_B (mu 1.2)' as the paper sets it, in mathtext."""
    label = re.sub(r"Clip_([BV])\b", r"Clip$_\\mathcal{\1}$", label)
    return re.sub(r"\bmu\b", r"$\\mu$", label)


def line_styles(labels: list[str], baseline: str) -> dict[str, Look]:
    """A style per label: black for the baseline (or the first, if it is not there), the cycle for the others."""
    black = baseline if baseline in labels else labels[0]
    others = [label for label in labels if label != black]
    return {black: BLACK} | {label: CYCLE[i % len(CYCLE)] for i, label in enumerate(others)}


def marked_styles(methods: list[str], baseline: str) -> dict[str, Look]:
    """As `line_styles`, each with a marker; where colors repeat, it is empty, and then another one."""
    looks = {method: look | {"linewidth": 0.7} for method, look in line_styles(methods, baseline).items()}
    for place, method in enumerate(method for method in methods if method != baseline):
        repeats = place // len(CYCLE)
        marker = CYCLE[(place + repeats // 2) % len(CYCLE)]["marker"]
        looks[method] |= {"marker": marker} | ({"markerfacecolor": "none"} if repeats % 2 else {})
    return {method: look | {"marker": "x"} if method == baseline else look for method, look in looks.items()}


def point_look(place: int) -> Look:
    """The look of the series number `place`, as points without a line; where colors repeat, with another marker."""
    marker = CYCLE[(place + place // len(CYCLE)) % len(CYCLE)]["marker"]
    return {"color": CYCLE[place % len(CYCLE)]["color"], "marker": marker, "linestyle": ""}


def what_ran(experiment: Experiment[Spec], results: Results, average: str = "mean") -> list[str]:
    """Models, scale, and how the seeds are averaged (differences between methods: median), for the footer."""
    models = "; ".join(results.model(model).ran_with_size for model in experiment.models)
    if experiment.seeds == "one seed":
        drawn = "one seed: the spread between seeds is unknown"
    else:
        bands = isinstance(experiment.spec, CurvesSpec) and any(panel.x == "step" for panel in experiment.spec.panels)
        shading = ", shading: lowest to highest seed" if bands else ""
        drawn = f"{average} of {experiment.seeds}{shading}"
    return [f"{results.scale} scale: {models}", drawn]


def intervals(experiment: Experiment[Spec]) -> str:
    """What the intervals of scores cover, for the footer."""
    if experiment.seeds == "one seed":
        return f"{LEVEL:.0%} intervals over problems, none for one seed of a trained method"
    return f"{LEVEL:.0%} intervals over {experiment.seeds} and over problems"


def add_footer(figure: Figure, notes: list[str]) -> None:
    """Small print under the figure, wrapped to its width."""
    lines = [line for note in notes if note for line in _wrapped(note)]
    # The footer extends the figure instead of shrinking the axes; figure sizes allow for two lines.
    figure.set_figheight(figure.get_figheight() + 0.1 * max(0, len(lines) - 2))
    figure.supxlabel("\n".join(lines), fontsize=5.5, color="0.3", x=0.01, ha="left", linespacing=1.25)


def _wrapped(note: str) -> list[str]:
    """Lines of the footer; a formula stays on one, since mathtext ends with the line."""
    whole = re.sub(r"\$[^$]*\$", lambda formula: formula[0].replace(" ", "\0"), note)
    lines = textwrap.wrap(whole, FOOTER_CHARACTERS, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


METADATA = {  # without dates and versions: the same numbers give the same bytes
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}


def save(figure: Figure, title: str, *paths: Path) -> None:
    """Save as each path's suffix says, reproducibly."""
    for path in paths:
        form = path.suffix[1:]
        with written_whole(path) as whole:
            figure.savefig(whole, format=form, metadata={"Title": title, **METADATA[form]})
