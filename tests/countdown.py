"""Countdown for its tests: small problems, grades, and every expression of some numbers by brute force."""

from collections import Counter
from fractions import Fraction
from itertools import product

from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.countdown import TASK
from entropy_dynamics.tasks.countdown.problems import CountdownSet

RULES = {"numbers": [3, 4], "values": [1, 9], "targets": [10, 50]}
OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
}


def countdown_set(**changes) -> CountdownSet:
    return CountdownSet.model_validate({"source": "countdown", "size": 50} | RULES | changes)


def grade(response: str, text: str, finish_reason: str = "stop"):
    return TASK.grade(response, Problem("p", text, text.partition("=")[2], "countdown"), finish_reason)


def divided(numbers: tuple[int, ...], parts: int):
    """Every way to divide the numbers among so many parts."""
    for choice in product(range(parts), repeat=len(numbers)):
        yield [tuple(n for n, part in zip(numbers, choice, strict=True) if part == which) for which in range(parts)]


def all_expressions(numbers: tuple[int, ...]) -> dict[str, tuple[Fraction, Counter]]:
    """Every fully parenthesized expression of some of the numbers, with its value and the numbers that it uses."""
    found = {str(number): (Fraction(number), Counter([number])) for number in numbers}
    for left, right, _ in divided(numbers, 3):
        if left and right:
            pairs = product(all_expressions(left).items(), all_expressions(right).items())
            for ((a, (x, used_a)), (b, (y, used_b))), symbol in product(pairs, OPERATIONS):
                if symbol != "/" or y != 0:
                    found[f"({a}{symbol}{b})"] = OPERATIONS[symbol](x, y), used_a + used_b
    return found
