"""Arithmetic expressions as models write them, parsed and evaluated exactly without running any of their text."""

import operator
import re
from collections import Counter, deque
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from entropy_dynamics.tasks.boxed import MAX_LENGTH

_WRITTEN = {r"\times": "*", r"\cdot": "*", "×": "*", r"\div": "/", "÷": "/", "−": "-", r"\left": " ", r"\right": " "}
_CHARACTERS = re.compile(r"[0-9+\-*/()\s]*")
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": Fraction}  # exact, and integers are fast
_PRECEDENCE = ("+-", "*/")


@dataclass(frozen=True)
class Expression:
    text: str
    """Without spaces and leading zeros, with the operators + - * /."""
    value: Fraction | int
    numbers: Counter[int]
    """Its numbers with their counts."""


@lru_cache(maxsize=4096)  # the samples of a problem repeat few expressions, and each is read twice
def parse_expression(text: str) -> Expression | None:
    r"""Numbers, + - * / and parentheses; None for anything else, such as signs, powers, equations or division by zero.

    Also \times, \cdot, \div and their Unicode characters. At most 64 characters, so it is nested at most 32 deep.
    """
    if len(text) > MAX_LENGTH:
        return None
    for written, meant in _WRITTEN.items():
        text = text.replace(written, meant)
    if not _CHARACTERS.fullmatch(text):
        return None
    tokens = [token.lstrip("0") or "0" for token in re.findall(r"[0-9]+|\S", text)]
    rest = deque(tokens)
    try:
        value = _evaluate(rest)
    except (ValueError, IndexError, ZeroDivisionError):  # a token where none may stand, none left, no value
        return None
    if rest:
        return None
    return Expression("".join(tokens), value, Counter(int(token) for token in tokens if token.isdigit()))


def _evaluate(tokens: deque[str], level: int = 0) -> Fraction | int:
    """The value of the longest expression at the front of `tokens` whose operators bind at least as `level`'s."""
    if level < len(_PRECEDENCE):
        value = _evaluate(tokens, level + 1)
        while tokens and tokens[0] in _PRECEDENCE[level]:
            operation = _OPERATIONS[tokens.popleft()]
            value = operation(value, _evaluate(tokens, level + 1))
        return value
    token = tokens.popleft()
    if token != "(":
        return int(token)
    value = _evaluate(tokens)
    if tokens.popleft() != ")":
        raise ValueError("an open parenthesis")
    return value
