"""Draws the lens: a matrix of kept shares, one row per method, next to the final entropy of each."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.ticker import LogLocator, NullLocator

from entropy_dynamics.analysis.columns import PARTS
from entropy_dynamics.analysis.curves import lens_frame
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import LensSpec
from entropy_dynamics.figures.style import SMALL, Drawn, error_bars, pretty, sheet, what_ran

# In the order of PARTS.
HEADINGS = ("$+$\n$S_*$>0\nlower", "$+$\n$S_*$<0\nraise", "$-$\n$S_*$>0\nraise", "$-$\n$S_*$<0\nlower")
AMPLIFIED = 1.1  # what is in bold; a denominator without the dropped tokens amplifies the others by 1 or 2%
# Dropped is gray, amplified purple: blue and orange stand for less and more entropy elsewhere. The numbers distinguish
# them in print without color.
SHARES = LinearSegmentedColormap.from_list("lens", ["0.65", "white", "#CC79A7"])


def draw_lens(experiment: Experiment[LensSpec], results: Results) -> Drawn:
    frame, spec = lens_frame(experiment, results), experiment.spec
    height = 1.05 + 0.148 * len(frame)
    figure, [[shares, ends]] = sheet(height, 1, 2, sharey=True, width_ratios=[2.2, 1])
    draw_shares(shares, frame[[f"{part}_share" for part in PARTS]].to_numpy())
    shares.set_yticks(range(len(frame)), frame["label"].map(pretty), fontsize=6)
    _draw_ends(ends, frame, spec.baseline)
    notes = [] if experiment.has_one_seed else ["whiskers: lowest to highest seed"]
    notes.append("1: as GRPO, 0: dropped; +, −: sign of A")
    return figure, frame, [*what_ran(experiment, results), *notes]


def draw_shares(ax: Axes, shares: np.ndarray) -> None:
    """Draw one cell per row and quadrant; the columns of `shares` are in the order of PARTS, NaN is shown as a dash."""
    ax.imshow(shares, cmap=SHARES, vmin=0, vmax=2, aspect="auto")
    for (y, x), share in np.ndenumerate(shares):
        text = "–" if not np.isfinite(share) else f"{share:.2f}".replace("-", "−")
        ax.text(x, y, text, ha="center", va="center", fontsize=6, fontweight="bold" if share > AMPLIFIED else "normal")
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
    """Draw one point per method; the axis is logarithmic, as most are close together and a few are far away."""
    y, value = np.arange(len(frame)), frame["final_entropy"].to_numpy()
    ends = error_bars(frame, "final_entropy", "final_entropy_")  # NaN for one seed
    ax.errorbar(value, y, xerr=ends, fmt="o", color="black", markersize=2.5, elinewidth=0.7)
    line = frame.loc[frame["method"] == baseline, "final_entropy"].max()  # NaN without a baseline
    ax.axvline(line, color="0.4", linewidth=0.7, linestyle=(0, (4, 2)), zorder=0.5)
    for place, number in zip(y, value, strict=True):
        text = "–" if np.isnan(number) else f"{number:.3f}"  # NaN if a seed diverged
        ax.text(1.6, place, text, transform=ax.get_yaxis_transform(), ha="right", va="center", fontsize=SMALL)
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(LogLocator())
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_title("entropy (nats)", fontsize=6.5)
    ax.tick_params(axis="y", which="both", length=0, labelleft=False)
    ax.spines["left"].set_visible(False)
    ax.grid(axis="y", visible=False)
