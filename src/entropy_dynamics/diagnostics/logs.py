"""Reads files of other programs: tables with various column names, and the metrics that trainers log."""

import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from entropy_dynamics.config import read_yaml
from entropy_dynamics.errors import UserError, nearest
from entropy_dynamics.results.files import check_utf8, loads, read_json_lines, read_parquet
from entropy_dynamics.results.layout import METRICS

NAMES = read_yaml(Path(__file__).with_name("names.yaml"))
ENTROPY, STEPS = tuple(NAMES["entropy"]), tuple(NAMES["step"])
# The axis of a panel that W&B exports, such as train/step.
AXIS = re.compile(r"(?!.*(time|timing|per[_ ]))(.+[/._ ])?(step|iteration)", re.IGNORECASE)
MISSING = ("", "NA", "N/A", "n/a", "#N/A", "<NA>", "null", "NULL", "None")  # in CSV; pandas' own list also has NaN
CHECKPOINT = "trainer_state.json"
LARGEST = 2**53  # maximum step, as larger integers are not exact in float64
LABEL = r"((config|display|project|wandb)[ ._/-])?({})([ ._/-]?(id|uuid|name|number|path))?"
RUNS = "seed|name|run|exp|experiment|trial|job"
RUN = re.compile(LABEL.format(f"model|method|algorithm|policy|agent|{RUNS}"), re.IGNORECASE)  # tells runs apart
NATS_ROUNDING = 1e-2  # in bf16, a log p near 0 may round to above 0, and an entropy near 0 to below 0
_parquet = partial(read_parquet, remedy="write it again")


def read_table(path: Path) -> pd.DataFrame:
    """The rows of a parquet, JSONL or CSV file. Text stays text, so that the ids "007" and "7" differ.

    Raises UserError if the file is missing, a folder or damaged, has a different format, or has no rows.
    """
    if path.is_dir():
        files = ", ".join(file.name for file in visible(path, "*")[:3])
        raise UserError(f"{path} is a folder; name a file in it{files and f', such as {files}'}")
    if not path.is_file():
        raise UserError(f"no file {path}")
    if path.suffix not in TABLES:
        raise UserError(f"{path} should be a .parquet, .jsonl or .csv file")
    try:
        frame = TABLES[path.suffix](path)
    except (ValueError, pd.errors.ParserWarning) as error:
        raise UserError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    if frame.empty:
        raise UserError(f"{path} has no rows")
    return frame


def visible(folder: Path, pattern: str) -> list[Path]:
    """Paths below a folder without hidden ones, such as ._NAME of macOS and .ipynb_checkpoints."""
    paths = sorted(folder.glob(pattern))
    return [path for path in paths if not any(part.startswith(".") for part in path.relative_to(folder).parts)]


def column(frame: pd.DataFrame, path: Path, wanted: str | None, known: Sequence[str], what: str) -> pd.Series:
    """The column `wanted` or, if None, the first of the `known` ones. Raises UserError if the table has none."""
    if name := next((name for name in ([wanted] if wanted else known) if name in frame), None):
        return frame[name]
    names = [str(name) for name in frame.columns]
    if wanted:
        raise UserError(f"{path} has no column {wanted!r}{nearest(wanted, names)}")
    raise UserError(f"{path} has no column for {what} ({', '.join(known)}); its columns: {', '.join(names)}")


def read_metrics(run: Path, column: str | None = None) -> tuple[pd.DataFrame, str, list[str]]:
    """The metrics of a run, one row per step with the index `step` (of several values for a step, the last), the file
    they are from, and how many more; and notes.

    There is a note for each file that logs the entropy of a step more than once, and one for an entropy of NaN, as
    opposed to a step without entropy. Parquet files do not distinguish the two: a null is NaN in the `entropy` of our
    metrics.parquet, which has one in every row, and missing in others. Raises UserError if the file does not exist, is
    unreadable, or has no rows or several runs, or if a step or an entropy is infinite or not a number.

    Args:
        run: our metrics.parquet, TRL's trainer_state.json, metrics as JSONL (prime-rl, Tinker, verl's file logger), a
            CSV file exported by W&B or TensorBoard or any parquet file; or a folder that contains one of these. If a
            folder has several kinds, the first one that logs an entropy is used.
        column: the entropy column; by default the first of `ENTROPY` that exists.
    """
    names = (column,) if column else ENTROPY
    frames = _frames(run, names)
    # Parts of a run that log no entropy, such as prime-rl's orchestrator, have files of their own.
    logs = {file: entropy for file, frame in frames.items() if (entropy := first_logged(frame, names)) is not None}
    if len(runs := sorted({str(_run_of(file)) for file in logs})) > 1:
        raise UserError(f"{run} contains {len(runs)} runs; name one of them: {runs[0]}, {runs[1]}, ...")
    notes = [
        f"{file} logs the entropy of {twice} steps more than once; the last value counts"
        for file, entropy in logs.items()
        if (twice := (steps := entropy.dropna().index)[steps.duplicated()].nunique())
    ]
    first, *more = logs or frames
    source = f"{first} and {len(more)} more" if more else str(first)
    rows = [frame for frame in frames.values() if len(frame)]
    if first.name == CHECKPOINT:  # checkpoint-9 sorts after checkpoint-10, but is the earlier one
        rows.sort(key=lambda frame: frame.index.max())
    logged = pd.concat(rows)
    texts = logged.select_dtypes(exclude=["number", "bool"]).map(_number).dropna(axis=1, how="all")  # also hold numbers
    metrics = pd.concat([logged.select_dtypes("number"), texts], axis=1).groupby(level=0).last()
    if (entropy := first_logged(metrics, names)) is not None and np.isinf(entropy).any():
        nan = entropy.index[np.isinf(entropy)]
        steps = f"{len(nan)} of {entropy.count()} steps"
        notes.append(f"{source}: {entropy.name} is NaN at {steps}, first at step {nan[0]}")
    return metrics.replace(np.inf, np.nan), source, notes


