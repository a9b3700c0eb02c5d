"""Sources of problem sets that belong to no task: a file, the Hugging Face Hub, a split of the training set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import PositiveInt

from entropy_dynamics.results.files import sha256
from entropy_dynamics.tasks import SetSource

if TYPE_CHECKING:
    from entropy_dynamics.tasks.rows import Columns, RawProblem


class RowsSource(SetSource):
    """A source of raw rows, which are cleaned for the task that grades them."""

    task: str = "math"
    id_column: str | None = "id"
    """null: ids are made from the problems' texts."""
    problem_column: str = "problem"
    answer_column: str = "answer"

    def columns(self, id_needed: bool = True) -> Columns:
        from entropy_dynamics.tasks.rows import Columns  # pyarrow, which a config does not need

        return Columns(self.id_column, self.problem_column, self.answer_column, id_needed)

    def read(self, id_needed: bool = True) -> tuple[list[RawProblem], dict[str, Any]]:
        """All rows, and what problems.json records of them."""
        raise NotImplementedError


class FileSet(RowsSource):
    source: Literal["file"]
    path: str
    """JSONL or parquet."""

    def read(self, id_needed: bool = True) -> tuple[list[RawProblem], dict[str, Any]]:
        from entropy_dynamics.tasks.rows import read_file

        rows = read_file(self.path, self.columns(id_needed))
        return rows, {"source": "file", "path": self.path, "sha256": sha256(self.path), "rows": len(rows)}


class HubSet(RowsSource):
    source: Literal["hub"]
    repository: str
    """Id of the data set on the Hugging Face Hub."""
    revision: str
    """Its commit, 40 hex digits."""
    subset: str | None = None
    """Which of its configurations, if it has several."""
    hub_split: str = "train"

    def read(self, id_needed: bool = True) -> tuple[list[RawProblem], dict[str, Any]]:
        from entropy_dynamics.tasks.rows import read_hub

        place = {"repository": self.repository, "revision": self.revision, "subset": self.subset}
        rows = read_hub(**place, split=self.hub_split, columns=self.columns(id_needed))
        return rows, {"source": "hub", **place, "split": self.hub_split, "rows": len(rows)}


class SplitSet(SetSource):
    """Problems split off the training set."""

    source: Literal["split"]
    size: PositiveInt


SOURCES: dict[str, type[SetSource]] = {"file": FileSet, "hub": HubSet, "split": SplitSet}
