"""Published data from which a scale's results can be recomputed (counts per problem, metrics, samples), and back."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int
from pandas.api.types import is_integer_dtype, is_numeric_dtype
from pydantic import BaseModel

from entropy_dynamics.analysis.experiments import Run
from entropy_dynamics.analysis.run_data import Model, Results
from entropy_dynamics.config import stored_as
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import (
    read_json,
    read_parquet,
    save_parquet,
    write_json,
    write_parquet,
    written_whole,
)
from entropy_dynamics.results.layout import FACTS, SEEDS, Layout
from entropy_dynamics.sections import parse

MODELS = "models.json"  # the scale, and the model that ran under each name
KEYS = ["model", "method", "seed"]
NAME = re.compile(r"\w[\w.@=+,-]*")  # models, methods, data sets become paths, so no separator and no leading dot
File = tuple[Path, Run, dict[str, Any]]  # path, run, and further identifying columns such as the data set
COUNT_TYPES = dict.fromkeys(("seed", "problem", "correct", "samples"), np.int16) | {"temperature": np.float32}


def counts_frame(results: Results) -> pd.DataFrame:
    """One row per model, method, seed, temperature, data set and problem: `correct` of `samples`.

    `problem` is the problem's index in the sorted ids of its data set.
    """
    frames = []
    for _, run, of in _evaluations(results):
        samples = results.samples(run, of["dataset"], of["temperature"])
        numbers = {"problem": range(len(samples.correct)), "correct": samples.correct, "samples": samples.k}
        frames.append(pd.DataFrame(_keys(run) | of | numbers))
    return _sorted(frames, [*KEYS, "temperature", "dataset", "problem"]).astype(COUNT_TYPES)


def metrics_frame(results: Results) -> pd.DataFrame:
    """The metrics of all runs in single precision, one row per model, method, seed and step."""
    frames = []
    for path in _files(results, "runs/*/*/seed*/metrics.parquet"):
        run, frame = _run(path.parent), read_parquet(path)
        numbers = frame.select_dtypes("float").astype(np.float32)
        frames.append(frame.assign(**numbers, model=run.model, method=run.method, seed=np.int16(run.seed)))
    frame = _sorted(frames, [*KEYS, "step"])
    return frame[[*KEYS, "step", *frame.columns.difference([*KEYS, "step"], sort=False)]]


def write_data(results: Results, folder: Path) -> dict[str, int]:
    """Write counts, metrics, samples and, if runs kept token samples, tokens.parquet; returns their numbers of rows.

    Raises UserError if there are no evaluations or no runs, or if a file is damaged.
    """
    frames = {"counts": counts_frame(results), "metrics": metrics_frame(results)}
    for name, frame in frames.items():
        write_parquet(folder / f"{name}.parquet", frame, compression="zstd")
    rows = {name: len(frame) for name, frame in frames.items()}
    rows["samples"] = _stack(folder / "samples.parquet", _evaluations(results))
    if files := sorted(results.root.glob("samples/*/*/seed*/step*.parquet")):
        steps = [(file, _run(file.parent), {"step": int(file.stem.removeprefix("step"))}) for file in files]
        rows["tokens"] = _stack(folder / "tokens.parquet", steps)
    return rows


def restore(folders: Sequence[Path], root: Path, temperature: float) -> dict[str, int]:
    """Recreate results/<scale> from published counts and metrics, as far as claims, tables, scores and curves need it.

    Args:
        folders: published folders, whose seeds are renumbered from 0 in this order, so that they count as one run.
        root: results/<scale>, a new folder.
        temperature: temperature of the tables' evaluations.

    Returns `tables`, the largest number of seeds of any method, and `extras`, the smallest. Raises UserError if two
    folders share a seed or describe a model differently, a file is missing or damaged, or a name is not a valid folder
    name.
    """
    frames = {folder: (_counts(folder), _published(folder, "metrics", "step")) for folder in folders}
    models: dict[str, tuple[Path, Model]] = {}
    for folder in folders:
        for name, facts in described(folder).models.items():
            other, before = models.setdefault(name, (folder, facts))
            if before != facts:
                raise UserError(f"{other} and {folder} have different models {name!r}: see their {MODELS}")
    seeds: dict[int, Path] = {}
    for folder, (counts, metrics) in frames.items():
        for seed in sorted({*counts["seed"], *metrics["seed"]}):
            if (other := seeds.setdefault(seed, folder)) != folder:
                raise UserError(f"{other} and {folder} both have seed {seed}: one untrained model counts once")
    number = {seed: place for place, seed in enumerate(seeds)}
    with written_whole(root) as whole:
        write_json(whole / SEEDS, [int(seed) for seed in seeds])
        for name, (_, facts) in models.items():
            write_json(Layout(whole).model(name, 0) / FACTS, facts.model_dump())
        for folder, (counts, metrics) in frames.items():
            scale = described(folder).scale
            for (*run, at, dataset), rows in counts.groupby([*KEYS, "temperature", "dataset"]):
                at = None if np.isclose(at, temperature) else float(f"{at:g}")
                path = _numbered(scale, run, number).evaluation_file(whole, dataset, at)
                if not path.exists():  # `clip_b` comes before `clip_b@mu=2.0`, the same run trained again
                    save_parquet(path, _samples(rows["correct"].to_numpy(), rows["samples"].iloc[0]))
            for run, rows in metrics.groupby(KEYS):
                path = _numbered(scale, run, number).metrics_file(whole)
                if not path.exists():
                    save_parquet(path, rows.drop(columns=KEYS))
    trained = pd.concat([metrics for _, metrics in frames.values()]).groupby(["model", "method"])["seed"].nunique()
    return {"tables": int(trained.max()), "extras": int(trained.min())}


def _counts(folder: Path) -> pd.DataFrame:
    """The counts, sorted by problem. `restore` numbers problems by their order, so none may be missing."""
    path, of = folder / "counts.parquet", [*KEYS, "temperature", "dataset"]
    frame = _published(folder, "counts", "temperature", "dataset", "problem", "correct", "samples")
    frame = frame.sort_values("problem")
    evaluations = frame.groupby(of)
    even = (evaluations["samples"].nunique() == 1).all() and (frame["samples"] > 0).all()
    if not even or not frame["correct"].between(0, frame["samples"]).all():
        raise UserError(f"{path}: not every problem of an evaluation has the same number of samples; get it again")
    if (frame["problem"] != evaluations.cumcount()).any():
        raise UserError(f"{path}: the problems of an evaluation are not 0, 1, 2 ..., each once; get it again")
    return frame


def _published(folder: Path, name: str, *columns: str) -> pd.DataFrame:
    """A published table, checked to have `KEYS` and `columns`, valid folder names and whole numbers in them."""
    path = _existing(folder / f"{name}.parquet")
    frame = read_parquet(path, remedy="get it again")
    for column in (*KEYS, *columns):
        if column not in frame:
            raise UserError(f"{path} has no column {column!r}")
        if column in ("model", "method", "dataset"):
            _check_names(path, frame[column].unique())
            continue
        is_number, kind = (is_numeric_dtype, "") if column == "temperature" else (is_integer_dtype, "whole ")
        if not (is_number(frame[column]) and frame[column].between(0, np.inf, inclusive="left").all()):
            raise UserError(f"{path}: {column} should have {kind}numbers of 0 or more; get it again")
    if frame.duplicated([*KEYS, *columns[:3]]).any():
        raise UserError(f"{path} has two rows of one {columns[:3][-1]}; get it again")
    return frame


class Described(BaseModel):
    """The content of models.json."""

    scale: str
    models: dict[str, Model]


def described(folder: Path) -> Described:
    """What a published folder holds. Raises UserError if its models.json is missing, damaged or of an older version."""
    path = _existing(folder / MODELS)
    found = read_json(path, remedy="get it again")
    if isinstance(found, dict) and not found.keys() & set(Described.model_fields):
        raise UserError(
            f"{path} is of an earlier release, which did not say the scale: make its content "
            '{"scale": "laptop", "models": <its content now>}, with the name of the scale that ran'
        )
    content = parse(Described, found, str(path))
    _check_names(path, content.models)
    return content


def _check_names(path: Path, names: Iterable[Any]) -> None:
    for name in names:
        if not (isinstance(name, str) and NAME.fullmatch(name)):
            raise UserError(f"{path} has {name!r}, which is not a name")


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise UserError(f"no file {path}; a folder that `entropy-dynamics archive` wrote has one")
    return path


def _numbered(scale: str, run: Sequence[Any], number: Mapping[int, int]) -> Run:
    model, method, seed = run
    return Run(model, method, number[seed], stored_as(scale, model, method))


def _samples(correct: Int[np.ndarray, " problem"], k: int) -> pd.DataFrame:
    """Samples with the given counts. Counts do not tell which of the k are correct, nor their answers."""
    problems = np.repeat([f"{place:06d}" for place in range(len(correct))], k)
    places = np.tile(np.arange(k), len(correct))
    is_correct = places < np.repeat(correct, k)
    unknown = {"answer": "", "finish_reason": ""}
    return pd.DataFrame({"problem_id": problems, "sample": places, "correct": is_correct} | unknown)


def _stack(path: Path, files: Sequence[File]) -> int:
    """Write the rows of all files, identifying columns first. At most two methods' files are in memory at a time.

    Columns that a file lacks, as `logp` where the engine returned none, are null.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    frames = (
        pd.concat([_identified(*file) for file in of_method], ignore_index=True)
        for _, of_method in groupby(files, lambda file: (file[1].model, file[1].method))
    )
    tables = (pa.Table.from_pandas(frame, preserve_index=False) for frame in frames)
    first, rows = next(tables), 0
    fields = {field.name: field for file, *_ in files for field in pq.read_schema(file)}
    schema = pa.schema([*first.schema, *(field for name, field in fields.items() if name not in first.schema.names)])
    options = {"compression": "zstd", "write_page_checksum": True}
    with written_whole(path) as whole, pq.ParquetWriter(whole, schema, **options) as writer:
        for table in chain([first], tables):
            for field in schema:
                if field.name not in table.schema.names:
                    table = table.append_column(field, pa.nulls(len(table), field.type))
            writer.write_table(table.select(schema.names).cast(schema))
            rows += len(table)
    return rows


def _evaluations(results: Results) -> list[File]:
    evaluations = []
    for path in _files(results, "evaluations/*/*/seed*/**/*.parquet"):
        *folder, _ = path.relative_to(results.layout.root / "evaluations").parts
        temperature = float(folder[3][1:]) if len(folder) > 3 else results.config.evaluation.temperature
        evaluations.append((path, _run(Path(*folder[:3])), {"temperature": temperature, "dataset": path.stem}))
    return evaluations


def _keys(run: Run) -> dict[str, Any]:
    return dict(zip(KEYS, run.path, strict=True))


def _identified(path: Path, run: Run, of: dict[str, Any]) -> pd.DataFrame:
    frame, about = read_parquet(path), _keys(run) | of
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
