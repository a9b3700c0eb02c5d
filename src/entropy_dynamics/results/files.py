"""Files that matter are written whole or not at all: to a temporary name, flushed to disk, renamed."""

import glob
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from entropy_dynamics.errors import UserError


@contextmanager
def written_whole(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path beside `path`; on success flush it to disk and rename it to `path`.

    Works for files and directories. On any exception, Ctrl-C included, the temporary is removed and an
    earlier `path` stays as it was. What a killed process left behind of its own attempt is removed too.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for stale in _left_over(path):
        _remove(stale)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.partial")
    _remove(temporary)  # of a process that had the same number, as in a container that was started again
    try:
        yield temporary
        for file in [temporary] if temporary.is_file() else sorted(temporary.rglob("*")):
            if file.is_file():
                flush(file)
        if temporary.is_dir() and path.exists():  # a directory cannot be renamed over a full one
            shutil.rmtree(path)
        os.replace(temporary, path)
        flush(path.parent)
    finally:
        _remove(temporary)


def _left_over(path: Path) -> list[Path]:
    """Temporaries of `path` whose process is gone: nobody could remove them after SIGKILL or a power cut."""
    found = []
    for temporary in path.parent.glob(f".{glob.escape(path.name)}.*.partial"):
        with suppress(PermissionError, ValueError):  # another user's process; no number of a process
            try:
                os.kill(int(temporary.name.split(".")[-2]), 0)
            except ProcessLookupError:
                found.append(temporary)
    return found


def _remove(path: Path) -> None:
    """A file, or a folder with all that is in it; nothing where there is neither."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_text(path: Path | str, text: str) -> None:
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path | str, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_parquet(path: Path | str, frame) -> None:
    """Write a pandas DataFrame as parquet, whole or not at all."""
    with written_whole(path) as temporary:
        frame.to_parquet(temporary, index=False, write_page_checksum=True)


def read_parquet(path: Path | str):
    """A pandas DataFrame. Raises UserError for a damaged file, OSError for one that is not there or not to be read."""
    import pandas as pd

    try:
        with open(path, "rb") as file:
            return pd.read_parquet(file, page_checksum_verification=True)
    except Exception as error:  # pyarrow's, and pandas' where its own notes in the file are damaged
        if isinstance(error, OSError) and error.errno:  # not there, not to be read, a disk that fails
            raise
        what = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is damaged ({what}): delete it, and it is made anew") from error


def sha256(path: Path | str) -> str:
    """Hex digest of one file's bytes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
