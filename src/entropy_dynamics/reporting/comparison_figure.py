"""Two runs' effects as a forest plot."""

from pathlib import Path
from typing import IO

from matplotlib import rc_context
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.replication import Replicate, replicates
from entropy_dynamics.reporting.claims_figure import STYLES, TINY
from entropy_dynamics.reporting.style import OWN, RC, WIDTH, Look, cycle, pretty, save

RUNS = [cycle(OWN), cycle(OWN + 1)]  # looks not used for any method or verdict


def draw_comparison(first: Path, second: Path, target: Path | IO[bytes]) -> None:
    """Draw a forest plot of each claim's effect in both runs, with intervals; claims that disagree come first.

    Each row has its own unit: the first run's effect is at 0, and 1 is half the width of the interval of the
    difference, so that the runs disagree if the second one's mark is outside the gray band.

    Args:
        target: a file, or a stream, to which SVG is written.
    """
    labels = {id: entry["label"] for id, entry in verdicts_of(first).items()}
    claims = sorted((claim for claim in replicates(first, second) if claim.agrees is not None), key=_agreement)
    with rc_context(RC):
        figure = Figure(figsize=(WIDTH, 0.9 + 0.132 * len(claims)), layout="constrained")
        ax = figure.subplots()
        ax.axvspan(-1, 1, color="0.93", zorder=0, linewidth=0)
        for row, claim in enumerate(claims):
            for place, (effect, look) in enumerate(zip(claim.effects, RUNS, strict=True)):
                value, low, high = (_scaled(claim, end) for end in (effect.value, effect.low, effect.high))
                ends = [[value - low], [high - value]]
                ax.errorbar(value, row + 0.3 * (place - 0.5), xerr=ends, elinewidth=0.8, **_mark(look))
            numbers = " → ".join(f"{effect.value:.2g}" for effect in claim.effects).replace("-", "−")
            ax.text(1.02, row, numbers, transform=ax.get_yaxis_transform(), va="center", fontsize=5.5)
        ax.set_yticks(range(len(claims)), [pretty(labels[claim.id]) for claim in claims], fontsize=5.5)
        for tick, claim in zip(ax.get_yticklabels(), claims, strict=True):
            tick.set_color("black" if claim.agrees else STYLES["does not hold"]["color"])
        ax.set_ylim(len(claims) - 0.4, -0.6)
        ax.set_xlim(min(ax.get_xlim()[0], -2), max(ax.get_xlim()[1], 2))
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="y", visible=False)
        ax.set_xlabel("effect less the first run's, in half-widths of the\ninterval of the difference", fontsize=6)
        names = zip((first, second), RUNS, strict=True)
        handles = [Line2D([], [], label=str(name), **_mark(look)) for name, look in names]
        figure.legend(handles=handles, loc="outside upper center", ncols=2, handlelength=1)
        if isinstance(target, Path):
            save(figure, "Two runs side by side", target)
        else:
            figure.savefig(target, format="svg", metadata={"Date": None})


def _agreement(claim: Replicate) -> float:
    """Negative if the runs disagree; 0 if the interval of the difference ends at 0."""
    difference = claim.difference
    return min(-difference.low, difference.high) / _half_width(claim)


def _half_width(claim: Replicate) -> float:
    return max((claim.difference.high - claim.difference.low) / 2, TINY)


def _scaled(claim: Replicate, value: float) -> float:
    return (value - claim.effects[0].value) / _half_width(claim)


def _mark(look: Look) -> Look:
    return {"color": look["color"], "marker": look["marker"], "markersize": 3, "linestyle": ""}
