"""Tables, figures and claims: drawn once more, and the scores of the tables worked out by other code."""

import csv
from collections.abc import Callable, Iterable
from contextlib import suppress
from io import BytesIO
from itertools import zip_longest
from math import comb
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

import pandas as pd

from entropy_dynamics.analysis.experiments import Experiment, Run, load_experiment
from entropy_dynamics.config import Config
from entropy_dynamics.reporting import render
from entropy_dynamics.reporting.claims import input_files, write_claims
from entropy_dynamics.verification.findings import Findings, guarded, line_of

SOURCES = ("data", "models", "runs", "evaluations", "theory")  # folders that everything is drawn from
DRAWN = {".csv", ".md", ".tex", ".html", ".png", ".svg"}
PICTURES = {".png", ".svg"}  # other fonts or another matplotlib change their bytes
CLAIMS = tuple(f"claims.{ending}" for ending in ("json", "md", "html", "png", "svg"))
PRINTED = 1e-4  # the last digit of a score in a table's csv


class Drawings:
    """Tables, figures and claims, drawn once more from what is there."""

    def __init__(self, root: Path, scale: str, config: Config, found: Findings):
        self.root, self.scale, self.seeds, self.found = root, scale, dict(config.seeds), found
        self.as_drawn: dict[str, Path] = {}  # ending: a picture whose bytes are those drawn here
        self.pictures: list[Path] = []  # with other bytes, and the same numbers

    def check(self) -> None:
        with TemporaryDirectory() as folder:
            again = Path(folder) / self.scale
            again.mkdir()
            for part in SOURCES:
                (again / part).symlink_to((self.root / part).resolve())
            for kind in ("tables", "figures"):
                files = [path for path in (self.root / kind).glob("[!.]*") if path.suffix in DRAWN]
                for name in sorted({path.stem for path in files}):
                    self.found.checked[kind] += 1
                    self._drawing(self.root / kind / f"{name}.csv", again)
            if any((self.root / name).is_file() for name in CLAIMS):
                self.found.checked["files of claims"] += len(CLAIMS)
                self._claims(self.root / CLAIMS[0], again)
        self._judge_pictures()

    @guarded
    def _drawing(self, file: Path, again: Path) -> None:
        """A table or figure; `file` is its csv."""
        name = file.stem
        try:
            experiment = load_experiment(name, self.scale, self.seeds)
        except Exception as error:  # a YAML file can hold anything too
            self.found.add("another config", file, line_of(error))
            return
        inputs = experiment.input_files(self.root)
        gone = [path for path in inputs if not path.is_file()]
        for path in gone:
            self.found.add("missing", path, f"{self.found.short(file)} was made from it")
        if not gone:
            self._compare(file, lambda: render(name, again, self.scale, self.seeds), inputs, again, experiment)

    @guarded
    def _claims(self, file: Path, again: Path) -> None:
        try:
            inputs = input_files(self.root, self.scale, self.seeds)
        except Exception as error:
            self.found.add("another config", file, f"the claims of today cannot be read: {line_of(error)}")
            return
        self._compare(file, lambda: write_claims(again, self.scale, self.seeds), inputs, again)

    @guarded
    def _compare(
        self,
        file: Path,
        draw: Callable[[], list[Path]],
        inputs: Iterable[Path],
        again: Path,
        experiment: Experiment | None = None,
    ) -> None:
        """What stands there against what `draw` writes into the folder `again`."""
        try:
            pairs = {self.root / path.relative_to(again): path for path in draw()}
            scores = self._scores(file, experiment) if experiment and experiment.kind == "scores" else []
        except Exception as error:  # files that someone has changed can hold anything
            fact = f"cannot be made from what is there: {line_of(error)}".replace(str(again), str(self.root))
            self.found.add("stale", file, fact)
            return
        other: dict[Path, list[str]] = {}  # files that are not what is drawn now: how not
        for old, new in pairs.items():
            if not old.is_file():
                self.found.add("missing", old, "the rest of it is there")
                continue
            self.found.files.add(old)
            own = old.read_bytes()
            now = new.read_bytes().replace(str(again).encode(), str(self.root).encode())  # paths in messages
            if old.suffix == ".csv":
                self.found.checked["cells drawn anew"] += sum(map(len, csv.reader(now.decode().splitlines())))
            differ = _picture_differences if old.suffix in PICTURES else _text_differences
            if own != now:
                other[old] = differ(own, now, old.suffix)
            elif old.suffix in PICTURES:
                self.as_drawn.setdefault(old.suffix, old)
        if file not in other:  # else the comparison says it: this is about the code of the tables
            self.found.add("stale", file, *scores)
        written = [path for path in other if path.suffix not in PICTURES]
        seeds = [fact for fact in other.get(file, []) if ": seeds is" in fact]
        if seeds and 2 * len(other) > len(pairs):
            what = "another config"
            fact = f"{seeds[0]}: say so with --set seeds.tables=... or seeds.extras=..."
            other |= {path: [fact] for path in written}
        elif written and (
            any({path, path.parent} & self.found.suspect for path in inputs) or 2 * len(other) > len(pairs)
        ):
            what = "stale"  # other inputs, or other code, change all files of it; a hand, one or two
        else:
            what = "changed by hand"
        for path in written:
            self.found.add(what, path, *other[path])
        if what == "changed by hand":  # of what is out of date, pictures are other pictures
            for path in other.keys() - set(written):
                self.found.add(what, path, *other[path])
                self.pictures += [] if other[path] else [path]

    def _judge_pictures(self) -> None:
        """Other fonts or another matplotlib change the bytes of all pictures of an ending; a hand changes some."""
        unsure = []
        for path in sorted(self.pictures):
            if (same := self.as_drawn.get(path.suffix)) is None:
                unsure.append(path)
            else:
                fact = f"its bytes are not what is drawn here, where {self.found.short(same)} is: draw it anew"
                self.found.add("changed by hand", path, fact)
        fact = "its numbers are right, its bytes are not what is drawn here: edited, or drawn with another matplotlib"
        self.found.note("not checked", unsure, fact)

    def _scores(self, file: Path, experiment: Experiment) -> list[str]:
        """What a table's csv has otherwise than the samples do, worked out here and not by the code of the tables."""
        try:
            table = pd.read_csv(file).set_index(["model", "method"])
        except (OSError, ValueError, KeyError):
            return []  # the comparison says it
        keys = [key for key in table.index.unique() if experiment.seeds(*key)] if table.index.is_unique else []
        rows = {key: self._row(experiment, *key) for key in keys}
        faults = []
        for (model, method), row in rows.items():
            baseline = rows.get((model, experiment.baseline), {}) if method != experiment.baseline else {}
            ours = row | {
                f"{name}_difference": row[name] - baseline[name]
                for name in baseline
                if name.endswith(("_avg", "_pass"))
            }
            there = pd.to_numeric(table.loc[(model, method)], errors="coerce")
            for name in there.index.intersection(list(ours)):
                self.found.checked["scores worked out from samples"] += 1
                if not abs(there[name] - ours[name]) <= PRINTED:
                    faults.append(f"{name} of {model} {method} is {there[name]:g}, its samples give {ours[name]:.4f}")
        return faults

    def _row(self, experiment: Experiment, model: str, method: str) -> dict[str, float]:
        """Column: number of one row, in per cent, means over the seeds."""
        seeds = []
        for seed in experiment.seeds(model, method):
            row = {}
            for dataset in experiment.evaluations:
                frame = pd.read_parquet(Run(model, method, seed).evaluation_file(self.root, dataset))
                by_problem = frame.groupby("problem_id")["correct"]
                right, n = by_problem.sum(), by_problem.size()
                k = int(n.max())
                # pass@k without bias: 1 - C(n - c, k) / C(n, k) for c of n samples right (Chen et al. 2021)
                failed = [comb(int(a - c), k) / comb(int(a), k) for a, c in zip(n, right, strict=True)]
                row |= {
                    f"{dataset}_avg": 100 * (right / n).mean(),
                    f"{dataset}_pass": 100 * (1 - sum(failed) / len(failed)),
                    f"{dataset}_unreadable": 100 * frame["answer"].isna().mean(),
                    f"{dataset}_truncated": 100 * (frame["finish_reason"] == "length").mean(),
                    f"{dataset}_problems": len(n),
                    f"{dataset}_samples": k,
                }
            seeds.append(row)
        return pd.DataFrame(seeds).mean().to_dict() | {"seeds": len(seeds)}


