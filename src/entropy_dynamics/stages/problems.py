"""The problem sets of a scale: one to train on, several to evaluate on, no problem in two of them."""

import hashlib
import zlib
from collections import Counter
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from entropy_dynamics.config import DataConfig, ProblemSetConfig
from entropy_dynamics.config_checks import check_set_name
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import sha256, write_json, written_whole
from entropy_dynamics.tasks.problems import (
    Problem,
    RawProblem,
    clean_problems,
    columns_of,
    normalise_text,
    read_hub_problems,
    read_problems,
    without_instructions,
    write_problems,
)

TRAIN = "train"
REPORT = "problems.json"


def build_problem_sets(data: DataConfig, out_dir: Path | str) -> dict[str, Any]:
    """Write `train.parquet`, `<evaluation set>.parquet` for each and the report `problems.json`; return the report.

    Evaluation sets come first, in the order of the config: a problem that two of them share stays in the first, and
    the training set gets none of theirs. Then the splits are taken out of the training set. The report says for each
    set where it came from, how many rows were read, kept, and dropped for which reason (rows = kept + dropped).
    A file of a set's name in `data.folder` takes the place of its source.

    Raises UserError for a bad file or setting and for a set that ends up empty; then nothing is written.
    """
    for name in data.evaluation:
        check_set_name(name)
    sources = {TRAIN: data.train, **data.evaluation}
    in_folder = _files_in_folder(data.folder, sources) if data.folder else {}
    sources |= {name: _in_its_place(sources[name], path) for name, path in in_folder.items()}
    for name, one in sources.items():
        if one.path is not None and Path(one.path).resolve().parent == Path(out_dir).resolve():
            raise UserError(
                f"{_key(name)}: {one.path} lies in {out_dir}, where the sets are written; choose another folder"
            )
    sets: dict[str, list[Problem]] = {}
    entries: dict[str, dict[str, Any]] = {}
    splits = [name for name in data.evaluation if sources[name].source == "split"]
    given = [name for name in data.evaluation if name not in splits]

    for name in [*given, TRAIN]:
        sums = {p.problem for other in sets if entries[other]["source"] == "arithmetic" for p in sets[other]}
        problems, dropped, entry = _problems_of(
            name, sources[name], data.seed, exclude=sums, id_needed=name not in in_folder
        )
        for other in sets:
            problems, shared = _without(problems, sets[other])
            if shared:
                dropped[f"also in {other}"] = shared
        sets[name] = problems
        entries[name] = entry | {"dropped": dropped}
        _check_not_empty(name, len(problems), entries[name])

    for name in splits:
        size = _size(name, sources[name])
        if size >= len(sets[TRAIN]):
            raise UserError(
                f"{_key(name)}.size: {size} leaves nothing of the {len(sets[TRAIN])} problems to train on; take fewer"
            )
        sets[name], sets[TRAIN] = split_problems(sets[TRAIN], size, data.seed)
        entries[name] = {"source": "split", "rows": size, "dropped": {}}
        entries[TRAIN]["dropped"][f"taken for {name}"] = size

    report = {"seed": data.seed, "sets": {}}
    for name in [TRAIN, *data.evaluation]:
        report["sets"][name] = entries[name] | {
            "kept": len(sets[name]),
            "ids_sha256": ids_sha256(problem.id for problem in sets[name]),
        }
    _write(Path(out_dir), sets, report)
    return report


