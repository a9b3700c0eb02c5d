"""From the problems to the samples: records against files, against each other, and against today's configs."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
from omegaconf import OmegaConf

from entropy_dynamics.config import Config, identity, load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.files import sha256
from entropy_dynamics.layout import Layout
from entropy_dynamics.models.loading import FACTS
from entropy_dynamics.tasks.problem_sets import REPORT, TRAIN, build_problem_sets, ids_sha256
from entropy_dynamics.verification.findings import Findings, line_of

RECORD = ".provenance.json"  # beside a parquet file
NOT_OF_A_RUN = ("seeds.", "experiments")  # config keys that say how many runs there are, and change none
SAMPLE_COLUMNS = ("problem_id", "sample", "correct", "formatted", "answer", "finish_reason", "tokens")
RATE_COLUMNS = ("problem_id", "correct", "samples", "rate", "kept", "reason")


class Chain:
    """Problems, models, pass rates, runs and evaluations: what their records say of them, and of each other."""

    def __init__(self, layout: Layout, config: Config, overrides: Sequence[str], found: Findings):
        self.layout, self.root, self.config, self.found = layout, layout.root, config, found
        self.made_at: dict[tuple[str | None, bool], list[Path]] = {}  # (commit, changed tree): records
        self.without_hashes: list[Path] = []
        self.sha256 = cache(lambda path: sha256(path) if path.is_file() else None)
        self.load_config = cache(lambda *run: load_config(config.scale, *run, overrides=overrides))
        self.problem_set = cache(lambda name: self._parquet(layout.problems(name), ("id", "problem", "answer")))

    def check(self) -> None:
        self._problems()
        for directory in self._folders("models/*"):
            self._model(directory)
        self._pass_rates()
        for directory in self._folders("runs/*/*/seed*"):
            self._run(directory)
        for directory in self._folders("evaluations/*/*/seed*"):
            files = [*directory.glob("[!.]*.parquet"), *directory.glob(f"[!.]*{RECORD}")]
            for name in sorted({file.name.removesuffix(RECORD).removesuffix(".parquet") for file in files}):
                self._evaluation(directory / f"{name}.parquet")
        self._theory()
        self._notes()

    # Problems

    def _problems(self) -> None:
        path = self.layout.data / REPORT
        if not self.layout.data.is_dir():
            return
        report = self._json(path, "it says where the problems come from")
        if report is None:
            return
        self._hashes(path, _mapping(report, "outputs"))
        sets = {name: _mapping(report, "sets", name) for name in _mapping(report, "sets")}
        self.found.checked["problem sets"] += len(sets)
        for name, entry in sets.items():
            if (frame := self.problem_set(name)) is None:
                continue
            for key, now in (("kept", len(frame)), ("ids_sha256", ids_sha256(frame["id"].astype(str)))):
                if entry.get(key) != now:
                    fact = f"{key} is {now}, {REPORT} has {entry.get(key)}"
                    self.found.add("changed by hand", self.layout.problems(name), fact)
        self._rebuilt(path, report.get("seed"), sets)

    def _rebuilt(self, path: Path, seed: Any, sets: dict[str, dict]) -> None:
        """The sets against those that today's configs make, where that takes no network."""
        data = self.config.data
        if any(one.source == "hub" for one in (data.train, *data.evaluation.values())):
            self.found.add("not checked", path, "whether the problems are the Hub's: that takes a network")
            return
        with TemporaryDirectory() as folder:
            try:
                report = build_problem_sets(data, folder)
            except UserError as error:  # a source that is not here any more
                self.found.add("not checked", path, f"whether the problems are those of their source: {error}")
                return
            again = {name: pd.read_parquet(Path(folder) / f"{name}.parquet") for name in report["sets"]}
        if seed != report["seed"]:
            self.found.add("another config", path, f"the seed is {seed}, today's is {report['seed']}")
            return
        as_now = True
        for name in dict.fromkeys([*report["sets"], *sets]):
            was, now = ({k: v for k, v in one.get(name, {}).items() if k != "path"} for one in (sets, report["sets"]))
            what = "stale" if was.get("sha256") != now.get("sha256") else "another config"
            self.found.add(what, self.layout.problems(name), *_differences(was, now))
            as_now = as_now and was == now
        for name in sets if as_now else ():  # what one set holds depends on the others
            file, frame = self.layout.problems(name), self.problem_set(name)
            if file not in self.found.suspect and not frame.equals(again[name]):
                off = (frame.to_numpy(object) != again[name].to_numpy(object)).any(axis=1)
                self.found.add("changed by hand", file, f"{off.sum()} problems, the first {frame['id'][off].iloc[0]}")

    # Models

    def _model(self, directory: Path) -> None:
        path, name = directory / FACTS, directory.name
        facts = self._json(path, f"it says what the model {name} is")
        if facts is None:
            return
        self.found.checked["models"] += 1
        self._weights(path, facts)
        config = self._config(path, name)
        if config is None:
            return
        if (stand_in := config.stand_ins.get(name)) is not None:
            was, now = (identity(OmegaConf.create(one)) for one in (_mapping(facts, "spec"), stand_in))
        else:  # a model from a directory has no revision
            keys = ["pretrained", "stand_in", *(["revision"] if facts.get("revision") is not None else [])]
            was, now = ({key: one.get(key) for key in keys} for one in (facts, config.model))
        self.found.add("another config", path, *_differences(was, now))

    def _weights(self, path: Path, facts: dict) -> None:
        recorded = _mapping(facts, "weights_sha256")
        if not recorded:
            self.found.add("changed by hand", path, "it has no weights_sha256")
        self._hashes(path, recorded | _mapping(facts, "outputs"))
        for file in sorted(path.parent.glob("*.safetensors")):
            if recorded and file.name not in recorded:
                self.found.add("changed by hand", file, f"{FACTS} knows no such weights")

    # Pass rates

    def _pass_rates(self) -> None:
        file, model = self.layout.pass_rates, self.config.pass_rates.model
        self._recorded(file, [self.layout.model(model) / FACTS, self.layout.problems(TRAIN)], (model,))
        frame = self._parquet(file, RATE_COLUMNS) if file.is_file() else None
        if frame is not None:
            self._rows(file, lambda: self._filter(file, frame))

    def _filter(self, file: Path, frame: pd.DataFrame) -> None:
        """The filter once more: what the counts give, and what the bounds keep."""
        self.found.checked["pass rates"] += len(frame)
        sampled, bounds = frame["samples"] > 0, self.config.pass_rates
        right = (frame["correct"] / frame["samples"]).where(sampled)
        off = (frame["rate"].fillna(-1) != right.fillna(-1)) | (frame["kept"] != (frame["reason"] == ""))
        if off.any():
            row = frame[off].iloc[0]
            fact = f"{row['correct']} of {row['samples']} right at rate {row['rate']:g}, kept {row['kept']}"
            self.found.add("changed by hand", file, f"problem {row['problem_id']}: {fact}, reason {row['reason']!r}")
        problems = self.problem_set(TRAIN)
        if problems is not None and sorted(frame["problem_id"]) != sorted(problems["id"]):
            self.found.add("changed by hand", file, f"its problems are not those of {TRAIN}.parquet")
        low, high = -1 if bounds.low is None else bounds.low, 2 if bounds.high is None else bounds.high
        other = frame["kept"] != ((frame["rate"] > low) & (frame["rate"] < high))
        if (frame["samples"][sampled] != bounds.samples).any():
            self.found.add("another config", file, f"samples is {frame['samples'].max()}, today's is {bounds.samples}")
        elif other.any():
            fact = f"today's pass_rates.low and .high keep other problems, {other.sum()} of them"
            self.found.add("another config", file, f"{fact}, the first {frame['problem_id'][other].iloc[0]}")

    # Runs

    def _run(self, directory: Path) -> None:
        model, method, _ = place = directory.parts[-3:]
        self.found.checked["runs"] += 1
        needed = [self.layout.model(model) / FACTS, self.layout.pass_rates, self.layout.problems(TRAIN)]
        record = self._record(directory / "provenance.json", directory, needed)
        facts = self._json(directory / "policy" / FACTS, "it says what the policy is")
        if facts is not None:
            self._weights(directory / "policy" / FACTS, facts)
        for path, own, name in (("provenance.json", record, "model"), (f"policy/{FACTS}", facts, "name")):
            stated = own and (own.get(name), own.get("method"), f"seed{own.get('seed')}")
            if stated and stated != place:
                self.found.add("changed by hand", directory / path, f"it is of {' '.join(map(str, stated))}")
        path, metrics = directory / "config.yaml", self._parquet(directory / "metrics.parquet", ("step",))
        if not path.is_file():
            self.found.add("missing", path, "it says how the run was made")
            return
        self.found.files.add(path)
        try:
            made_with = OmegaConf.load(path)
            own, steps = identity(made_with), list(range(made_with.training.steps))
        except Exception as error:  # YAML's, OmegaConf's, or Python's own
            self.found.add("changed by hand", path, f"not readable as a config: {line_of(error)}")
            return
        self._same_config(path, own, model, method)
        if metrics is not None and metrics["step"].tolist() != steps:
            fact = f"its {len(metrics)} rows are not the {len(steps)} steps that config.yaml has"
            self.found.add("changed by hand", directory / "metrics.parquet", fact)

    # Evaluations

    def _evaluation(self, file: Path) -> None:
        model, method, seed = file.parent.parts[-3:]
        path, dataset = _record_of(file), file.stem
        self.found.checked["evaluations"] += 1
        needed = [self.layout.policy(model, method, seed.removeprefix("seed")) / FACTS, self.layout.problems(dataset)]
        record = self._record(path, file, needed, (model, method)) or {}
        if record and f"seed{record.get('seed')}" != seed:
            self.found.add("changed by hand", path, f"it is of seed {record.get('seed')} and lies in {seed}")
        config = self._config(path, model, method) if record else None
        if config is not None:
            own = config.evaluation
            now = {"samples": own.samples.get(dataset), "temperature": own.temperature}
            self.found.add("another config", path, *_differences(_mapping(record, "evaluation"), now))
        frame = self._parquet(file, SAMPLE_COLUMNS)
        if frame is not None:
            self._rows(file, lambda: self._samples(file, frame, record))

    def _samples(self, file: Path, frame: pd.DataFrame, record: dict) -> None:
        """What the rows have to be, whatever the policy was."""
        self.found.checked["samples"] += len(frame)
        sizes, facts = frame.groupby("problem_id").size(), []
        k = _mapping(record, "evaluation").get("samples", sizes.max())
        if (uneven := sizes[sizes != k]).size:
            facts.append(f"problem {uneven.index[0]} has {uneven.iloc[0]} samples, not {k}")
        answered, stopped = frame["answer"].notna(), frame["finish_reason"] == "stop"
        cut = frame.loc[~stopped, "tokens"]
        faults = {  # a column, and where it cannot be what it is
            "sample": frame.duplicated(["problem_id", "sample"]) | ~frame["sample"].between(0, k - 1),
            "finish_reason": ~frame["finish_reason"].isin(["stop", "length"]),
            "formatted": frame["formatted"] != (answered & stopped),
            "tokens": (frame["tokens"] < 0) | (frame["tokens"] > (cut.min() if len(cut) else frame["tokens"].max())),
        }
        problems = self.problem_set(file.stem)
        if problems is not None and self.layout.problems(file.stem) not in self._changed(record):
            answers = problems.set_index("id")["answer"]
            if set(sizes.index) != set(answers.index):
                facts.append(f"its problems are not those of {file.name} in data/")
            faults["correct"] = frame["correct"] != frame["answer"].eq(frame["problem_id"].map(answers)).fillna(False)
        for column, off in faults.items():
            if off.any():
                row = frame[off].iloc[0]
                other = {name: row[name] for name in ("answer", "finish_reason", "tokens") if name != column}
                beside = ", ".join(f"{name} {value}" for name, value in other.items())
                right = f", where {answers.get(row['problem_id'])} is right" if column == "correct" else ""
                fact = f"{column} is {row[column]} beside {beside}{right}; {off.sum()} such rows"
                facts.append(f"problem {row['problem_id']}, sample {row['sample']}: {fact}")
        self.found.add("changed by hand", file, *facts)

    def _theory(self) -> None:
        self._recorded(self.layout.logit_steps, [self.layout.problems(TRAIN)])

    # Records

    def _recorded(self, file: Path, needed: Iterable[Path], run: tuple[str, ...] = ()) -> None:
        """A file that has a record beside it or, where an older version made it, none."""
        if _record_of(file).is_file():
            self._record(_record_of(file), file, needed, run)
        elif file.is_file():
            self.without_hashes.append(file)

    def _record(self, path: Path, made: Path, needed: Iterable[Path], run: tuple[str, ...] = ()) -> dict | None:
        """The record of what `made` was made from, its hashes compared; it has to name all of `needed`."""
        record = self._json(path, f"it says what {self.found.short(made)} was made from")
        if record is None:
            return None
        inputs = self._inputs(record)
        facts = [f"{self.found.short(one)} is not among its inputs" for one in needed if one not in inputs]
        self.found.add("changed by hand", path, *facts)
        self.found.checked["hashes"] += len(inputs)
        for one in inputs:
            if self._hash(one) is None:
                self.found.add("missing", one, f"{self.found.short(made)} was made from it")
        for one in sorted(self._changed(record)):
            self.found.add("stale", made, f"{self.found.short(one)} has changed since it was made")
        self._hashes(path, _mapping(record, "outputs"))
        if not record.get("outputs"):
            self.without_hashes.append(path)
        if "config" in record:
            self._same_config(path, _mapping(record, "config"), *run)
        git = _mapping(record, "git")
        self.made_at.setdefault((git.get("commit"), bool(git.get("changed"))), []).append(path)
        return record

    def _inputs(self, record: dict) -> dict[Path, str]:
        """Recorded inputs by where they are now: a scale's results may have been moved, all of them together."""
        here = {}
        for name, digest in _mapping(record, "inputs").items():
            parts = PurePosixPath(name).parts
            inside = parts[::-1].index(self.root.name) if self.root.name in parts else 0
            here[self.root.joinpath(*parts[-inside:]) if inside else Path(name)] = digest
        return here

    def _changed(self, record: dict) -> set[Path]:
        return {one for one, digest in self._inputs(record).items() if self._hash(one) not in (None, digest)}

    def _hashes(self, path: Path, recorded: dict[str, Any]) -> None:
        """Files against the hashes that the record `path` beside or above them has of them."""
        self.found.checked["hashes"] += len(recorded)
        for name, digest in recorded.items():
            own = self._hash(path.parent / name)
            if own is None:
                self.found.add("missing", path.parent / name, f"{path.name} has its hash")
            elif own != digest:
                fact = f"its sha256 is {own[:12]}..., {path.name} has {str(digest)[:12]}..."
                self.found.add("changed by hand", path.parent / name, fact)

    def _hash(self, path: Path) -> str | None:
        if (digest := self.sha256(path)) is not None:
            self.found.files.add(path)
        return digest

    def _config(self, path: Path, *run: str) -> Config | None:
        try:
            return self.load_config(*run)
        except UserError as error:
            self.found.add("another config", path, str(error))
            return None

    def _same_config(self, path: Path, was: dict[str, Any], *run: str) -> None:
        config = self._config(path, *run)
        if config is not None:
            pair = ({k: v for k, v in one.items() if not k.startswith(NOT_OF_A_RUN)} for one in (was, identity(config)))
            self.found.add("another config", path, *_differences(*pair))

    def _notes(self) -> None:
        commits = Counter(commit for (commit, _), records in self.made_at.items() for _ in records)
        for (commit, changed), records in self.made_at.items():
            most = commits.most_common(1)[0][0]
            if commit != most:
                fact = f"made by commit {str(commit)[:12]}, most others by {str(most)[:12]}"
                self.found.note("another commit", records, fact)
            if changed:
                fact = f"made by commit {str(commit)[:12]} with changes that were not committed"
                self.found.note("another commit", records, fact)
        fact = "whether what was written was changed since: no record has its hash"
        self.found.note("not checked", self.without_hashes, fact)

    # Files

    def _folders(self, pattern: str) -> list[Path]:
        return sorted(path for path in self.root.glob(pattern) if path.is_dir() and not path.name.startswith("."))

    def _json(self, path: Path, use: str) -> dict | None:
        """The object in a record. None, with a finding, where there is none."""
        if not path.is_file():
            self.found.add("missing", path, use)
            return None
        self.found.files.add(path)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            self.found.add("changed by hand", path, f"not readable as JSON: {line_of(error)}")
            return None
        if not isinstance(record, dict):
            self.found.add("changed by hand", path, "it has to hold an object of keys and values")
            return None
        return record

    def _parquet(self, path: Path, columns: Sequence[str]) -> pd.DataFrame | None:
        if not path.is_file():
            self.found.add("missing", path, "its folder has the rest")
            return None
        self.found.files.add(path)
        try:
            return pd.read_parquet(path, columns=list(columns))
        except Exception as error:  # pyarrow's, and pandas' where its own notes in the file are damaged
            self.found.add("changed by hand", path, f"not readable: {line_of(error)}")
            return None

    def _rows(self, path: Path, check: Callable[[], None]) -> None:
        """Run a check of rows; columns that someone has changed can hold anything."""
        try:
            check()
        except Exception as error:
            self.found.add("changed by hand", path, f"a column holds what it cannot: {line_of(error)}")


def _record_of(file: Path) -> Path:
    return file.with_suffix(RECORD)


def _mapping(record: Any, *keys: str) -> dict:
    """The mapping under these keys, empty where there is none."""
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record if isinstance(record, dict) else {}


def _differences(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    keys = [key for key in dict.fromkeys([*was, *now]) if was.get(key) != now.get(key)]
    return [f"{key} is {was.get(key)}, today's is {now.get(key)}" for key in keys]
