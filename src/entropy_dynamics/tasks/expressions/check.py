"""Comparison of two answers by Math-Verify. Only its parser of LaTeX is used: the one of plain text calls eval."""

import re
from functools import lru_cache
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

_LATEX = [LatexExtractionConfig(boxed_match_priority=-1)]
# Math delimiters and amounts of money: a dollar sign, escaped or not, also in \text{}, or a word behind the number.
_DOLLARS = re.compile(r"(?:\bUS\s*)?\\?\$|\\(?:text|math)dollar(?![A-Za-z])|(?<=[0-9])\s*(?:dollars?|USD)\b")


def check(expected: str, answer: str) -> bool:
    return verify(_parsed(expected), _parsed(answer), timeout_seconds=None)


@lru_cache(maxsize=1024)
def _parsed(text: str) -> list[Any]:
    # Math-Verify's own time limits are alarms, which need the main thread.
    return parse(f"${_DOLLARS.sub('', text)}$", extraction_config=_LATEX, parsing_timeout=None)