def first_logged(metrics: pd.DataFrame, names: tuple[str, ...]) -> pd.Series | None:
    """The first of these columns that exists, possibly with the prefix `train/`."""
    known = (written for name in names for written in (name, f"train/{name}"))
    return next((metrics[name] for name in known if name in metrics), None)


def _frames(run: Path, names: tuple[str, ...]) -> dict[Path, pd.DataFrame]:
    """The files of the first kind that logs one of these entropies or, if none does, of the first kind with rows."""
    kinds = {
        METRICS: _parquet,
        CHECKPOINT: _trainer_state,
        "metrics.jsonl": _json_lines,
        "*.jsonl": _json_lines,
        "*.csv": _csv,
        "*.parquet": _parquet,
    }
    if not run.exists():
        raise UserError(f"no file {run}")
    tried = []
    for pattern, read in kinds.items():
        files = visible(run, f"**/{pattern}") if run.is_dir() else [run] if run.match(pattern) else []
        if files:
            try:
                tried.append({file: _read(file, read, names) for file in files})
            except UserError:
                if not any(len(frame) for frames in tried for frame in frames.values()):
                    raise
                continue  # such as a dataset beside the log, which has the answer or the names to suggest
            if any(first_logged(frame, names) is not None for frame in tried[-1].values()):
                return tried[-1]
    if not tried:
        wanted = ", ".join(kinds)
        raise UserError(f"{run}: no {wanted} there" if run.is_dir() else f"{run} should be one of {wanted}")
    for frames in tried:
        if any(map(len, frames.values())):
            return frames
    raise UserError(f"{next(iter(tried[0]))} has no rows with a step")


def _read(file: Path, read: Callable[[Path], pd.DataFrame], names: tuple[str, ...]) -> pd.DataFrame:
    """One row per logged step. A logged NaN entropy becomes inf, as pandas cannot tell NaN from a missing value."""
    try:
        frame = _by_step(read(file), names)
        if (entropy := first_logged(frame, names)) is not None:
            ours = (file.name, entropy.name) == (METRICS, "entropy")  # has a value in every row, so a null is NaN
            nan = entropy.isna() if ours else entropy.map(_is_nan).astype(bool)
            frame[entropy.name] = _finite(entropy.mask(nan)).mask(nan, np.inf)
    except UserError:
        raise
    except Exception as error:  # damaged content fails in many ways
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{file} cannot be read: {cause}") from error
    return frame


def _by_step(frame: pd.DataFrame, names: tuple[str, ...]) -> pd.DataFrame:
    entropy = first_logged(frame, names)
    of_entropy = frame if entropy is None else frame[entropy.notna()]
    steps = [name for name in (*STEPS, *filter(AXIS.fullmatch, map(str, frame))) if name in frame]
    step = next((name for name in steps if of_entropy[name].notna().any()), next(iter(steps), None))
    if step is None and len(frame):
        raise ValueError(f"it logs no step ({', '.join(STEPS)}), but {', '.join(map(str, frame.columns)):.60}")
    if step is None or (frame := frame.dropna(subset=step)).empty:
        return pd.DataFrame()
    frame = frame[~frame[step].map(lambda value: isinstance(value, list))]  # of ms-swift's samples
    _check_one_run(frame, step)
    steps = _finite(frame.pop(step).map(lambda value: value.partition("/")[0] if isinstance(value, str) else value))
    if (steps.abs() > LARGEST).any():
        raise ValueError(f"{step} is {steps.abs().max():.4g}; it should be at most 2**53")
    return frame.set_index(steps.astype(int) if (steps % 1 == 0).all() else steps).rename_axis("step")


