"""Worked solutions of sums in a mixture of habits: careful, guessing, sloppy, without a box, rambling."""

from collections.abc import Collection, Iterator
from typing import Literal

import numpy as np

from entropy_dynamics.errors import UserError
from entropy_dynamics.tasks import Probability, Solutions
from entropy_dynamics.tasks.arithmetic.problems import TermRange, canonical, draw, is_sum, number_of_sums, sums_left
from entropy_dynamics.validation import Section

RAMBLING_CHARACTERS = 160  # length of a solution without end: more than any token limit in use
MISTAKES = (-2, -1, 1, 2)  # errors of a sloppy running sum
RARE = 0.05  # lengths with a smaller share of unused sums are not drawn, as 19 of 20 draws would fail [ours]
GUESSING_ERROR = 4.0  # standard deviation of a guess around the true sum: about one guess in ten is right [ours]


class Habits(Section):
    shuffled: Probability
    """Probability that a careful solution adds the numbers in a shuffled order."""
    shortcut: Probability
    """Probability of a bare guess instead of a careful solution."""
    sloppy: Probability
    """Probability, for each running sum, that it is wrong."""
    unboxed: Probability
    """Probability that the answer has no box."""
    rambling: Probability
    """Probability of a solution that never ends."""


class ArithmeticSolutions(Solutions):
    task: Literal["arithmetic"]
    terms: TermRange
    """[min, max] count of numbers in a sum."""
    habits: Habits

    def problems(self, seed: int, exclude: Collection[str]) -> Iterator[str]:
        """See `Solutions.problems`. Lengths are uniform, except that a draw in `exclude` is repeated with a new one."""
        excluded = {canonical(text) for text in exclude if is_sum(text)}
        left = sums_left(self.terms, excluded)
        lengths = [length for length, number in left.items() if number >= RARE * number_of_sums(length)]
        if not lengths:
            raise UserError(
                f"arithmetic: the other sets hold nearly every sum of {self.terms[0]} to {self.terms[1]} numbers, so "
                "none is left for the warm start; make those sets smaller or widen its `terms`"
            )
        rng = np.random.default_rng(seed)
        while True:
            text = draw(int(rng.choice(lengths)), rng)
            if canonical(text) not in excluded:
                yield text

    def solve(self, problem: str, rng: np.random.Generator) -> tuple[str, bool]:
        numbers, habits = [int(number) for number in problem.split("+")], self.habits
        if rng.random() < habits.shortcut:
            return _boxed(max(0, round(rng.normal(sum(numbers), GUESSING_ERROR)))), True
        text, total = _running_sums(numbers, habits, rng)
        if rng.random() < habits.rambling:
            while len(text) < RAMBLING_CHARACTERS:
                text += "\n" + _running_sums(numbers, habits, rng)[0]
            return text, False
        return (text if rng.random() < habits.unboxed else text + _boxed(total)), True


def _running_sums(numbers: list[int], habits: Habits, rng: np.random.Generator) -> tuple[str, int]:
    order = rng.permutation(numbers) if rng.random() < habits.shuffled else numbers
    total = int(order[0])
    text = str(total)
    for number in order[1:]:
        total += int(number)
        if rng.random() < habits.sloppy:
            total = max(0, total + int(rng.choice(MISTAKES)))
        text += f"+{number}={total}"
    return text, total


def _boxed(answer: int) -> str:
    return f"\\boxed{{{answer}}}"
