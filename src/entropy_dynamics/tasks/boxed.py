r"""Reading the last `\boxed{...}` of a response in one pass; nothing a model wrote is ever evaluated."""

import re
from collections import deque

MAX_LENGTH = 64  # characters of a box that are read

_BOX = re.compile(r"\\boxed\s*+\{")


def extract_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`; None without one, or if it is left open or longer than 64 characters.

    Braces inside are balanced, escaped ones (`\{`, `\}`) do not count. The last box is the one that opens last, even
    inside another; if it cannot be read, an earlier one does not count.
    """
    box = last_match(_BOX, text)
    if box is None:
        return None
    start = position = box.end()
    depth = 1
    while position < min(len(text), start + MAX_LENGTH + 1):
        character = text[position]
        if character == "\\":
            position += 1  # and the character it escapes
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
