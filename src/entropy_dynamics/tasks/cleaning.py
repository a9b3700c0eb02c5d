"""From raw rows to problems that can be trained and tested on; every other row is dropped for a stated reason."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import pandas as pd

from entropy_dynamics.errors import UserError
from entropy_dynamics.tasks import Problem, Task
from entropy_dynamics.tasks.integers import NO_ANSWER
from entropy_dynamics.tasks.rows import RawProblem

NO_TEXT = "no problem text"
CONFLICT = "the same problem has another answer elsewhere"
DUPLICATE = "repeats an earlier problem"


def strip_instructions(raw: Iterable[RawProblem], task: Task) -> tuple[list[RawProblem], int]:
    """The rows without what their texts say about the answer's format, and how many said something."""
    rows, count = [], 0
    for row in raw:
        if isinstance(row.text, str) and (text := task.strip_instructions(row.text)) != row.text:
            row, count = replace(row, text=text), count + 1
        rows.append(row)
    return rows, count


def clean_problems(raw: Iterable[RawProblem], task: Task) -> tuple[list[Problem], pd.DataFrame]:
    """Keep the rows that state a problem and an answer.

    Two rows state the same problem if the task's `key` of their texts is equal: the first is kept; all are dropped if
    their answers differ. A row without an id gets the first 16 hex digits of the SHA-256 of that key.

    Returns:
        The kept problems in their order, with stripped texts, and a table (id, reason) of the dropped rows.

    Raises:
        UserError: two different problems have the same id.
    """
    raw = list(raw)
    keys: dict[str, str] = {}
    stated: dict[str, set[str]] = defaultdict(set)
    answers: list[tuple[str | None, str]] = []  # the answer, or why there is none
    for row in raw:
        try:
            answers.append((task.read_answer(row.answer), ""))
        except ValueError as error:
            answers.append((None, str(error)))
        if isinstance(row.text, str):
            key = keys.setdefault(row.text, task.key(row.text))
            answer, reason = answers[-1]
            if reason != NO_ANSWER:
                stated[key].add(answer or reason)

    kept: dict[str, Problem] = {}
    dropped, seen = [], set()
    for row, (answer, reason) in zip(raw, answers, strict=True):
        key = keys[row.text] if isinstance(row.text, str) else ""
        name = hashlib.sha256(key.encode()).hexdigest()[:16] if row.id is None else row.id
        if not key:
            reason = NO_TEXT
        elif answer is not None and len(stated[key]) > 1:
            reason = CONFLICT
        elif answer is not None and key in seen:
            reason = DUPLICATE
        if reason or answer is None:
            dropped.append((name, reason))
            continue
        if name in kept:
            raise UserError(f"the id {name!r} stands for two different problems; ids must be unique")
        seen.add(key)
        kept[name] = Problem(name, row.text.strip(), answer, task.name)
    return list(kept.values()), pd.DataFrame(dropped, columns=["id", "reason"], dtype=object)
