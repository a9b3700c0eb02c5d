"""Raw problems from JSONL, parquet and the Hugging Face Hub: every row is kept, and cleaning decides what to drop."""

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from entropy_dynamics.errors import UserError, nearest

_COMMIT = re.compile(r"(?!0{40})[0-9a-f]{40}")  # forty zeros are git's name for no commit
_BATCH = 10_000  # rows held as dictionaries at a time
_Row = tuple[str, dict[str, Any]]  # its place, as "line 3", and its values by column


@dataclass(frozen=True)
class RawProblem:
    """A row as the file has it; only the id has been checked."""

    id: str | None
    """None: cleaning makes one from the text."""
    text: Any
    answer: Any


@dataclass(frozen=True)
class Columns:
    """The names of the columns."""

    id: str | None = "id"
    """A file need not have it."""
    problem: str = "problem"
    answer: str = "answer"

    def among(self, known: list[str], where: str) -> list[str]:
        """Those of them that are in `known`. Raises UserError if the problems or the answers are not."""
        for key, column in {"problem_column": self.problem, "answer_column": self.answer}.items():
            if column not in known:
                raise UserError(f"{where}: no column {column!r} (set {key}){nearest(column, known)}")
        return [column for column in (self.id, self.problem, self.answer) if column in known]


def read_file(path: Path | str, columns: Columns = Columns()) -> list[RawProblem]:
    """Every row of a JSONL or parquet file.

    Raises:
        UserError: no such file, another suffix, unreadable content (with its line), no rows, no such column, a bad id.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; a JSONL or parquet file of problems is needed")
    if path.suffix == ".jsonl":
        return _raw_problems(str(path), _jsonl_rows(path, columns), columns)
    if path.suffix == ".parquet":
        return _raw_problems(str(path), _parquet_rows(path, columns), columns)
    raise UserError(f"{path}: problems are read from .jsonl or .parquet, not {path.suffix or 'this'!r}")


def read_hub(
    repository: str, revision: str, *, subset: str | None = None, split: str = "train", columns: Columns
) -> list[RawProblem]:
    """Every row of one split of a data set on the Hugging Face Hub.

    Raises:
        UserError: `revision` is no commit, the Hub is out of reach, or the data set, revision, subset, split or a
            column does not exist.
    """
    if not _COMMIT.fullmatch(revision):
        raise UserError(f"the revision {revision!r} is not a commit of {repository}, which has 40 hex digits")
    import datasets
    from huggingface_hub.utils import logging

    datasets.disable_progress_bars()
    logging.set_verbosity_error()  # it warns at every retry; the error below says it once
    where = f"{repository} at {revision[:8]}"
    try:
        table = datasets.load_dataset(repository, subset, split=split, revision=revision)
    except Exception as error:  # the network, the Hub, the cache and the readers each raise their own
        reason = " ".join(str(error).split("Example of usage")[0].split())
        raise UserError(
            f"{where} cannot be loaded ({type(error).__name__}: {reason}); without a network, set data.folder or "
            "ENTROPY_DYNAMICS_PROBLEMS to a folder with <set>.jsonl or <set>.parquet (columns problem, answer)"
        ) from error
    batches = table.select_columns(columns.among(table.column_names, where)).with_format("arrow").iter(_BATCH)
    return _raw_problems(where, _numbered(batches), columns)


def has_columns(path: Path, columns: set[str]) -> bool:
    """Whether a parquet file, or the first row of a JSONL file, has all these columns."""
    if path.suffix == ".parquet":
        return columns <= set(pq.read_schema(path).names)
    with open(path, "rb") as file:
        return columns <= set(json.loads(next((line for line in file if line.strip()), b"{}")))


def _jsonl_rows(path: Path, columns: Columns) -> list[_Row]:
    rows: list[_Row] = []
    names: dict[str, None] = {}
    with open(path, "rb") as file:  # bytes, so that a broken character is reported with its line
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise UserError(f"{path}: line {number} is not JSON ({error})") from error
            if not isinstance(row, dict):
                raise UserError(f"{path}: line {number} is not a JSON object with named columns")
            names |= dict.fromkeys(row)
            rows.append((f"line {number}", row))
    if rows:
        columns.among(list(names), str(path))
    return rows


def _parquet_rows(path: Path, columns: Columns) -> Iterator[_Row]:
    try:  # plain Python values through pyarrow: pandas would turn integers next to a null into floats
        with pq.ParquetFile(path) as file:
            yield from _numbered(file.iter_batches(_BATCH, columns=columns.among(file.schema_arrow.names, str(path))))
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable parquet file ({str(error).splitlines()[0]})") from error


def _numbered(batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[_Row]:
    rows = (row for batch in batches for row in batch.to_pylist())
    return ((f"row {number}", row) for number, row in enumerate(rows, start=1))


def _raw_problems(where: str, rows: Iterable[_Row], columns: Columns) -> list[RawProblem]:
    texts: dict[str, str] = {}  # the original DAPO has each text a hundred times: keep one copy
    problems = []
    for place, row in rows:
        own_id, text = row.get(columns.id) if columns.id else None, row.get(columns.problem)
        if own_id is not None:
            if isinstance(own_id, bool) or not isinstance(own_id, str | int) or own_id == "":
                raise UserError(f"{where}: {place}: {columns.id!r} should be a string or an integer, not {own_id!r}")
            own_id = str(own_id)
        if isinstance(text, str):
            text = texts.setdefault(text, text)
        problems.append(RawProblem(own_id, text, row.get(columns.answer)))
    if not problems:
        raise UserError(f"{where}: it holds no problems")
    return problems
