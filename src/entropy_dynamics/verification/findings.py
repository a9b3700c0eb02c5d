"""Findings of a verification, with counts of what was checked."""

import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from entropy_dynamics.errors import UserError
from entropy_dynamics.results.progress import LOG_EVERY_SECONDS

ERRORS = ("modified", "stale", "different config", "missing")
KINDS = (*ERRORS, "not checked")  # the last is a note, not an error
SHOWN = 3  # maximum number of facts shown per finding


class ConfigMistake(UserError):
    """A mistake in configs/ or experiments/, not in the results."""


def of_configs(load: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """The result of `load`, which reads configs/ or experiments/. Raises ConfigMistake for its UserError."""
    try:
        return load(*arguments, **more)
    except UserError as error:
        raise ConfigMistake(str(error)) from error


class Verification:
    """Collects findings: facts, by kind and by the file or folder that they concern."""

    def __init__(self, root: Path):
        self.root = root
        self.facts: dict[tuple[str, str], dict[str, None]] = {}
        self.suspect: set[Path] = set()
        """Files and folders with errors; anything drawn from them may be stale."""
        self.checked: Counter[str] = Counter()
        self.start = self.last_line = time.monotonic()
        self.folder = ""  # of the last path printed

    def add(self, kind: str, path: Path, *facts: str) -> None:
        """Add facts about a path; a no-op without facts."""
        if facts:
            self.facts.setdefault((kind, self.short(path)), {}).update(dict.fromkeys(facts))
            self.suspect |= {path} if kind in ERRORS else set()

    def guarded(self, check: Callable[[Path], None], path: Path) -> None:
        """Run a check; any exception is a finding, since a modified file, also of the configs, can contain anything.

        After a few seconds, the path is printed on standard error, if the last line is old or of another folder.
        """
        folder, now = self.short(path).partition("/")[0], time.monotonic()
        is_due = folder != self.folder or now - self.last_line >= LOG_EVERY_SECONDS
        if is_due and now - self.start >= LOG_EVERY_SECONDS:
            self.folder, self.last_line = folder, now
            print(f"checking {self.short(path)}", file=sys.stderr, flush=True)
        try:
            check(path)
        except Exception as error:
            text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            kind = "different config" if isinstance(error, ConfigMistake) else "modified"
            self.add(kind, path, f"cannot be checked: {text[:200]}")

    def short(self, path: Path) -> str:
        """A path relative to results/<scale>, if it is below it."""
        return (path.relative_to(self.root) if path.is_relative_to(self.root) else path).as_posix()

    @property
    def findings(self) -> list[str]:
        """One line per finding, errors first."""
        lines = []
        for kind, where in sorted(self.facts, key=lambda key: (KINDS.index(key[0]), key[1])):
            facts = list(self.facts[kind, where])
            more = [f"and {len(facts) - SHOWN:,} more"] if len(facts) > SHOWN else []
            lines.append(" ".join(f"{kind}: {where}: {'; '.join(facts[:SHOWN] + more)}".split()))
        return lines

    @property
    def errors(self) -> int:
        return sum(kind in ERRORS for kind, _ in self.facts)

    @property
    def summary(self) -> str:
        counts = ", ".join(f"{number:,} {name}" for name, number in self.checked.items() if number)
        return f"checked {counts}: {f'{self.errors} wrong' if self.errors else 'nothing wrong'}"
