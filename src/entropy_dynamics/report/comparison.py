"""Two runs' verdicts and effects side by side, as text and as Markdown."""

import math
from pathlib import Path
from statistics import median

from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.replication import Replicate, agreeing_had_second_found, detectable_by_unit, replicates
from entropy_dynamics.analysis.statistics import Interval
from entropy_dynamics.report.fill import fill

SHOWN = 6  # maximum number of differing claims that are listed
UNITS = 2  # and of units, the most frequent


def write_comparison(first: Path, second: Path, table: bool = False) -> str:
    """The summary lines and, with `table`, a table of all claims. Raises UserError like `replicates`."""
    claims = replicates(first, second)
    compared = [claim for claim in claims if claim.compared]
    apart = [claim for claim in compared if not claim.agrees]
    changed = [claim for claim in compared if claim.changed]
    once = sum(any(claim.judged) and not all(claim.judged) for claim in claims)
    others = sum(claim.random and all(claim.judged) and not claim.alike for claim in claims)
    more = f"; {once} more have an interval in one run only" if once else ""
    more += f"; {others} more were judged by another range" if others else ""
    rows = [_row(claim) for claim in claims] if table else []
    if all(claim.same for claim in compared):
        identical = f"All {len(compared)} effects are identical: these are the same runs{more}"
        return fill("comparison.md", lines=[identical], rows=rows)
    share = f"{len(compared) - len(apart)} of {len(compared)} ({1 - len(apart) / len(compared):.0%})"
    effects = f"{share} agree: the 95% interval of their difference includes zero"
    verdicts = f"{len(changed)} of {len(compared)} changed, {sum(claim.reversed for claim in changed)} of them reversed"
    chance = sum(claim.chance_of_change for claim in compared)
    expected = "unknown, as a file has no ranges" if math.isnan(chance) else f"about {chance:.0f}"
    labels = {id: entry["label"] or id for id, entry in verdicts_of(first).items()}
    named = [f"{labels[claim.id]} ({' → '.join(claim.verdicts)})" for claim in changed]
    named += [f"{labels[claim.id]} (effect)" for claim in apart if claim not in changed]
    lines = [f"Effects:  {effects}; expected: about 97%", f"Power:    {_power(compared)}"]
    judged = (entry for run in (first, second) for entry in verdicts_of(run).values())
    if len(scales := dict.fromkeys(entry["scale"] for entry in judged if entry["scale"])) > 1:
        lines.append(f"Scales:   {' and '.join(scales)}: other models or problems, so neither run replicates the other")
    if (most := max(compared, key=lambda claim: claim.shared)).shared:
        same = f"up to {most.shared} are in both runs, so these are not independent: estimates correlate at"
        lines.append(f"Seeds:    {same} {most.correlation:.2f}, which the intervals and the power use")
    lines += [
        f"Verdicts: {verdicts}; expected by chance: {expected}{more}",
        f"Differ:   {', '.join(named[:SHOWN]) or 'none'}"
        f"{f' and {len(named) - SHOWN} more (--table)' if named[SHOWN:] else ''}",
    ]
    return fill("comparison.md", lines=lines, rows=rows)


def _power(claims: list[Replicate]) -> str:
    """What agreement is worth: the differences that would have been detected, and how many claims agree by default."""
    most = sorted(detectable_by_unit(claims).items(), key=lambda item: -len(item[1]))[:UNITS]
    medians = [f"{median(found):.2g} {unit} (median of {len(found)})" for unit, found in most]
    at, opposite = ("{} of {}".format(*agreeing_had_second_found(claims, share)) for share in (0, -1))
    size = ", ".join(medians) or "unknown size"
    had = f"{at} would agree had the second run found the threshold, {opposite} had it found the opposite sign"
    return f"90% for a difference of {size}; {had}"


def _row(claim: Replicate) -> list[str]:
    effects = [_number(effect) for effect in (*claim.effects, claim.difference)]
    mark = "**" if claim.changed else ""
    verdicts = [f"{mark}{verdict}{mark}" for verdict in claim.verdicts]
    detectable = claim.detectable_difference
    effects.append("–" if math.isnan(detectable) else f"{detectable:.3g}")
    return [claim.id, *verdicts, *effects, {None: "–", True: "yes", False: "**no**"}[claim.agrees]]


def _number(interval: Interval) -> str:
    if math.isnan(interval.value):
        return "–"
    ends = "" if math.isnan(interval.low) else f" [{interval.low:.3g}, {interval.high:.3g}]"
    return f"{interval.value:.3g}{ends}"
