"""The lens: a matrix of kept shares, one row per method, beside the entropy that each ends with."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.lens import PARTS, lens_frame
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.analysis.specs import LensSpec
from entropy_dynamics.reporting.style import WIDTH, add_footer, pretty

HEADINGS = (
    "$+$\n$S_*>0$\nlower",
    "$+$\n$S_*<0$\nraise",
    "$-$\n$S_*>0$\nraise",
    "$-$\n$S_*<0$\nlower",
)  # in the order of PARTS
# Dropped is blue, amplified orange, unchanged white. In gray both ends are dark; the numbers distinguish them.
COLORS = LinearSegmentedColormap.from_list("lens", ["#4A90C4", "white", "#E69F00"])


def draw_lens(experiment: Experiment[LensSpec], results: Results) -> tuple[Figure, pd.DataFrame]:
    """The figure and its numbers."""
    frame, spec = lens_frame(experiment, results), experiment.spec
    figure = Figure(figsize=(WIDTH, 1.05 + 0.148 * len(frame)), layout="constrained")
    shares, ends = figure.subplots(1, 2, sharey=True, width_ratios=[1.25, 1])
    draw_shares(shares, frame[[f"{part}_share" for part in PARTS]].to_numpy())
    labels = zip(frame["method"], frame["label"], strict=True)
    names = [spec.labels.get(method) or pretty(label) for method, label in labels]
    shares.set_yticks(range(len(frame)), names, fontsize=6)
    _draw_ends(ends, frame, spec.baseline)
    add_footer(figure, _notes(experiment, results, frame))
    return figure, frame


def draw_shares(ax: Axes, shares: np.ndarray) -> None:
    """A cell per row and quadrant, `shares` in the order of PARTS; NaN is a dash."""
    ax.imshow(shares, cmap=COLORS, vmin=0, vmax=2, aspect="auto")
    for (y, x), share in np.ndenumerate(shares):
        text = "–" if not np.isfinite(share) else f"{share:.2f}"
        ax.text(x, y, text, ha="center", va="center", fontsize=6, fontweight="bold" if share > 1.005 else "normal")
    ax.set_xticks(range(len(PARTS)), HEADINGS, fontsize=6)
    ax.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    ax.set_xticks(np.arange(0.5, len(PARTS) - 1), minor=True)
    ax.set_yticks(np.arange(0.5, len(shares) - 1), minor=True)
    ax.grid(False)
    ax.grid(which="minor", color="white", linewidth=1)
    ax.tick_params(which="minor", length=0)
    ax.spines[:].set_visible(False)
    ax.set_title("share of GRPO's push on the entropy", fontsize=6.5)


def _draw_ends(ax: Axes, frame: pd.DataFrame, baseline: str) -> None:
    y, value = np.arange(len(frame)), frame["final_entropy"].to_numpy()
    ax.barh(y, value, 0.62, color="0.55")
    low, high = (frame[f"final_entropy_{end}"].to_numpy(float) for end in ("low", "high"))  # NaN for one seed
    ax.errorbar(value, y, xerr=[value - low, high - value], fmt="none", ecolor="black", elinewidth=0.6, capsize=1.2)
    high = np.fmax(value, high)
    longest = np.nanmax(high, initial=0)  # NaN for methods with a diverged seed
    line = frame.loc[frame["method"] == baseline, "final_entropy"].max()  # NaN without a baseline
    ax.axvline(line, color="black", linewidth=0.7)
    for place, number, end in zip(y, value, high, strict=True):
        at = line if number <= line < end + 0.25 * longest else end  # clear of the baseline's line
        ax.annotate(
            f"{number:.3f}", (max(at, end), place), (2.5, 0), textcoords="offset points", va="center", fontsize=5.5
        )
    ax.set_xlim(0, 1.28 * longest)
    ax.set_title("entropy at the end (nats)", fontsize=6.5)
    ax.tick_params(axis="y", length=0, labelleft=False)
    ax.grid(axis="y", visible=False)


def _notes(experiment: Experiment[LensSpec], results: Results, frame: pd.DataFrame) -> list[str]:
    single = experiment.seeds == "one seed"
    spread = ": the spread between seeds is unknown" if single else "; whiskers: lowest to highest seed"
    return [
        f"{results.scale} scale: {frame['model_that_ran'][0]}",
        f"{experiment.seeds}{spread}",
        r"$+$, $-$: positive and negative samples; raise, lower: what GRPO's $A\,\nabla \log p$ does to the entropy "
        "there; 1: as GRPO, 0: dropped, bold: amplified; black line: entropy that GRPO ends with",
    ]
