"""Comparison of two complete runs: whether their effects agree, and which verdicts changed."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from entropy_dynamics.analysis.statistics import NORMAL, Interval
from entropy_dynamics.errors import UserError
from entropy_dynamics.validation import parse

SCALE = re.compile(r"^(?:# .*, |\*\*.*\.\*\* )([\w-]+) scale(?::|$)", re.MULTILINE)


@dataclass(frozen=True)
class Replicate:
    """One claim in two runs."""

    id: str
    verdicts: tuple[str, str]
    effects: tuple[Interval, Interval]
    claimed: tuple[float, float]
    """Bounds of the claimed range; NaN if claims.json has none."""
    random: bool
    """Whether the effect depends on seeds; one that does not agrees with itself trivially."""
    alike: bool = True
    """Whether both runs were judged against the same range."""

    @property
    def judged(self) -> tuple[bool, bool]:
        """Whether each run has an interval; without one a claim is always inconclusive."""
        first, second = (not math.isnan(effect.low + effect.high) for effect in self.effects)
        return first, second

    @property
    def compared(self) -> bool:
        """Whether both runs have a verdict that depends on seeds, on the same claim."""
        return self.random and self.alike and all(self.judged)

    @property
    def same(self) -> bool:
        """Whether the effects are equal up to rounding: published metrics are in single precision."""
        first, second = self.effects
        return all(
            math.isclose(getattr(first, end), getattr(second, end), rel_tol=1e-4) for end in ("value", "low", "high")
        )

    @property
    def changed(self) -> bool:
        """Whether the verdicts differ."""
        return self.compared and self.verdicts[0] != self.verdicts[1]

    @property
    def reversed(self) -> bool:
        """Whether one verdict is "holds" and the other "does not hold"."""
        return set(self.verdicts) == {"holds", "does not hold"}

    @property
    def difference(self) -> Interval:
        """Second effect minus first, with an interval derived from theirs (MOVER: Zou and Donner 2008)."""
        first, second = self.effects
        value = second.value - first.value
        below = math.hypot(second.value - second.low, first.high - first.value)
        above = math.hypot(second.high - second.value, first.value - first.low)
        return Interval(value, value - below, value + above)

    @property
    def agrees(self) -> bool | None:
        """Whether the interval of the difference includes zero; None if the runs are not `compared`."""
        difference = self.difference
        return difference.low <= 0 <= difference.high if self.compared else None

    @property
    def chance_of_change(self) -> float:
        """Probability that the verdicts differ if both effects estimate the same true effect, their weighted mean.

        Assumes normal estimates whose standard errors and distances to the bounds are those of the two intervals. The
        mean only approximates the true effect, and an interval between order statistics is wider than its standard
        error implies. Summed over many claims, the result is therefore 0.9 to 1 times the actual number of changes if
        true effects are close to where intervals end, and twice that number if they are at a threshold or far from it.
        0 if the verdicts do not depend on seeds, NaN if the range is unknown.
        """
        errors = [(effect.high - effect.low) / 2 / NORMAL for effect in self.effects]
        if not (self.compared and all(errors)):
            return 0.0
        if math.isnan(sum(self.claimed)):
            return math.nan
        weights = [error**-2 for error in errors]
        common = sum(w * effect.value for w, effect in zip(weights, self.effects, strict=True)) / sum(weights)
        low, high = self.claimed
        chances = []
        for effect, error in zip(self.effects, errors, strict=True):
            estimate = NormalDist(common, error)
            below, above = effect.value - effect.low, effect.high - effect.value
            holds = max(0.0, estimate.cdf(high - above) - estimate.cdf(low + below))
            fails = estimate.cdf(low - above) + 1 - estimate.cdf(high + below)
            chances.append((holds, fails, 1 - holds - fails))
        return 1 - math.fsum(map(math.prod, zip(*chances, strict=True)))


def replicates(first: Path, second: Path) -> list[Replicate]:
    """The claims that both runs have, in the order of the first. Raises UserError if none can be compared."""
    entries, others = verdicts_of(first), verdicts_of(second)
    pairs = {id: (entry, others[id]) for id, entry in entries.items() if id in others}
    claims = [
        Replicate(
            id=id,
            verdicts=(a["verdict"], b["verdict"]),
            effects=(_interval(a), _interval(b)),
            claimed=_range(a if "range" in a else b),
            random=bool(a["seeds"]),
            alike="range" not in a or "range" not in b or _range(a) == _range(b),
        )
        for id, (a, b) in pairs.items()
    ]
    if not any(claim.compared for claim in claims):
        of_first, of_second = (scale_of(run if run.is_dir() else run.parent) for run in (first, second))
        of = f" ({of_first} and {of_second} scale)" if of_first and of_second and of_first != of_second else ""
        raise UserError(f"{first} and {second}{of}: nothing to compare, as no claim has an interval over seeds in both")
    return claims


def scale_of(folder: Path) -> str | None:
    """The scale that the data card or claims.md of a published folder or of results names; None if neither does."""
    for file in (folder / "README.md", folder / "claims.md"):
        if file.is_file() and (named := SCALE.search(file.read_text(encoding="utf-8", errors="replace"))):
            return named[1]
    return None


class _Entry(BaseModel):
    """The fields of an entry of claims.json that are read here."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    subject: str
    id: str
    label: str
    verdict: Literal["holds", "does not hold", "inconclusive"]
    effect: float | None
    low: float | None
    high: float | None
    seeds: int | None
    range: Annotated[list[float | None], Field(min_length=2, max_length=2)] = [math.nan, math.nan]

    @model_validator(mode="after")
    def _ends_in_order(self) -> Self:
        if self.low is not None and self.high is not None and self.low > self.high:
            raise ValueError(f"low is {self.low:g}; it should be at most high, {self.high:g}")
        return self


def verdicts_of(path: Path) -> dict[str, dict[str, Any]]:
    """The entries about this run in claims.json, by id.

    Args:
        path: the file, or the folder that holds it.

    Raises:
        UserError: the file is missing or damaged.
    """
    file = path if path.is_file() or path.suffix == ".json" else path / "claims.json"
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if file.name != "claims.json" or not file.parent.is_dir():
            raise UserError(f"no file or folder {path}") from None
        raise UserError(f"no file {file}; make it with: entropy-dynamics claims") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not a list of verdicts ({' '.join(str(error).split())})") from None
    if not isinstance(entries, list):
        raise UserError(f"{file} is not a list of verdicts")
    of_this_run: dict[str, dict[str, Any]] = {}
    for number, entry in enumerate(entries, 1):
        if isinstance(entry, dict) and entry.get("subject", "this run") != "this run":
            continue
        claim = parse(_Entry, entry, f"{file}, entry {number}")
        if claim.id in of_this_run:
            raise UserError(f"{file}, entry {number}: {claim.id} is there already")
        of_this_run[claim.id] = entry
    return of_this_run


def _range(entry: dict[str, Any]) -> tuple[float, float]:
    low, high = entry.get("range", (math.nan, math.nan))
    return -math.inf if low is None else low, math.inf if high is None else high


def _interval(entry: dict[str, Any]) -> Interval:
    value, low, high = (math.nan if entry[key] is None else entry[key] for key in ("effect", "low", "high"))
    return Interval(value, low, high)
