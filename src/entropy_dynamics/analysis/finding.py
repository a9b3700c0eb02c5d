"""The evidence on a claim: an effect, its 95 % interval, and the side of the threshold on which the interval lies."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.statistics import (
    MAX_SEEDS,
    Interval,
    Scores,
    over_problems,
    rounded,
    score_interval,
    seeds_needed,
    smallest_effect,
)
from entropy_dynamics.errors import UserError

VERDICTS = ("holds", "does not hold", "inconclusive")
SHOWN = 2  # maximum number of obstacles in a reason, as the seeds of a method tend to have the same

T = TypeVar("T")
_rounded = partial(rounded, digits=6)  # further ones differ between machines


@dataclass
class Finding:
    """The evidence from a claim's runs, and the verdict."""

    interval: Interval = field(default_factory=Interval)
    usable: list[int] | None = None
    """The seeds that every method has; None: the claim involves no seeds."""
    by_seed: Iterable[float] = ()
    """The effect of each usable seed, if there is a verdict."""
    missing: list[str] = field(default_factory=list)
    """Missing files, relative to results/<scale>."""
    obstacles: list[str] = field(default_factory=list)
    """Any obstacle, like any missing file, makes the verdict inconclusive."""
    notes: list[str] = field(default_factory=list)
    claimed: tuple[float, float] = (-math.inf, math.inf)
    """Bounds of the claimed range."""
    verdict: str = ""
    reason: str = ""
    seeds_needed: int | None = None
    """Number of seeds that detect the smallest effect of interest; `MAX_SEEDS` + 1 means more than `MAX_SEEDS`. None:
    the verdict is not open, or the number is unknown."""

    @property
    def seeds(self) -> int | None:
        return None if self.usable is None else len(self.usable)

    def read(self, results: Results, path: Path, reader: Callable[[], T]) -> T | None:
        """Call `reader`; record the reason and return None if the file is missing or unusable."""
        if not path.is_file():
            self.missing.append(str(path.relative_to(results.root)))
            return None
        try:
            return reader()
        except UserError as error:
            self.obstacles.append(str(error).removeprefix(f"{results.root}/"))  # its remedy still has the full path
            return None

    def measure(self, columns: Sequence[Scores]) -> None:
        """Set the effect and its interval from the columns of `score_interval`."""
        self.interval, self.by_seed = score_interval(columns).times(100), 100 * over_problems(columns)

    def measure_all(self, cells: Sequence[Interval], low: float, high: float) -> None:
        """Set the smallest of the effects on models and data sets, and note how many are in the claimed range."""
        self.interval = smallest_effect(cells)
        true = sum(low < cell.value < high for cell in cells)
        self.notes.append(f"the estimates of {true} of {len(cells)} are as claimed")

    def decide(self, low: float, high: float, smallest: float | None = None) -> Self:
        """Set the verdict for the claimed range, and its reason.

        An inconclusive verdict states how many seeds detect `smallest`, the smallest effect of interest (90 % power).
        """
        self.claimed = (low, high)
        ends, obstacles = self.interval, list(self.obstacles)
        if self.missing:
            more = len(self.missing) - 1
            obstacles.insert(0, f"{self.missing[0]} {f'and {more} more files are' if more else 'is'} missing")
        self.verdict, self.reason = "inconclusive", "the interval includes the threshold"
        if obstacles:
            more = len(obstacles) - SHOWN
            self.reason = "; ".join([*obstacles[:SHOWN], *([f"and {more} more"] if more > 0 else [])])
        elif math.isnan(ends.value):
            self.reason = "no effect could be computed"
        elif math.isnan(ends.low):
            every: list[Interval] = [ends, *ends.parts]
            alone = any(math.isnan(each.low) and not each.seeds for each in every)
            self.reason = "the runs do not differ at all, so the spread between them is unknown"
            self.reason = "a data set has one problem, so the spread of problems is unknown" if alone else self.reason
        elif low < ends.low and ends.high < high:
            self.verdict, self.reason = "holds", "the whole interval is on the claimed side"
        elif ends.high < low or high < ends.low:
            self.verdict, self.reason = "does not hold", "the whole interval is on the other side"
        elif smallest and self.seeds:
            seeds = seeds_needed(self.interval, smallest)
            self.notes.append(f"an effect of {smallest:g} takes {seeds or f'more than {MAX_SEEDS}'} seeds")
            self.seeds_needed = seeds or MAX_SEEDS + 1
        self.reason = "; ".join([self.reason, *self.notes])
        return self

    def entry(self, id: str, statement: str, place: str, **about: Any) -> dict[str, Any]:
        """An entry of claims.json; unknown numbers and open bounds of the claimed range are null."""
        numbers = self.interval.columns("effect") | {"detectable": self.interval.detectable()}
        judged = {name.removeprefix("effect_"): _rounded(number) for name, number in numbers.items()}
        by_seed = {str(seed): _rounded(effect) for seed, effect in zip(self.usable or (), self.by_seed, strict=False)}
        rest: dict[str, Any] = {"range": [_rounded(end) for end in self.claimed], "seeds": self.seeds}
        rest |= {"by_seed": by_seed, "seeds_needed": self.seeds_needed, "reason": self.reason}
        return {"id": id, "statement": statement, "place": place, "verdict": self.verdict} | judged | about | rest
