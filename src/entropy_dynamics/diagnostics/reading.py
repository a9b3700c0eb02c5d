"""Reads tables written by other programs: parquet or JSONL, with various column names."""

import re
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.results.files import read_json_lines, read_parquet

RUN = re.compile(  # columns that tell runs in one file apart
    r"((config|display|project|wandb)[ ._/-])?(model|method|algorithm|policy|seed|name|run|exp|experiment|trial|job)"
    r"([ ._/-]?(id|uuid|name|number|path))?",
    re.IGNORECASE,
)
NATS_ROUNDING = 1e-2  # in bf16, a log p near 0 may round to above 0, and an entropy near 0 to below 0


def read_table(path: Path) -> pd.DataFrame:
    """The rows of a parquet or JSONL file. Text stays text, so that the ids "007" and "7" differ.

    Raises:
        UserError: the file is missing, a folder or damaged, has a different format, or has no rows.
    """
    if path.is_dir():
        files = ", ".join(sorted(file.name for file in path.iterdir())[:3])
        raise UserError(f"{path} is a folder; name a file in it{files and f', such as {files}'}")
    if not path.is_file():
        raise UserError(f"no file {path}")
    if path.suffix not in (".parquet", ".jsonl"):
        raise UserError(f"{path} should be a .parquet or a .jsonl file")
    parquet = path.suffix == ".parquet"
    frame = read_parquet(path, remedy="write it again") if parquet else pd.DataFrame(read_json_lines(path))
    if frame.empty:
        raise UserError(f"{path} has no rows")
    return frame


def column(frame: pd.DataFrame, path: Path, wanted: str | None, known: Sequence[str], what: str) -> pd.Series:
    """The column `wanted` or, if None, the first of the `known` ones. Raises UserError if the table has none."""
    if name := next((name for name in ([wanted] if wanted else known) if name in frame), None):
        return frame[name]
    names = [str(name) for name in frame.columns]
    if wanted:
        raise UserError(f"{path} has no column {wanted!r}{nearest(wanted, names)}")
    raise UserError(f"{path} has no column for {what} ({', '.join(known)}); its columns: {', '.join(names)}")
