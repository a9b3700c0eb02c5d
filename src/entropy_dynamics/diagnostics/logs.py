"""Reads files of other programs: tables with various column names, and the metrics that trainers log."""

import json
import re
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import read_json_lines, read_parquet
from entropy_dynamics.results.layout import METRICS

ENTROPY = (  # also with the prefix `train/`, which loggers add
    "entropy",  # ours, TRL
    "actor/entropy",  # verl
    "entropy/all/mean",  # prime-rl
    "policy/policy_entropy",  # SkyRL
    "entropy_loss",  # OpenRLHF and slime: the mean entropy, whose loss has the other sign
    "approx_entropy",  # NeMo RL: an estimate from the sampled tokens
    "optim/entropy",  # Tinker: -log p of the sampled tokens
)
STEPS = ("step", "train/global_step", "training/global_step", "global_step", "trainer/global_step", "_step", "Step")
CHECKPOINT = "trainer_state.json"
RUN = re.compile(  # columns that tell runs in one file apart
    r"((config|display|project|wandb)[ ._/-])?(model|method|algorithm|policy|seed|name|run|exp|experiment|trial|job)"
    r"([ ._/-]?(id|uuid|name|number|path))?",
    re.IGNORECASE,
)
NATS_ROUNDING = 1e-2  # in bf16, a log p near 0 may round to above 0, and an entropy near 0 to below 0
_parquet = partial(read_parquet, remedy="write it again")


def read_table(path: Path) -> pd.DataFrame:
    """The rows of a parquet or JSONL file. Text stays text, so that the ids "007" and "7" differ.

    Raises UserError if there is no such file, or if it is damaged or has no rows.
    """
    if path.suffix not in (".parquet", ".jsonl") or not path.is_file():
        raise UserError(f"{path}: no such .parquet or .jsonl file")
    frame = _parquet(path) if path.suffix == ".parquet" else pd.DataFrame(read_json_lines(path))
    if frame.empty:
        raise UserError(f"{path} has no rows")
    return frame


def column(frame: pd.DataFrame, path: Path, names: Sequence[str], what: str) -> pd.Series:
    """The first of these columns that the table has. Raises UserError if it has none."""
    for name in names:
        if name in frame:
            return frame[name]
    columns = ", ".join(map(str, frame.columns))
    raise UserError(f"{path} has no column for {what} ({', '.join(names)}); its columns: {columns}")


def first_logged(metrics: pd.DataFrame, names: Sequence[str]) -> str | None:
    """The first of these columns that exists, possibly with the prefix `train/`."""
    return next((known for name in names for known in (name, f"train/{name}") if known in metrics), None)


def read_metrics(run: Path, column: str | None = None) -> tuple[pd.DataFrame, str, Path, list[str]]:
    """The metrics of a run, the column of the entropy, the file that it is from, and notes.

    Metrics are floats, with one row per step and the index `step`; of several values for a step, the last counts, and
    what is no number is missing. There is a note if the entropy of a step is logged more than once, and one if it is
    missing or NaN. Raises UserError if a file is damaged, or if there is no entropy or that of several runs.

    Args:
        run: a file of a kind that `_frames` lists, or a folder that contains one. If a folder has several kinds, the
            first one that logs an entropy is used.
        column: the entropy column; by default the first of `ENTROPY` that exists.
    """
    names = (column,) if column else ENTROPY
    frames = _frames(run, names)
    logs = {file: entropy for file, frame in frames.items() if (entropy := first_logged(frame, names))}
    if not logs:
        found = ", ".join(dict.fromkeys(name for frame in frames.values() for name in frame))
        raise UserError(f"{run} logs no entropy ({', '.join(names)}) with a step; it logs {found or 'no steps'}")
    # A checkpoint of TRL has the history of those before it.
    of_run = {_run_of(file): file for file in sorted(logs, key=lambda file: frames[file].index.max())}
    if len(of_run) > 1:
        raise UserError(f"{run} contains {len(of_run)} runs; name one of them, such as {min(of_run)}")
    [source] = of_run.values()
    logged = frames[source][logs[source]]
    entropy = logged.groupby(level=0).last()
    entropy = entropy.loc[entropy.first_valid_index() :]
    notes = []
    if twice := (logged.groupby(level=0).count() > 1).sum():
        notes.append(f"{source} logs the entropy of {twice} steps more than once; the last value counts")
    if len(missing := entropy.index[entropy.isna()]):
        steps = f"{len(missing)} of {len(entropy)} steps"
        notes.append(f"{source}: {logged.name} is NaN or missing at {steps}, first at step {missing[0]}")
    # Parts of a run that log no entropy, such as prime-rl's orchestrator, have files of their own.
    parts = [frames[source], *(frame for file, frame in frames.items() if file not in logs)]
    return pd.concat(parts).groupby(level=0).last(), logs[source], source, notes


