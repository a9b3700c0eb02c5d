"""Sources of problem sets that belong to no task: a file, the Hugging Face Hub, a split of the training set."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from pydantic import PositiveInt

from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import sha256
from entropy_dynamics.tasks import LoadedSet, SetSource, find_task

if TYPE_CHECKING:
    from entropy_dynamics.tasks.rows import Columns, RawProblem


class RowsSource(SetSource):
    """A source of raw rows, which are cleaned for the task that grades them."""

    task: str = "math"
    id_column: str | None = "id"
    """Where there is no such column, and with null, ids are made from the problems' texts."""
    problem_column: str = "problem"
    answer_column: str = "answer"

    @property
    def columns(self) -> Columns:
        from entropy_dynamics.tasks.rows import Columns  # pyarrow, which a config does not need

        return Columns(self.id_column, self.problem_column, self.answer_column)

    @abstractmethod
    def read(self) -> tuple[list[RawProblem], dict[str, Any]]:
        """All rows, and what problems.json records of where they came from."""

    def load(self, name: str, seed: int, exclude: Collection[str]) -> LoadedSet:
        from entropy_dynamics.tasks.cleaning import clean_problems

        task = find_task(self.task)
        raw, entry = self.read()
        entry["rows"] = len(raw)
        for number, row in enumerate(raw):
            if isinstance(row.text, str) and (text := task.strip_instructions(row.text)) != row.text:
                raw[number] = replace(row, text=text)
                entry["instructions_removed"] = entry.get("instructions_removed", 0) + 1
        problems, dropped = clean_problems(raw, task)
        return LoadedSet(problems, entry, dropped)


class FileSet(RowsSource):
    source: Literal["file"]
    path: str
    """JSONL or parquet."""

    def read(self) -> tuple[list[RawProblem], dict[str, Any]]:
        from entropy_dynamics.tasks.rows import read_file

        return read_file(self.path, self.columns), {"source": "file", "path": self.path, "sha256": sha256(self.path)}


class HubSet(RowsSource):
    source: Literal["hub"]
    repository: str
    """Id of the data set on the Hugging Face Hub."""
    revision: str
    """Its commit, 40 hex digits."""
    subset: str | None = None
    """Which of its configurations, if it has several."""
    hub_split: str = "train"

    def read(self) -> tuple[list[RawProblem], dict[str, Any]]:
        from entropy_dynamics.tasks.rows import read_hub

        rows = read_hub(self.repository, self.revision, subset=self.subset, split=self.hub_split, columns=self.columns)
        place = {"repository": self.repository, "revision": self.revision, "subset": self.subset}
        return rows, {"source": "hub", **place, "split": self.hub_split}


class SplitSet(SetSource):
    """Problems split off the training set."""

    source: Literal["split"]
    size: PositiveInt

    def load(self, name: str, seed: int, exclude: Collection[str]) -> LoadedSet:
        raise UserError("a split is taken out of the training set, so that needs another source")


SOURCES: dict[str, type[SetSource]] = {"file": FileSet, "hub": HubSet, "split": SplitSet}
