"""Records: what they say of what was made, held against the files, against each other and against today's configs."""

import json
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import pandas as pd

from entropy_dynamics.config import Config, identity, load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import sha256
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.results.provenance import commit_of_code
from entropy_dynamics.verification.findings import Findings, guarded, line_of

NOT_OF_A_RUN = ("seeds.", "experiments")  # config keys that say how many runs there are, and change none


class Records:
    """Reads files and records, and compares what is the same for records of all kinds."""

    def __init__(self, layout: Layout, scale: str, config: Config, overrides: Sequence[str], found: Findings):
        self.layout, self.root, self.config, self.found = layout, layout.root, config, found
        self.made_at: dict[tuple[str | None, bool], list[Path]] = {}  # (commit, changed tree): records
        self.sha256 = cache(lambda path: sha256(path) if path.is_file() else None)
        self.load_config = cache(lambda *run: load_config(scale, *run, overrides=overrides))
        self.identity = cache(lambda *run: _of_a_run(identity(self.load_config(*run))))

    @guarded
    def _record(
        self, path: Path, made: Path, needed: Iterable[Path], makes: Iterable[str], run: tuple[str, ...] = ()
    ) -> dict | None:
        """The record of what `made` was made from, its hashes compared.

        It has to name all of `needed`, have the hash of all that the step `makes` and, if it is of a `run`, its config.
        """
        record = self._json(path, f"it says what {self.found.short(made)} was made from")
        if record is None:
            return None
        inputs = self._inputs(record)
        facts = [f"{self.found.short(one)} is not among its inputs" for one in needed if one not in inputs]
        self.found.add("changed by hand", path, *facts)
        self.found.checked["hashes"] += len(inputs)
        for one in sorted(inputs):
            self._input(path, made, one, inputs[one])
        self._outputs(path, record, makes)
        if run:
            self._same_config(path, mapping(record, "config"), *run)
        self._made_by(path, record)
        return record

    def _inputs(self, record: dict) -> dict[Path, str]:
        """Recorded inputs by where they are now: a scale's results may have been moved, all of them together."""
        here = {}
        for name, digest in mapping(record, "inputs").items():
            parts = PurePosixPath(name).parts
            inside = parts[::-1].index(self.root.name) if self.root.name in parts else 0
            here[self.root.joinpath(*parts[-inside:]) if inside else Path(name)] = digest
        return here

    @guarded
    def _input(self, _: Path, made: Path, one: Path, digest: Any) -> None:
        own = self._hash(one)
        if own is None:
            self.found.add("missing", one, f"{self.found.short(made)} was made from it")
        elif own != digest:
            self.found.add("stale", made, f"{self.found.short(one)} has changed since it was made")

    def _outputs(self, path: Path, record: dict, makes: Iterable[str]) -> None:
        """What was made against its hashes, of which none that the step writes may be left out."""
        recorded = mapping(record, "outputs")
        self.found.add("changed by hand", path, *(f"it has no hash of {one}" for one in makes if one not in recorded))
        self._hashes(path, recorded)

    def _hashes(self, path: Path, recorded: dict[str, Any]) -> None:
        """Files against the hashes that the record `path` beside or above them has of them."""
        self.found.checked["hashes"] += len(recorded)
        for name, digest in recorded.items():
            self._output(path, path.parent / name, digest)

    @guarded
    def _output(self, path: Path, file: Path, digest: Any) -> None:
        own = self._hash(file)
        if own is None:
            self.found.add("missing", file, f"{path.name} has its hash")
        elif own != digest:
            fact = f"its sha256 is {own[:12]}..., {path.name} has {str(digest)[:12]}..."
            self.found.add("changed by hand", file, fact)

    def _hash(self, path: Path) -> str | None:
        if (digest := self.sha256(path)) is not None:
            self.found.files.add(path)
        return digest

    def _unknown(self, files: Iterable[Path], folder: Path, known: Collection[str], record: str) -> None:
        """Files of `folder` that no record has: a step may read them all the same."""
        for file in sorted(files):
            name = file.relative_to(folder)
            hidden = any(part.startswith(".") for part in name.parts)
            if file.is_file() and not hidden and name.as_posix() not in known:
                self.found.add("changed by hand", file, f"{record} knows no such file")

    # Configs

    def _config(self, path: Path, *run: str) -> Config | None:
        try:
            return self.load_config(*run)
        except UserError as error:
            self.found.add("another config", path, str(error))
            return None

    @guarded
    def _same_config(self, path: Path, was: dict[str, Any], *run: str) -> None:
        if not was:
            self.found.add("changed by hand", path, "it has no config")
        elif self._config(path, *run) is not None:
            self.found.add("another config", path, *differences(_of_a_run(was), self.identity(*run)))

    # Commits

    @guarded
    def _made_by(self, path: Path, record: dict) -> None:
        earlier = record.get("earlier_steps_by")
        for made_by in [record, *(earlier if isinstance(earlier, list) else [])]:
            git = mapping(made_by, "git")
            self.made_at.setdefault((git.get("commit"), bool(git.get("changed"))), []).append(path)

    def _commits(self) -> None:
        """Notes on what other code has made: other than most of it, other than this, not committed."""
        by_commit: dict[str | None, list[Path]] = {}
        for (commit, changed), records in self.made_at.items():
            by_commit.setdefault(commit, []).extend(records)
            if changed:
                fact = f"made by commit {str(commit)[:12]} with changes that were not committed"
                self.found.note("another commit", records, fact)
        most, now = max(by_commit, key=lambda commit: len(by_commit[commit]), default=None), commit_of_code()["commit"]
        for commit, records in by_commit.items():
            if commit != most:
                fact = f"made by commit {str(commit)[:12]}, most others by {str(most)[:12]}"
                self.found.note("another commit", records, fact)
        if None not in (most, now) and most != now:
            fact = f"made by commit {str(most)[:12]}, the code that runs here is of {str(now)[:12]}"
            self.found.note("another commit", by_commit[most], fact)

    # Files

    def _json(self, path: Path, use: str) -> dict | None:
        """The object in a record. None, with a finding, where there is none."""
        if not path.is_file():
            self.found.add("missing", path, use)
            return None
        self.found.files.add(path)
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
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


def mapping(record: Any, *keys: str) -> dict:
    """The mapping under these keys, empty where there is none."""
    for key in keys:
        record = record.get(key) if isinstance(record, dict) else None
    return record if isinstance(record, dict) else {}


def _of_a_run(config: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if not key.startswith(NOT_OF_A_RUN)}


def differences(was: dict[str, Any], now: dict[str, Any]) -> list[str]:
    keys = [key for key in dict.fromkeys([*was, *now]) if was.get(key) != now.get(key)]
    return [f"{key} is {was.get(key)}, today's is {now.get(key)}" for key in keys]
