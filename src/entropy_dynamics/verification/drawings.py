"""Redraws tables, figures and claims and compares them; recomputes table scores from the samples."""

import csv
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.config import Config
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.claims import input_files, load_claims
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import ScoresSpec
from entropy_dynamics.report import render
from entropy_dynamics.report.fill import markdown
from entropy_dynamics.report.verdicts import write_claims, write_field
from entropy_dynamics.results.files import read_parquet
from entropy_dynamics.results.layout import INPUTS, Layout
from entropy_dynamics.verification.findings import Verification, of_configs

PICTURES = (".png", ".svg", ".pdf")  # their bytes depend on fonts and on the version of matplotlib
DIGITS = 1e-4  # resolution of a score in a table's csv


class Drawings:
    """Redraws tables, figures and claims into a temporary folder."""

    def __init__(self, layout: Layout, config: Config, findings: Verification):
        self.layout, self.root, self.findings = layout, layout.root, findings
        self.results = Results(self.root, config.scale, dict(config.seeds))
        self.same: set[str] = set()  # suffixes for which at least one file is identical to the redrawn one
        self.other: list[Path] = []  # pictures whose numbers are as redrawn, but whose bytes differ

    def check(self) -> None:
        with TemporaryDirectory() as folder:
            self.copy = Path(folder) / self.results.scale
            self.redrawn = replace(self.results, root=self.copy, origin=self.root)
            self.copy.mkdir()
            for name in INPUTS:
                (self.copy / name).symlink_to((self.root / name).resolve())
            for kind in ("tables", "figures"):
                for file in sorted((self.root / kind).glob("[!.]*.csv")):
                    self.findings.checked[kind] += 1
                    self.findings.guarded(self._experiment, file)
            for folder in ("claims", "field", "controls"):
                if (file := self.layout.judged(folder, "json")).is_file():
                    self.findings.checked["claims"] += 1
                    self.findings.guarded(self._claims, file)
        unsure = [path for path in self.other if path.suffix not in self.same]
        for path in set(self.other) - set(unsure):
            self.findings.add("modified", path, "other pictures are as redrawn here, this one is not")
        if unsure:
            fact = "its numbers are as redrawn, its bytes are not: edited, or drawn by another matplotlib"
            self.findings.add("not checked", min(unsure), f"{fact} ({len(unsure)} files)")

    def _experiment(self, file: Path) -> None:
        experiment = of_configs(self.results.experiment, file.stem)
        inputs = experiment.input_files(self.root)
        missing = [path for path in inputs if not path.is_file()]
        for path in missing:
            self.findings.add("missing", path, f"{self.findings.short(file)} is made from it")
        if not missing:
            self._compare(file, lambda: render(file.stem, self.redrawn), inputs)
            if experiment.spec.is_table and file not in self.findings.suspect:
                self._scores(file, experiment)

    def _claims(self, file: Path) -> None:
        folder = None if file.stem == "claims" else file.stem
        inputs = input_files(self.root, of_configs(load_claims, self.results.scale, self.results.seeds, folder=folder))
        self._compare(file, lambda: write_field(self.redrawn, folder) if folder else write_claims(self.redrawn), inputs)

    def _compare(self, file: Path, draw: Callable[[], list[Path]], inputs: list[Path]) -> None:
        """Compare the files of a table, a figure or the claims with those that `draw` writes into the copy."""
        try:
            pairs = {self.root / path.relative_to(self.copy): path for path in draw()}
        except UserError as error:
            self.findings.add("stale", file, str(error).replace(str(self.copy), str(self.root)))
            return
        differing: dict[Path, tuple[bytes, bytes]] = {}
        for old, new in pairs.items():
            if not old.is_file():
                self.findings.add("missing", old, "its other files are there")
                continue
            was, now = old.read_bytes(), new.read_bytes()
            for written in (str, markdown):
                now = now.replace(written(str(self.copy)).encode(), written(str(self.root)).encode())
            if now in (was, _as_drawn_now(old, was)):
                self.same.add(old.suffix)
            else:
                differing[old] = was, now
        # Different inputs or code change all files, an edit only one or two.
        most = 2 * len(differing) > len(pairs)
        if most and file.suffix == ".csv":
            seeds, redrawn = (_most_seeds(path) for path in (file, self.copy / file.relative_to(self.root)))
            if seeds != redrawn:
                fact = f"seeds is {seeds}, redrawn {redrawn}: give --set seeds.tables=... or seeds.extras=..."
                self.findings.add("different config", file, fact)
                return
        stale = most or any({path, path.parent} & self.findings.suspect for path in inputs)
        for path, contents in differing.items():
            if path.suffix not in PICTURES:
                self.findings.add("stale" if stale else "modified", path, _first_difference(path, *contents))
            elif not stale:
                self.other.append(path)

    def _scores(self, file: Path, experiment: Experiment[ScoresSpec]) -> None:
        for row in pd.read_csv(file).to_dict("records"):
            runs = experiment.of(row["model"], row["method"])
            for dataset in experiment.evaluations:
                frames = [read_parquet(run.evaluation_file(self.root, dataset)) for run in runs]
                cells = {"index": "problem_id", "columns": "sample", "values": "correct"}
                seeds = [frame.pivot(**cells).to_numpy() for frame in frames]
                scores = {
                    "avg": [seed.mean(axis=1).mean() for seed in seeds],
                    "pass": [seed.any(axis=1).mean() for seed in seeds],
                }
                for metric in filter(scores.__contains__, experiment.spec.metrics):  # others follow from the answers
                    self.findings.checked["scores"] += 1
                    name, expected = f"{dataset}_{metric}", 100 * np.mean(scores[metric])
                    if not abs(row[name] - expected) <= DIGITS:
                        fact = f"{name} of {row['model']} {row['method']} is {row[name]:g}"
                        self.findings.add("stale", file, f"{fact}, its samples give {expected:.4f}")


def _as_drawn_now(path: Path, content: bytes) -> bytes:
    """A picture with the palette that earlier versions did not give it."""
    from entropy_dynamics.figures.style import with_palette

    with suppress(OSError, SyntaxError, ValueError):  # from Pillow, of a damaged picture
        return with_palette(content) if path.suffix == ".png" else content
    return content


def _most_seeds(path: Path) -> int | None:
    frame = pd.read_csv(path)
    return int(frame["seeds"].max()) if "seeds" in frame else None


def _first_difference(path: Path, was: bytes, now: bytes) -> str:
    """The first cell of a csv that differs; for other files, the first line."""
    texts = [content.decode("utf-8", "replace").splitlines() for content in (was, now)]
    for number, (a, b) in enumerate(zip_longest(*texts, fillvalue=""), 1):
        if a != b:
            cells = [next(csv.reader([line]), []) for line in (a, b)]
            if path.suffix == ".csv" and len(cells[0]) == len(cells[1]):
                names = next(csv.reader(texts[1]))
                name, x, y = next((n, x, y) for n, x, y in zip(names, *cells, strict=True) if x != y)
                return f"line {number}: {name} is {x}, redrawn {y}"
            return f"line {number}: {a.strip()[:80]!r}, redrawn {b.strip()[:80]!r}"
    return "its line ends differ"
