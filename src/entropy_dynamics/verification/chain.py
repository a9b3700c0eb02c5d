"""Check the records of all results, from problems to samples, against files, other records and the configs."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from entropy_dynamics.config import (
    BASE,
    TRAIN,
    Config,
    differences,
    load_config,
    settings_in,
    settings_of,
    settings_of_run,
)
from entropy_dynamics.config.schema.data import GateConfig
from entropy_dynamics.experiments.load import THEORY, load_experiment
from entropy_dynamics.results.files import read_json, read_parquet, sha256
from entropy_dynamics.results.layout import CONFIG, FACTS, METRICS, PROVENANCE, Layout, record_of
from entropy_dynamics.tasks import Problem, find_task
from entropy_dynamics.tasks.files import ids_sha256, load_problems
from entropy_dynamics.verification.findings import Verification, of_configs

OF_A_RUN = (METRICS, CONFIG, f"policy/{FACTS}")

Record = dict[str, Any]


class Chain:
    """Problems, models, pass rates, runs, evaluations and logit steps."""

    def __init__(self, layout: Layout, config: Config, overrides: Sequence[str], findings: Verification):
        self.layout, self.config, self.findings = layout, config, findings
        self.sha256 = cache(lambda path: sha256(path) if path.is_file() else None)
        self.settings = cache(lambda stage, *run: settings_of(stage, self._config(*run, overrides=overrides)))
        self.problems = cache(lambda name: {problem.id: problem for problem in load_problems(layout.problems(name))})

    def check(self) -> None:
        evaluations = self._folders("evaluations/*/*/seed*", "evaluations/*/*/seed*/T*")
        checks = {
            self._problem_sets: [self.layout.problems_report] if self.layout.data.is_dir() else [],
            self._model: [folder / FACTS for folder in self._folders("models/*/seed*")],
            self._pass_rates: self._recorded(self.layout.pass_rates("*")),
            self._gate: sorted(self.layout.root.glob("pass_rates/*.gate.json")),
            self._run: self._folders("runs/*/*/seed*"),
            self._evaluation: [file for folder in evaluations for file in self._recorded(folder / "*.parquet")],
            self._logit_steps: self._recorded(self.layout.logit_steps),
        }
        for check, paths in checks.items():
            for path in paths:
                self.findings.guarded(check, path)

    def _config(self, *run: str, overrides: Sequence[str]) -> Any:
        """The config of a model or a run, in which the values in a run's name win over `overrides`."""
        said = [entry for method in run[1:] for entry in settings_in(method)]
        return of_configs(load_config, self.config.scale, *run, overrides=[*overrides, *said])

    def _folders(self, *patterns: str) -> list[Path]:
        return [path for pattern in patterns for path in sorted(self.layout.root.glob(pattern)) if path.is_dir()]

    def _recorded(self, pattern: Path) -> list[Path]:
        """Parquet files matching `pattern` that exist or have a record."""
        records = pattern.parent.glob(record_of(pattern).name)
        named = (record.with_name(record.name.removesuffix(f".{PROVENANCE}") + ".parquet") for record in records)
        return sorted(path for path in {*pattern.parent.glob(pattern.name), *named} if path.name[0] != ".")

    def _problem_sets(self, path: Path) -> None:
        if not (report := self._json(path)):
            return
        sets, config = report["sets"], report["config"]
        self.findings.checked["problem sets"] += len(sets)
        files = [f"{name}.parquet" for name in sets]
        self._outputs(path, report, files)
        self._unrecorded(path.parent, {*files, path.name})
        folder = config.get("data.folder")  # may be elsewhere on this machine
        self._same_config(path, config, "problems", **{"data.folder": folder})
        if folder != self.config.data.folder and any(entry["source"] == "file" for entry in sets.values()):
            self.findings.add("not checked", path, f"sets came from files in {folder}, which the config does not name")
        for name, entry in sets.items():
            self.findings.guarded(lambda file, entry=entry: self._problems(file, entry), self.layout.problems(name))

    def _problems(self, file: Path, entry: Record) -> None:
        if entry["source"] == "file":
            self.findings.checked["hashes"] += 1
            if self.sha256(Path(entry["path"])) not in (None, entry["sha256"]):
                self.findings.add("stale", file, f"{entry['path']} has changed")
        if file.is_file():
            ids = self.problems(file.stem)
            facts = {"kept": len(ids), "ids_sha256": ids_sha256(ids)}.items()
            wrong = [f"{key} is {value}, problems.json has {entry[key]}" for key, value in facts if value != entry[key]]
            if not wrong and entry["rows"] != entry["kept"] + sum(entry["dropped"].values()):
                wrong = [f"rows in problems.json is {entry['rows']}, not the sum of those kept and dropped"]
            self.findings.add("modified", file, *wrong)

    def _model(self, path: Path) -> None:
        if not (facts := self._json(path)):
            return
        self.findings.checked["models"] += 1
        recorded, was = facts["weights_sha256"] | facts["outputs"], facts["config"]
        self._hashes(path, recorded)
        self._unrecorded(path.parent, {*recorded, FACTS})
        # The same model may be at a different path on this machine.
        elsewhere = {"model.path": was.get("model.path")}
        self._same_config(path, was, "model", path.parent.parent.name, **elsewhere)

    def _pass_rates(self, file: Path) -> None:
        model = self.config.pass_rates.model
        base = self.layout.model(model, self.layout.parse(file).run[-1]) / FACTS
        record = self._record(file, [base, self.layout.problems(TRAIN)], "pass_rates", model)
        if not record or not file.is_file():
            return
        frame = read_parquet(file)
        self.findings.checked["pass rates"] += len(frame)
        rate = (frame["correct"] / frame["samples"]).where(frame["samples"] > 0)
        off = frame["rate"].fillna(-1) != rate.fillna(-1)
        for row in frame[off].head(1).itertuples():
            fact = f"{row.correct} of {row.samples} correct, rate {row.rate:g}"
            self.findings.add("modified", file, f"problem {row.problem_id}: {fact}; {off.sum()} such rows")
        if sorted(frame["problem_id"]) != sorted(self.problems(TRAIN)):
            self.findings.add("modified", file, f"its problems are not those of {TRAIN}.parquet")

    def _gate(self, path: Path) -> None:
        record = self._json(path)
        measured, rates = record["measured"], self.layout.pass_rates(record["seed"])
        if record["faults"] != GateConfig.model_validate(record["bounds"]).faults(measured):
            self.findings.add("modified", path, "its faults are not those of its numbers and bounds")
        if not rates.is_file():  # the gate stopped this seed
            return
        self.findings.add("different config", path, *self.config.gate.faults(measured))
        frame = read_parquet(rates)
        rate = (frame["correct"] / frame["samples"])[frame["samples"] > 0]
        shares = {"pass_rate": rate.mean(), "mixed_groups": ((rate > 0) & (rate < 1)).mean()}
        recorded = read_json(record_of(rates)).get("measured", measured) if record_of(rates).is_file() else measured
        for name, value in (recorded | shares).items():
            if not math.isclose(measured[name], value, abs_tol=1e-9):
                self.findings.add("modified", path, f"{name} is {measured[name]:g}, the samples gave {value:g}")

    def _run(self, folder: Path) -> None:
        model, method, seed = run = self.layout.parse(folder).run
        self.findings.checked["runs"] += 1
        base = self.layout.model(model, self.config.untrained(model, seed)) / FACTS
        pass_rates = self.layout.pass_rates(self.config.untrained(self.config.pass_rates.model, seed))
        record = self._record(folder, [base, pass_rates, self.layout.problems(TRAIN)])
        if record and (stated := (record["model"], record["method"], record["seed"])) != run:
            self.findings.add("modified", folder / PROVENANCE, "it is of {} {} seed{}".format(*stated))
        facts, path, metrics = folder / "policy" / FACTS, folder / CONFIG, folder / METRICS
        weights = self._json(facts).get("weights_sha256", {})
        self._hashes(facts, weights)
        if record and weights:
            recorded = {*OF_A_RUN, *record.get("outputs", {}), *(f"policy/{name}" for name in weights)}
            self._unrecorded(folder, {*recorded, PROVENANCE})
        if path.is_file() and metrics.is_file():
            config, rows = settings_of_run(folder), read_parquet(metrics)
            self._same_config(path, config, "train", model, method)
            if rows["step"].tolist() != list(range(config["training.steps"])):
                fact = f"its {len(rows)} rows are not the {config['training.steps']} steps of config.yaml"
                self.findings.add("modified", metrics, fact)

    def _logit_steps(self, file: Path) -> None:
        experiment = of_configs(load_experiment, THEORY, self.config.scale, dict(self.config.seeds))
        ((model, seed),) = experiment.untrained.items()
        record = self._record(file, [self.layout.problems(TRAIN)], "theory", model)
        untrained = self.layout.facts(model, BASE, seed)
        if record and untrained not in self._inputs(record):
            wanted = f"not of {self.findings.short(untrained)}; of another first seed: give --set seeds.first="
            self.findings.add("different config", file, wanted)

    def _evaluation(self, file: Path) -> None:
        _, run, at, _ = self.layout.parse(file)
        self.findings.checked["evaluations"] += 1
        problems, policy = self.layout.problems(file.stem), self.layout.facts(*run)
        changed = {} if at is None else {"evaluation.temperature": at}
        record = self._record(file, [policy, problems], "evaluate", *run[:2], **changed)
        if not record or not file.is_file():
            return
        if record["seed"] != run[-1]:
            self.findings.add("modified", file, f"its record is of seed {record['seed']}")
        if self._inputs(record).get(problems) == self.sha256(problems):  # otherwise it is stale
            self._samples(file, read_parquet(file), self.problems(file.stem), record["evaluation"]["samples"])

    def _samples(self, file: Path, frame: pd.DataFrame, problems: Mapping[str, Problem], k: int) -> None:
        self.findings.checked["samples"] += len(frame)
        pairs = set(zip(frame["problem_id"], frame["sample"], strict=True))
        if len(frame) != len(pairs) or pairs != {(name, sample) for name in problems for sample in range(k)}:
            self.findings.add("modified", file, f"it does not have {k} samples of every problem")
            return
        answers = [None if pd.isna(answer) else answer for answer in frame["answer"]]
        sampled = zip((problems[name] for name in frame["problem_id"]), answers, strict=True)
        correct = [find_task(problem.task).is_correct(answer, problem) for problem, answer in sampled]
        formatted = frame["answer"].notna() & (frame["finish_reason"] == "stop")
        for column, expected in (("correct", correct), ("formatted", formatted)):
            off = frame[column] != expected
            for row in frame[off].head(1).itertuples():
                fact = f"{column} is {getattr(row, column)} for answer {row.answer}, finish reason {row.finish_reason}"
                where = f"problem {row.problem_id}, sample {row.sample}"
                self.findings.add("modified", file, f"{where}: {fact}; {off.sum()} such rows")

    def _record(self, made: Path, needed: Iterable[Path], *stage_of_run: str, **changed: Any) -> Record:
        """The record of `made`, a parquet file or the folder of a run, after checking its hashes and config.

        Its inputs must include the `needed` files. The config is that of `stage_of_run`, the stage, its model and its
        method if it has them, with the settings `changed`; without a stage it is not checked.
        """
        is_run = made.suffix != ".parquet"
        path = made / PROVENANCE if is_run else record_of(made)
        if not (record := self._json(path)):
            return {}
        inputs, short = self._inputs(record), self.findings.short
        self.findings.checked["hashes"] += len(inputs)
        unlisted = (f"{short(file)} is not among its inputs" for file in needed if file not in inputs)
        self.findings.add("modified", path, *unlisted)
        for file, digest in sorted(inputs.items()):
            if self.sha256(file) is None:
                self.findings.add("missing", file, f"{short(made)} was made from it")
            elif self.sha256(file) != digest:
                self.findings.add("stale", made, f"{short(file)} has changed since it was made")
        self._outputs(path, record, OF_A_RUN if is_run else [made.name])
        if stage_of_run:
            self._same_config(path, record["config"], *stage_of_run, **changed)
        return record

    def _inputs(self, record: Record) -> dict[Path, str]:
        return {self.layout.here(name, self.config.scale): digest for name, digest in record["inputs"].items()}

    def _outputs(self, path: Path, record: Record, makes: Iterable[str]) -> None:
        recorded = record.get("outputs", {})
        self.findings.add("modified", path, *(f"it has no hash of {name}" for name in makes if name not in recorded))
        self._hashes(path, recorded)

    def _hashes(self, path: Path, recorded: Mapping[str, str]) -> None:
        """Check files against their hashes in the record `path`, in whose folder or below it they are."""
        self.findings.checked["hashes"] += len(recorded)
        for name, digest in recorded.items():
            file = path.parent / name
            actual = self.sha256(file)
            if actual is None:
                self.findings.add("missing", file, f"{path.name} has its hash")
            elif actual != digest:
                self.findings.add("modified", file, f"its sha256 is {actual[:12]}..., {path.name} has {digest[:12]}...")

    def _unrecorded(self, folder: Path, recorded: Collection[str]) -> None:
        """Report files below `folder` that are in no record; hidden files are ignored."""
        for file in sorted(folder.rglob("[!.]*")):
            if file.is_file() and file.relative_to(folder).as_posix() not in recorded:
                self.findings.add("modified", file, "no record has its hash")

    def _same_config(self, path: Path, was: Mapping[str, Any], stage: str, *run: str, **changed: Any) -> None:
        self.findings.add("different config", path, *differences(was, self.settings(stage, *run) | changed))

    def _json(self, path: Path) -> Record:
        """Read a record; if it is missing, report that and return an empty one."""
        if path.is_file():
            self.findings.checked["records"] += 1
            return dict(read_json(path))
        self.findings.add("missing", path, "there are results that it should describe")
        return {}
