"""Tasks: what a model is asked and how its response is graded.

A task is a package here whose `TASK` is an instance of `Task`. It says how an answer is read from a file, how a
response is graded and, if it can, generates problems and writes solutions for the SFT warm start of a toy model. To all
other code an answer is an opaque string. See docs/tasks.md.
"""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, Field, PositiveInt

from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.validation import Section


def _ordered(bounds: tuple[int, int]) -> tuple[int, int]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"{list(bounds)} should be [min, max]")
    return bounds


Range = Annotated[tuple[PositiveInt, PositiveInt], Field(strict=False), AfterValidator(_ordered)]  # a list in YAML
Probability = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Problem:
    id: str
    text: str
    answer: str
    """As its task writes it."""
    task: str
    """Name of the task that grades it."""

    def grade(self, response: str, finish_reason: str) -> Grade:
        """See `Task.grade`."""
        return find_task(self.task).grade(response, self, finish_reason)


@dataclass(frozen=True)
class Grade:
    """The result of grading one response."""

    answer: str | None
    """The answer found in the required format; None without one."""
    correct: bool
    """`answer` is correct: what Avg@K and Pass@K count."""
    answer_correct: bool
    """`answer` is correct or, in a response without one, what the task's fallback reads."""
    formatted: bool
    """There is an `answer`, and the response ended with the end token."""
    truncated: bool
    """Cut off at the length limit."""


class Task(ABC):
    """How one kind of problem is asked and graded."""

    name: ClassVar[str]
    instruction: ClassVar[str]
    """The system message."""
    generated: ClassVar[type[GeneratedSet] | None] = None
    """How it generates problems, if it can."""
    solutions: ClassVar[type[Solutions] | None] = None
    """How it writes solutions for a warm start, if it can."""

    @abstractmethod
    def read_answer(self, value: Any, text: str) -> str:
        """The answer that a file states with a problem's text, as `Problem.answer`; never called without a value.

        Raises:
            ValueError: this task cannot grade it; the message is the reason why the row is dropped.
        """

    @abstractmethod
    def extract(self, response: str) -> str | None:
        """The answer that a response gives in the required format, normalized; None without one."""

    @abstractmethod
    def is_correct(self, answer: str | None, problem: Problem) -> bool:
        """Whether an extracted answer solves the problem."""

    def fallback(self, response: str) -> str | None:
        """An answer out of the required format, read only where `extract` finds no attempt at one."""
        return None

    def grade(self, response: str, problem: Problem, finish_reason: str) -> Grade:
        """Grade one response, which ended with the end token ("stop") or at the token limit ("length").

        Raises:
            ValueError: any other finish reason: an aborted response must not count as wrong.
        """
        if finish_reason not in ("stop", "length"):
            raise ValueError(f"a response that finished with {finish_reason!r} cannot be graded")
        answer = self.extract(response)
        correct = self.is_correct(answer, problem)
        return Grade(
            answer=answer,
            correct=correct,
            answer_correct=correct or self.is_correct(self.fallback(response), problem),
            formatted=answer is not None and finish_reason == "stop",
            truncated=finish_reason == "length",
        )

    def strip_instructions(self, text: str) -> str:
        """A problem's text without what a data set says about the answer's format, which `instruction` does."""
        return text

    def key(self, text: str) -> str:
        """Equal for two texts that state the same problem."""
        return " ".join(text.casefold().split())


@dataclass
class LoadedSet:
    """The problems of one set, and what problems.json records about them."""

    problems: list[Problem]
    entry: dict[str, Any]
    """The source and the number of `rows` read."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows that are no problems, by reason."""


class SetSource(Section, ABC):
    """Where the problems of one set come from: an entry `train` or `evaluation.<set>` of a config."""

    source: str

    @abstractmethod
    def load(self, name: str, seed: int, exclude: Collection[str]) -> LoadedSet:
        """The problems of the set `name`; generated ones state none of the texts in `exclude`."""


class GeneratedSet(SetSource):
    """Problems that a task generates; its `source` is the task's name."""

    size: PositiveInt

    @abstractmethod
    def generate(self, prefix: str, seed: int, exclude: Collection[str]) -> list[Problem]:
        """`size` different problems whose texts state none of those in `exclude`, with ids that begin with `prefix`.

        Raises:
            UserError: there are fewer than `size` of them.
        """

    def load(self, name: str, seed: int, exclude: Collection[str]) -> LoadedSet:
        own_seed = zlib.crc32(f"{seed}/{name}".encode())  # independent problems in every set
        entry = self.model_dump(mode="json")
        entry["rows"] = entry.pop("size")
        return LoadedSet(self.generate(name, own_seed, exclude), entry)


class Solutions(Section, ABC):
    """What a toy model's SFT warm start imitates: the `solutions` entry of its config."""

    task: str

    @abstractmethod
    def problems(self, seed: int, exclude: Collection[str]) -> Iterator[str]:
        """Texts of problems without end, repetitions included, none that states one of `exclude`.

        Raises:
            UserError: hardly any are left.
        """

    @abstractmethod
    def solve(self, problem: str, rng: np.random.Generator) -> tuple[str, bool]:
        """A worked solution, and whether the end token follows; else the response continues up to the token limit."""


@cache
def tasks() -> dict[str, Task]:
    """Every task by name."""
    packages = [module.name for module in pkgutil.iter_modules(__path__) if module.ispkg]
    found: list[Task] = [importlib.import_module(f"{__name__}.{package}").TASK for package in packages]
    return {task.name: task for task in found}


def find_task(name: str) -> Task:
    """The task of that name. Raises UserError for an unknown one."""
    if name not in tasks():
        raise UserError(f"unknown task {name!r}{nearest(name, tasks())}")
    return tasks()[name]


def set_sources() -> dict[str, type[SetSource]]:
    """What the `source` of a set can be: a task that generates problems, a file, the Hub, or a split of the others."""
    from entropy_dynamics.tasks.sources import SOURCES

    return SOURCES | {name: task.generated for name, task in tasks().items() if task.generated is not None}


def solution_types() -> dict[str, type[Solutions]]:
    """The tasks that can write solutions."""
    return {name: task.solutions for name, task in tasks().items() if task.solutions is not None}