def _check_one_run(frame: pd.DataFrame, step: str) -> None:
    """Raises ValueError if a step has rows of several runs, models, methods or seeds."""
    several = []
    for name in (name for name in map(str, frame.columns) if RUN.fullmatch(name) and name != step):
        pairs = frame[[step, name]].dropna().astype(str).drop_duplicates()
        if pairs[step].duplicated().any():
            values = pairs[name].unique()
            several.append(f"{name} {', '.join(values[:2])}{', ...' * (len(values) > 2)}")
    if several:
        raise ValueError(f"it has several runs ({'; '.join(several)}); save the rows of one as a file of its own")


def _finite(values: pd.Series) -> pd.Series:
    """Convert to floats; missing values stay missing. Raises ValueError for booleans, text, lists and infinity."""
    numbers = pd.Series([_number(value) for value in values], values.index, name=values.name).astype(float)
    wrong = (numbers.isna() & values.notna()) | np.isinf(numbers)
    if wrong.any():
        place = int(wrong.to_numpy().argmax())
        value, label = repr(values.tolist()[place]), values.index[place]  # of Python's types, not numpy's
        where = f"at step {label}" if values.index.name == "step" else f"in row {label + 1}"
        raise ValueError(f"{values.name} is {value:.60} {where}; it should be a finite number")
    return numbers


def _number(value: Any) -> float:
    try:
        return np.nan if isinstance(value, bool | np.bool_) else float(value)
    except (TypeError, ValueError):
        return np.nan


def _constant(name: str) -> object:
    """`parse_constant` for JSON: NaN stays text, as in a CSV file, so that it is not mistaken for a missing value."""
    return name if name == "NaN" else float(name)


def _is_nan(value: object) -> bool:
    return isinstance(value, str) and value.strip().lower() == "nan"


def _run_of(file: Path) -> Path:
    """The folder of a run whose checkpoints or restarts have separate files, or the single file of a run."""
    return file.parents[file.parent.name.startswith("checkpoint-")] if file.name == CHECKPOINT else file


def _json_lines(file: Path) -> pd.DataFrame:
    """One row per line; verl's file logger nests its metrics in `data`, and writes NaN as null."""
    frame = pd.DataFrame(read_json_lines(file, _constant))
    if "data" in frame:
        rows = [row if isinstance(row, dict) else {} for row in frame.pop("data")]
        rows = [{name: "NaN" if value is None else value for name, value in row.items()} for row in rows]
        data = pd.DataFrame(rows, frame.index)
        frame = data.combine_first(frame)  # other rows may have theirs at the top level
    return frame


def _csv_rows(file: Path, **options: Any) -> pd.DataFrame:
    with file.open("rb") as lines:
        check_utf8(header := lines.readline())
    bare = re.sub(rb'"[^"]*"', b"", header)
    for separator, name in ((b";", ";"), (b"\t", "tabs")):
        if separator in bare and b"," not in bare:
            raise ValueError(f"its columns are separated by {name}, not by commas")
    try:
        with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):  # of rows over the header's
            return pd.read_csv(file, index_col=False, keep_default_na=False, na_values=MISSING, **options)
    except UnicodeDecodeError:
        raise ValueError("the file is not in UTF-8; save it so") from None


def _typed_csv(file: Path) -> pd.DataFrame:
    """A column of JSON, such as numbers and lists, or of a spreadsheet's TRUE and FALSE has its values, others text."""

    def values(cells: pd.Series) -> pd.Series:
        words = cells.dropna().map(lambda cell: cell.lower() if cell.lower() in ("true", "false") else cell)
        try:
            return words.map(lambda word: loads(word.encode())).reindex(cells.index)
        except ValueError:
            return cells

    return _csv_rows(file, dtype=str).apply(values)


def _csv(file: Path) -> pd.DataFrame:
    """W&B's export of a panel: columns "RUN - METRIC", with __MIN and __MAX where steps were merged."""
    frame = _csv_rows(file)
    frame = frame[[name for name in frame if not str(name).endswith(("__MIN", "__MAX"))]]
    names = frame.columns.str.rpartition(" - ")
    if len({run for run, dash, _ in names if dash}) > 1:
        raise ValueError("it has several runs; export one of them")
    return frame.set_axis([metric for _, _, metric in names], axis=1)


def _trainer_state(file: Path) -> pd.DataFrame:
    state = loads(file.read_bytes(), _constant)
    if not isinstance(state, dict) or "log_history" not in state:
        raise ValueError("it has no log_history")
    return pd.DataFrame(state["log_history"])


TABLES: dict[str, Callable[[Path], pd.DataFrame]] = {
    ".parquet": _parquet,
    ".jsonl": lambda file: pd.DataFrame(read_json_lines(file)),
    ".csv": _typed_csv,
}
