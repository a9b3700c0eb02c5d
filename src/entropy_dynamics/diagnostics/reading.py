"""Tables that other programs wrote: parquet or JSONL, whatever their columns are called."""

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from entropy_dynamics.errors import UserError, nearest


def read_table(path: Path) -> pd.DataFrame:
    """The rows of a parquet or JSONL file.

    Raises:
        UserError: a missing or damaged file, another format, or no rows.
    """
    readers = {".parquet": pd.read_parquet, ".jsonl": lambda file: pd.read_json(file, lines=True)}
    if path.suffix not in readers:
        raise UserError(f"{path}: should be a .parquet or a .jsonl file")
    if not path.is_file():
        raise UserError(f"no file {path}")
    try:
        frame = readers[path.suffix](path)
    except Exception as error:  # those of pyarrow and of the JSON parser have no common base
        raise UserError(f"{path} cannot be read: {(str(error).splitlines() or [type(error).__name__])[0]}") from error
    if frame.empty:
        raise UserError(f"{path} has no rows")
    return frame


def column(frame: pd.DataFrame, path: Path, wanted: str | None, known: Sequence[str], what: str) -> pd.Series:
    """The column `wanted`, or else the first of the `known` names that the table has.

    Raises:
        UserError: none of them is there.
    """
    for name in [wanted] if wanted else known:
        if name in frame:
            return frame[name]
    names = [str(name) for name in frame.columns]
    if wanted:
        raise UserError(f"{path} has no column {wanted!r}{nearest(wanted, names)}")
    raise UserError(f"{path} has no column for {what} ({', '.join(known)}); its columns: {', '.join(names)}")
