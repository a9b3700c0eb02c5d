"""Task-independent sources of problem sets: a file, the Hugging Face Hub, a split of the training set."""

import ast
import json
import re
import sys
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.results.files import read_json_lines, sha256, whole_characters
from entropy_dynamics.sections import PositiveInt
from entropy_dynamics.tasks import LoadedSet, SetSource, find_task
from entropy_dynamics.tasks.cleaning import RawProblem, clean_problems
from entropy_dynamics.tasks.statements import StatedInWords, asks_for_format

_OWN = ("problem", "answer")
_VERL = ("prompt", "reward_model.ground_truth")
_CHAT = re.compile(r"""\s*(array\()?\[?\s*\{.*["'](role|from|content)["']\s*:""", re.DOTALL)
_OBJECT = re.compile(r"\s*\{")
_LIST = re.compile(r"""\s*\[\s*(["']).*\1\s*\]\s*""", re.DOTALL)

# pyarrow and datasets are imported only when rows are read, as a config needs neither.


class RowsSource(SetSource):
    """A source of raw rows, which are cleaned for the task that grades them."""

    task: str = "math"
    id_column: str | None = "id"
    """If null, or if there is no such column, ids are derived from the problems' texts."""
    problem_column: str = _OWN[0]
    """Its values are texts, or chats, of which the last message of the user is the problem."""
    answer_column: str = _OWN[1]
    """A name with periods is a path into nested columns. Without the default columns, verl's are read."""

    @abstractmethod
    def origin(self) -> dict[str, Any]:
        """The record of the source in problems.json."""

    @abstractmethod
    def rows(self) -> Iterable[dict[str, Any]]:
        """All rows, as `read` needs them. Raises UserError if the source cannot be read or lacks a column."""

    def load(self, name: str, seed: int, exclude: Collection[str]) -> LoadedSet:
        task, raw, entry = find_task(self.task), self.read(), self.origin()
        entry["rows"] = len(raw)
        for number, row in enumerate(raw):
            if isinstance(row.text, str) and (text := task.strip_instructions(row.text)) != row.text:
                raw[number] = replace(row, text=text)
                entry["instructions_removed"] = entry.get("instructions_removed", 0) + 1
        problems, dropped = clean_problems(raw, task)
        if isinstance(task, StatedInWords) and (left := sum(asks_for_format(problem.text) for problem in problems)):
            entry["instructions_left"] = left
        example = "" if problems or not raw or raw[0].fault else f"; the first answer is {raw[0].answer!r:.80}"
        return LoadedSet(problems, entry, dropped, example)

    def names(self, known: Collection[str]) -> tuple[str, str]:
        """The columns of the problem and its answer: the configured ones or, if they are not `known`, verl's."""
        own = (self.problem_column, self.answer_column)
        return _VERL if own == _OWN and own[0] not in known and all(_top(name) in known for name in _VERL) else own

    def columns(self, known: Collection[str], where: str) -> list[str]:
        """The columns to read. Raises UserError if a required one is not in `known`."""
        names = self.names(known)
        for option, name in zip(("problem_column", "answer_column"), names, strict=True):
            if name not in known and _top(name) not in known:
                remedy = f"rename it, or set the source's {option}"
                raise UserError(f"{where}: no column {name!r} ({remedy}){nearest(name, known)}")
        wanted = (self.id_column, *(name if name in known else _top(name) for name in names))
        return [column for column in dict.fromkeys(wanted) if column in known]

    def read(self) -> list[RawProblem]:
        """The problems of all rows, not yet cleaned. Raises UserError as `rows`."""
        problems = []
        for row in self.rows():
            problem_column, answer_column = self.names(row)
            name, text, fault = row.get(self.id_column) if self.id_column else None, None, ""
            try:
                text = _text(_at(row, problem_column))
            except ValueError as error:
                fault = str(error)
            if isinstance(text, str):
                text = sys.intern(whole_characters(text))  # the original DAPO repeats each text a hundred times
            answer = _at(row, answer_column)
            with suppress(ValueError):
                answer = _parsed(answer, _LIST)
            answer = answer[0] if isinstance(answer, list) and len(answer) == 1 else answer
            problems.append(RawProblem(None if name is None else str(name), text, answer, fault))
        return problems


class FileSet(RowsSource):
    source: Literal["file"]
    path: str
    """JSONL or parquet."""

    def origin(self) -> dict[str, Any]:
        return {"source": "file", "path": self.path, "sha256": sha256(self.path)}

    def rows(self) -> Iterator[dict[str, Any]]:
        path = Path(self.path)
        if path.suffix not in (".jsonl", ".parquet") or not path.is_file():
            fault = "should be" if path.is_file() else "is missing; it should be"
            raise UserError(f"{path} {fault} a .jsonl or .parquet file of problems")
        if path.suffix == ".jsonl":
            if rows := read_json_lines(path):
                self.columns({name: None for row in rows for name in row}, self.path)
            yield from rows
            return
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:  # not by pandas, which would turn integers next to a null into floats
            with pq.ParquetFile(path) as file:
                columns = self.columns(file.schema_arrow.names, self.path)
                for batch in file.iter_batches(columns=columns):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path}: not a readable parquet file ({str(error).splitlines()[0]})") from error


