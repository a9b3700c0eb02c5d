"""The problem sets of a scale: one to train on, several to evaluate on, no problem in two of them."""

import hashlib
import zlib
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from entropy_dynamics.config import TRAIN
from entropy_dynamics.config.schema import DataConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import sha256, write_json, written_whole
from entropy_dynamics.tasks import GeneratedSet, Problem, SetSource, find_task
from entropy_dynamics.tasks.cleaning import clean_problems, strip_instructions
from entropy_dynamics.tasks.files import write_problems
from entropy_dynamics.tasks.rows import column_names
from entropy_dynamics.tasks.sources import FileSet, HubSet, RowsSource, SplitSet
from entropy_dynamics.validation import parse

REPORT = "problems.json"


def build_problem_sets(data: DataConfig, out_dir: Path | str) -> dict[str, Any]:
    """Write `train.parquet`, `<evaluation set>.parquet` for each and the report `problems.json`; return the report.

    Evaluation sets come first, in the order of the config: a problem that two of them share stays in the first, and
    the training set gets none of theirs. Then the splits are taken out of the training set. The report says for each
    set where it came from, how many rows were read, kept, and dropped for which reason (rows = kept + dropped).
    A file of a set's name in `data.folder` replaces its source.

    Raises:
        UserError: a bad file or setting, or a set that ends up empty; then nothing is written.
    """
    sources = data.sets
    in_folder = _files_in_folder(data.folder, sources) if data.folder else {}
    for name, one in sources.items():
        if isinstance(one, FileSet) and Path(one.path).resolve().parent == Path(out_dir).resolve():
            raise UserError(
                f"{_key(name)}: {one.path} is in {out_dir}, where the sets are written; choose another folder"
            )
    sources |= {name: _replacement(sources[name], path) for name, path in in_folder.items()}
    sets: dict[str, list[Problem]] = {}
    entries: dict[str, dict[str, Any]] = {}
    splits = {name: one for name, one in sources.items() if isinstance(one, SplitSet)}
    if TRAIN in splits:
        raise UserError(f"{_key(TRAIN)}.source: a split is taken out of the training set")

    for name in [name for name in (*data.evaluation, TRAIN) if name not in splits]:
        others = [problem.text for problems in sets.values() for problem in problems]
        problems, dropped, entry = _problems_of(
            name, sources[name], data.seed, exclude=others, id_needed=name not in in_folder
        )
        for other in sets:
            problems, shared = _without(problems, sets[other])
            if shared:
                dropped[f"also in {other}"] = shared
        sets[name] = problems
        entries[name] = entry | {"dropped": dropped}
        if not problems:
            reasons = ", ".join(f"{number} x {reason}" for reason, number in dropped.items())
            raise UserError(f"{_key(name)}: none of its {entry['rows']} problems is left ({reasons})")

    for name, split in splits.items():
        if split.size >= len(sets[TRAIN]):
            raise UserError(
                f"{_key(name)}.size: {split.size} leaves nothing of the {len(sets[TRAIN])} problems to train on"
            )
        sets[name], sets[TRAIN] = split_problems(sets[TRAIN], split.size, data.seed)
        entries[name] = {"source": "split", "rows": split.size, "dropped": {}}
        entries[TRAIN]["dropped"][f"taken for {name}"] = split.size

    report: dict[str, Any] = {"seed": data.seed, "sets": {}}
    for name in sources:
        report["sets"][name] = entries[name] | {
            "kept": len(sets[name]),
            "ids_sha256": ids_sha256(problem.id for problem in sets[name]),
        }
    _write(Path(out_dir), sets, report)
    return report


def sources_from_files(
    seed: int, task: str, train: str | None, evaluation: Sequence[str], splits: Sequence[str]
) -> DataConfig:
    """The problem sets that a user names on the command line: FILE, NAME=FILE ..., NAME=SIZE ..."""
    if not train:
        raise UserError("--evaluation and --split need --train FILE")
    sets: dict[str, Any] = {}
    for option, entries in (("--evaluation", evaluation), ("--split", splits)):
        for entry in entries:
            name, _, value = entry.partition("=")
            if not name or not value:
                raise UserError(f"{option} {entry!r} is not of the form NAME=VALUE")
            if option == "--evaluation":
                sets[name] = {"source": "file", "path": value, "task": task}
            elif value.isdecimal():
                sets[name] = {"source": "split", "size": int(value)}
            else:
                raise UserError(f"--split {entry}: {value!r} is not a number of problems")
    own = {"source": "file", "path": train, "task": task}
    return parse(DataConfig, {"seed": seed, "folder": None, "train": own, "evaluation": sets}, "command line")


