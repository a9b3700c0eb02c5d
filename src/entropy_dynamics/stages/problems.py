"""The problem sets of a scale: a training set and several evaluation sets, all disjoint."""

import hashlib
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from entropy_dynamics.config import TRAIN, settings_of, versions_of_generators
from entropy_dynamics.config.schema.data import DataConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import sha256, write_json, written_whole
from entropy_dynamics.results.layout import PROBLEMS_REPORT
from entropy_dynamics.stages.common import check_replaceable
from entropy_dynamics.tasks import LoadedSet, Problem, SetSource, find_task
from entropy_dynamics.tasks.files import ids_sha256, write_problems
from entropy_dynamics.tasks.sources import FileSet, SplitSet, set_key
from entropy_dynamics.tasks.statements import REPORTED, StatedInWords, Statements


def build_problem_sets(data: DataConfig, out_dir: Path) -> dict[str, Any]:
    """Write `train.parquet`, one `<evaluation set>.parquet` each and the report `problems.json`; return the report.

    Evaluation sets come first, in the order of the config: a problem that two of them share stays in the first, and
    the training set gets none of theirs. Then splits are taken out of the training set. Near duplicates are dropped
    likewise, if their overlap is at least `data.near_duplicates`. For each set, the report has its source and the
    number of rows read, kept, and dropped by reason (rows = kept + dropped). A file named after a set in `data.folder`
    replaces its source. Raises UserError, and writes nothing, for a bad file or setting or a set that ends up empty.
    """
    config = {"data": data.model_dump(), "versions": versions_of_generators(data)}
    sources = data.sets | _files_in_folder(data)
    check_replaceable(out_dir / PROBLEMS_REPORT, "problems", config)
    for name, source in sources.items():
        if isinstance(source, FileSet) and Path(source.path).resolve().parent == out_dir.resolve():
            where = f"{set_key(name)}: {source.path} is in {out_dir}"
            raise UserError(f"{where}, where the sets are written; choose another folder")
    splits = {name: source for name, source in sources.items() if isinstance(source, SplitSet) and name != TRAIN}
    sets: dict[str, LoadedSet] = {}
    for name in [name for name in (*data.evaluation, TRAIN) if name not in splits]:
        sets[name] = _load(name, sources[name], data, sets)
    train = sets[TRAIN]
    for name, split in splits.items():
        if split.size >= (size := len(train.problems)):
            left = f"{set_key(name)}.size: {split.size} leaves nothing of the {size} problems to train on"
            raise UserError(f"{left}; set lower: {', '.join(f'{set_key(each)}.size' for each in splits)}")
        taken, train.problems = split_problems(train.problems, split.size, data.seed)
        train.dropped[f"taken for {name}"] = split.size
        sets[name] = LoadedSet(taken, {"source": "split", "rows": split.size})
        _drop_shared(train, sets[name], name, data.near_duplicates)
        _check_left(train, TRAIN)

    report: dict[str, Any] = {"seed": data.seed, "config": settings_of("problems", config), "sets": {}, "outputs": {}}
    with ExitStack() as stack:  # renames all files at the end; the report was entered first, so it is renamed last
        report_file = stack.enter_context(written_whole(out_dir / PROBLEMS_REPORT))
        for name in sources:
            problems = sets[name].problems
            counts = {"dropped": dict(sets[name].dropped), "kept": len(problems)}
            hashed = {"ids_sha256": ids_sha256(problem.id for problem in problems)}
            report["sets"][name] = sets[name].entry | counts | hashed
            file = stack.enter_context(written_whole(out_dir / f"{name}.parquet"))
            write_problems(file, problems)
            report["outputs"][f"{name}.parquet"] = sha256(file)
        write_json(report_file, report)
    return report


def split_problems(problems: list[Problem], size: int, seed: int) -> tuple[list[Problem], list[Problem]]:
    """Split off `size` problems: returns (taken, rest), each in the given order.

    The choice is by a hash of seed and id, which depends neither on the order of rows nor on a random generator.
    """
    hashes = {problem.id: hashlib.sha256(f"{seed}/{problem.id}".encode()).digest() for problem in problems}
    taken = set(sorted(hashes, key=hashes.__getitem__)[:size])
    return [p for p in problems if p.id in taken], [p for p in problems if p.id not in taken]


def _load(name: str, source: SetSource, data: DataConfig, others: dict[str, LoadedSet]) -> LoadedSet:
    exclude = [problem.text for other in others.values() for problem in other.problems]
    try:
        loaded = source.load(name, data.seed, exclude)
    except UserError as error:
        raise UserError(f"{set_key(name)}: {error}") from error
    for other, earlier in others.items():
        _drop_shared(loaded, earlier, other, data.near_duplicates)
    _check_left(loaded, name)
    return loaded


def _drop_shared(loaded: LoadedSet, earlier: LoadedSet, other: str, threshold: float | None) -> None:
    """Drop problems that the earlier set `other` has; record its near duplicates, and drop those over the threshold."""
    keys = {find_task(problem.task).key(problem.text) for problem in earlier.problems}
    in_words = [problem for problem in earlier.problems if isinstance(find_task(problem.task), StatedInWords)]
    statements = Statements(problem.text for problem in in_words)
    kept = []
    for problem in loaded.problems:
        task = find_task(problem.task)
        of, overlap = statements.nearest(problem.text) if isinstance(task, StatedInWords) else (0, 0.0)
        if task.key(problem.text) in keys:
            loaded.dropped[f"also in {other}"] += 1
            continue
        if overlap >= REPORTED:
            found = {"id": problem.id, "set": other, "of": in_words[of].id, "overlap": round(overlap, 3)}
            loaded.entry.setdefault("near_duplicates", []).append(found)
            if threshold is not None and overlap >= threshold:
                loaded.dropped[f"near duplicate in {other}"] += 1
                continue
        kept.append(problem)
    loaded.problems = kept


def _check_left(loaded: LoadedSet, name: str) -> None:
    if not loaded.problems:
        reasons = ", ".join(f"{number} x {reason}" for reason, number in loaded.dropped.items())
        of = f"{set_key(name)}: none of its {loaded.entry['rows']} problems is left"
        raise UserError(f"{of} ({reasons}){loaded.example}")


def _files_in_folder(data: DataConfig) -> dict[str, SetSource]:
    """Sources for the sets that have a file `<set>.jsonl` or `<set>.parquet` in `data.folder`."""
    if data.folder is not None and not Path(data.folder).is_dir():
        raise UserError(f"data.folder: no folder {data.folder} (it is set in a config or by ENTROPY_DYNAMICS_PROBLEMS)")
    sources: dict[str, SetSource] = {}
    for name, source in data.sets.items():
        match data.files_in_folder(name):
            case [path]:
                replaced = data.train if isinstance(source, SplitSet) else source
                task = getattr(replaced, "task", replaced.source)  # a task that generates its problems is the source
                sources[name] = FileSet(source="file", path=str(path), task=task)
            case [jsonl, parquet]:
                raise UserError(f"data.folder: both {jsonl} and {parquet.name} exist; one file is one set")
    return sources
