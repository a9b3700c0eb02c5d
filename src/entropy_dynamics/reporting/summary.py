"""A run in fifteen plain lines: how many claims hold, what clipping gains, what does not hold, where the report is."""

import textwrap
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.verdicts import VERDICTS
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.layout import Layout

SHOWN = {  # -> how the id begins of the claim about the main models together, or else the first model
    "entropy (log ratio)": "entropy_held_{}",
    "Avg@K (points)": "avg_gain_{}",
    "Pass@K (points)": "pass_gain_{}",
    "Avg@K greedy": "greedy_{}",
    "Avg@K at equal Pass@K": "matched_pass_{}",
}
METHODS = {"clip_b": "Clip_B", "clip_v": "Clip_V"}
LINES = 3  # maximum number of lines about claims that do not hold
LINE = 100  # characters per line


def summary(root: Path) -> list[str]:
    """The lines, from claims.json in `root`. Raises UserError if it is missing or damaged."""
    entries = verdicts_of(root)
    if not entries:
        raise UserError(f"{root} has no verdicts; make them with: entropy-dynamics claims")
    lines = [f"{root}: {_counts(entries.values())}", "", f"{'over GRPO':<24}{'Clip_B':<32}Clip_V"]
    for quantity, claim in SHOWN.items():
        found = [next((entries[id] for id in entries if id.startswith(claim.format(name))), None) for name in METHODS]
        lines.append(f"{quantity:<24}{''.join(f'{_effect(entry):<32}' for entry in found)}")
    false = "; ".join(entry["label"] for entry in entries.values() if entry["verdict"] == "does not hold")
    lines += ["", *textwrap.wrap(f"Does not hold: {false or 'none'}", LINE, max_lines=LINES, placeholder=" ...")]
    if (page := Layout(root).report).is_file():
        lines.append(f"Everything on one page: {page}")
    return [line.rstrip() for line in lines]


def _counts(entries: Collection[dict[str, Any]]) -> str:
    """'of 76 claims 39 hold, 5 do not, 32 are inconclusive (4 of them without a value)'."""
    counts = Counter(entry["verdict"] for entry in entries)
    hold, do_not, open_ = (counts[verdict] for verdict in VERDICTS)
    empty = sum(entry["verdict"] == "inconclusive" and entry["effect"] is None for entry in entries)
    parts = [
        f"{hold} {'holds' if hold == 1 else 'hold'}",
        f"{do_not} {'does' if do_not == 1 else 'do'} not",
        f"{open_} {'is' if open_ == 1 else 'are'} inconclusive",
    ]
    return f"of {len(entries)} claims {', '.join(parts)}{f' ({empty} of them without a value)' if empty else ''}"


def in_a_sentence(entries: Collection[dict[str, Any]]) -> str:
    """The verdict on each topic of `entries`: it holds if most of its claims hold and none is refuted.

    It does not hold if a claim is refuted and none holds; otherwise it is open. Claims without a value are left out,
    and so are topics without any other claim.
    """
    by_verdict: dict[str, list[str]] = {verdict: [] for verdict in VERDICTS}
    for topic in dict.fromkeys(entry["topic"] for entry in entries if entry.get("topic")):
        judged = (entry for entry in entries if entry["effect"] is not None and entry.get("topic") == topic)
        verdicts = Counter(entry["verdict"] for entry in judged)
        if count := verdicts.total():
            refuted, held = verdicts["does not hold"], verdicts["holds"]
            verdict = "does not hold" if refuted and not held else "inconclusive"
            verdict = "holds" if 2 * held > count and not refuted else verdict
            by_verdict[verdict].append(f"{topic} ({held} of {count})")
    heads = {"holds": "Holds", "does not hold": "does not hold", "inconclusive": "open"}
    text = "; ".join(f"{heads[verdict]}: {', '.join(topics)}" for verdict, topics in by_verdict.items() if topics)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _effect(entry: dict[str, Any] | None) -> str:
    if entry is None or entry["effect"] is None:
        return "unknown"
    ends = "" if entry["low"] is None else f" [{entry['low']:.3g}, {entry['high']:.3g}]"
    return f"{entry['effect']:+.3g}{ends}"
