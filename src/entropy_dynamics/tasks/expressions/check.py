"""Comparison of two answers by Math-Verify. Only its parser of LaTeX is used: the one of plain text calls eval."""

from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

_LATEX = [LatexExtractionConfig(boxed_match_priority=-1)]


def check(expected: str, answer: str) -> bool:
    return verify(_parsed(expected), _parsed(answer), timeout_seconds=None)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> list[Any]:
    # Math-Verify's own time limits are alarms, which need the main thread.
    return parse(f"${text.replace('$', '')}$", extraction_config=_LATEX, parsing_timeout=None)
