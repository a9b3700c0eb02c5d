"""One lens for all methods: which entropy increase and decrease each keeps, drops or amplifies (paper, Section 4.2)."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from entropy_dynamics.analysis.experiments import Experiment, Run
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.reporting.style import WIDTH, add_footer, pretty

PARTS = {
    "lens_pos_up": "$+$\nraise",
    "lens_pos_down": "$+$\nlower",
    "lens_neg_up": "$-$\nraise",
    "lens_neg_down": "$-$\nlower",
}  # column of the metrics: heading
# Dropped is blue, amplified orange, untouched white. In grey both ends are dark, and the numbers tell.
COLOURS = LinearSegmentedColormap.from_list("lens", ["#4A90C4", "white", "#E69F00"])


def draw_lens(experiment: Experiment, source: Results) -> tuple[Figure, pd.DataFrame]:
    """A row for each method: the kept shares of four sums over the steps, and the entropy at the end; its numbers."""
    (model,) = experiment.models
    frame = pd.DataFrame([_row(experiment, source, model, method) for method in experiment.methods(model)])
    figure = Figure(figsize=(WIDTH, 1.05 + 0.148 * len(frame)), layout="constrained")
    shares, ends = figure.subplots(1, 2, sharey=True, width_ratios=[1.25, 1])
    _draw_shares(shares, frame[[f"{part}_share" for part in PARTS]].to_numpy())
    names = [
        (experiment.labels.get(method) or pretty(label)) + (" †" if method in experiment.beyond_weights else "")
        for method, label in zip(frame["method"], frame["label"], strict=True)
    ]
    shares.set_yticks(range(len(frame)), names, fontsize=6)
    _draw_ends(ends, frame, experiment.baseline)
    add_footer(figure, _notes(experiment, source, frame))
    frame.insert(0, "model", model)
    frame.insert(1, "model_that_ran", source.model(model).ran_with_size)
    return figure, frame


def _row(experiment: Experiment, source: Results, model: str, method: str) -> dict:
    """Means over the seeds. A share is kept / total, each summed over the steps of a run; NaN where the total is 0."""
    stored = ["entropy", *PARTS, *(f"{part}_kept" for part in PARTS)]
    seeds = experiment.seeds(model, method)
    runs = [source.metrics(Run(model, method, seed), stored) for seed in seeds]
    row = {"method": method, "label": source.method_label(method), "seeds": len(seeds)}
    row["acts_beyond_weights_through"] = experiment.beyond_weights.get(method, "")
    for part in PARTS:
        totals = np.array([run[part].sum() for run in runs])
        kept = np.array([run[f"{part}_kept"].sum() for run in runs])
        row[f"{part}_mean"] = np.mean([run[part].mean() for run in runs])
        row[f"{part}_share"] = np.mean(np.divide(kept, totals, out=np.full_like(kept, np.nan), where=totals != 0))
    last = np.array([run["entropy"].to_numpy()[-max(1, len(run) // 10) :].mean() for run in runs])
    several = len(seeds) > 1
    ends = {"": last.mean(), "_low": last.min() if several else np.nan, "_high": last.max() if several else np.nan}
    return row | {f"final_entropy{name}": value for name, value in ends.items()}


def _draw_shares(ax: Axes, shares: np.ndarray) -> None:
    ax.imshow(shares, cmap=COLOURS, vmin=0, vmax=2, aspect="auto")
    for (y, x), share in np.ndenumerate(shares):
        text = "–" if not np.isfinite(share) else f"{share:.2f}"
        ax.text(x, y, text, ha="center", va="center", fontsize=6, fontweight="bold" if share > 1.005 else "normal")
    ax.set_xticks(range(len(PARTS)), PARTS.values(), fontsize=6)
    ax.tick_params(top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    ax.set_xticks(np.arange(0.5, len(PARTS) - 1), minor=True)
    ax.set_yticks(np.arange(0.5, len(shares) - 1), minor=True)
    ax.grid(False)
    ax.grid(which="minor", color="white", linewidth=1)
    ax.tick_params(which="minor", length=0)
    ax.spines[:].set_visible(False)
    ax.set_title("share of the entropy change kept", fontsize=6.5)


def _draw_ends(ax: Axes, frame: pd.DataFrame, baseline: str) -> None:
    y, value = np.arange(len(frame)), frame["final_entropy"].to_numpy()
    ax.barh(y, value, 0.62, color="0.55")
    low, high = (frame[f"final_entropy_{end}"].to_numpy(float) for end in ("low", "high"))  # NaN for one seed
    ax.errorbar(value, y, xerr=[value - low, high - value], fmt="none", ecolor="black", elinewidth=0.6, capsize=1.2)
    high = np.fmax(value, high)
    line = frame.loc[frame["method"] == baseline, "final_entropy"].max()  # NaN without a baseline
    ax.axvline(line, color="black", linewidth=0.7)
    for place, number, end in zip(y, value, high, strict=True):
        at = line if number <= line < end + 0.25 * high.max() else end  # clear of the baseline's line
        ax.annotate(
            f"{number:.3f}", (max(at, end), place), (2.5, 0), textcoords="offset points", va="center", fontsize=5.5
        )
    ax.set_xlim(0, 1.28 * high.max())
    ax.set_title("entropy at the end (nats)", fontsize=6.5)
    ax.tick_params(axis="y", length=0, labelleft=False)
    ax.grid(axis="y", visible=False)


def _notes(experiment: Experiment, source: Results, frame: pd.DataFrame) -> list[str]:
    (model,) = experiment.models
    most, fewest = frame["seeds"].max(), frame["seeds"].min()
    drawn = f"{most} seeds" if most == fewest else f"{fewest} to {most} seeds a method"
    notes = [
        f"{source.scale} scale: {source.model(model).ran_with_size}",
        f"{drawn}; whiskers: lowest to highest seed" if most > 1 else "one seed: the spread between seeds is not known",
        r"$+$, $-$: positive and negative samples; raise, lower: where $-A\,S_c$ is above, below 0; 1: as GRPO, 0: "
        "dropped, bold: amplified; black line: entropy that GRPO ends with",
    ]
    if experiment.beyond_weights:
        notes.append(
            "†: also or only acts through what weights of tokens, and so this lens, do not show: "
            + ", ".join(
                f"{source.method_label(method)} ({what})"
                for method, what in experiment.beyond_weights.items()
                if method in set(frame["method"])
            )
        )
    return notes
