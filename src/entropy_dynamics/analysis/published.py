"""What anyone needs to recompute the results of a scale: small files of counts per problem and of metrics per step."""

from pathlib import Path

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import Run
from entropy_dynamics.analysis.problem_scores import Arm
from entropy_dynamics.analysis.results import Results, Samples
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import read_parquet, write_parquet

COUNTS, METRICS = "counts.parquet", "metrics.parquet"
KEYS = ["model", "method", "seed"]
COUNT_TYPES = {
    "seed": np.int16,
    "problem": np.int16,
    "correct": np.int16,
    "samples": np.int16,
    "temperature": np.float32,
}


def publish(results: Results, folder: Path) -> list[Path]:
    """Write counts.parquet and metrics.parquet of all runs. Raises UserError if there is none."""
    frames = {COUNTS: counts_frame(results), METRICS: metrics_frame(results)}
    for name, frame in frames.items():
        write_parquet(folder / name, frame, compression="zstd")
    return [folder / name for name in frames]


def counts_frame(results: Results) -> pd.DataFrame:
    """A row per model, method, seed, temperature, data set and problem: `correct` of `samples`.

    `problem` is its place in the order of the data set's ids.
    """
    frames = []
    for path in _files(results, "evaluations/*/*/seed*/**/*.parquet"):
        *folder, _ = path.relative_to(results.layout.root / "evaluations").parts
        run = _run(Path(*folder[:3]))
        temperature = float(folder[3][1:]) if len(folder) > 3 else results.config.evaluation.temperature
        samples = results.samples(run, path.stem, temperature)
        about = {"model": run.model, "method": run.method, "seed": run.seed, "dataset": path.stem}
        about |= {"temperature": temperature}
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


def read_counts(path: Path, temperature: float = 0.7) -> dict[Arm, dict[int, dict[str, Samples]]]:
    """The counts of a published file at one temperature, as `score_columns` takes them."""
    counts: dict[Arm, dict[int, dict[str, Samples]]] = {}
    frame = read_parquet(path, [*KEYS, "dataset", "problem", "correct", "samples", "temperature"], "publish it again")
    frame = frame[np.isclose(frame["temperature"], temperature)]
    for (model, method, seed, dataset), rows in frame.groupby([*KEYS, "dataset"]):
        samples = Samples("", rows["correct"].to_numpy(), int(rows["samples"].iloc[0]), np.nan, np.nan)
        counts.setdefault((model, method), {}).setdefault(seed, {})[dataset] = samples
    return counts


def _files(results: Results, pattern: str) -> list[Path]:
    if not (files := sorted(results.root.glob(pattern))):
        raise UserError(f"no files {results.root / pattern}; run snakemake --config scale={results.scale} first")
    return files


def _run(folder: Path) -> Run:
    *_, model, method, seed = folder.parts
    return Run(model, method, int(seed.removeprefix("seed")))


def _sorted(frames: list[pd.DataFrame], columns: list[str]) -> pd.DataFrame:
    return pd.concat(frames, ignore_index=True).sort_values(columns, kind="stable", ignore_index=True)