def split_problems(problems: list[Problem], size: int, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Take `size` problems out: returns (taken, rest), each in the order given.

    The order of choice is that of a hash of seed and id, a random permutation that depends neither on the order of the
    rows nor on a random number generator's version.
    """
    chance = {p.id: hashlib.sha256(f"{seed}/{p.id}".encode()).digest() for p in problems}
    taken = set(sorted(chance, key=chance.__getitem__)[:size])
    return [p for p in problems if p.id in taken], [p for p in problems if p.id not in taken]


def ids_sha256(ids: Iterable[str]) -> str:
    """Hex digest over the sorted ids, one a line: equal for the same set in any order."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()


def _files_in_folder(folder: str, sets: Iterable[str]) -> dict[str, Path]:
    """For each of `sets` that has one, its file `<set>.jsonl` or `<set>.parquet`."""
    if not Path(folder).is_dir():
        raise UserError(f"data.folder: no folder {folder} (it is set in a config or by ENTROPY_DYNAMICS_PROBLEMS)")
    files = {}
    for name in sets:
        found = [path for suffix in ("jsonl", "parquet") if (path := Path(folder) / f"{name}.{suffix}").is_file()]
        if len(found) > 1:
            raise UserError(f"data.folder: both {found[0]} and {found[1].name} are there; one file is one set")
        if found:
            files[name] = found[0]
    return files


def _in_its_place(config: ProblemSetConfig, path: Path) -> ProblemSetConfig:
    """The file as a source: with the columns of the set that it stands for, if it has them, or with ours."""
    ours = ProblemSetConfig(source="file", path=str(path))
    if {config.problem_column, config.answer_column} <= set(columns_of(path)):
        return replace(ours, problem_column=config.problem_column, answer_column=config.answer_column)
    return ours


def _problems_of(
    name: str, config: ProblemSetConfig, seed: int, exclude: set[str], id_needed: bool
) -> tuple[list[Problem], dict[str, int], dict[str, Any]]:
    """A generated or read set: its problems, the number of dropped rows by reason, and the report's entry."""
    if config.source == "arithmetic":
        from entropy_dynamics.tasks.arithmetic import generate_problems

        size = _size(name, config)
        if config.terms is None:
            raise UserError(f"{_key(name)}.terms: must be [fewest, most] numbers in a sum")
        own_seed = zlib.crc32(f"{seed}/{name}".encode())  # another stream of sums for every set
        problems = generate_problems(size, terms=tuple(config.terms), seed=own_seed, prefix=name, exclude=exclude)
        return problems, {}, {"source": "arithmetic", "terms": list(config.terms), "rows": size}

    if config.source == "file":
        raw, entry = _read_file(name, config, id_needed)
    elif config.source == "hub":
        raw, entry = _read_hub(name, config)
    else:
        known = "arithmetic, file or hub" if name == TRAIN else "arithmetic, file, hub or split"
        raise UserError(f"{_key(name)}.source: {config.source!r} is unknown; it is {known}")
    rows, stripped = without_instructions(raw)
    if stripped:
        entry["instructions_removed"] = stripped
    try:
        problems, dropped = clean_problems(rows)
    except UserError as error:
        raise UserError(f"{config.path or config.repository}: {error}") from error
    return problems, dict(Counter(dropped["reason"])), entry


def _read_file(name: str, config: ProblemSetConfig, id_needed: bool) -> tuple[list[RawProblem], dict[str, Any]]:
    if config.path is None:
        raise UserError(f"{_key(name)}.path: must be a JSONL or parquet file")
    raw = read_problems(config.path, id_needed=id_needed, **_columns(config))
    return raw, {"source": "file", "path": str(config.path), "sha256": sha256(config.path), "rows": len(raw)}


def _read_hub(name: str, config: ProblemSetConfig) -> tuple[list[RawProblem], dict[str, Any]]:
    if config.repository is None or config.revision is None:
        missing = "repository" if config.repository is None else "revision"
        raise UserError(f"{_key(name)}.{missing}: must be given for a data set of the Hugging Face Hub")
    place = {"repository": config.repository, "revision": str(config.revision), "subset": config.subset}
    try:
        raw = read_hub_problems(**place, split=config.hub_split, **_columns(config))
    except UserError as error:
        raise UserError(
            f"{_key(name)}: {error}; without a network, set data.folder or ENTROPY_DYNAMICS_PROBLEMS to a folder with "
            f"{name}.jsonl or {name}.parquet (columns problem, answer)"
        ) from error
    return raw, {"source": "hub", **place, "split": config.hub_split, "rows": len(raw)}


def _columns(config: ProblemSetConfig) -> dict[str, str | None]:
    return {key: getattr(config, key) for key in ("id_column", "problem_column", "answer_column")}


def _without(problems: list[Problem], others: list[Problem]) -> tuple[list[Problem], int]:
    """The problems whose text is in none of the others, and how many are not among them."""
    texts = {normalise_text(other.problem) for other in others}
    kept = [problem for problem in problems if normalise_text(problem.problem) not in texts]
    return kept, len(problems) - len(kept)


def _write(out_dir: Path, sets: dict[str, list[Problem]], report: dict[str, Any]) -> None:
    """Write all files beside their places, then rename them; the report, entered first, comes last."""
    report["outputs"] = {}
    with ExitStack() as stack:
        report_file = stack.enter_context(written_whole(out_dir / REPORT))
        for name, problems in sets.items():
            file = stack.enter_context(written_whole(out_dir / f"{name}.parquet"))
            write_problems(file, problems)
            report["outputs"][f"{name}.parquet"] = sha256(file)
        write_json(report_file, report)


def _check_not_empty(name: str, kept: int, entry: dict[str, Any]) -> None:
    if kept == 0:
        reasons = ", ".join(f"{number} x {reason}" for reason, number in entry["dropped"].items())
        raise UserError(f"{_key(name)}: none of its {entry['rows']} problems is left ({reasons})")


def _size(name: str, config: ProblemSetConfig) -> int:
    if config.size is None or config.size < 1:
        raise UserError(f"{_key(name)}.size: must be a number of problems above 0, not {config.size}")
    return config.size


def _key(name: str) -> str:
    return f"data.{TRAIN}" if name == TRAIN else f"data.evaluation.{name}"
