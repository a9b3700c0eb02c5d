"""How every figure looks: column width, readable in grey and by colour-blind readers, the same bytes every time."""

import re
import textwrap
from dataclasses import dataclass

from matplotlib.figure import Figure

WIDTH = 3.5  # inches: one column of a two-column page
DPI = 200

RC = {
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
    "svg.hashsalt": "entropy-dynamics",  # element ids that do not change from run to run
}
LINE_LEGEND = {"columnspacing": 1.2, "handletextpad": 0.5, "labelspacing": 0.3}
FOOTER_CHARACTERS = 88

BLACK = {"color": "black", "linestyle": "-", "marker": ""}
# Okabe-Ito without its yellow, which is lost on white; line style and marker tell the lines apart in grey.
CYCLE = [
    {"color": "#0072B2", "linestyle": (0, (5, 1.5)), "marker": "o"},
    {"color": "#D55E00", "linestyle": (0, (5, 1.5, 1, 1.5)), "marker": "s"},
    {"color": "#009E73", "linestyle": (0, (1.2, 1.2)), "marker": "^"},
    {"color": "#CC79A7", "linestyle": (0, (8, 2)), "marker": "D"},
    {"color": "#E69F00", "linestyle": (0, (3, 1, 1, 1, 1, 1)), "marker": "v"},
    {"color": "#56B4E9", "linestyle": "-", "marker": "P"},
]
BARS = [{"color": "0.35"}, {"color": "#8EC1DF", "hatch": "////", "edgecolor": "#0072B2", "linewidth": 0.5}]


@dataclass(frozen=True)
class Column:
    """How a column of metrics.parquet is drawn: its axis label, the factor it is scaled by, its name in a legend."""

    axis: str
    unit: str
    factor: float = 1.0
    legend: str = ""
    same_axis: bool = False  # levels are compared across panels, so panels of one row share their axis


COLUMNS = {
    "entropy": Column("token entropy (nats)", "nats", same_axis=True),
    "accuracy": Column("accuracy (%)", "%", 100, same_axis=True),
    "validation_accuracy": Column("accuracy (%)", "%", 100),
    "clip_fraction": Column("clipped tokens (%)", "%", 100),
    "s_star_mean": Column("batch mean (nats)", "nats", legend="$S_*$"),
    "s_centered_mean": Column("batch mean (nats)", "nats", legend="$S_* - \\mathrm{E}[S]$"),
    "s_centered_ratio": Column("ratio", "1"),
    "neg_cov": Column("$\\Delta H / \\eta$ (nats)", "nats", legend="$-\\mathrm{Cov}_B(A, S_* - \\mathrm{E}[S])$"),
    "neg_cov_positive": Column("$\\Delta H / \\eta$ (nats)", "nats", legend="its positive portion"),
    "neg_cov_negative": Column("$\\Delta H / \\eta$ (nats)", "nats", legend="its negative portion"),
    "grad_norm": Column("gradient norm", "1"),
}


def column(name: str) -> Column:
    """Columns without an entry are drawn under their own name."""
    return COLUMNS.get(name, Column(name.replace("_", " "), ""))


def pretty(label: str) -> str:
    """'Clip_B (mu 1.2)' as the paper sets it."""
    label = re.sub(r"Clip_([BV])\b", r"Clip$_\\mathcal{\1}$", label)
    return re.sub(r"\bmu\b", r"$\\mu$", label)


def line_styles(labels: list[str], baseline: str) -> dict[str, dict]:
    """A style for each label: black for the baseline (where there is none, for the first), the cycle for the others."""
    black = baseline if baseline in labels else labels[0]
    others = [label for label in labels if label != black]
    return {black: BLACK} | {label: CYCLE[i % len(CYCLE)] for i, label in enumerate(others)}


def add_footer(figure: Figure, notes: list[str]) -> None:
    """Small print under the figure: what ran, how many seeds, what to know. Wrapped to the figure's width."""
    lines = [line for note in notes if note for line in textwrap.wrap(note, FOOTER_CHARACTERS)]
    # The small print takes its room from below, not from the axes; the sizes of the figures allow for two lines.
    figure.set_figheight(figure.get_figheight() + 0.1 * max(0, len(lines) - 2))
    figure.supxlabel("\n".join(lines), fontsize=5.5, color="0.3", x=0.01, ha="left", linespacing=1.25)
