"""A run in a few lines: how many claims hold, which topics, what does not hold, and where the page is."""

import textwrap
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from typing import Any

from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.verdicts import VERDICTS
from entropy_dynamics.errors import UserError
from entropy_dynamics.reporting.templates import in_digits
from entropy_dynamics.results.layout import Layout

METHODS = {"clip_b": "Clip_B", "clip_v": "Clip_V"}
LINES = 3  # maximum number of lines about claims that do not hold
LINE = 100  # characters per line


def summary(root: Path) -> list[str]:
    """The lines, from claims.json in `root`. Raises UserError if it is missing or damaged."""
    entries = list(verdicts_of(root).values())
    if not entries:
        raise UserError(f"{root} has no verdicts; make them with: entropy-dynamics claims")
    false = "; ".join(entry["label"] for entry in entries if entry["verdict"] == "does not hold")
    page = Layout(root).report
    return [
        f"{root}: {summary_line(entries)}",
        *(f"{verdict:<15}{topic}" for verdict, topic in topics(entries)),
        *textwrap.wrap(f"Does not hold: {false or 'none'}", LINE, max_lines=LINES, placeholder=" ..."),
        f"Everything on one page: {page if page.is_file() else 'entropy-dynamics report writes it'}",
    ]


def summary_line(entries: Collection[dict[str, Any]]) -> str:
    """'Of 40 claims, 26 hold, 4 do not hold, 10 are inconclusive'."""
    return "Of {} claims, {} hold, {} do not hold, {} are inconclusive".format(len(entries), *verdict_counts(entries))


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
        effects = [f"{METHODS.get(entry['id'][-6:], '')} {in_digits(entry, '+')}".strip() for entry in judged]
        points = len(judged) <= len(METHODS) and all(entry["unit"] == "points" for entry in judged)
        found += [(verdict, f"{topic}: {', '.join(effects)} points" if points else topic)] if judged else []
    return found
