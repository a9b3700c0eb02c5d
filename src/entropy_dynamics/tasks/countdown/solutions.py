r"""Worked solutions: attempts with one equation per line, then the expression of the last attempt in a box.

An attempt at "3,5,7,25=24" is "7-3=4\n25-5=20\n20+4=24\n", with the expression "(25-5)+(7-3)". It takes a search to
tell which move leads to the target, so a model that imitates these solutions learns every route, prefers some
(`weights`), and is correct about as often as `solved` and `attempts` imply.
"""

from bisect import bisect_right
from collections.abc import Collection, Iterator
from itertools import accumulate
from typing import Literal

import numpy as np
from pydantic import Field, PositiveFloat

from entropy_dynamics.sections import PositiveInt, Section, ZeroToOne
from entropy_dynamics.tasks import Solutions
from entropy_dynamics.tasks.countdown import problems as countdown

RAMBLING_CHARACTERS = 240  # length of a solution without end; with its problem it fits a toy model's 256 positions
MISTAKES = (-2, -1, 1, 2)  # errors of a sloppy result


class Habits(Section):
    solved: ZeroToOne
    """Probability that all moves of an attempt keep the target within reach; otherwise they are blind."""
    attempts: PositiveInt
    """Maximum number of attempts; the last one is boxed, whatever its result."""
    gives_up: ZeroToOne
    """Probability that a failed attempt is the last one, and boxed."""
    sloppy: ZeroToOne
    """Probability, for each result, that it is off by 1 or 2."""
    shortcut: ZeroToOne
    """Probability of a box without the attempts that led to it."""
    unboxed: ZeroToOne
    """Probability of attempts without a box."""
    rambling: ZeroToOne
    """Probability of blind attempts that never end."""
    weights: dict[countdown.Operation, PositiveFloat] = Field(default_factory=dict)
    """Relative preference for moves by operation; 1 for operations not listed."""


class CountdownSolutions(countdown.Rules, Solutions):
    task: Literal["countdown"]
    habits: Habits

    def problems(self, seed: int, exclude: Collection[str]) -> Iterator[str]:
        excluded = {countdown.canonical(text) for text in exclude}
        return countdown.draw_problems(self, np.random.default_rng(seed), excluded)

    def solve(self, problem: str, rng: np.random.Generator) -> tuple[str, bool]:
        habits = self.habits
        if rng.random() < habits.rambling:
            text = ""
            while len(text) < RAMBLING_CHARACTERS:
                text += self._attempt(problem, rng, solved=False)[0] + "\n"
            return text[:RAMBLING_CHARACTERS], False
        attempts = []
        while True:
            lines, expression, reached = self._attempt(problem, rng, solved=rng.random() < habits.solved)
            attempts.append(lines)
            if reached or len(attempts) == habits.attempts or rng.random() < habits.gives_up:
                break
        text, box = "\n".join(attempts), f"\\boxed{{{expression}}}"
        if rng.random() < habits.shortcut:
            return box, True
        return (text if rng.random() < habits.unboxed else text + box), True

    def _attempt(self, problem: str, rng: np.random.Generator, *, solved: bool) -> tuple[str, str, bool]:
        """One attempt: its lines, its expression, and whether its result is the target."""
        numbers, target = countdown.parse_problem(problem)
        pool = sorted((number, str(number)) for number in numbers.elements())  # with the expression of each
        lines, expression, rules = "", pool[-1][1], (self.operations, self.largest)
        while choices := countdown.moves(tuple(number for number, _ in pool), *rules):
            if solved:
                leading = [move for move in choices if target in countdown.reachable(move.pool, *rules)]
                choices = tuple(leading) or choices  # a sloppy result may have made the target unreachable
            # NumPy would take ten times as long for so few numbers.
            cumulated = list(accumulate(self.habits.weights.get(move.operation, 1.0) for move in choices))
            move = choices[bisect_right(cumulated, rng.random() * cumulated[-1])]
            (a, left), (b, right) = pool.pop(move.left), pool.pop(move.right)  # left is the later one
            result = move.result
            if rng.random() < self.habits.sloppy:
                result = max(1, result + int(rng.choice(MISTAKES)))
            lines += f"{a}{move.operation}{b}={result}\n"
            expression = f"{_operand(left)}{move.operation}{_operand(right)}"
            pool = sorted([*pool, (result, expression)])
        return lines, expression, [value for value, _ in pool] == [target]


def _operand(expression: str) -> str:
    return expression if expression.isdecimal() else f"({expression})"
