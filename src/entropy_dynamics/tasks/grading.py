r"""Grading: read the integer that a model boxed, compare, reward. Nothing a model wrote is ever evaluated.

All answers are integers, so a small grammar is enough, and its bounds are fixed: one pass over the text to
find the last `\boxed{`, then at most 64 characters of it are looked at.

Readings where the sources are silent:

- The *last* box counts. If it is left open, or holds more than 64 characters, there is no box: an earlier
  one is not gone back to.
- A closed box that holds something else than an integer (`\boxed{1/2}`) is an answer, and a wrong one. The
  fallback (an "Answer:" line, then the last number of the text) is for texts without a box only.
"""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

MAX_LENGTH = 64  # characters of a box, or of a number, that are looked at
MAX_DIGITS = 18  # any such integer fits the int64 columns that answers are kept in

_BOX = re.compile(r"\\boxed\s*+\{")
_ANSWER_LINE = re.compile(r"answer\s*+:([^\n]*+)", re.IGNORECASE)
_NUMBER = re.compile(r"(?:(?<![\w)}.])[-+−])?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]++)(?:\.[0-9]++)?")

_WRAPPED = re.compile(r"\\(?:text|textbf|textrm|mathbf|mathrm)\{([^{}]*)\}")
_INTEGER = re.compile(
    r"""
    (?P<sign>[-+−]?) \s*
    (?P<digits> [0-9]+
      | [1-9][0-9]{0,2} (?P<comma>,|\{,\}|,\\!|\\,) [0-9]{3} (?:(?P=comma)[0-9]{3})* )
    (?:\.0*)? \s*
    (?: \^\s*\{?\s*\\circ\s*\}? | ° | \\?% | \\(?:text|textrm|mathrm|mbox)\{(?P<unit>[A-Za-z. ]*)\} )?
    """,
    re.VERBOSE,
)
_MULTIPLES = re.compile(r"hundred|thousand|million|billion|trillion|dozen", re.IGNORECASE)


def extract_boxed(text: str) -> str | None:
    r"""The content of the last `\boxed{...}`; None without one, or if it is left open or over 64 characters.

    Braces inside are balanced, escaped ones (`\{`, `\}`) do not count. Of boxes in boxes it is the one that
    opens last. Takes one pass over the text.
    """
    box = _last(_BOX, text)
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


def parse_integer(text: str) -> int | None:
    r"""The integer that `text` writes, or None. At most 64 characters and 18 digits (leading zeros aside).

    Read are: a sign (also the Unicode minus), leading zeros (016), thousands (1,234 1{,}234 1,\!234 1\,234), a
    decimal point with nothing but zeros after it (25.0), dollar signs around or before it, one \text{} or
    \mathbf{} around it, and one unit after it: degrees (^\circ, °), per cent (\%, %; 50\% reads 50) or words in
    \text{}, unless they multiply ("million"). Not read: fractions, powers, scientific notation, equations,
    bases (52_8), lists, words, digits other than 0-9.
    """
    if len(text) > MAX_LENGTH:
        return None
    text = text.strip().removeprefix("\\$").strip("$").strip()
    if wrapped := _WRAPPED.fullmatch(text):
        text = wrapped[1].strip()
    match = _INTEGER.fullmatch(text)
    if match is None or _MULTIPLES.search(match["unit"] or ""):
        return None
    digits = re.sub(r"[^0-9]", "", match["digits"]).lstrip("0") or "0"
    if len(digits) > MAX_DIGITS:
        return None
    return int(digits) * (-1 if match["sign"] in {"-", "−"} else 1)


@dataclass(frozen=True)
class Grade:
    """What one response is worth."""

    answer: int | None  # the boxed integer; None if no box holds one
    correct: bool  # the boxed integer is the right one: what Avg@K and Pass@K count
    answer_correct: bool  # the boxed integer is right or, in a text without a box, the fallback's
    formatted: bool  # a box with an integer, and the response ended by itself
    truncated: bool  # cut off at the length limit


def grade(text: str, answer: int, finish_reason: str) -> Grade:
    """Grade one response. `finish_reason` is "stop" (ended by itself) or "length" (cut off at the limit).

    Raises ValueError for any other reason: an aborted response was not answered, and must not count as wrong.
    """
    if finish_reason not in {"stop", "length"}:
        raise ValueError(f"a response that finished with {finish_reason!r} cannot be graded")
    box = extract_boxed(text)
    boxed = None if box is None else parse_integer(box)
    stated = _without_box(text) if box is None else boxed
    return Grade(
        answer=boxed,
        correct=boxed == answer,
        answer_correct=stated == answer,
        formatted=boxed is not None and finish_reason == "stop",
        truncated=finish_reason == "length",
    )


def paper_reward(grade: Grade) -> float:
    """The four values of the paper's Appendix B.

    1 answer and format right; 0 answer right, format not; -1 wrong and "extremely long"; -0.1 wrong otherwise.
    Read as: extremely long = cut off at the limit, and a wrong answer in the right format counts as wrong.
    """
    if grade.answer_correct:
        return 1.0 if grade.formatted else 0.0
    return -1.0 if grade.truncated else -0.1


def binary_reward(grade: Grade) -> float:
    """The reward of the released configuration: 1 for the right answer in the last box, else 0."""
    return 1.0 if grade.correct else 0.0


REWARDS: dict[str, Callable[[Grade], float]] = {"paper": paper_reward, "binary": binary_reward}


def _without_box(text: str) -> int | None:
    """The integer on the last "Answer:" line; if none can be read there, the last number, if it is an integer."""
    line = _last(_ANSWER_LINE, text)
    if line is not None and len(line[1]) <= MAX_LENGTH:
        stated = parse_integer(line[1].strip(" \t\r*").removesuffix("."))
        if stated is not None:
            return stated
    number = _last(_NUMBER, text)
    return None if number is None else parse_integer(number[0])


def _last(pattern: re.Pattern, text: str) -> re.Match | None:
    last = deque(pattern.finditer(text), maxlen=1)
    return last[0] if last else None