def _run_of(file: Path) -> Path:
    """The folder of a run whose checkpoints have separate files, or the single file of a run."""
    return file.parents[file.parent.name.startswith("checkpoint-")] if file.name == CHECKPOINT else file


def _frames(run: Path, names: Sequence[str]) -> dict[Path, pd.DataFrame]:
    """The files of the first kind that logs one of these entropies or, if none does, of the first kind that exists."""
    kinds: dict[str, Callable[[Path], pd.DataFrame]] = {
        METRICS: _parquet,
        CHECKPOINT: lambda file: pd.DataFrame(json.loads(file.read_text())["log_history"]),
        "metrics.jsonl": _json_lines,
        "*.jsonl": _json_lines,
        "*.csv": _csv,
        "*.parquet": _parquet,
    }
    found: dict[Path, pd.DataFrame] = {}
    for pattern, read in kinds.items():
        files = sorted(run.rglob(pattern)) if run.is_dir() else [run] if run.match(pattern) else []
        frames = {file: _read(file, read) for file in files}
        if any(first_logged(frame, names) for frame in frames.values()):
            return frames
        found = found or frames
    if not found:
        raise UserError(f"{run}: no {', '.join(kinds)} there")
    return found


def _read(file: Path, read: Callable[[Path], pd.DataFrame]) -> pd.DataFrame:
    """One row per logged step."""
    try:
        frame = read(file).rename(columns=str)
        if (step := next((name for name in STEPS if name in frame), None)) is None:
            return pd.DataFrame()
        frame = frame.dropna(subset=step)
        _check_one_run(frame, step)
        steps = pd.to_numeric(frame.pop(step), downcast="integer").rename("step")
        return frame.apply(pd.to_numeric, errors="coerce").astype(float).set_index(steps)
    except UserError:
        raise
    except Exception as error:  # damaged content fails in many ways
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{file} cannot be read: {cause}") from error


def _check_one_run(frame: pd.DataFrame, step: str) -> None:
    """Raises ValueError if a step has rows of several runs, models, methods or seeds."""
    several = []
    for name in (name for name in frame if RUN.fullmatch(name) and name != step):
        pairs = frame[[step, name]].dropna().astype(str).drop_duplicates()
        if pairs[step].duplicated().any():
            values = pairs[name].unique()
            several.append(f"{name} {', '.join(values[:2])}{', ...' * (len(values) > 2)}")
    if several:
        raise ValueError(f"it has several runs ({'; '.join(several)}); save the rows of one as a file of its own")


def _json_lines(file: Path) -> pd.DataFrame:
    """One row per line; verl's file logger nests its metrics in `data`."""
    rows = read_json_lines(file)
    return pd.DataFrame([row | row["data"] if isinstance(row.get("data"), dict) else row for row in rows])


def _csv(file: Path) -> pd.DataFrame:
    """A CSV file; W&B's export of a panel has columns "RUN - METRIC"."""
    with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):  # rows longer than the header
        frame = pd.read_csv(file, index_col=False)
    names = [name.rpartition(" - ") for name in frame]
    if len({run for run, dash, _ in names if dash}) > 1:
        raise ValueError("it has several runs; export one of them")
    return frame.set_axis([metric for _, _, metric in names], axis=1)
