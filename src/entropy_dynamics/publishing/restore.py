"""Published data from which a scale's results can be recomputed (counts per problem, metrics, samples), and back."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import chain, groupby
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Int
from pydantic import BaseModel, Field

from entropy_dynamics.analysis.published_runs import parts_of
from entropy_dynamics.analysis.run_data import Model, Results
from entropy_dynamics.config import BASE, Config, stored_as
from entropy_dynamics.config.schema import FIRST_PILOT_SEED
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.claims import seeds_by_group
from entropy_dynamics.experiments.load import Run
from entropy_dynamics.results.files import read_json, read_parquet, save_table, write_json, written_whole
from entropy_dynamics.results.layout import FACTS, SEEDS, Layout, Place
from entropy_dynamics.sections import parse

MODELS = "models.json"  # the scale, and the model that ran under each name
KEYS = ["model", "method", "seed"]
NAME = r"\w[\w.@=+,-]*"  # models, methods, data sets become paths, so no separator and no leading dot
File = tuple[Path, dict[str, Any]]  # path and identifying columns: `KEYS`, and others such as the data set
COUNT_TYPES = dict.fromkeys(("problem", "correct", "samples"), np.int32) | {"seed": np.int64, "temperature": np.float32}


def counts_frame(results: Results) -> pd.DataFrame:
    """One row per model, method, seed, temperature, data set and problem: `correct` of `samples`.

    `problem` is the problem's index in the sorted ids of its data set.
    """
    frames = []
    for _, of in _evaluations(results):
        samples = results.samples(Run(*(of[key] for key in KEYS)), of["dataset"], of["temperature"])
        numbers = {"problem": range(len(samples.correct)), "correct": samples.correct, "samples": samples.k}
        frames.append(pd.DataFrame(of | numbers))
    order = ["dataset", "model", "problem", "method", "seed", "temperature"]  # compresses best
    return pd.concat(frames).sort_values(order).astype(COUNT_TYPES)


def metrics_frame(results: Results) -> pd.DataFrame:
    """The metrics of all runs in single precision, one row per model, method, seed and step."""
    frames = []
    for path, run, *_ in _files(results, "runs", "/metrics.parquet"):
        frame = read_parquet(path)
        numbers = frame.select_dtypes("float").astype(np.float32)
        frames.append(frame.assign(**numbers, **dict(zip(KEYS, run, strict=True))))
    frame = pd.concat(frames).sort_values([*KEYS, "step"])
    return frame[[*KEYS, "step", *frame.columns.difference([*KEYS, "step"], sort=False)]]


def write_data(results: Results, folder: Path) -> dict[str, int]:
    """Write counts, metrics, samples and, if runs kept token samples, tokens.parquet; returns their numbers of rows.

    Raises UserError if there are no evaluations or no runs, or if a file is damaged.
    """
    rows = {}
    for name, frame in (("counts", counts_frame(results)), ("metrics", metrics_frame(results))):
        table = pa.Table.from_pandas(frame, preserve_index=False)
        pq.write_table(table, folder / f"{name}.parquet", **_smallest(table.schema))
        rows[name] = len(frame)
    rows["samples"] = _stack(folder / "samples.parquet", _evaluations(results))
    if files := list(results.layout.find("samples", "/step*.parquet")):
        steps = [(of.path, dict(zip([*KEYS, "step"], [*of.run, of.step], strict=True))) for of in files]
        rows["tokens"] = _stack(folder / "tokens.parquet", steps)
    return rows


def restore(folders: Sequence[Path], root: Path, config: Config) -> dict[str, int]:
    """Recreate results/<scale> from published counts and metrics, as far as claims, tables, scores and curves need it.

    Args:
        folders: published folders, whose seeds are renumbered from 0 in this order, so that they count as one run; a
            pooled one stands for those that it is made of.
            Seeds of pilot runs keep their numbers; those of the first folder that has them count.
        root: results/<scale>, a new folder.
        config: config of the scale.

    Returns the number of seeds of each group. Raises UserError if a folder is of another scale, two folders share a
    seed or describe a model differently, or a file is damaged.
    """
    tables: list[tuple[pd.DataFrame, pd.DataFrame]] = []
    models: dict[str, Model] = {}
    seeds: dict[int, Path] = {}
    places: dict[int, int] = {}  # the new number of each seed
    parts = [part for folder in folders for part in parts_of(folder)]
    for folder in parts:
        path = folder / MODELS
        described = parse(_Described, read_json(path, remedy="get it again"), str(path))
        if (scale := described.scale) != config.scale:
            there = root.with_name(scale)
            raise UserError(f"{folder} was made at scale {scale}, not {config.scale}: restore it as {there}")
        for name, model in described.models.items():
            if models.setdefault(name, model) != model:
                raise UserError(f"{path} has another model {name!r} than a folder before")
        tables.append((_counts(folder), _published(folder, "metrics", "step")))
        # Without those of an untrained model that exists only once, with seed 0.
        per_seed = {name for name in models if config.untrained(name, 1)}
        of_each = (of["seed"][(of["method"] != BASE) | of["model"].isin(per_seed)] for of in tables[-1])
        own = {int(seed) for column in of_each for seed in column.unique()}
        pilots = _pilots(own, config.seeds.pilot)
        places |= {seed: seed for seed in pilots}
        for seed in sorted(own - pilots):
            if (other := seeds.setdefault(seed, folder)) != folder:
                raise UserError(f"{other} and {folder} both have seed {seed}: one untrained model counts once")
    named = pd.concat([of[KEYS] for both in tables for of in both]).drop_duplicates()
    every = [Run(*run) for run in named.itertuples(index=False)]
    trained = Counter(run.seed for run in every if run.method != BASE)

    def order(seed: int) -> tuple[bool, int]:
        """Seeds of untrained models alone come last, and those that only one group has after those of both."""
        later = (trained[other] for other in seeds if other >= seed and seeds[other] == seeds[seed])
        return seed not in trained, -max(later)

    numbered = sorted(seeds, key=order)
    if len(numbered) > FIRST_PILOT_SEED:
        most = f"{FIRST_PILOT_SEED} at most, as pilots have the numbers from {FIRST_PILOT_SEED} on"
        raise UserError(f"the folders have {len(numbered)} reported seeds; restore takes {most}")
    places |= {seed: place for place, seed in enumerate(numbered)}

    def renumbered(model: str, method: str, seed: int) -> Run:
        place = config.untrained(model, places.get(seed, 0)) if method == BASE else places[seed]
        return Run(model, method, place, stored_as(config.scale, model, method))

    groups = seeds_by_group(config, [renumbered(*run.path) for run in every if run.method != BASE])
    with written_whole(root) as whole:
        write_json(whole / SEEDS, numbered)
        for name, model in models.items():
            write_json(Layout(whole).model(name, 0) / FACTS, model.model_dump())
        for counts, metrics in tables:
            for (*run, at, dataset), rows in counts.groupby([*KEYS, "temperature", "dataset"]):
                path = renumbered(*run).evaluation_file(whole, dataset, config.evaluation.folder_of(at))
                if not path.exists():  # `clip_b` comes before `clip_b@mu=2.0`, the same run trained again
                    save_table(path, _samples(rows["correct"].to_numpy(), int(rows["samples"].iloc[0])))
            for run, rows in metrics.groupby(KEYS):
                path = renumbered(*run).metrics_file(whole)
                if not path.exists():
                    table = pa.Table.from_pandas(rows.drop(columns=KEYS), preserve_index=False)
                    save_table(path, table)
    return groups


def _pilots(seeds: set[int], number: int) -> set[int]:
    """The seeds of pilot runs: `number` or, if the reported ones are below them, as many as are in succession."""
    end = FIRST_PILOT_SEED + number
    while end in seeds and min(seeds) < FIRST_PILOT_SEED:
        end += 1
    return {seed for seed in seeds if FIRST_PILOT_SEED <= seed < end}


class _Described(BaseModel):
    """The content of models.json."""

    scale: str
    models: dict[Annotated[str, Field(pattern=f"^{NAME}$")], Model]


def _counts(folder: Path) -> pd.DataFrame:
    """The counts, sorted by problem. `restore` numbers problems by their order, so none may be missing."""
    frame = _published(folder, "counts", "temperature", "dataset", "problem", "correct", "samples")
    frame = frame.sort_values("problem")
    evaluations = frame.groupby([*KEYS, "temperature", "dataset"])
    even = frame["samples"] == evaluations["samples"].transform("max")
    whole = even & (frame["problem"] == evaluations.cumcount()) & frame["correct"].between(0, frame["samples"])
    whole &= frame["samples"] > 0
    if not whole.all():
        raise UserError(f"{folder / 'counts.parquet'}: an evaluation lacks problems or samples; get it again")
    return frame


def _published(folder: Path, name: str, *columns: str) -> pd.DataFrame:
    """A published table, whose `KEYS` and `columns` are checked: they become names of folders, and numbers."""
    path = folder / f"{name}.parquet"
    frame = read_parquet(path, remedy="get it again")
    for column in (*KEYS, *columns):
        if column not in frame:
            raise UserError(f"{path} has no column {column!r}")
        if column in ("model", "method", "dataset"):
            valid, wanted = frame[column].astype(str).str.fullmatch(NAME), "names"
        else:
            numbers = pd.to_numeric(frame[column], errors="coerce")
            valid, wanted = numbers.between(0, np.inf, inclusive="left"), "numbers of 0 or more"
        if not valid.all():
            raise UserError(f"{path}: {column} should have {wanted}; get it again")
    if frame.duplicated([*KEYS, *columns[:3]]).any():
        raise UserError(f"{path} has two rows of one {columns[:3][-1]}; get it again")
    return frame


def _samples(correct: Int[np.ndarray, " problem"], k: int) -> pa.Table:
    """Samples with the given counts. Counts do not tell which of the k are correct, nor their answers."""
    is_correct = np.arange(k) < correct[:, None]
    return _ungraded(len(correct), k).set_column(2, "correct", [is_correct.ravel()])


@cache
def _ungraded(problems: int, k: int) -> pa.Table:
    """What evaluations of as many problems and samples have in common: thousands, in few sizes."""
    ids = np.repeat([f"{place:09d}" for place in range(problems)], k)
    samples = {"problem_id": ids, "sample": np.tile(np.arange(k), problems), "correct": False}
    frame = pd.DataFrame(samples | {"answer": "", "finish_reason": ""})
    return pa.Table.from_pandas(frame, preserve_index=False)


def _stack(path: Path, files: Sequence[File]) -> int:
    """Write the rows of all files, identifying columns first. At most two methods' files are in memory at a time.

    Columns that a file lacks, as `logp` where the engine returned none, are null.
    """

    def table(of_method: Iterable[File]) -> pa.Table:
        frames = [(read_parquet(file), of) for file, of in of_method]
        identified = [frame.assign(**of)[[*of, *frame.columns]] for frame, of in frames]
        return pa.Table.from_pandas(pd.concat(identified), preserve_index=False)

    tables = (table(of_method) for _, of_method in groupby(files, lambda file: (file[1]["model"], file[1]["method"])))
    first, rows = next(tables), 0
    schemas = [first.schema, *(pq.read_schema(file) for file, _ in files)]
    schema = pa.unify_schemas(schemas, promote_options="permissive").remove_metadata()
    with pq.ParquetWriter(path, schema, **_smallest(schema)) as writer:
        for of_method in chain([first], tables):
            whole = pa.concat_tables([schema.empty_table(), of_method], promote_options="permissive")
            writer.write_table(whole.cast(schema))
            rows += len(whole)
    return rows


def _smallest(schema: pa.Schema) -> dict[str, Any]:
    """Options of pyarrow with which a published table is small; floats are split by byte."""
    floats = [column.name for column in schema if str(column.type) in ("float", "double")]
    others = [name for name in schema.names if name not in floats]
    split = {"use_byte_stream_split": floats, "use_dictionary": others}
    return {"compression": "zstd", "compression_level": 19, "write_page_checksum": True, **split}


def _evaluations(results: Results) -> list[File]:
    evaluations: dict[Path, dict[str, Any]] = {}
    for path, run, at, _ in _files(results, "evaluations", "/**/*.parquet"):
        temperature = results.config.evaluation.temperature if at is None else at
        # Older versions could write the samples at the usual temperature a second time, to a folder of its own.
        read = results.evaluation_file(Run(*run), path.stem, temperature)
        named = dict(zip(KEYS, run, strict=True)) | {"temperature": temperature, "dataset": path.stem}
        evaluations.setdefault(read, named)
    return sorted(evaluations.items(), key=lambda file: file[0])


def _files(results: Results, folder: str, inside: str) -> list[Place]:
    """The files that `Layout.find` finds. Raises UserError if there are none."""
    if not (files := list(results.layout.find(folder, inside))):
        where = results.root / f"{folder}/*/*/seed*{inside}"
        raise UserError(f"no files {where}; run snakemake --config scale={results.scale} first")
    return files
