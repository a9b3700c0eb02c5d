"""Problem sets on disk, as stages exchange them: parquet with the columns id, problem, answer, task."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import read_parquet, write_parquet
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.tasks import Problem

COLUMNS = ["id", "problem", "answer", "task"]


def write_problems(path: Path | str, problems: Iterable[Problem]) -> None:
    import pandas as pd  # not above: the workflow imports this module through the prompts

    rows = [(problem.id, problem.text, problem.answer, problem.task) for problem in problems]
    write_parquet(path, pd.DataFrame(rows, columns=COLUMNS, dtype=object))


def load_problems(path: Path | str) -> list[Problem]:
    """Read the output of `write_problems`. Raises UserError for anything else."""
    command = Layout(Path(path).parent.parent).command("problems")
    if not Path(path).is_file():
        raise UserError(f"{path}: no such file; create it with: {command}")
    frame = read_parquet(path)
    if list(frame.columns) != COLUMNS:
        raise UserError(f"{path}: not a problem set of this version; recreate it with: {command}")
    return [Problem(*row) for row in frame.itertuples(index=False)]


def ids_sha256(ids: Iterable[str]) -> str:
    """Digest of a set's problem ids, independent of their order."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()
