"""Problems: read from JSONL or parquet, checked, and kept in a parquet of three columns (id, problem, answer)."""

import difflib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from entropy_dynamics.errors import UserError
from entropy_dynamics.files import write_parquet
from entropy_dynamics.tasks.grading import MAX_DIGITS, parse_integer

NO_TEXT = "no problem text"
NO_ANSWER = "no answer"
NOT_AN_INTEGER = "the answer is not an integer"
CONFLICT = "the same problem stands with another answer"
DUPLICATE = "repeats an earlier problem"


@dataclass(frozen=True)
class Problem:
    id: str
    problem: str
    answer: int


@dataclass(frozen=True)
class RawProblem:
    """A row as the file has it: nothing but the id has been checked."""

    id: str
    problem: Any
    answer: Any


def normalise_text(text: str) -> str:
    """What makes two problems the same: their text without regard to case and white space."""
    return " ".join(text.casefold().split())


def read_problems(
    path: Path | str,
    *,
    id_column: str = "id",
    problem_column: str = "problem",
    answer_column: str = "answer",
) -> list[RawProblem]:
    """Read every row of a JSONL or parquet file.

    A row without a problem or an answer is kept, with None, for `clean_problems` to drop and count.

    Raises UserError: no such file, another suffix, unreadable content (with its line), no rows, a column that is
    not there, a row without an id.
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path}: no such file; a JSONL or parquet file of problems is needed")
    if path.suffix not in {".jsonl", ".parquet"}:
        raise UserError(f"{path}: problems are read from .jsonl or .parquet, not {path.suffix or 'this'!r}")
    wanted = {"id_column": id_column, "problem_column": problem_column, "answer_column": answer_column}
    rows = list(_jsonl_rows(path, wanted) if path.suffix == ".jsonl" else _parquet_rows(path, wanted))
    if not rows:
        raise UserError(f"{path}: the file holds no problems")
    return [_raw_problem(f"{path}: {where}", row, wanted) for where, row in rows]


def _jsonl_rows(path: Path, wanted: dict[str, str]) -> list[tuple[str, dict[str, Any]]]:
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
        _check_columns(path, wanted, list(columns))
    return rows


def _parquet_rows(path: Path, wanted: dict[str, str]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:  # plain Python values through pyarrow: pandas would turn integers beside a null into floats
        with pq.ParquetFile(path) as file:
            _check_columns(path, wanted, file.schema_arrow.names)
            rows = file.read(columns=list(wanted.values())).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: not a readable parquet file ({str(error).splitlines()[0]})") from error
    for number, row in enumerate(rows, start=1):
        yield f"row {number}", row


def _check_columns(path: Path, wanted: dict[str, str], there: list[str]) -> None:
    for key, column in wanted.items():
        if column not in there:
            near = difflib.get_close_matches(column, there, n=1)
            hint = f", of which {near[0]!r} is nearest" if near else ""
            raise UserError(f"{path}: no column {column!r}; the columns are {there}{hint} (set {key})")


def _raw_problem(where: str, row: dict[str, Any], wanted: dict[str, str]) -> RawProblem:
    identity, problem, answer = (row.get(column) for column in wanted.values())
    if isinstance(identity, bool) or not isinstance(identity, str | int) or identity == "":
        raise UserError(f"{where}: {wanted['id_column']!r} must be a text or an integer, not {identity!r}")
    raw = RawProblem(str(identity), problem, answer)
    for value in (raw.id, problem, answer):
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:  # JSON can spell half of a surrogate pair, no file can hold it
                raise UserError(f"{where}: a character that is not Unicode ({error.reason})") from error
    return raw


def clean_problems(raw: Iterable[RawProblem]) -> tuple[list[Problem], pd.DataFrame]:
    """Keep what can be trained and tested on; say of every other row why not.

    Returns the kept problems in their order, with stripped texts, and a table (id, reason) of the dropped rows.

    Answers: integers, floats without a fraction (below 2^53, where floats still count in ones) and texts that
    `parse_integer` reads ("070", "25.0", "336^\\circ"). Two rows are the same problem if their texts agree but
    for case and white space: the first is kept; all are dropped when their answers differ.

    Raises UserError if two different problems have one id.
    """
    raw = list(raw)
    texts = [normalise_text(row.problem) if isinstance(row.problem, str) else "" for row in raw]
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
            kept.append(Problem(row.id, row.problem.strip(), answer))
            continue
        dropped.append((row.id, reason))

    ids = set()
    for problem in kept:
        if problem.id in ids:
            raise UserError(f"the id {problem.id!r} stands for two different problems; ids must be unique")
        ids.add(problem.id)
    return kept, pd.DataFrame(dropped, columns=["id", "reason"], dtype=object)


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
