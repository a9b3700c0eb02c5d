"""From the problems to the samples: records against files, against each other, and against today's configs."""

from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from entropy_dynamics.config import Config, flatten, identity, read_yaml
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.loading import FACTS
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.stages.problems import REPORT, TRAIN, build_problem_sets, ids_sha256
from entropy_dynamics.tasks import GeneratedSet, Problem, SetSource, find_task
from entropy_dynamics.tasks.sources import HubSet, SplitSet
from entropy_dynamics.verification.findings import Findings, guarded
from entropy_dynamics.verification.records import Records, differences, mapping

RECORD = ".provenance.json"  # beside a parquet file
OF_A_RUN = ("metrics.parquet", "config.yaml", f"policy/{FACTS}")  # files that its record has to have hashes of
SAMPLE_COLUMNS = ("problem_id", "sample", "correct", "formatted", "answer", "finish_reason", "tokens")
RATE_COLUMNS = ("problem_id", "correct", "samples", "rate", "kept", "reason")


class Chain(Records):
    """Problems, models, pass rates, runs and evaluations: what their records say of them, and of each other."""

    def __init__(self, layout: Layout, scale: str, config: Config, overrides: Sequence[str], found: Findings):
        super().__init__(layout, scale, config, overrides, found)
        self.problem_set = cache(lambda name: self._parquet(layout.problems(name), ("id", "problem", "answer", "task")))

    def check(self) -> None:
        if self.layout.data.is_dir():
            self._problems(self.layout.data / REPORT)
        for directory in self._folders("models/*"):
            self._model(directory / FACTS)
        self._pass_rates(self.layout.pass_rates)
        for directory in self._folders("runs/*/*/seed*"):
            self._run(directory)
        for directory in self._folders("evaluations/*/*/seed*"):
            files = [*directory.glob("[!.]*.parquet"), *directory.glob(f"[!.]*{RECORD}")]
            for name in sorted({file.name.removesuffix(RECORD).removesuffix(".parquet") for file in files}):
                self._evaluation(directory / f"{name}.parquet")
        self._theory(self.layout.logit_steps)
        self._commits()

    def _folders(self, pattern: str) -> list[Path]:
        return sorted(path for path in self.root.glob(pattern) if path.is_dir() and not path.name.startswith("."))

    # Problems

    @guarded
    def _problems(self, path: Path) -> None:
        report = self._json(path, "it says where the problems come from")
        if report is None:
            return
        sets = {name: mapping(report, "sets", name) for name in mapping(report, "sets")}
        files = [f"{name}.parquet" for name in sets]
        self._outputs(path, report, files)
        self._unknown(path.parent.glob("*.parquet"), path.parent, {*files, self.layout.pass_rates.name}, REPORT)
        self.found.checked["problem sets"] += len(sets)
        for name, entry in sets.items():
            self._set(self.layout.problems(name), name, entry)
        self._sources(path, report.get("seed"), sets)

    @guarded
    def _set(self, file: Path, name: str, entry: dict) -> None:
        if (frame := self.problem_set(name)) is None:
            return
        for key, now in (("kept", len(frame)), ("ids_sha256", ids_sha256(frame["id"].astype(str)))):
            if entry.get(key) != now:
                self.found.add("changed by hand", file, f"{key} is {now}, {REPORT} has {entry.get(key)}")

    @guarded
    def _sources(self, path: Path, seed: Any, sets: dict[str, dict]) -> None:
        """The sets against those of today's config: as it describes them and, where it takes no network, made anew."""
        data = self.config.data
        sources = {TRAIN: data.train, **data.evaluation}
        if set(sets) != set(sources):
            fact = f"the sets are {', '.join(sets)}; today's are {', '.join(sources)}"
            self.found.add("another config", path, fact)
        if seed != data.seed:
            self.found.add("another config", path, f"the seed is {seed}, today's is {data.seed}")
        elif any(one.source == "hub" for one in sources.values()):
            for name in sets.keys() & sources:
                self._described(self.layout.problems(name), sets[name], sources[name])
            self.found.add("not checked", path, "whether the problems are the Hub's: that takes a network")
        else:
            self._rebuilt(path, sets)

    def _described(self, file: Path, entry: dict, source: SetSource) -> None:
        if entry.get("source") == "file" != source.source:  # data.folder is the machine's, so no config says it
            self.found.add("not checked", file, f"it was read from a file, in the place of its source {source.source}")
            return
        now: dict[str, Any] = {"source": source.source}
        if isinstance(source, HubSet):
            now |= {key: getattr(source, key) for key in ("repository", "revision", "subset")}
            now["split"] = source.hub_split
        elif isinstance(source, GeneratedSet | SplitSet):
            now["rows"] = source.size
        self.found.add("another config", file, *differences({key: entry.get(key) for key in now}, now))

    def _rebuilt(self, path: Path, sets: dict[str, dict]) -> None:
        with TemporaryDirectory() as folder:
            try:
                report = build_problem_sets(self.config.data, folder)
            except UserError as error:  # a source that is not here any more
                self.found.add("not checked", path, f"whether the problems are those of their source: {error}")
                return
            again = {name: pd.read_parquet(Path(folder) / f"{name}.parquet") for name in report["sets"]}
        as_now = True
        for name in dict.fromkeys([*report["sets"], *sets]):
            was, now = ({k: v for k, v in one.get(name, {}).items() if k != "path"} for one in (sets, report["sets"]))
            what = "stale" if was.get("sha256") != now.get("sha256") else "another config"
            self.found.add(what, self.layout.problems(name), *differences(was, now))
            as_now = as_now and was == now
        for name in sets if as_now else ():  # what one set holds depends on the others
            self._same_problems(self.layout.problems(name), self.problem_set(name), again[name])

    @guarded
    def _same_problems(self, file: Path, frame: pd.DataFrame | None, again: pd.DataFrame) -> None:
        if file not in self.found.suspect and not frame.equals(again):
            off = (frame.to_numpy(object) != again.to_numpy(object)).any(axis=1)
            other = f"{off.sum()} problems, the first {frame['id'][off].iloc[0]}" if off.any() else "types or index"
            self.found.add("changed by hand", file, f"its source gives other {other}")

    # Models

    @guarded
    def _model(self, path: Path) -> None:
        name = path.parent.name
        facts = self._json(path, f"it says what the model {name} is")
        if facts is None:
            return
        self.found.checked["models"] += 1
        self._weights(path, facts, mapping(facts, "outputs"))
        self._hashes(path, mapping(facts, "outputs"))
        config = self._config(path, name)
        if config is None:
            return
        if (toy := config.toy_models.get(name)) is not None:
            was, now = dict(flatten(mapping(facts, "spec"))), dict(flatten(toy.model_dump(mode="json")))
        else:  # a model from a directory has no revision
            keys = ["pretrained", "substitute", *(["revision"] if facts.get("revision") is not None else [])]
            was, now = {key: facts.get(key) for key in keys}, {key: getattr(config.model, key) for key in keys}
        self.found.add("another config", path, *differences(was, now))

    @guarded
    def _weights(self, path: Path, facts: dict, others: Collection[str] | None) -> None:
        """A policy's weights, and whether `others`, the files that a record has, are all the rest of it."""
        recorded = mapping(facts, "weights_sha256")
        if not recorded:
            self.found.add("changed by hand", path, "it has no weights_sha256")
        self._hashes(path, recorded)
        files = path.parent.rglob("*.safetensors" if others is None else "*")
        self._unknown(files, path.parent, {*recorded, *(others or ()), FACTS}, "its record")

    # Pass rates

    @guarded
    def _pass_rates(self, file: Path) -> None:
        path, model = _record_of(file), self.config.pass_rates.model
        if not file.is_file() and not path.is_file():
            return
        needed = [self.layout.model(model) / FACTS, self.layout.problems(TRAIN)]
        self._record(path, file, needed, [file.name], (model,))
        frame = self._parquet(file, RATE_COLUMNS)
        if frame is not None:
            self._filter(file, frame)

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
        problems = self.problem_set(TRAIN) if self.layout.problems(TRAIN) not in self.found.suspect else None
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

    @guarded
    def _run(self, directory: Path) -> None:
        model, method, _ = place = directory.parts[-3:]
        self.found.checked["runs"] += 1
        needed = [self.layout.model(model) / FACTS, self.layout.pass_rates, self.layout.problems(TRAIN)]
        record = self._record(directory / "provenance.json", directory, needed, OF_A_RUN)
        facts = self._json(directory / "policy" / FACTS, "it says what the policy is")
        if facts is not None:
            names = [PurePosixPath(name) for name in mapping(record, "outputs")]
            others = [str(name.relative_to("policy")) for name in names if name.parts[:1] == ("policy",)]
            self._weights(directory / "policy" / FACTS, facts, others if record else None)
        for path, own, name in (("provenance.json", record, "model"), (f"policy/{FACTS}", facts, "name")):
            stated = own and (own.get(name), own.get("method"), f"seed{own.get('seed')}")
            if stated and stated != place:
                self.found.add("changed by hand", directory / path, f"it is of {' '.join(map(str, stated))}")
        steps = self._made_with(directory / "config.yaml", model, method)
        self._curve(directory / "metrics.parquet", steps)

    @guarded
    def _made_with(self, path: Path, model: str, method: str) -> Any:
        """A run's config against today's; the number of steps that it has."""
        if not path.is_file():
            self.found.add("missing", path, "it says how the run was made")
            return None
        self.found.files.add(path)
        own = identity(read_yaml(path))
        self._same_config(path, own, model, method)
        return own.get("training.steps")

    @guarded
    def _curve(self, path: Path, steps: Any) -> None:
        metrics = self._parquet(path, ("step",))
        if metrics is None or steps is None:
            return
        if len(metrics) != steps or metrics["step"].tolist() != list(range(len(metrics))):
            fact = f"its {len(metrics)} rows are not the {steps} steps that config.yaml has"
            self.found.add("changed by hand", path, fact)

    # Evaluations

    @guarded
    def _evaluation(self, file: Path) -> None:
        model, method, seed = file.parent.parts[-3:]
        path, dataset = _record_of(file), file.stem
        self.found.checked["evaluations"] += 1
        needed = [self.layout.policy(model, method, seed.removeprefix("seed")) / FACTS, self.layout.problems(dataset)]
        record = self._record(path, file, needed, [file.name], (model, method)) or {}
        if record and f"seed{record.get('seed')}" != seed:
            self.found.add("changed by hand", path, f"it is of seed {record.get('seed')} and lies in {seed}")
        config = self._config(path, model, method) if record else None
        if config is not None:
            own = config.evaluation
            now = {"samples": own.samples.get(dataset), "temperature": own.temperature}
            self.found.add("another config", path, *differences(mapping(record, "evaluation"), now))
        frame = self._parquet(file, SAMPLE_COLUMNS)
        if frame is not None:
            self._samples(file, frame, record)

    def _samples(self, file: Path, frame: pd.DataFrame, record: dict) -> None:
        """What the rows have to be, whatever the policy was."""
        self.found.checked["samples"] += len(frame)
        sizes, facts = frame.groupby("problem_id").size(), []
        k = mapping(record, "evaluation").get("samples", sizes.max())
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
        made_from = self._inputs(record).get(self.layout.problems(file.stem))
        if problems is not None and made_from in (None, self._hash(self.layout.problems(file.stem))):
            by_id = {row.id: Problem(*row) for row in problems.itertuples(index=False)}
            answers = {name: one.answer for name, one in by_id.items()}
            if set(sizes.index) != set(by_id):
                facts.append(f"its problems are not those of {file.name} in data/")
            graded = [
                name in by_id
                and find_task(by_id[name].task).is_correct(None if pd.isna(answer) else answer, by_id[name])
                for name, answer in zip(frame["problem_id"], frame["answer"], strict=True)
            ]
            faults["correct"] = frame["correct"] != graded
        for column, off in faults.items():
            if off.any():
                row = frame[off].iloc[0]
                other = {name: row[name] for name in ("answer", "finish_reason", "tokens") if name != column}
                beside = ", ".join(f"{name} {value}" for name, value in other.items())
                right = f", where {answers.get(row['problem_id'])} is right" if column == "correct" else ""
                fact = f"{column} is {row[column]} beside {beside}{right}; {off.sum()} such rows"
                facts.append(f"problem {row['problem_id']}, sample {row['sample']}: {fact}")
        self.found.add("changed by hand", file, *facts)

    @guarded
    def _theory(self, file: Path) -> None:
        if not file.is_file() and not _record_of(file).is_file():
            return
        record = self._record(_record_of(file), file, [self.layout.problems(TRAIN)], [file.name])
        if record is not None and not any(one.name == FACTS for one in self._inputs(record)):  # of whichever model
            self.found.add("changed by hand", _record_of(file), f"no {FACTS} is among its inputs")


def _record_of(file: Path) -> Path:
    return file.with_suffix(RECORD)
