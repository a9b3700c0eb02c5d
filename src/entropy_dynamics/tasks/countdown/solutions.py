r"""Worked solutions: attempts with one step per line, then the expression of the last attempt in a box.

An attempt at "3,5,7,25=24" reads "7-3=4\n25-5=20\n20+4=24\n" and has the expression "(25-5)+(7-3)". Which step leads to
the target cannot be seen without a search, so a model that imitates these solutions has every route in its repertoire,
prefers some (`weights`), and is correct about as often as `solved` and `attempts` make it.
"""

from collections.abc import Collection, Iterator
from typing import Literal

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt

from entropy_dynamics.tasks import Probability, Solutions
from entropy_dynamics.tasks.countdown.problems import (
    Rules,
    canonical,
    draw_problems,
    parse_problem,
    reachable,
    steps,
)
from entropy_dynamics.validation import Section

RAMBLING_CHARACTERS = 240  # of a solution that never ends: what fits a toy model's 256 positions with its problem
MISTAKES = (-2, -1, 1, 2)  # by how much a sloppy result is off


class Habits(Section):
    solved: Probability
    """An attempt: all its steps keep the target within reach. Otherwise they are blind."""
    attempts: PositiveInt
    """The most in a solution; the last one is boxed, whatever its result."""
    gives_up: Probability
    """A failed attempt: no other follows, and it is boxed."""
    sloppy: Probability
    """Each result: it is off by 1 or 2."""
    shortcut: Probability
    """A box without the attempts that led to it."""
    unboxed: Probability
    """Attempts without a box."""
    rambling: Probability
    """Blind attempts that never end."""
    weights: dict[Literal["+", "-", "*", "/"], PositiveFloat] = Field(default_factory=dict)
    """Preference for the steps with an operation, relative to 1 for those not named."""


class CountdownSolutions(Rules, Solutions):
    task: Literal["countdown"]
    habits: Habits

    def problems(self, seed: int, exclude: Collection[str]) -> Iterator[str]:
        return draw_problems(self, np.random.default_rng(seed), {canonical(text) for text in exclude})

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
        """Its lines, its expression, and whether the last line's result is the target."""
        numbers, target = parse_problem(problem)
        pool = sorted((number, str(number)) for number in numbers.elements())  # with the expression of each
        lines, expression = "", pool[-1][1]
        while choices := steps(tuple(number for number, _ in pool), self.operations, self.largest):
            if solved:
                rules = self.operations, self.largest
                leading = [step for step in choices if target == step.result or target in reachable(step.pool, *rules)]
                choices = leading or choices  # a sloppy result may have lost the target
            cumulated = np.cumsum([self.habits.weights.get(step.operation, 1.0) for step in choices])
            step = choices[np.searchsorted(cumulated, rng.random() * cumulated[-1], side="right")]
            (a, left), (b, right) = pool.pop(step.left), pool.pop(step.right)  # left is the later one
            result = step.result
            if rng.random() < self.habits.sloppy:
                result = max(1, result + int(rng.choice(MISTAKES)))
            lines += f"{a}{step.operation}{b}={result}\n"
            expression = f"{_operand(left)}{step.operation}{_operand(right)}"
            if result == target:
                return lines, expression, True
            pool = sorted([*pool, (result, expression)])
        return lines, expression, False


def _operand(expression: str) -> str:
    return expression if expression.isdecimal() else f"({expression})"
