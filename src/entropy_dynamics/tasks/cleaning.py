"""From raw rows to problems for training and evaluation; other rows are dropped, each with a reason."""

import hashlib
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from entropy_dynamics.errors import UserError
from entropy_dynamics.tasks import Problem, Task

NO_ANSWER = "no answer"
NO_TEXT = "no problem text"
CONFLICT = "the same problem has another answer elsewhere"
DUPLICATE = "repeats an earlier problem"


@dataclass(frozen=True)
class RawProblem:
    """A row of the source, as it is."""

    id: str | None
    """None: derived from the text during cleaning."""
    text: Any
    answer: Any
    fault: str = ""
    """Why there is no text, if the source says so."""


def clean_problems(raw: Iterable[RawProblem], task: Task) -> tuple[list[Problem], Counter[str]]:
    """Keep the rows that state a problem and an answer.

    Rows state the same problem if their texts have the same `Task.key`. The first of them is kept, or none if their
    answers differ. A row without an id gets the first 16 hex digits of the SHA-256 of its text in lower case with
    single blanks, which stays the same if the task recognizes more texts as the same problem. Returns the kept problems
    in order, with stripped texts, and the number of dropped rows by reason. Raises UserError if two have the same id.
    """
    rows = [(row, *_read(row, task)) for row in raw]
    stated: dict[str, set[str]] = defaultdict(set)  # all answers to a problem, by key
    for _, key, answer, reason in rows:
        if reason not in (NO_TEXT, NO_ANSWER):
            stated[key].add(answer or reason)

    kept: dict[str, Problem] = {}
    dropped: Counter[str] = Counter()
    seen: set[str] = set()
    for row, key, answer, reason in rows:
        if answer is None or len(stated[key]) > 1 or key in seen:
            dropped[reason or (CONFLICT if len(stated[key]) > 1 else DUPLICATE)] += 1
            continue
        seen.add(key)
        text = Task.key(task, row.text.strip())
        name = hashlib.sha256(text.encode()).hexdigest()[:16] if row.id is None else row.id
        if name in kept:
            raise UserError(f"two different problems have the id {name!r}; ids must be unique")
        kept[name] = Problem(name, row.text.strip(), answer, task.name)
    return list(kept.values()), dropped


def _read(row: RawProblem, task: Task) -> tuple[str, str | None, str]:
    """The key of a problem, its answer, and the reason if there is none."""
    if not isinstance(row.text, str) or not row.text.strip():
        return "", None, row.fault or NO_TEXT
    text = row.text.strip()
    key = sys.intern(task.key(text))  # raw DAPO repeats each text a hundred times
    if row.answer is None or row.answer != row.answer or (isinstance(row.answer, str) and not row.answer.strip()):
        return key, None, NO_ANSWER
    try:
        return key, task.read_answer(row.answer, text), ""
    except ValueError as error:
        return key, None, str(error)
