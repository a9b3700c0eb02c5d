"""Problems: read from JSONL, parquet or the Hub, checked, and kept in a parquet of columns id, problem, answer."""

import difflib
import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import write_parquet
from entropy_dynamics.tasks.grading import MAX_DIGITS, parse_integer

NO_TEXT = "no problem text"
NO_ANSWER = "no answer"
NOT_AN_INTEGER = "the answer is not an integer"
CONFLICT = "the same problem stands with another answer"
DUPLICATE = "repeats an earlier problem"

_COMMIT = re.compile(r"(?!0{40})[0-9a-f]{40}")  # forty zeros are git's name for no commit
_BATCH = 10_000  # rows held as dictionaries at a time

# The original DAPO-Math-17k has every question between these two.
_DAPO_BEFORE = (
    "Solve the following math problem step by step. The last line of your response should be of the form Answer: "
    "$Answer (without quotes) where $Answer is the answer to the problem."
)
_DAPO_AFTER = 'Remember to put your answer on its own line after "Answer:".'


@dataclass(frozen=True)
class Problem:
    id: str
    problem: str
    answer: int


@dataclass(frozen=True)
class RawProblem:
    """A row as the file has it: nothing but the id has been checked."""

    id: str | None  # None: `clean_problems` makes one from the text
    problem: Any
    answer: Any


def normalise_text(text: str) -> str:
    """What makes two problems the same: their text without regard to case and white space."""
    return " ".join(text.casefold().split())


def read_problems(
    path: Path | str,
    *,
    id_column: str | None = "id",
    problem_column: str = "problem",
    answer_column: str = "answer",
    id_needed: bool = True,
) -> list[RawProblem]:
    """Read every row of a JSONL or parquet file.

    A row without a problem or an answer is kept, with None, for `clean_problems` to drop and count. So is one without
    an id if `id_column` is None or if ids are not needed.

    Raises UserError: no such file, another suffix, unreadable content (with its line), no rows, a column that is
    not there, a row without an id.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; a JSONL or parquet file of problems is needed")
    if path.suffix not in {".jsonl", ".parquet"}:
        raise UserError(f"{path}: problems are read from .jsonl or .parquet, not {path.suffix or 'this'!r}")
    wanted = _Columns(id_column, problem_column, answer_column, id_needed)
    rows = _jsonl_rows(path, wanted) if path.suffix == ".jsonl" else _parquet_rows(path, wanted)
    return _raw_problems(str(path), rows, wanted)


def read_hub_problems(
    repository: str,
    revision: str,
    *,
    subset: str | None = None,
    split: str = "train",
    id_column: str | None = "id",
    problem_column: str = "problem",
    answer_column: str = "answer",
) -> list[RawProblem]:
    """Read every row of one split of a data set on the Hugging Face Hub, as `read_problems` does of a file.

    Raises UserError: a `revision` that is no commit, a Hub out of reach, and what is not there: the data set, its
    revision, subset, split or a column.
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
        raise UserError(f"{where} cannot be loaded ({type(error).__name__}: {reason})") from error
    wanted = _Columns(id_column, problem_column, answer_column)
    batches = table.select_columns(wanted.among(where, table.column_names)).with_format("arrow").iter(_BATCH)
    return _raw_problems(where, _numbered(batches), wanted)


@dataclass(frozen=True)
class _Columns:
    """Which columns hold what."""

    id_column: str | None
    problem_column: str
    answer_column: str
    id_needed: bool = True

    def among(self, where: str, there: list[str]) -> list[str]:
        """Those of them that are `there`. Raises UserError for one that is not and has to be."""
        names = []
        for key in ("id_column", "problem_column", "answer_column"):
            column = getattr(self, key)
            if column in there:
                names.append(column)
            elif key != "id_column" or (column is not None and self.id_needed):
                near = difflib.get_close_matches(column, there, n=1)
                hint = f", of which {near[0]!r} is nearest" if near else ""
                raise UserError(f"{where}: no column {column!r}; the columns are {there}{hint} (set {key})")
        return names


def columns_of(path: Path) -> list[str]:
    """The columns of a parquet file, or of the first row of a JSONL file; none of one that cannot be read."""
    try:
        if path.suffix == ".parquet":
            return pq.read_schema(path).names
        with open(path, "rb") as file:
            return list(json.loads(next(line for line in file if line.strip())))
    except (pa.ArrowException, OSError, ValueError, RecursionError, StopIteration, TypeError):
        return []


_Row = tuple[str, dict[str, Any]]  # its place, as "line 3", and its values by column


def _jsonl_rows(path: Path, wanted: _Columns) -> list[_Row]:
    rows, columns = [], {}
    with open(path, "rb") as file:  # bytes, so that a broken character is reported with its line
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}: line {number} is not JSON ({error})") from error
            if not isinstance(row, dict):
                raise UserError(f"{path}: line {number} is not a JSON object with named columns")
            columns |= dict.fromkeys(row)
            rows.append((f"line {number}", row))
    if rows:
        wanted.among(str(path), list(columns))
    return rows


def _parquet_rows(path: Path, wanted: _Columns) -> Iterator[_Row]:
    try:  # plain Python values through pyarrow: pandas would turn integers beside a null into floats
        with pq.ParquetFile(path) as file:
            columns = wanted.among(str(path), file.schema_arrow.names)
            yield from _numbered(file.iter_batches(_BATCH, columns=columns))
    except (pa.ArrowException, OSError) as error:
        raise UserError(
            f"{path}: not a readable parquet file ({str(error).splitlines()[0]}); if snakemake made it, delete it and "
            "run snakemake again"
        ) from error


