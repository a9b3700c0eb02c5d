"""Integers as people and models write them, in answers of files and in responses."""

import re
from decimal import Decimal
from typing import Any

from entropy_dynamics.tasks.boxed import MAX_LENGTH

MAX_DIGITS = 18
NOT_AN_INTEGER = "the answer is not an integer"

# What may separate groups of three digits. A comma and a blank, or a blank alone, would be a list.
_GROUPS = re.compile(
    r"(?<![\w.,}~])([1-9][0-9]{0,2})(,\\!\s*|\{,\}\\!\s*|,|\{,\}|\{\\,\}|\\[,;: ]|~|[\u00a0\u2009\u202f])"
    r"([0-9]{3}(?:\2[0-9]{3})*)(?![0-9,~{]|\\[,;: ])"
)
_LAYOUT = re.compile(
    r"""
    \\[,;:!\s] | ~ | \{\} | \\\\\s*$ | \\hspace\*?\{[^{}]*\} | \\(?:text)?color\{[^{}]*\}
    | \\(?:q?quad|space|displaystyle|textstyle|bf|rm|it|tt|small|large|Large|huge|Huge)(?![A-Za-z])
    """,
    re.VERBOSE,
)
_FONT = r"\\(?:text(?:bf|it|rm|tt|normal)?|math(?:bf|it|rm|sf)|boldsymbol|bm|mbox|underline)\s*"
_BRACED = re.compile(rf"(?:{_FONT})?(?<![\^_])\{{\s*([-+−–]|[-+−–]?[0-9]+)\s*\}}")
_WRAPPED = re.compile(rf"(?:{_FONT})?\{{(.*)\}}|\$\$?([^$]*)\$\$?|\\\((.*)\\\)|\\\[(.*)\\\]")
_POWER = r"(?:\s*\^\s*(?:[23]|\{\s*[23]\s*\}))?"
_INTEGER = re.compile(
    rf"""
    (?P<sign>[-+−–﹣－]?) \s* (?:\\?\$)? \s* (?P<digits>[0-9]+) (?:\.0*)? \s*
    (?: \\?% | \\?\$
      | (?:(?:\^\s*\{{?\s*\\circ\s*\}}? | [°º] | \\degree) (?:\s*[CF])?)? \s*
        (?: {_FONT}\{{(?P<unit>[A-Za-z. /\-%\\$°]*)\}} {_POWER} )?
      | \^\s*\{{?\s*\\text\{{(?:o|st|nd|rd|th)\}}\s*\}}?
      | (?: (?<=\s) (?P<word>(?:(?:sq|square|cubic)\.?\s+)?[A-Za-z]{{2,}}(?:/[A-Za-z]+)?)
          | (?:[ckm]m|kg|m/s|km/h|mph) ) {_POWER}
    )
    """,
    re.VERBOSE,
)
_NOT_A_UNIT = re.compile(
    r"hundred|thousand|million|billion|trillion|dozen|squared|cubed|factorial|\b(?:half|halves|pi|sqrt|mod|or|and)\b",
    re.IGNORECASE,
)


def read_integer(value: Any) -> str:
    r"""The integer in a file's value, which may be a whole float below 2^53 or a string like "070" or "336^\circ".

    Raises ValueError if it is not an integer.
    """
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, int | str | Decimal) and not isinstance(value, bool) and (answer := parse_integer(str(value))):
        return answer
    raise ValueError(NOT_AN_INTEGER)


def parse_integer(text: str) -> str | None:
    r"""The integer in `text` as plain digits, or None. At most 64 characters, and 18 digits after leading zeros.

    Accepted: a sign (also U+2212 and U+2013), leading zeros (016), thousands separators (1,234 1{,}234 1,\! 234
    1\,234), a decimal point followed only by zeros (25.0), and around them LaTeX that changes only the layout: blanks,
    braces, fonts, colors, dollar signs. One unit may follow: degrees (^\circ, °, ^\circ C), percent (\%, %; 50\% is
    50), words in \text{}, a single bare word after a blank, or cm, kg, m/s and the like without one, each with an
    exponent 2 or 3, except multipliers ("million"). Rejected: fractions, powers, scientific notation, equations, bases
    (52_8), lists, parentheses, words, digits other than 0-9.
    """
    if len(text) > MAX_LENGTH:
        return None
    text = _LAYOUT.sub(" ", _GROUPS.sub(lambda group: re.sub(r"[^0-9]", "", group[0]), text))
    while (unwrapped := _unwrapped(text.strip())) != text:
        text = unwrapped
    match = _INTEGER.fullmatch(text)
    if match is None or _NOT_A_UNIT.search(match["unit"] or match["word"] or ""):
        return None
    digits = match["digits"].lstrip("0") or "0"
    if len(digits) > MAX_DIGITS:
        return None
    return f"-{digits}" if match["sign"] not in ("", "+") and digits != "0" else digits


def _unwrapped(text: str) -> str:
    """The text without a font, braces or math delimiters around all of it or around a number."""
    text = _BRACED.sub(r"\1", text)
    return next(filter(None, wrapped.groups()), "") if (wrapped := _WRAPPED.fullmatch(text)) else text
