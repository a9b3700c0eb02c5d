"""Reads the metrics that a training run logged, from the files of many trainers."""

import json
import warnings
from collections.abc import Callable
from pathlib import Path

import pandas as pd

from entropy_dynamics.diagnostics.reading import RUN
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


def read_metrics(run: Path, column: str | None = None) -> tuple[pd.DataFrame, str, list[str]]:
    """Read the metrics of a run.

    Args:
        run: our metrics.parquet, TRL's trainer_state.json, metrics as JSONL (prime-rl, Tinker, verl's file logger), a
            CSV file exported by W&B or TensorBoard or any parquet file; or a folder that contains one of these. If a
            folder has several kinds, the first one that logs an entropy is used.
        column: the entropy column; by default the first of `ENTROPY` that exists.

    Returns:
        The metrics, one row per step, with the index `step` (of several values for a step, the last); the file they
        are from, and how many more; and a note for each file that logs the entropy of a step more than once.

    Raises:
        UserError: no such file, it is unreadable, it has no rows or several runs, or a step or an entropy is not a
            number.
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
    rows = [frame for frame in frames.values() if len(frame)]
    if first.name == CHECKPOINT:  # checkpoint-9 sorts after checkpoint-10, but is the earlier one
        rows.sort(key=lambda frame: frame.index.max())
    numbers = pd.concat(rows).apply(pd.to_numeric, errors="coerce").dropna(axis=1, how="all")
    return numbers.groupby(level=0).last(), f"{first} and {len(more)} more" if more else str(first), notes


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
    errors, without = [], []
    for pattern, read in kinds.items():
        files = sorted(run.rglob(pattern)) if run.is_dir() else [run] if run.match(pattern) else []
        try:
            frames = {file: _read(file, read, names) for file in files}
        except UserError as error:  # such as a dataset beside the log
            errors.append(error)
            continue
        if any(first_logged(frame, names) is not None for frame in frames.values()):
            return frames
        without += [frames] if any(map(len, frames.values())) else []
    if without:
        return without[0]
    raise errors[0] if errors else UserError(f"{run} has no rows with a step, in any of {', '.join(kinds)}")


def _read(file: Path, read: Callable[[Path], pd.DataFrame], names: tuple[str, ...]) -> pd.DataFrame:
    """One row per logged step, with the index `step`."""
    try:
        frame = read(file)
        step = next((name for name in STEPS if name in frame), None)
        if step is None and len(frame):
            raise ValueError(f"it logs no step ({', '.join(STEPS)})")
        if step is None or (frame := frame.dropna(subset=step)).empty:
            return pd.DataFrame()
        _check_one_run(frame, step)
        if (entropy := first_logged(frame, names)) is not None:
            frame[entropy.name] = pd.to_numeric(entropy)
        steps = pd.to_numeric(frame.pop(step))
        return frame.set_index(steps.astype(int) if (steps % 1 == 0).all() else steps).rename_axis("step")
    except UserError:
        raise
    except Exception as error:  # damaged content fails in many ways
        cause = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{file} cannot be read: {cause}") from error


def _check_one_run(frame: pd.DataFrame, step: str) -> None:
    """Raises ValueError if a step has rows of several runs, models, methods or seeds."""
    for name in (name for name in map(str, frame.columns) if RUN.fullmatch(name) and name != step):
        pairs = frame[[step, name]].dropna().astype(str).drop_duplicates()
        if pairs[step].duplicated().any():
            values = ", ".join(pairs[name].unique()[:2])
            raise ValueError(f"it has several runs ({name} {values}, ...); save the rows of one as a file of its own")


def _run_of(file: Path) -> Path:
    """The folder of a run whose checkpoints or restarts have separate files, or the single file of a run."""
    if file.name == CHECKPOINT:
        return file.parents[file.parent.name.startswith("checkpoint-")]
    return file


def _parquet(file: Path) -> pd.DataFrame:
    return read_parquet(file, remedy="write it again")


def _json_lines(file: Path) -> pd.DataFrame:
    """One row per line; verl's file logger nests its metrics in `data`."""
    frame = pd.DataFrame(read_json_lines(file))
    if "data" in frame:
        data = pd.DataFrame([row if isinstance(row, dict) else {} for row in frame.pop("data")], frame.index)
        frame = data.combine_first(frame)  # other rows may have theirs at the top level
    return frame


def _csv(file: Path) -> pd.DataFrame:
    """W&B's export of a panel: columns "RUN - METRIC", with __MIN and __MAX where steps were merged."""
    with warnings.catch_warnings(action="error", category=pd.errors.ParserWarning):
        try:
            frame = pd.read_csv(file, index_col=False)
        except pd.errors.ParserWarning:
            raise ValueError("its rows have more fields than its header; decimals need a point") from None
    frame = frame[[name for name in frame if not str(name).endswith(("__MIN", "__MAX"))]]
    names = frame.columns.str.rpartition(" - ")
    if len({run for run, dash, _ in names if dash}) > 1:
        raise ValueError("it has several runs; export one of them")
    return frame.set_axis([metric for _, _, metric in names], axis=1)


def _trainer_state(file: Path) -> pd.DataFrame:
    state = json.loads(file.read_text())
    if not isinstance(state, dict) or "log_history" not in state:
        raise ValueError("it has no log_history")
    return pd.DataFrame(state["log_history"])
