r"""Extraction of the last `\boxed{...}` of a response in one pass. No model output is ever evaluated."""

import re
from collections import deque

MAX_LENGTH = 64  # maximum number of characters in a box with an integer

_BOX = re.compile(r"\\boxed\s*+\{")


def extract_boxed(text: str, max_length: int = MAX_LENGTH) -> str | None:
    r"""The content of the last `\boxed{...}`; None if there is none, or if it is unclosed or over `max_length`.

    Braces inside must balance; escaped ones (`\{`, `\}`) do not count. The last box is the one that opens last, even
    inside another one. If it cannot be read, earlier boxes are not considered.
    """
    box = last_match(_BOX, text)
    if box is None:
        return None
    start = position = box.end()
    depth = 1
    while position < min(len(text), start + max_length + 1):
        character = text[position]
        if character == "\\":
            position += 1  # skip the escaped character
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start:position]
        position += 1
    return None


def last_match(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The last match of `pattern`; linear in the length of the text if the pattern is."""
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None
