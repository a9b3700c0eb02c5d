"""What a verification finds, and what it looked at."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from entropy_dynamics.errors import UserError

ERRORS = ("modified", "stale", "different config", "missing")
NOTES = ("different commit", "not checked")  # worth knowing, and no fault
SHOWN = 3  # facts of a finding that are spelled out


@dataclass(frozen=True)
class Finding:
    """Printed as one line."""

    what: str
    """One of ERRORS or NOTES."""
    where: str
    """A file or folder, from results/<scale>."""
    facts: tuple[str, ...]

    def __str__(self) -> str:
        more = f"; and {len(self.facts) - SHOWN:,} more" if len(self.facts) > SHOWN else ""
        return " ".join(f"{self.what}: {self.where}: {'; '.join(self.facts[:SHOWN])}{more}".split())


@dataclass(frozen=True)
class Verification:
    findings: list[Finding]
    checked: Counter[str]
    """What was looked at: how many."""

    @property
    def sound(self) -> bool:
        """Nothing is wrong; there may be notes."""
        return not any(finding.what in ERRORS for finding in self.findings)

    @property
    def summary(self) -> str:
        wrong = sum(finding.what in ERRORS for finding in self.findings)
        counts = ", ".join(f"{number:,} {name}" for name, number in self.checked.items() if number)
        return f"checked {counts}: {f'{wrong} wrong' if wrong else 'nothing wrong'}"


class Findings:
    """Collects them."""

    def __init__(self, root: Path):
        self.root = root
        self.facts: dict[tuple[str, str], dict[str, None]] = {}
        self.suspect: set[Path] = set()
        """What is drawn from these may be stale."""
        self.checked: Counter[str] = Counter()

    def add(self, what: str, path: Path, *facts: str) -> None:
        """Nothing without facts."""
        if facts:
            self.facts.setdefault((what, self.short(path)), {}).update(dict.fromkeys(facts))
            self.suspect |= {path} if what in ERRORS else set()

    def note(self, what: str, paths: list[Path], fact: str) -> None:
        """One note for several places."""
        more = f"; {len(paths) - 1:,} more like it" if len(paths) > 1 else ""
        self.add(what, min(paths), f"{fact}{more}")

    def guarded(self, check: Callable[[Path], None], path: Path) -> None:
        """Run one check; whatever it raises is a finding, since an edited file can hold anything."""
        try:
            check(path)
        except Exception as error:
            text = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
            self.add("modified", path, f"cannot be checked: {text[:200]}")

    def short(self, path: Path) -> str:
        return (path.relative_to(self.root) if path.is_relative_to(self.root) else path).as_posix()

    def verification(self) -> Verification:
        order = (*ERRORS, *NOTES)
        findings = [Finding(*key, tuple(facts)) for key, facts in self.facts.items()]
        findings.sort(key=lambda finding: (order.index(finding.what), finding.where))
        return Verification(findings, self.checked)
