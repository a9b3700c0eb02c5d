r"""Extraction of the last `\boxed{...}` of a response in one pass. No model output is ever evaluated."""

import re
from collections import deque

INSTRUCTION = r"Please reason step by step, and put your final answer within \boxed{}."
MAX_LENGTH = 64  # maximum number of characters in a box with an integer

_BOX = re.compile(r"\\boxed\s*+\{")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # or any escaped character


def extract_boxed(text: str, max_length: int = MAX_LENGTH) -> str | None:
    r"""The content of the last `\boxed{...}`; None if there is none, or if it is unclosed or over `max_length`.

    Braces inside must balance; escaped ones (`\{`, `\}`) do not count. The last box is the one that opens last, even
    inside another one. If it cannot be read, earlier boxes are not considered.
    """
    if (box := last_match(_BOX, text)) is None:
        return None
    start, depth = box.end(), 1
    for brace in _BRACE.finditer(text, start, start + max_length + 1):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[start : brace.start()]
    return None


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match of `pattern`; linear in the length of the text if the pattern is."""
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None
