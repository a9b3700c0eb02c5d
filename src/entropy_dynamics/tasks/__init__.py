"""Tasks: the prompts that a model gets, and the grading of its responses.

A task is a package in this folder with an instance of `Task` as its `TASK`. It reads answers from files, grades
responses and, optionally, generates problems and writes solutions for the SFT warm start of a toy model. To all other
code an answer is an opaque string. See docs/tasks.md.
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


def ordered(bounds: tuple[int, int]) -> tuple[int, int]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"{list(bounds)} should be [min, max]")
    return bounds


Range = Annotated[tuple[PositiveInt, PositiveInt], Field(strict=False), AfterValidator(ordered)]  # a list in YAML
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
    """`answer` is correct; counted by Avg@K and Pass@K."""
    answer_correct: bool
    """`answer` is correct or, in a response without one, the task's fallback is."""
    formatted: bool
    """There is an `answer`, and the response ended with the end token."""
    truncated: bool
    """Cut off at the length limit."""


class Task(ABC):
    """One kind of problem: its prompts and its grading."""

    name: ClassVar[str]
    instruction: ClassVar[str]
    """The system message."""
    generated: ClassVar[type[GeneratedSet] | None] = None
    """The generator of its problems, if it has one."""
    solutions: ClassVar[type[Solutions] | None] = None
    """The writer of solutions for a warm start, if it has one."""

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
        """True if an extracted answer solves the problem."""

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
        """A problem's text without instructions of its data set on the answer's format; `instruction` replaces them."""
        return text

    def key(self, text: str) -> str:
        """Equal for two texts that state the same problem."""
        return " ".join(text.casefold().split())


@dataclass
class LoadedSet:
    """The problems of one set, and their record for problems.json."""

    problems: list[Problem]
    entry: dict[str, Any]
    """The source and the number of `rows` read."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows that are no problems, by reason."""


class SetSource(Section, ABC):
    """The source of the problems of one set: an entry `train` or `evaluation.<set>` of a config."""

    source: str

    @abstractmethod
    def load(self, name: str, seed: int, exclude: Collection[str]) -> LoadedSet:
        """The problems of the set `name`; generated ones state none of the texts in `exclude`."""


class GeneratedSet(SetSource):
    """Problems that a task generates; its `source` is the task's name."""

    size: PositiveInt

    @abstractmethod
    def generate(self, prefix: str, seed: int, exclude: Collection[str]) -> list[Problem]:
        """`size` different problems, none of those in `exclude`, with ids that begin with `prefix`.

        Raises:
            UserError: there are fewer than `size` of them.
        """

    def load(self, name: str, seed: int, exclude: Collection[str]) -> LoadedSet:
        set_seed = zlib.crc32(f"{seed}/{name}".encode())  # independent problems in every set
        entry = self.model_dump(mode="json")
        entry["rows"] = entry.pop("size")
        return LoadedSet(self.generate(name, set_seed, exclude), entry)


class Solutions(Section, ABC):
    """The solutions that a toy model's SFT warm start imitates: the `solutions` entry of its config."""

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
    registered: dict[str, Task] = {}
    for module in pkgutil.iter_modules(__path__):
        if module.ispkg:
            task: Task = importlib.import_module(f"{__name__}.{module.name}").TASK
            if (first := registered.setdefault(task.name, task)) is not task:
                places = f"in {type(first).__module__} and in {type(task).__module__}"
                raise UserError(f"task {task.name!r} is registered twice: {places}")
    return registered


def find_task(name: str) -> Task:
    """The task of that name; UserError if there is none."""
    if name not in tasks():
        raise UserError(f"unknown task {name!r}{nearest(name, tasks())}")
    return tasks()[name]


def set_sources() -> dict[str, type[SetSource]]:
    """Sources of a set by name: a file, the Hub, a split of the training set, and the tasks that generate problems."""
    from entropy_dynamics.tasks.sources import SOURCES

    return SOURCES | {name: task.generated for name, task in tasks().items() if task.generated is not None}


def solution_types() -> dict[str, type[Solutions]]:
    """The writers of solutions by task."""
    return {name: task.solutions for name, task in tasks().items() if task.solutions is not None}