def _numbered(batches: Iterable[pa.RecordBatch | pa.Table]) -> Iterator[_Row]:
    rows = (row for batch in batches for row in batch.to_pylist())
    return ((f"row {number}", row) for number, row in enumerate(rows, start=1))


def _raw_problems(where: str, rows: Iterable[_Row], wanted: _Columns) -> list[RawProblem]:
    texts: dict[str, str] = {}  # the original DAPO has each text a hundred times: keep one copy
    problems = []
    for place, row in rows:
        raw = _raw_problem(f"{where}: {place}", row, wanted)
        if isinstance(raw.problem, str):
            raw = replace(raw, problem=texts.setdefault(raw.problem, raw.problem))
        problems.append(raw)
    if not problems:
        raise UserError(f"{where}: it holds no problems")
    return problems


def _raw_problem(where: str, row: dict[str, Any], wanted: _Columns) -> RawProblem:
    problem, answer = row.get(wanted.problem_column), row.get(wanted.answer_column)
    identity = None if wanted.id_column is None else row.get(wanted.id_column)
    if identity is not None or (wanted.id_column is not None and wanted.id_needed):
        if isinstance(identity, bool) or not isinstance(identity, str | int) or identity == "":
            raise UserError(f"{where}: {wanted.id_column!r} must be a text or an integer, not {identity!r}")
        identity = str(identity)
    for value in (identity, problem, answer):
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair, no file can hold it
                raise UserError(f"{where}: a character that is not Unicode ({error.reason})") from error
    return RawProblem(identity, problem, answer)


def without_instructions(raw: Iterable[RawProblem]) -> tuple[list[RawProblem], int]:
    """The rows without the answer format that DAPO asks for around its questions, and how many had it.

    Our prompt asks for another format. It is taken off where both of its parts stand, one before, one after.
    """
    rows, count = [], 0
    for row in raw:
        text = row.problem.strip() if isinstance(row.problem, str) else ""
        if text.startswith(_DAPO_BEFORE) and text.endswith(_DAPO_AFTER):
            row = replace(row, problem=text[len(_DAPO_BEFORE) : -len(_DAPO_AFTER)].strip())
            count += 1
        rows.append(row)
    return rows, count


def clean_problems(raw: Iterable[RawProblem]) -> tuple[list[Problem], pd.DataFrame]:
    """Keep what can be trained and tested on; say of every other row why not.

    Returns the kept problems in their order, with stripped texts, and a table (id, reason) of the dropped rows. A row
    without an id gets 16 hex digits of the SHA-256 of its normalised text.

    Answers: integers, floats without a fraction (below 2^53, where floats still count in ones) and texts that
    `parse_integer` reads ("070", "25.0", "336^\\circ"). Two rows are the same problem if their texts agree but
    for case and white space: the first is kept; all are dropped when their answers differ.

    Raises UserError if two different problems have one id.
    """
    raw = list(raw)
    normalised = {row.problem: normalise_text(row.problem) for row in raw if isinstance(row.problem, str)}
    texts = [normalised[row.problem] if isinstance(row.problem, str) else "" for row in raw]
    answers = [read_answer(row.answer) for row in raw]
    stated = defaultdict(set)
    for text, answer in zip(texts, answers, strict=True):
        if answer != NO_ANSWER:
            stated[text].add(answer)

    kept, dropped, seen = [], [], set()
    for row, text, answer in zip(raw, texts, answers, strict=True):
        if not text:
            reason = NO_TEXT
        elif isinstance(answer, str):
            reason = answer
        elif len(stated[text]) > 1:
            reason = CONFLICT
        elif text in seen:
            reason = DUPLICATE
        else:
            seen.add(text)
            kept.append(Problem(_id(row, text), row.problem.strip(), answer))
            continue
        dropped.append((_id(row, text), reason))

    ids = set()
    for problem in kept:
        if problem.id in ids:
            raise UserError(f"the id {problem.id!r} stands for two different problems; ids must be unique")
        ids.add(problem.id)
    return kept, pd.DataFrame(dropped, columns=["id", "reason"], dtype=object)


def _id(row: RawProblem, text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16] if row.id is None else row.id


def read_answer(value: Any) -> int | str:
    """The integer that a file's value means, or the reason why it means none."""
    if value is None or value != value or (isinstance(value, str) and not value.strip()):
        return NO_ANSWER
    answer = None
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        answer = int(value)
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) < 10**MAX_DIGITS:
        answer = value
    elif isinstance(value, str | Decimal):
        answer = parse_integer(str(value))
    return NOT_AN_INTEGER if answer is None else answer


def write_problems(path: Path | str, problems: Iterable[Problem]) -> None:
    """Write problems as parquet with the columns id, problem, answer."""
    write_parquet(path, pd.DataFrame(problems, columns=["id", "problem", "answer"]))


def load_problems(path: Path | str) -> list[Problem]:
    """Read what `write_problems` wrote, in its order. Raises UserError for anything else."""
    rows = read_problems(path)
    for row in rows:
        if type(row.problem) is not str or type(row.answer) is not int:
            raise UserError(f"{path}: problem {row.id!r} is not checked; run `entropy-dynamics data` on it first")
    return [Problem(row.id, row.problem, row.answer) for row in rows]
