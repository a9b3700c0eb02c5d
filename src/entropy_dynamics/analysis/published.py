"""What anyone needs to recompute the results of a scale: counts per problem, metrics per step, samples."""

from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import Run
from entropy_dynamics.analysis.problem_scores import Arm
from entropy_dynamics.analysis.results import Results, Samples
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import read_parquet, written_whole

TOKENS = "samples/*/*/seed*/step*.parquet"  # files of token samples, in results/<scale>
KEYS = ["model", "method", "seed"]
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
    for path, about in _evaluations(results):
        run = Run(*(about[key] for key in KEYS))
        samples = results.samples(run, path.stem, about["temperature"])
        numbers = {"problem": range(len(samples.correct)), "correct": samples.correct, "samples": samples.k}
        frames.append(pd.DataFrame(about | numbers))
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
    return _stack(path, [(file, _about(_run(file.parent)) | {"step": int(file.stem[4:])}) for file in files])


def _stack(path: Path, files: list[tuple[Path, dict[str, Any]]]) -> int:
    """Write the rows of all files, each after the columns about it; the files of one method are in memory at a time."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = 0
    with written_whole(path) as whole, ExitStack() as stack:
        writer = None
        for _, of_method in groupby(files, lambda entry: (entry[1]["model"], entry[1]["method"])):
            frame = pd.concat([_after(about, read_parquet(file)) for file, about in of_method], ignore_index=True)
            table = pa.Table.from_pandas(frame, preserve_index=False)
            if writer is None:
                writer = pq.ParquetWriter(whole, table.schema, compression="zstd", write_page_checksum=True)
                stack.enter_context(writer)
            writer.write_table(table.cast(writer.schema))
            rows += len(frame)
    return rows


def read_counts(path: Path, temperature: float = 0.7) -> dict[Arm, dict[int, dict[str, Samples]]]:
    """The counts of a published file at one temperature, as `score_columns` takes them."""
    counts: dict[Arm, dict[int, dict[str, Samples]]] = {}
    frame = read_parquet(path, [*KEYS, "dataset", "problem", "correct", "samples", "temperature"], "publish it again")
    frame = frame[np.isclose(frame["temperature"], temperature)]
    for (model, method, seed, dataset), rows in frame.groupby([*KEYS, "dataset"]):
        samples = Samples("", rows["correct"].to_numpy(), int(rows["samples"].iloc[0]), np.nan, np.nan)
        counts.setdefault((model, method), {}).setdefault(seed, {})[dataset] = samples
    return counts


def _evaluations(results: Results) -> list[tuple[Path, dict[str, Any]]]:
    """The files of all evaluations, with what each is of."""
    found = []
    for path in _files(results, "evaluations/*/*/seed*/**/*.parquet"):
        *folder, _ = path.relative_to(results.layout.root / "evaluations").parts
        temperature = float(folder[3][1:]) if len(folder) > 3 else results.config.evaluation.temperature
        about = _about(_run(Path(*folder[:3])))
        found.append((path, about | {"temperature": temperature, "dataset": path.stem}))
    return found


def _about(run: Run) -> dict[str, Any]:
    return {"model": run.model, "method": run.method, "seed": run.seed}


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
