"""The style of all figures: one column wide, readable in grayscale and by color-blind readers, byte-reproducible."""

import re
import textwrap
from collections.abc import Collection, Iterable, Mapping
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps, rc_params_from_file
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from entropy_dynamics.analysis.run_data import Model, Results
from entropy_dynamics.analysis.statistics import LEVEL, averaged
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import Spec
from entropy_dynamics.results.files import written_whole

Look = dict[str, Any]  # keyword arguments of matplotlib
Drawn = tuple[Figure, pd.DataFrame, list[str]]  # the figure, the numbers in it, and the notes under it

STYLE = Path(__file__).with_name("figures.mplstyle")
RC = rc_params_from_file(STYLE, use_default_template=False)
WIDTH = RC["figure.figsize"][0]
SMALL = 6  # points, the least that is legible in print
ROUND = (1, 2, 5, 10)  # steps between ticks
NOTE: Look = {"textcoords": "offset points", "fontsize": SMALL}  # a label beside a point
BAND = 0.12  # opacity
LINE_LEGEND: Look = {"columnspacing": 1.2, "handletextpad": 0.5, "labelspacing": 0.3}
FOOTER_CHARACTERS = 70

BLACK: Look = {"color": "black", "linestyle": "-", "marker": "D"}
IDENTITY: Look = {"color": "#D55E00", "linewidth": 0.8, "linestyle": (0, (4, 2))}
GRAY: Look = {"color": "0.55", "linestyle": (0, (1, 1)), "marker": ""}  # the untrained model
COLORS = RC["axes.prop_cycle"].by_key()["color"]  # line styles and markers differ too
LINES = ((5, 1.5), (5, 1.5, 1, 1.5), (1.2, 1.2), (8, 2), (3, 1, 1, 1, 1, 1), (2, 1))
MARKERS = "os^vPX*<>hd"
HOLLOW: Look = {"markerfacecolor": "white", "markeredgewidth": 0.6, "markersize": 3.6}
# The paper's methods at fixed positions of the cycle, so that each has the same look in all figures.
FIXED = ("clip_b", "clip_v", "clip_cov", "kl_cov", "unlikeliness", "forking_tokens", "grpo_off_policy", "entropy_bonus")
VERDICT_LOOKS: dict[str, Look] = {
    "holds": {"color": "#0072B2", "marker": "o"},
    "does not hold": {"color": "#D55E00", "marker": "X"},
    "inconclusive": {"color": "0.45", "marker": "D"},
}
OWN = 2  # the first positions, of Clip_B and Clip_V, are reserved for them
BARS: list[Look] = [{"color": "0.35"}, {"color": "#8EC1DF", "hatch": "////", "edgecolor": "#0072B2", "linewidth": 0.5}]


def pretty(label: str) -> str:
    """Typeset 'Clip_B (mu 1.2)' or 'S_c: 1/sqrt(N)' as in the paper, in mathtext; formulas are left unchanged."""
    parts = re.split(r"(\$[^$]*\$)", label)  # every second one is a formula
    for plain, set_by_the_paper in (
        (r"Clip_([BV])\b", r"Clip$_\\mathcal{\1}$"),
        (r"\bmu\b", r"$\\mu$"),
        (r"\bS(?:_(c)\b|\*)", lambda symbol: f"$S_{symbol[1] or '*'}$"),
        (r"\bsqrt\((\w+)\)", r"$\\sqrt{\1}$"),
        (r"\b1e(-?\d+)\b", r"$10^{\1}$"),
        (r"(?<!\w)-(?=Cov|η)", "−"),
    ):
        parts[::2] = [re.sub(plain, set_by_the_paper, text) for text in parts[::2]]
    return "".join(parts)


def cycle(place: int) -> Look:
    """The look of series number `place`; the first 22 all differ in marker or filling."""
    marker, hollow = MARKERS[place % len(MARKERS)], place // len(MARKERS) % 2
    look = {"color": COLORS[place % len(COLORS)], "linestyle": (0, LINES[place % len(LINES)]), "marker": marker}
    return look | (HOLLOW if hollow else {})


def looks(series: list[str], baseline: str) -> dict[str, Look]:
    """The look of each method, or of whatever else the lines of a figure represent.

    The baseline (or the first series, if it is missing) is black. The paper's methods have fixed looks, and values of
    their parameters have shades of one scale. The remaining series get the rest of the cycle.
    """
    black = baseline if baseline in series else series[0]
    given = {black: BLACK} | {name: cycle(FIXED.index(name)) for name in series if name in FIXED}
    for method in FIXED:
        sweep = [name for name in series if name.startswith(f"{method}@")]
        shades = colormaps["viridis"](np.linspace(0, 0.9, len(sweep)))
        given |= {name: cycle(i) | {"color": to_hex(shades[i])} for i, name in enumerate(sweep)}
    free = (cycle(place) for place in count(OWN) if place >= len(FIXED) or FIXED[place] not in series)
    return {name: given.get(name) or next(free) for name in series}


