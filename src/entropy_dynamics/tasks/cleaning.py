"""From raw rows to problems that can be trained and tested on; every other row is dropped for a stated reason."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from entropy_dynamics.errors import UserError
from entropy_dynamics.tasks import Problem, Task
from entropy_dynamics.tasks.rows import RawProblem

NO_ANSWER = "no answer"
NO_TEXT = "no problem text"
CONFLICT = "the same problem has another answer elsewhere"
DUPLICATE = "repeats an earlier problem"


def clean_problems(raw: Iterable[RawProblem], task: Task) -> tuple[list[Problem], Counter[str]]:
    """Keep the rows that state a problem and an answer.

    Two rows state the same problem if the task's `key` of their texts is equal: the first is kept; all are dropped if
    their answers differ. A row without an id gets the first 16 hex digits of the SHA-256 of that key.

    Returns:
        The kept problems in their order, with stripped texts, and the number of dropped rows by reason.

    Raises:
        UserError: two different problems have the same id.
    """
    keys: dict[str, str] = {}  # of texts, which may repeat many times
    stated: dict[str, set[str]] = defaultdict(set)  # what a problem's answer is said to be
    rows: list[tuple[RawProblem, str | None, str]] = []  # with the answer, or why there is none
    for row in raw:
        if not isinstance(row.text, str) or not row.text.strip():
            rows.append((row, None, NO_TEXT))
            continue
        answer, reason = _read_answer(row.answer, row.text, task)
        key = keys.setdefault(row.text, task.key(row.text))
        if reason != NO_ANSWER:
            stated[key].add(answer or reason)
        rows.append((row, answer, reason))

    kept: dict[str, Problem] = {}
    dropped: Counter[str] = Counter()
    seen: set[str] = set()
    for row, answer, reason in rows:
        if answer is None:
            dropped[reason] += 1
            continue
        key = keys[row.text]
        if len(stated[key]) > 1 or key in seen:
            dropped[CONFLICT if len(stated[key]) > 1 else DUPLICATE] += 1
            continue
        seen.add(key)
        name = hashlib.sha256(key.encode()).hexdigest()[:16] if row.id is None else row.id
        if name in kept:
            raise UserError(f"the id {name!r} stands for two different problems; ids must be unique")
        kept[name] = Problem(name, row.text.strip(), answer, task.name)
    return list(kept.values()), dropped


def _read_answer(value: Any, text: str, task: Task) -> tuple[str | None, str]:
    if value is None or value != value or (isinstance(value, str) and not value.strip()):
        return None, NO_ANSWER
    try:
        return task.read_answer(value, text), ""
    except ValueError as error:
        return None, str(error)
