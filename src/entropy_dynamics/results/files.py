"""Atomic writes: a file or directory is written under a temporary name, flushed to disk, and then renamed."""

import glob
import hashlib
import json
import os
import re
import shutil
import socket
import stat
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from entropy_dynamics.errors import UserError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

FLUSHES = 16  # at a time


@contextmanager
def written_whole(path: Path | str) -> Iterator[Path]:
    """Yield a temporary path for a file or directory, which replaces `path` on success.

    On any exception, including Ctrl-C, it is removed and `path` stays. Those of killed processes are removed too.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(path)
    temporary = path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.partial")
    _remove(temporary)  # may have been left by a process with the same id, as in a restarted container
    try:
        yield temporary
        umask = os.umask(0o077)  # the only way to read it
        os.umask(umask)
        written = [file for file in (temporary, *temporary.rglob("*")) if file.is_file() or file.is_dir()]
        for file in written:
            _share(file, umask)
        with ThreadPoolExecutor(FLUSHES) as pool:  # a file system commits those that wait at once
            list(pool.map(flush, written))
        if temporary.is_dir() and path.exists():  # a directory cannot be renamed over a non-empty one
            shutil.rmtree(path)
        os.replace(temporary, path)
        flush(path.parent)
    finally:
        _remove(temporary)


RERUN = "delete it and rerun its stage"


def read_json(path: Path, remedy: str = RERUN) -> Any:
    """The content of a JSON file. Raises UserError if it is not JSON, and OSError if it is missing or unreadable."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path} is damaged ({error}): {remedy}") from error


def check_utf8(start: bytes) -> None:
    """Raises ValueError if a file that starts so is binary or, as `>` of Windows PowerShell writes it, in UTF-16."""
    encoding = json.detect_encoding(start)  # UTF-16 or UTF-32 for the zeros of a binary file, too
    if re.search(r"[\x00-\x08]", start.decode(encoding, "replace")):
        raise ValueError("the file is binary")
    if not encoding.startswith("utf-8"):
        raise ValueError(f"the file is in {encoding[:6].upper()}; save it as UTF-8")


def loads(text: bytes, constant: Callable[[str], object] = float) -> Any:
    """The JSON value, of `whole_characters`."""
    value = json.loads(text, parse_constant=constant)
    if re.search(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]", text):
        value = json.loads(whole_characters(json.dumps(value, ensure_ascii=False)), parse_constant=constant)
    return value


def whole_characters(text: str) -> str:
    """The text with U+FFFD for each half of a surrogate pair, which neither pandas nor UTF-8 can hold."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def read_json_lines(path: Path, constant: Callable[[str], object] = float) -> list[dict[str, Any]]:
    """The JSON object on each line; `constant` converts NaN, Infinity and -Infinity.

    Raises UserError if a line, which the message names, is not a JSON object.
    """
    rows = []
    with path.open("rb") as file:  # bytes, so that a broken character is reported with its line
        for number, line in enumerate(file, 1):
            try:
                if number == 1:
                    check_utf8(line)
                rows += [loads(line, constant)] if line.strip() else []
                if rows and not isinstance(rows[-1], dict):
                    raise ValueError(f"{type(rows[-1]).__name__} instead")
            except (ValueError, RecursionError) as error:
                raise UserError(f"{path}: line {number} is not a JSON object ({error})") from error
    return rows


def read_jobs(path: Path) -> list[dict[str, Any]]:
    """The records of finished jobs, without lines that a crash left torn or that are no records; [] if no file."""
    kinds: dict[str, Any] = {"rule": str, "start": int | float, "seconds": int | float}
    records: list[Any] = []
    for line in path.read_bytes().splitlines() if path.is_file() else ():
        with suppress(ValueError, RecursionError):  # no JSON, or not UTF-8
            records.append(json.loads(line))
    records = [record for record in records if isinstance(record, dict)]
    return [job for job in records if all(isinstance(job.get(key), kind) for key, kind in kinds.items())]


def _remove_stale(path: Path) -> None:
    """Remove temporaries of `path` whose process on this machine has ended, e.g. by SIGKILL or a power cut."""
    for temporary in path.parent.glob(f".{glob.escape(f'{path.name}.{socket.gethostname()}')}.*.partial"):
        with suppress(PermissionError, ValueError):  # a process of another user; not a process id
            try:
                os.kill(int(temporary.name.split(".")[-2]), 0)
            except ProcessLookupError:
                _remove(temporary)


def _share(path: Path, umask: int) -> None:
    """Give a file that a library wrote for its user alone, as safetensors does, the mode that the umask leaves."""
    status = path.lstat()
    if not path.is_symlink() and (path.is_dir() or status.st_nlink == 1):  # a hard link's is also that of its source
        path.chmod(stat.S_IMODE(status.st_mode) | (0o777 if path.is_dir() else 0o666) & ~umask)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until the content of a file, or the entries of a directory, are on disk."""
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


def write_parquet(path: Path | str, frame: "pd.DataFrame", compression: Literal["snappy", "zstd"] = "snappy") -> None:
    import pyarrow as pa

    with written_whole(path) as temporary:
        save_table(temporary, pa.Table.from_pandas(frame, preserve_index=False), compression)


def save_table(path: Path, table: "pa.Table", compression: Literal["snappy", "zstd"] = "snappy") -> None:
    """Neither atomic nor flushed: for a file of a folder that is `written_whole`."""
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, compression=compression, write_page_checksum=True)


def read_parquet(path: Path | str, columns: Sequence[str] | None = None, remedy: str = RERUN) -> "pd.DataFrame":
    """The table in a file, or some of its columns, with verified checksums.

    Raises UserError if the file is damaged or lacks a column, and OSError if it is missing or unreadable.
    """
    table = read_table(path, columns, remedy)
    with _damage_named(path, remedy):  # pandas may fail at its own metadata
        frame = table.to_pandas()
    _check_columns(path, columns, frame)
    return frame


def read_table(path: Path | str, columns: Sequence[str] | None = None, remedy: str = RERUN) -> "pa.Table":
    """`read_parquet` without pandas: several times as fast for a small table."""
    import pyarrow.parquet as pq

    with _damage_named(path, remedy), open(path, "rb") as file:
        table = pq.ParquetFile(file, page_checksum_verification=True).read(columns, use_threads=False)
    _check_columns(path, columns, table.column_names)
    return table


@contextmanager
def _damage_named(path: Path | str, remedy: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) and error.errno:
            raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{path} is damaged ({reason}): {remedy}") from error


def _check_columns(path: Path | str, wanted: Iterable[str] | None, found: Container[str]) -> None:
    for column in wanted or ():
        if column not in found:
            raise UserError(f"{path} has no column {column!r}")


def sha256(path: Path | str) -> str:
    """Hex digest of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