def split_problems(problems: list[Problem], size: int, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Take `size` problems out: returns (taken, rest), each in the order given.

    Problems are chosen in the order of a hash of seed and id, a random permutation that depends neither on the order of
    the rows nor on a random number generator's version.
    """
    chance = {p.id: hashlib.sha256(f"{seed}/{p.id}".encode()).digest() for p in problems}
    taken = set(sorted(chance, key=chance.__getitem__)[:size])
    return [p for p in problems if p.id in taken], [p for p in problems if p.id not in taken]


def ids_sha256(ids: Iterable[str]) -> str:
    """Hex digest of the sorted ids, one per line: equal for the same set in any order."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()


def _files_in_folder(folder: str, sets: Iterable[str]) -> dict[str, Path]:
    """For each of `sets` that has one, its file `<set>.jsonl` or `<set>.parquet`."""
    if not Path(folder).is_dir():
        raise UserError(f"data.folder: no folder {folder} (it is set in a config or by ENTROPY_DYNAMICS_PROBLEMS)")
    files = {}
    for name in sets:
        found = [path for suffix in ("jsonl", "parquet") if (path := Path(folder) / f"{name}.{suffix}").is_file()]
        if len(found) > 1:
            raise UserError(f"data.folder: both {found[0]} and {found[1].name} exist; one file is one set")
        if found:
            files[name] = found[0]
    return files


def _replacement(source: SetSource, path: Path) -> FileSet:
    """The file as a source: with the columns of the source that it replaces, if it has them, or the default ones."""
    task = source.task if isinstance(source, RowsSource) else "math"
    own = FileSet(source="file", path=str(path), task=task)
    if isinstance(source, RowsSource) and {source.problem_column, source.answer_column} <= set(column_names(path)):
        columns = {key: getattr(source, key) for key in ("problem_column", "answer_column")}
        return own.model_copy(update=columns)
    return own


def _problems_of(
    name: str, source: SetSource, seed: int, exclude: list[str], id_needed: bool
) -> tuple[list[Problem], dict[str, int], dict[str, Any]]:
    """The problems of one set, the number of dropped rows by reason, and the report's entry."""
    if isinstance(source, GeneratedSet):
        own_seed = zlib.crc32(f"{seed}/{name}".encode())  # independent problems in every set
        problems = source.generate(name, own_seed, exclude)
        entry = source.model_dump()
        return problems, {}, entry | {"rows": entry.pop("size")}

    assert isinstance(source, RowsSource)
    try:
        raw, entry = source.read(id_needed)
        task = find_task(source.task)
        rows, stripped = strip_instructions(raw, task)
        problems, dropped = clean_problems(rows, task)
    except UserError as error:
        advice = ""
        if isinstance(source, HubSet):
            advice = (
                "; without a network, set data.folder or ENTROPY_DYNAMICS_PROBLEMS to a folder with "
                f"{name}.jsonl or {name}.parquet (columns problem, answer)"
            )
        raise UserError(f"{_key(name)}: {error}{advice}") from error
    if stripped:
        entry["instructions_removed"] = stripped
    return problems, dict(Counter(dropped["reason"])), entry


def _without(problems: list[Problem], others: list[Problem]) -> tuple[list[Problem], int]:
    """The problems that are not among `others`, and how many are."""
    keys = {find_task(other.task).key(other.text) for other in others}
    kept = [problem for problem in problems if find_task(problem.task).key(problem.text) not in keys]
    return kept, len(problems) - len(kept)


def _write(out_dir: Path, sets: dict[str, list[Problem]], report: dict[str, Any]) -> None:
    """Write all files under temporary names, then rename them; the report, entered first, comes last."""
    report["outputs"] = {}
    with ExitStack() as stack:
        report_file = stack.enter_context(written_whole(out_dir / REPORT))
        for name, problems in sets.items():
            file = stack.enter_context(written_whole(out_dir / f"{name}.parquet"))
            write_problems(file, problems)
            report["outputs"][f"{name}.parquet"] = sha256(file)
        write_json(report_file, report)


def _key(name: str) -> str:
    return f"data.{TRAIN}" if name == TRAIN else f"data.evaluation.{name}"
