"""What a verification finds, and what it looked at."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

from entropy_dynamics.errors import UserError

WRONG = ("changed by hand", "stale", "another config", "missing")
NOTED = ("another commit", "not checked")  # worth knowing, and no fault
SHOWN = 3  # facts of a finding that are spelled out


@dataclass(frozen=True)
class Finding:
    what: str  # one of WRONG or NOTED
    where: str  # a file or folder, from results/<scale>
    facts: tuple[str, ...]  # what is there, and what would be right

    def __str__(self) -> str:
        more = f"; and {len(self.facts) - SHOWN:,} more" if len(self.facts) > SHOWN else ""
        line = f"{self.what}: {self.where}: {'; '.join(self.facts[:SHOWN])}{more}"
        # It may quote what someone has changed: lines, escape codes of a terminal, half a surrogate pair.
        return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in " ".join(line.splitlines()))


@dataclass(frozen=True)
class Verification:
    findings: list[Finding]  # sorted by what they are, then by place
    checked: Counter[str]  # what was looked at: how many

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong; there may be notes."""
        return not any(finding.what in WRONG for finding in self.findings)

    @property
    def summary(self) -> str:
        wrong = sum(finding.what in WRONG for finding in self.findings)
        counts = ", ".join(f"{number:,} {name}" for name, number in self.checked.items() if number)
        return f"checked {counts}: {f'{wrong} wrong' if wrong else 'nothing wrong'}"


class Findings:
    """What is found, and what was looked at."""

    def __init__(self, root: Path):
        self.root = root
        self.facts: dict[tuple[str, str], dict[str, None]] = {}  # (what, where): facts, each once
        self.suspect: set[Path] = set()  # what is drawn from these may be stale
        self.files: set[Path] = set()
        self.checked: Counter[str] = Counter()

    def add(self, what: str, path: Path, *facts: str) -> None:
        """Nothing without facts."""
        if facts:
            self.facts.setdefault((what, self.short(path)), {}).update(dict.fromkeys(facts))
            self.suspect |= {path} if what in WRONG else set()

    def note(self, what: str, paths: Sequence[Path], fact: str) -> None:
        """One note for many places."""
        if paths:
            others = f"; {len(paths) - 1:,} more like it" if len(paths) > 1 else ""
            self.add(what, paths[0], f"{fact}{others}")

    def short(self, path: Path) -> str:
        return (path.relative_to(self.root) if path.is_relative_to(self.root) else path).as_posix()

    def verification(self) -> Verification:
        order = (*WRONG, *NOTED)
        findings = [Finding(*key, tuple(facts)) for key, facts in self.facts.items()]
        findings.sort(key=lambda finding: (order.index(finding.what), finding.where))
        return Verification(findings, Counter(files=len(self.files)) + self.checked)


def guarded(check: Callable) -> Callable:
    """A check of one file or record, its first argument: one that someone has changed can hold anything.

    What the check raises is a finding of that file, so it takes neither the other findings with it nor the command.
    """

    @wraps(check)
    def guarded_check(self: Any, path: Path, *rest: Any) -> Any:
        try:
            return check(self, path, *rest)
        except Exception as error:
            self.found.add("changed by hand", path, f"it cannot be checked: {line_of(error)}")
            return None

    return guarded_check


def line_of(error: Exception) -> str:
    """What went wrong, on one line that is not too long."""
    if isinstance(error, UserError):
        return str(error)
    return " ".join(f"{type(error).__name__}: {error}".split())[:160]