def _picture_differences(own: bytes, now: bytes, suffix: str) -> list[str]:
    """What no font and no other matplotlib explains: no picture, or one of another size. Empty where they may."""
    try:
        size, right = (_size(picture, suffix) for picture in (own, now))
    except Exception as error:  # of the readers, which have many
        return [f"not readable as a picture: {line_of(error)}"]
    return [f"its size is {size}, drawn here it is {right}"] if size != right else []


def _size(picture: bytes, suffix: str) -> tuple:
    """Of a picture that is whole."""
    if suffix == ".png":
        from matplotlib.image import imread

        return imread(BytesIO(picture), format="png").shape[:2]
    root = ElementTree.fromstring(picture)
    return root.tag.rpartition("}")[2], *(root.get(key) for key in ("width", "height", "viewBox"))


def _text_differences(own: bytes, now: bytes, suffix: str) -> list[str]:
    """Cell by cell where both are tables of the same cells, else line by line."""
    is_csv = suffix == ".csv"
    texts = [one.decode("utf-8", "replace").splitlines() for one in (own, now)]
    facts = []
    with suppress(csv.Error):
        rows = [list(csv.reader(lines)) for lines in texts if is_csv]
        if is_csv and rows[0][:1] == rows[1][:1] and len({tuple(map(len, table)) for table in rows}) == 1:
            for number, pair in enumerate(zip(*rows, strict=True), 1):
                cells = zip(rows[0][0], *pair, strict=True)
                facts += [f"line {number}: {name} is {a}, its inputs give {b}" for name, a, b in cells if a != b]
            return facts or ["its ends of lines"]
    for number, (a, b) in enumerate(zip_longest(*texts, fillvalue=""), 1):
        if a != b:
            differs = next(i for i, (x, y) in enumerate(zip_longest(a, b)) if x != y)
            start = max(0, differs - 20)
            facts.append(f"line {number}: {a[start : start + 60]!r}, its inputs give {b[start : start + 60]!r}")
    return facts or ["its ends of lines"]