def sheet(height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure of this height, in inches, and its axes, [row, column]."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def what_ran(experiment: Experiment[Spec], results: Results, differences: bool = False) -> list[str]:
    """Models, scale, and how the seeds are averaged (differences between methods: as `seed_interval`)."""
    average = averaged(len({run.seed for run in experiment.runs})) if differences else "mean"
    seeds = experiment.seeds_in_words if experiment.has_one_seed else f"{average} of {experiment.seeds_in_words}"
    return [sizes(results.scale, map(results.model, experiment.models)), seeds]


def sizes(scale: str, models: Iterable[Model]) -> str:
    return f"{scale}: {', '.join(dict.fromkeys(f'{model.name} ({model.size})' for model in models))}"


def intervals(experiment: Experiment[Spec]) -> str:
    """Explanation of the intervals of scores, for the footer."""
    unknown = "problems, none for a trained method" if experiment.has_one_seed else "seeds and problems"
    return f"{LEVEL:.0%} intervals over {unknown}"


def error_bars(rows: pd.DataFrame, column: str, ends: str = "") -> np.ndarray:
    """Lengths of the error bars of a column, [below and above, row], to the columns <ends>low and <ends>high."""
    value, low, high = (rows[name].to_numpy(float) for name in (column, f"{ends}low", f"{ends}high"))
    return np.array([value - low, high - value])


def add_legend(to: Figure | Axes, entries: Mapping[str, Look], columns: int, **options: Any) -> None:
    """Add a legend: an entry's label -> its look. A figure's is above all panels unless given a `loc`."""
    handles = [Line2D([], [], label=label, **look) for label, look in entries.items()]
    to.legend(handles=handles, ncols=columns, **{"loc": "outside upper center"} | options)


def legend_columns(labels: Collection[str], characters: int) -> int:
    """Number of legend entries that fit in a row; mathtext is about half as wide as its source."""
    widest = max(len(label) * (0.5 if "$" in label else 1) for label in labels) + 6
    return max(1, min(len(labels), int(characters / widest)))


def add_footer(figure: Figure, notes: list[str]) -> None:
    """Add small print under the figure, wrapped to its width."""
    text = "; ".join(filter(None, notes))
    whole = re.sub(r"\$[^$]*\$", lambda formula: formula[0].replace(" ", "\0"), text)  # mathtext cannot span lines
    wrapped = textwrap.wrap(whole, FOOTER_CHARACTERS, break_long_words=False, break_on_hyphens=False)
    lines = [line.replace("\0", " ") for line in wrapped]
    # The footer extends the figure instead of shrinking the axes; figure sizes allow for two lines.
    figure.set_figheight(figure.get_figheight() + 0.1 * max(0, len(lines) - 2))
    figure.supxlabel("\n".join(lines), fontsize=SMALL, color="0.3", x=0.01, ha="left", linespacing=1.25)


METADATA = {  # without dates and versions, so that the same numbers give the same bytes
    "png": {"Software": None},
    "svg": {"Date": None},
    "pdf": {"CreationDate": None, "Producer": None, "Creator": None},
}


def save(figure: Figure, title: str, *paths: Path) -> None:
    """Save to each path in the format of its suffix, byte-reproducibly."""
    for path in paths:
        form = path.suffix[1:]
        with written_whole(path) as whole:
            figure.savefig(whole, format=form, metadata={"Title": title, **METADATA[form]})
            if form == "png":
                whole.write_bytes(with_palette(whole.read_bytes()))


def with_palette(png: bytes) -> bytes:
    """The figure with 256 colors, a third of the bytes; unchanged if it has a palette already."""
    with Image.open(BytesIO(png)) as image:
        if image.mode == "P":
            return png
        texts, small = PngInfo(), BytesIO()
        for key, value in image.info.items():
            if isinstance(value, str):
                texts.add_text(key, value)
        colors = image.convert("RGB").quantize(256, Image.Quantize.MEDIANCUT, dither=Image.Dither.NONE)
        colors.save(small, "PNG", optimize=True, pnginfo=texts, dpi=image.info.get("dpi"))
    return small.getvalue()
