"""What anyone needs to recompute the results of a scale: counts per problem, metrics per step, samples."""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import Run
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import read_parquet, written_whole

TOKENS = "samples/*/*/seed*/step*.parquet"  # files of token samples, in results/<scale>
KEYS = ["model", "method", "seed"]
File = tuple[Path, Run, dict[str, Any]]
"""A file of a run, with the columns that say what else it is of."""
COUNT_TYPES = {
    "seed": np.int16,
    "problem": np.int16,
    "correct": np.int16,
    "samples": np.int16,
    "temperature": np.float32,
}


def counts_frame(results: Results) -> pd.DataFrame:
    """A row per model, method, seed, temperature, data set and problem: `correct` of `samples`.

    `problem` is its place in the order of the data set's ids.
    """
    frames = []
    for _, run, of in _evaluations(results):
        samples = results.samples(run, of["dataset"], of["temperature"])
        numbers = {"problem": range(len(samples.correct)), "correct": samples.correct, "samples": samples.k}
        frames.append(pd.DataFrame(asdict(run) | of | numbers))
    return _sorted(frames, [*KEYS, "temperature", "dataset", "problem"]).astype(COUNT_TYPES)


def metrics_frame(results: Results) -> pd.DataFrame:
    """The metrics of all runs, a row per model, method, seed and step, in single precision."""
    frames = []
    for path in _files(results, "runs/*/*/seed*/metrics.parquet"):
        run, frame = _run(path.parent), read_parquet(path)
        numbers = frame.select_dtypes("float").astype(np.float32)
        frames.append(frame.assign(**numbers, model=run.model, method=run.method, seed=np.int16(run.seed)))
    frame = _sorted(frames, [*KEYS, "step"])
    return frame[[*KEYS, "step", *frame.columns.difference([*KEYS, "step"], sort=False)]]


def write_samples(results: Results, path: Path) -> int:
    """The samples of all evaluations as one file, a row each, after the columns of their run; returns their number."""
    return _stack(path, _evaluations(results))


def write_tokens(results: Results, path: Path) -> int:
    """The same for responses with the statistics of every token. Raises UserError if no run kept any."""
    files = _files(results, TOKENS)
    return _stack(path, [(file, _run(file.parent), {"step": int(file.stem.removeprefix("step"))}) for file in files])


def _stack(path: Path, files: Sequence[File]) -> int:
    """Write the rows of all files, each after the columns about it; the files of two methods at most are in memory."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    frames = (
        pd.concat([_after(asdict(run) | of, read_parquet(file)) for file, run, of in of_method], ignore_index=True)
        for _, of_method in groupby(files, lambda file: (file[1].model, file[1].method))
    )
    tables = (pa.Table.from_pandas(frame, preserve_index=False) for frame in frames)
    first, rows = next(tables), 0
    options = {"compression": "zstd", "write_page_checksum": True}
    with written_whole(path) as whole, pq.ParquetWriter(whole, first.schema, **options) as writer:
        for table in chain([first], tables):
            writer.write_table(table.cast(first.schema))
            rows += len(table)
    return rows


def _evaluations(results: Results) -> list[File]:
    evaluations = []
    for path in _files(results, "evaluations/*/*/seed*/**/*.parquet"):
        *folder, _ = path.relative_to(results.layout.root / "evaluations").parts
        temperature = float(folder[3][1:]) if len(folder) > 3 else results.config.evaluation.temperature
        evaluations.append((path, _run(Path(*folder[:3])), {"temperature": temperature, "dataset": path.stem}))
    return evaluations


def _after(about: dict[str, Any], frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(**about)[[*about, *frame.columns]]


def _files(results: Results, pattern: str) -> list[Path]:
    if not (files := sorted(results.root.glob(pattern))):
        raise UserError(f"no files {results.root / pattern}; run snakemake --config scale={results.scale} first")
    return files


def _run(folder: Path) -> Run:
    *_, model, method, seed = folder.parts
    return Run(model, method, int(seed.removeprefix("seed")))


def _sorted(frames: list[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    return pd.concat(frames, ignore_index=True).sort_values(columns, kind="stable", ignore_index=True)
