"""Tasks: prompts for a model, and grading of its responses.

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
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import AfterValidator, Field

from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.sections import PositiveInt, Section


def ordered(bounds: Sequence[Any]) -> Sequence[Any]:
    if None not in bounds and bounds[0] > bounds[1]:
        raise ValueError(f"{list(bounds)} should be [min, max]")
    return bounds


Range = Annotated[tuple[PositiveInt, PositiveInt], Field(strict=False), AfterValidator(ordered)]  # a list in YAML


@dataclass(frozen=True)
class Problem:
    id: str
    text: str
    answer: str
    """In its task's own notation."""
    task: str
    """Name of the task that grades responses to it."""

    def grade(self, response: str, finish_reason: str) -> Grade:
        """See `Task.grade`."""
        return find_task(self.task).grade(response, self, finish_reason)


@dataclass(frozen=True)
class Grade:
    """The result of grading one response."""

    answer: str | None
    """The answer found in the required format, or None."""
    correct: bool
    """Whether `answer` is correct; this is what Avg@K and Pass@K count."""
    answer_correct: bool
    """Whether `answer` is correct or, if there is none, the answer found by the task's fallback."""
    formatted: bool
    """Whether there is an `answer` and the response ended with the end token."""
    truncated: bool
    """Whether the response was cut off at the length limit."""


class Task(ABC):
    """A kind of problem: its prompts and its grading."""

    name: ClassVar[str]
    instruction: ClassVar[str]
    """The system message."""
    generated: ClassVar[type[GeneratedSet] | None] = None
    """Generator of its problems, if it has one."""
    solutions: ClassVar[type[Solutions] | None] = None
    """Writer of solutions for a warm start, if it has one."""

    @abstractmethod
    def read_answer(self, value: Any, text: str) -> str:
        """Convert the answer to a problem in a file to `Problem.answer`; never called for a missing value.

        Raises ValueError, with the reason for dropping the row, if this task cannot grade the answer.
        """

    @abstractmethod
    def extract(self, response: str) -> str | None:
        """The normalized answer in the required format, or None if the response has none."""

    @abstractmethod
    def is_correct(self, answer: str | None, problem: Problem) -> bool:
        """Whether an extracted answer solves the problem; False for None."""

    def fallback(self, response: str) -> str | None:
        """An answer outside the required format, for responses that make no attempt at the format."""
        return None

    def grade(self, response: str, problem: Problem, finish_reason: str) -> Grade:
        """Grade a response that ended with the end token ("stop") or at the token limit ("length").

        Raises ValueError for any other finish reason, since an aborted response must not count as wrong.
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

    def system_message(self, text: str) -> str:
        """The system message of a problem with this text."""
        return self.instruction

    def strip_instructions(self, text: str) -> str:
        """A problem's text without its data set's instructions on the answer format, which `instruction` replaces."""
        return text

    def key(self, text: str) -> str:
        """A key that is equal for two texts that state the same problem."""
        return " ".join(text.casefold().split())


@dataclass
class LoadedSet:
    """The problems of a set, and their record for problems.json."""

    problems: list[Problem]
    entry: dict[str, Any]
    """The source, and the number of `rows` read."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Number of dropped rows by reason."""
    example: str = ""
    """What the source has, for the message that no problem is left."""


class SetSource(Section, ABC):
    """The source of a problem set: the entry `train` or `evaluation.<set>` of a config."""

    source: str

    @abstractmethod
    def load(self, name: str, seed: int, exclude: Collection[str]) -> LoadedSet:
        """The problems of the set `name`; generated problems differ from all texts in `exclude`."""


class GeneratedSet(SetSource):
    """Problems generated by a task; `source` is the task's name."""

    size: PositiveInt

    @abstractmethod
    def generate(self, prefix: str, seed: int, exclude: Collection[str]) -> list[Problem]:
        """Generate `size` different problems, none of them in `exclude`, with ids that begin with `prefix`.

        Raises UserError if fewer than `size` such problems exist.
        """

    def load(self, name: str, seed: int, exclude: Collection[str]) -> LoadedSet:
        set_seed = zlib.crc32(f"{seed}/{name}".encode())  # so that sets are independent
        entry = self.model_dump(mode="json")
        entry["rows"] = entry.pop("size")
        return LoadedSet(self.generate(name, set_seed, exclude), entry)


class Solutions(Section, ABC):
    """Demonstrations for a toy model's SFT warm start: the `solutions` entry of its config."""

    task: str

    @abstractmethod
    def problems(self, seed: int, exclude: Collection[str]) -> Iterator[str]:
        """Yield problem texts endlessly, with repetitions, except problems in `exclude`.

        Raises UserError if hardly any problems are left.
        """

    @abstractmethod
    def solve(self, problem: str, rng: np.random.Generator) -> tuple[str, bool]:
        """A worked solution, and whether the end token follows it; if not, it continues up to the token limit."""


@cache
def tasks() -> dict[str, Task]:
    """Every task by name."""
    packages = [info.name for info in pkgutil.iter_modules(__path__) if info.ispkg]
    found: list[Task] = [importlib.import_module(f"{__name__}.{name}").TASK for name in packages]
    return {task.name: task for task in found}


def find_task(name: str) -> Task:
    """The task of that name. Raises UserError if there is none."""
    if name not in tasks():
        raise UserError(f"unknown task {name!r}{nearest(name, tasks())}")
    return tasks()[name]


def set_sources() -> dict[str, type[SetSource]]:
    """Set sources by name: a file, the Hub, a split of the training set, and the tasks that generate problems."""
    from entropy_dynamics.tasks.sources import FileSet, HubSet, SplitSet

    sources: dict[str, type[SetSource]] = {"file": FileSet, "hub": HubSet, "split": SplitSet}
    return sources | {name: task.generated for name, task in tasks().items() if task.generated is not None}


def solution_types() -> dict[str, type[Solutions]]:
    """The writers of solutions by task."""
    return {name: task.solutions for name, task in tasks().items() if task.solutions is not None}
