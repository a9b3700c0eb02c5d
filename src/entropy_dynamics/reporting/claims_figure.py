"""The figure of the claims: one row each, effect and interval relative to the threshold."""

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from entropy_dynamics.analysis.claims import Claim, ClaimSpec
from entropy_dynamics.analysis.statistics import Interval
from entropy_dynamics.analysis.verdicts import Finding
from entropy_dynamics.reporting.style import RC, WIDTH, Look, add_footer, pretty, save

FARTHEST = 4.5  # half-widths; effects beyond are drawn here as arrows
TINY = 1e-9  # minimum half-width, as an interval may have none after rounding
UNITS = {"points": " pt", "nats": " nats", "nats / η": " nats/η", "nats per factor e of mu": " nats/ln μ"}
STYLES: dict[str, Look] = {
    "holds": {"color": "#0072B2", "marker": "o"},
    "does not hold": {"color": "#D55E00", "marker": "X"},
    "inconclusive": {"color": "0.45", "marker": "D"},
}


def write_figure(
    claims: list[Claim],
    names: list[str],
    findings: list[Finding],
    replaced: set[str],
    notes: list[str],
    *paths: Path,
) -> None:
    """Draw one row per claim, in the order of the file.

    Args:
        replaced: models under whose name a smaller one ran.
    """
    with matplotlib.rc_context(RC):
        save(_draw(claims, names, findings, replaced, notes), "Claims", *paths)


def distance(claim: ClaimSpec, interval: Interval) -> float:
    """Distance of the effect from the nearest threshold, towards the claimed side, in half-widths of its interval.

    The half that faces the threshold counts. Above 1 a claim holds, below -1 it does not; otherwise it is inconclusive.
    """
    effect, (low, high) = interval.value, claim.bounds
    below, above = max(effect - interval.low, TINY), max(interval.high - effect, TINY)
    return min(
        (effect - low) / (below if effect > low else above),
        (high - effect) / (above if effect < high else below),
    )


def _draw(
    claims: list[Claim], names: list[str], findings: list[Finding], replaced: set[str], notes: list[str]
) -> Figure:
    figure = Figure(figsize=(WIDTH, 1.0 + 0.132 * len(claims)), layout="constrained")
    ax = figure.subplots()
    ax.axvspan(-1, 1, color="0.93", zorder=0, linewidth=0)
    ax.axvline(0, color="black", linewidth=0.8, zorder=1)
    for row, (claim, finding) in enumerate(zip(claims, findings, strict=True)):
        look = STYLES[finding.verdict]
        text, effect = look["color"] if finding.verdict != "inconclusive" else "0.3", finding.interval.value
        number = with_unit(effect, claim.spec.unit) if np.isfinite(effect) else "no value"
        if np.isfinite(finding.interval.low):
            _draw_interval(ax, row, distance(claim.spec, finding.interval), look)
        elif np.isfinite(effect):  # no interval to measure its distance with
            ax.plot(0, row, look["marker"], color=look["color"], markerfacecolor="white", markersize=4, zorder=3)
        ax.text(1.02, row, number, transform=ax.get_yaxis_transform(), va="center", fontsize=5.5, color=text)
    # If every row with an effect had a mark, marks would carry no information.
    smaller = [bool(replaced & set(claim.models)) for claim in claims]
    rows = zip(claims, smaller, findings, strict=True)
    marked = any(claim.models and not small and np.isfinite(finding.interval.value) for claim, small, finding in rows)
    small = [" †" if small and marked else "" for small in smaller]
    labels = [pretty(name) + mark for name, mark in zip(names, small, strict=True)]
    ax.set_yticks(range(len(claims)), labels, fontsize=5.5)
    ax.set_ylim(len(claims) - 0.4, -0.6)
    ax.set_xlim(-FARTHEST - 0.8, FARTHEST + 0.8)
    ax.set_xticks([-4, -2, 0, 2, 4])
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="x", visible=False)
    ax.set_xlabel("distance from the threshold, in half-widths of\nthe 95 % interval; right: as claimed", fontsize=6)
    ax.text(1.02, -1.1, "effect", transform=ax.get_yaxis_transform(), va="center", fontsize=5.5)
    handles = [Line2D([], [], linestyle="", label=verdict, markersize=4, **look) for verdict, look in STYLES.items()]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, handlelength=1, columnspacing=1.2)
    what = "†: a smaller model ran under the model's name" if marked else "smaller models ran under the models' names"
    units = "effects: pt: points of scores; without a unit: ratios, their logarithms, correlations and shares"
    without = sum(not np.isfinite(finding.interval.value) for finding in findings)
    missing = f"{without} of the inconclusive claims {'has' if without == 1 else 'have'} no value" if without else ""
    add_footer(figure, [*([what] if replaced else []), units, *notes, missing])
    return figure


def with_unit(effect: float, unit: str) -> str:
    """The effect with two digits, and the unit if it is that of scores or entropies; others are dimensionless."""
    number = f"{float(f'{effect:.2g}'):g}".replace("-", "−")
    return number + next((short for full, short in UNITS.items() if unit.split(",")[0] == full), "")


def _draw_interval(ax: Axes, row: int, x: float, look: Look) -> None:
    """The effect at x with its interval, two half-widths long; an arrow if it is beyond the edge."""
    if abs(x) <= FARTHEST - 1:
        ax.plot([x - 1, x + 1], [row, row], color=look["color"], linewidth=1, zorder=2)
        ax.plot(x, row, look["marker"], color=look["color"], markersize=4, markeredgecolor="white", markeredgewidth=0.4)
        return
    edge = np.sign(x) * FARTHEST
    arrow = {"arrowstyle": "->", "color": look["color"], "linewidth": 1, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (edge + np.sign(x) * 0.7, row), (edge - np.sign(x) * 0.6, row), arrowprops=arrow)
    ax.plot(edge - np.sign(x) * 0.6, row, look["marker"], color=look["color"], markersize=4, markeredgewidth=0)
