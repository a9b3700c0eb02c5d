"""A run in a few lines: how many claims hold, what clipping gains, what does not hold, and where the page is."""

import re
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.finding import VERDICTS
from entropy_dynamics.errors import UserError
from entropy_dynamics.report.fill import in_digits
from entropy_dynamics.results.layout import Layout

SHOWN = {  # -> how the id begins of the claim about the main models together, or else the first model; decimals
    "entropy (log ratio)": ("entropy_held_{}", 2),
    "Pass@K (points)": ("pass_gain_{}", 1),
    "Avg@K (points)": ("avg_gain_{}", 1),
    "Avg@K greedy": ("greedy_{}", 1),
    "Avg@K at equal Pass@K": ("matched_pass_{}", 1),
}
METHODS = {"clip_b": "Clip_B", "clip_v": "Clip_V"}
LINES = 3  # maximum number of lines about claims that do not hold
LINE = 100  # characters per line


def summary(root: Path) -> list[str]:
    """The lines, from claims.json in `root`. Raises UserError if it is missing or damaged."""
    entries = verdicts_of(root)
    if not entries:
        raise UserError(f"{root} has no verdicts; make them with: {Layout(root).command('claims')}")
    lines, unknown = [f"{root}: {summary_line(entries.values())}", "", f"{'over GRPO':<24}{'Clip_B':<32}Clip_V"], []
    for quantity, (claim, decimals) in SHOWN.items():
        found = [next((entries[id] for id in entries if id.startswith(claim.format(name))), None) for name in METHODS]
        lines.append(f"{quantity:<24}{''.join(f'{_effect(entry, decimals):<32}' for entry in found)}")
        reasons = dict.fromkeys(_reason(entry) for entry in found if entry is None or entry["effect"] is None)
        unknown += textwrap.wrap(f"{quantity}: {', '.join(reasons)}", LINE) if reasons else []
    false = "; ".join(entry["label"] for entry in entries.values() if entry["verdict"] == "does not hold") or "none"
    lines += ["", *unknown, *textwrap.wrap(f"Does not hold: {false}", LINE, max_lines=LINES, placeholder=" ...")]
    page = Layout(root).report
    there = page if page.is_file() else f"{Layout(root).command('report')} writes it"
    return [line.rstrip() for line in [*lines, f"Everything on one page: {there}"]]


def summary_line(entries: Collection[dict[str, Any]]) -> str:
    """'Of 40 claims, 26 hold, 1 does not hold, 13 are inconclusive (2 of them without a value)'."""
    hold, do_not, open_ = verdict_counts(entries)
    without = sum(entry["effect"] is None for entry in entries if entry["verdict"] == "inconclusive")
    of_these = f" ({without} of them without a value)" if without else ""
    return (
        f"Of {len(entries)} claims, {hold} hold{'s' * (hold == 1)}, {do_not} do{'es' * (do_not == 1)} not hold, "
        f"{open_} {'is' if open_ == 1 else 'are'} inconclusive{of_these}"
    )


def verdict_counts(entries: Collection[dict[str, Any]]) -> list[int]:
    """The number of claims with each of `VERDICTS`."""
    counts = Counter(entry["verdict"] for entry in entries)
    return [counts[verdict] for verdict in VERDICTS]


def topics(entries: Collection[dict[str, Any]]) -> list[tuple[str, str]]:
    """(verdict, topic) of each topic, with its effects in points: it holds if most claims hold and none is refuted.

    It does not hold if a claim is refuted and none holds; otherwise it is inconclusive. Claims without a value are left
    out, and so are topics without any other claim.
    """
    found = []
    for topic in dict.fromkeys(entry["topic"] for entry in entries if entry.get("topic")):
        judged = [entry for entry in entries if entry["effect"] is not None and entry.get("topic") == topic]
        verdicts = Counter(entry["verdict"] for entry in judged)
        refuted, held = verdicts["does not hold"], verdicts["holds"]
        verdict = "does not hold" if refuted and not held else "inconclusive"
        verdict = "holds" if 2 * held > len(judged) and not refuted else verdict
        named = [[METHODS[name] for name in entry["methods"] if name in METHODS] for entry in judged]
        effects = [" ".join([*of[:1], in_digits(entry, "+")]) for of, entry in zip(named, judged, strict=True)]
        points = len(judged) <= len(METHODS) and all(entry["unit"] == "points" for entry in judged)
        found += [(verdict, f"{topic}: {', '.join(effects)} points" if points else topic)] if judged else []
    return found


def _effect(entry: Mapping[str, Any] | None, decimals: int) -> str:
    if entry is None or entry["effect"] is None:
        return "unknown"
    ends = "" if entry["low"] is None else f" [{entry['low']:z.{decimals}f}, {entry['high']:z.{decimals}f}]"
    return f"{entry['effect']:+z.{decimals}f}{ends}"


def _reason(entry: Mapping[str, Any] | None) -> str:
    """Why there is no effect, without the names of files and with the labels of the methods."""
    if entry is None:
        return "not a claim of this run"
    if "/" in entry["reason"]:
        return "the runs that it needs are not complete"
    return re.sub(r"\b(clip_b|clip_v|grpo)\b", lambda name: (METHODS | {"grpo": "GRPO"})[name[0]], entry["reason"])
