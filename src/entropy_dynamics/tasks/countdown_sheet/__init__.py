r"""A sheet of Countdown problems in one prompt, a box for each: the number of problems fixes a response's length.

A sheet has one problem a line, and the n-th box answers the n-th problem. A response is correct if at least `needed`
boxes are. A problem may be on several sheets, but no two sheets have the same problems in one order.
"""

import re
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any, Literal, Self

import numpy as np
from pydantic import model_validator

from entropy_dynamics.errors import UserError
from entropy_dynamics.sections import PositiveInt
from entropy_dynamics.tasks import GeneratedSet, Problem, Solutions, Task
from entropy_dynamics.tasks.boxed import MAX_LENGTH
from entropy_dynamics.tasks.countdown import solves
from entropy_dynamics.tasks.countdown.expressions import parse_expression
from entropy_dynamics.tasks.countdown.problems import PATIENCE, Rules, canonical, draw_problems, parse_problem
from entropy_dynamics.tasks.countdown.solutions import CountdownSolutions
from entropy_dynamics.tasks.integers import read_integer

_BOX = re.compile(rf"\\boxed\{{([^{{}}]{{0,{MAX_LENGTH}}})\}}")


def key(text: str) -> str:
    """The problems of a prompt in canonical form."""
    return "\n".join(map(canonical, text.splitlines()))


def draw_sheets(rules: Rules, count: int, seed: int, excluded: Collection[str]) -> Iterator[str]:
    """Yield prompts of `count` problems endlessly, except those whose key is in `excluded`, which may grow meanwhile.

    Raises UserError if hardly any prompts are left.
    """
    problems, misses = draw_problems(rules, np.random.default_rng(seed), ()), 0
    while misses < PATIENCE:
        text = "\n".join(islice(problems, count))
        misses = misses + 1 if key(text) in excluded else 0
        if not misses:
            yield text
    raise UserError("countdown_sheet: hardly any new prompt is left; ask for fewer, or for more problems in each")


class SheetSet(Rules, GeneratedSet):
    source: Literal["countdown_sheet"]
    per_prompt: PositiveInt
    """Number of problems in a prompt."""
    needed: PositiveInt
    """Number of problems that a correct response solves."""

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.needed > self.per_prompt:
            raise ValueError(f"needed ({self.needed}) should be at most per_prompt ({self.per_prompt})")
        return self

    def generate(self, prefix: str, seed: int, exclude: Collection[str]) -> list[Problem]:
        seen, problems = set(map(key, exclude)), []
        for number, text in enumerate(islice(draw_sheets(self, self.per_prompt, seed, seen), self.size)):
            seen.add(key(text))
            problems.append(Problem(f"{prefix}-{number:04d}", text, str(self.needed), "countdown_sheet"))
        return problems


class SheetSolutions(Solutions):
    task: Literal["countdown_sheet"]
    per_prompt: PositiveInt
    each: CountdownSolutions
    """How one problem is solved."""

    def problems(self, seed: int, exclude: Collection[str]) -> Iterator[str]:
        return draw_sheets(self.each, self.per_prompt, seed, set(map(key, exclude)))

    def solve(self, problem: str, rng: np.random.Generator) -> tuple[str, bool]:
        texts = []
        for one in problem.splitlines():
            text, ends = self.each.solve(one, rng)
            texts.append(text)
            if not ends:
                return "\n".join(texts), False
        return "\n".join(texts), True


class CountdownSheet(Task):
    name = "countdown_sheet"
    instruction = (
        "Each line has numbers before an equals sign: combine them, each exactly once, with + - * / and parentheses so "
        r"that they give the number after it. Put the expression of each line within its own \boxed{}, in their order."
    )
    generated = SheetSet
    solutions = SheetSolutions

    def read_answer(self, value: Any, text: str) -> str:
        """The number of problems to solve."""
        needed, there = int(read_integer(value)), len(text.splitlines())
        for line in text.splitlines():
            parse_problem(line)
        if not 1 <= needed <= there:
            raise ValueError(f"the answer should be the number of lines to solve, 1 to {there}")
        return str(needed)

    def extract(self, response: str) -> str | None:
        """The expressions of all boxes, one a line; an empty line for a box without one."""
        found = [parse_expression(box) for box in _BOX.findall(response)]
        return "\n".join(one.text if one else "" for one in found) if any(found) else None

    def is_correct(self, answer: str | None, problem: Problem) -> bool:
        if answer is None:
            return False
        lines, problems = answer.split("\n"), problem.text.splitlines()
        return len(lines) == len(problems) and sum(map(solves, lines, problems)) >= int(problem.answer)

    key = staticmethod(key)


TASK = CountdownSheet()
