r"""Demonstrations: the generator's answer in \boxed{}, for sums and differences after a line for each step."""

import re
import zlib
from collections.abc import Collection, Iterator
from typing import Any, Literal

import numpy as np
from pydantic import PrivateAttr

from entropy_dynamics.tasks import Solutions
from entropy_dynamics.tasks.reasoning_gym.problems import Generators

_CHAIN = re.compile(r"\d+(?: [+-] \d+)+")


class ReasoningGymSolutions(Generators, Solutions):
    task: Literal["reasoning_gym"]
    _drawn: dict[str, dict[str, Any]] = PrivateAttr(default_factory=dict)

    def problems(self, seed: int, exclude: Collection[str]) -> Iterator[str]:
        # Reasoning Gym seeds an item by the sum of seed and index, so that the items of neighboring seeds are the same.
        for question, _, entry in self.items(zlib.crc32(f"{self.task}/{seed}".encode()), exclude):
            self._drawn[question] = entry
            yield question

    def solve(self, problem: str, rng: np.random.Generator) -> tuple[str, bool]:
        """See `Solutions.solve`; `problem` is one that `problems` has yielded, and can be solved once."""
        entry = self._drawn.pop(problem)
        return f"{_steps(entry['expression'])}\\boxed{{{entry['answer']}}}", True


def _steps(expression: str | None) -> str:
    """A line for each operation of a sum, such as "4 + 3 = 7", or nothing for other expressions."""
    if not _CHAIN.fullmatch(expression or ""):
        return ""
    first, *rest = expression.split()
    total, lines = int(first), ""
    for operation, number in zip(rest[::2], rest[1::2], strict=True):
        result = total + int(f"{operation}{number}")
        lines += f"{total} {operation} {number} = {result}\n"
        total = result
    return lines
