"""Parser and exact evaluator of arithmetic expressions written by models; their text is never executed."""

import operator
import re
from collections import Counter, deque
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from entropy_dynamics.tasks.boxed import MAX_LENGTH

_WRITTEN = {r"\times": "*", r"\cdot": "*", "×": "*", r"\div": "/", "÷": "/", "−": "-", r"\left": " ", r"\right": " "}
_CHARACTERS = re.compile(r"[0-9+\-*/()\s]*")
_OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": Fraction}  # exact, and fast for integers
_PRECEDENCE = ("+-", "*/")


@dataclass(frozen=True)
class Expression:
    text: str
    """Without spaces and leading zeros, with the operators + - * /."""
    value: Fraction | int
    numbers: Counter[int]
    """Its numbers with their counts."""


@lru_cache(maxsize=4096)  # samples of a problem repeat a few expressions, and each is read twice
def parse_expression(text: str) -> Expression | None:
    r"""Parse numbers, + - * / and parentheses; None for anything else: signs, powers, equations, division by zero.

    \times, \cdot, \div and their Unicode characters are accepted too. At most 64 characters, hence at most 32 levels.
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
    except (ValueError, IndexError, ZeroDivisionError):  # unexpected token, unexpected end, division by zero
        return None
    if rest:
        return None
    return Expression("".join(tokens), value, Counter(int(token) for token in tokens if token.isdigit()))


def _evaluate(tokens: deque[str], level: int = 0) -> Fraction | int:
    """Consume and evaluate the longest leading expression of `tokens` with operators of at least this precedence."""
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
