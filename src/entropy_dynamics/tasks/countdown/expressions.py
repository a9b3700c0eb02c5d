"""Exact evaluation of arithmetic expressions written by models; Python parses their text and never executes it."""

import ast
import operator
import re
from collections import Counter
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from entropy_dynamics.tasks.boxed import MAX_LENGTH

_WRITTEN = {r"\times": "*", r"\cdot": "*", "×": "*", r"\div": "/", "÷": "/", "−": "-", r"\left": " ", r"\right": " "}
_CHARACTERS = re.compile(r"[0-9+\-*/()\s]*")
_OPERATIONS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: Fraction}  # exact


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
    try:  # separated by blanks, so that no two tokens become one, such as **
        value = _evaluate(ast.parse(" ".join(tokens), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError):
        return None
    return Expression("".join(tokens), value, Counter(int(token) for token in tokens if token.isdigit()))


def _evaluate(node: ast.expr) -> Fraction | int:
    match node:
        case ast.Constant(number):
            return number
        case ast.BinOp(left, operation, right):
            return _OPERATIONS[type(operation)](_evaluate(left), _evaluate(right))
    raise ValueError("neither a number nor an operation")
