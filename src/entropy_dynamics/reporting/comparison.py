"""Two runs' verdicts and effects side by side, as Markdown."""

import math
from pathlib import Path

from entropy_dynamics.analysis.replication import Replicate, replicates
from entropy_dynamics.analysis.statistics import Interval
from entropy_dynamics.reporting.templates import fill


def write_comparison(first: Path, second: Path) -> str:
    """The table, under one line of counts. Raises UserError as `replicates`."""
    claims = replicates(first, second)
    compared = [claim for claim in claims if claim.agrees is not None]
    agreeing = sum(claim.agrees is True for claim in compared)
    share = f" ({agreeing / len(compared):.0%})" if compared else ""
    changed = [set(claim.verdicts) for claim in claims if len(set(claim.verdicts)) > 1]
    reverse = changed.count({"holds", "does not hold"})
    summary = (
        f"{agreeing} of {len(compared)} effects{share} agree: zero is in the 95 % interval of their difference. Of "
        f"{len(claims)} verdicts {len(changed)} changed, {reverse} of them from holds to does not hold or back."
    )
    return fill("comparison.md", summary=summary, rows=[_row(claim) for claim in claims])


def _row(claim: Replicate) -> list[str]:
    effects = [_number(effect) for effect in (*claim.effects, claim.difference)]
    mark = "**" if len(set(claim.verdicts)) > 1 else ""
    verdicts = [f"{mark}{verdict}{mark}" for verdict in claim.verdicts]
    return [claim.id, *verdicts, *effects, {None: "–", True: "yes", False: "**no**"}[claim.agrees]]


def _number(interval: Interval) -> str:
    if math.isnan(interval.value):
        return "–"
    ends = "" if math.isnan(interval.low) else f" [{interval.low:.3g}, {interval.high:.3g}]"
    return f"{interval.value:.3g}{ends}"