class HubSet(RowsSource):
    source: Literal["hub"]
    repository: str
    """Id of the data set on the Hugging Face Hub."""
    revision: Annotated[str, Field(pattern="^[0-9a-f]{40}$")]
    """Its commit, 40 hex digits."""
    subset: str | None = None
    """Name of the configuration, if the data set has several."""
    hub_split: str = "train"

    def origin(self) -> dict[str, Any]:
        place = {"repository": self.repository, "revision": self.revision, "subset": self.subset}
        return {"source": "hub", **place, "split": self.hub_split}

    def rows(self) -> Iterable[dict[str, Any]]:
        import datasets
        from huggingface_hub.utils import logging

        datasets.disable_progress_bars()
        logging.set_verbosity_error()  # it would warn at every retry; the error below is enough
        where = f"{self.repository} at {self.revision[:8]}"
        try:
            table = datasets.load_dataset(self.repository, self.subset, split=self.hub_split, revision=self.revision)
        except Exception as error:  # network, Hub, cache and readers all have their own exception classes
            reason = " ".join(str(error).split("Example of usage")[0].split())
            raise UserError(
                f"{where} cannot be loaded ({type(error).__name__}: {reason}); without a network, set data.folder or "
                "ENTROPY_DYNAMICS_PROBLEMS to a folder with <set>.jsonl or <set>.parquet (columns problem, answer)"
            ) from error
        return table.select_columns(self.columns(table.column_names, where))


class SplitSet(SetSource):
    """Problems split off the training set."""

    source: Literal["split"]
    size: PositiveInt

    def load(self, name: str, seed: int, exclude: Collection[str]) -> LoadedSet:
        raise UserError("a split is taken out of the training set, so that needs another source")


def set_key(name: str) -> str:
    """The key of a set's source in the config."""
    return "data.train" if name == "train" else f"data.evaluation.{name}"


def _top(path: str) -> str:
    return path.partition(".")[0]


def _at(row: dict[str, Any], path: str) -> Any:
    """The value of a column, or at a path into nested ones; None if there is none."""
    if path in row or "." not in path:
        return row.get(path)
    top, _, rest = path.partition(".")
    inner = row.get(top)
    with suppress(ValueError):
        inner = _parsed(inner, _OBJECT)
    return _at(inner, rest) if isinstance(inner, dict) else None


def _text(value: Any) -> Any:
    """The last message of the user, if the value is a chat, possibly as JSON or Python's repr.

    Raises ValueError, with the reason for dropping the row, for a chat without such a text.
    """
    chat = _parsed(value, _CHAT)
    if isinstance(chat, dict):  # one message, or {"messages": [...]}
        chat = [chat] if "role" in chat else next((of for of in chat.values() if isinstance(of, list)), None)
    if isinstance(chat, list):
        chat = [_parsed(message, _CHAT) for message in chat]
    if not (isinstance(chat, list) and all(isinstance(message, dict) for message in chat)):
        if isinstance(value, str) and chat is not value:
            raise ValueError("a chat without messages")
        return value
    if chat and not any({"role", "content"} <= message.keys() for message in chat):
        raise ValueError(f"the messages have {', '.join(map(repr, chat[0]))}, not 'role' and 'content'")
    content = next((message.get("content") for message in reversed(chat) if message.get("role") == "user"), None)
    blocks = content if isinstance(content, list) else []
    parts = [part if isinstance(part, dict) else {"text": part} for part in blocks]
    if other := [part for part in parts if not isinstance(part.get("text"), str)]:
        raise ValueError(f"a message has a part of type {other[0].get('type')}")
    return "\n".join(part["text"] for part in parts) if parts else content


def _parsed(value: Any, form: re.Pattern[str]) -> Any:
    """The value that a text of this form stands for. Raises ValueError if it is neither JSON nor Python's repr."""
    if isinstance(value, str) and value.startswith('"'):
        with suppress(ValueError):  # serialized twice
            inner = json.loads(value)
            return _parsed(inner, form) if form.match(inner) else value
    if not (isinstance(value, str) and form.match(value)):
        return value
    with suppress(ValueError, RecursionError):
        return json.loads(value)
    for text in (value, re.sub(r"\}\s*\n\s*\{", "}, {", re.sub(r"\barray(?=\()|,\s*dtype=object(?=\))", "", value))):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):  # the second: of numpy's arrays
            return ast.literal_eval(text.strip())
    raise ValueError("a list or chat that is neither JSON nor Python's repr")
