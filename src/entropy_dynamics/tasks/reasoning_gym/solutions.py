r"""Demonstrations: the generator's answer in \boxed{}."""

import json
import zlib
from collections.abc import Collection, Iterator
from typing import Literal

import numpy as np
from pydantic import PrivateAttr

from entropy_dynamics.tasks import Solutions
from entropy_dynamics.tasks.reasoning_gym.problems import Generators


class ReasoningGymSolutions(Generators, Solutions):
    task: Literal["reasoning_gym"]
    _drawn: dict[str, str] = PrivateAttr(default_factory=dict)

    def problems(self, seed: int, exclude: Collection[str]) -> Iterator[str]:
        # Reasoning Gym seeds an item by the sum of seed and index, so that the items of neighboring seeds are the same.
        for question, answer in self.items(zlib.crc32(f"{self.task}/{seed}".encode()), exclude):
            self._drawn[question] = json.loads(answer)["answer"]
            yield question

    def solve(self, problem: str, rng: np.random.Generator) -> tuple[str, bool]:
        """See `Solutions.solve`; `problem` is one that `problems` has yielded, and can be solved once."""
        return f"\\boxed{{{self._drawn.pop(problem)}}}", True
