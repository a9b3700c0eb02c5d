"""Comparison of two complete runs: whether their effects agree, and which verdicts changed."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from jaxtyping import Float

from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.statistics import NORMAL, T_SEEDS, Interval
from entropy_dynamics.errors import UserError


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
    unit: str = ""
    detectable: tuple[float, float] = (math.nan, math.nan)
    """The distance from a threshold that each run detects with 90 % power."""
    shared: int = 0
    """Number of seeds that both runs have."""
    correlation: float = 0.0
    """Correlation of the two estimates that comes from the shared seeds."""

    @property
    def judged(self) -> list[bool]:
        """Whether each run has an interval; without one a claim is always inconclusive."""
        return [not math.isnan(effect.low + effect.high) for effect in self.effects]

    @property
    def compared(self) -> bool:
        """Whether both runs have a verdict that depends on seeds, on the same claim."""
        return self.random and self.alike and all(self.judged)

    @property
    def same(self) -> bool:
        """Whether the effects are equal up to rounding: published metrics are in single precision."""
        ends = ((effect.value, effect.low, effect.high) for effect in self.effects)
        return all(math.isclose(*pair, rel_tol=1e-4) for pair in zip(*ends, strict=True))

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
        below = self._of_difference(first.high - first.value, second.value - second.low)
        above = self._of_difference(first.value - first.low, second.high - second.value)
        return Interval(value, value - below, value + above)

    def _of_difference(self, first: float, second: float) -> float:
        """The error of a difference, given those of the two estimates."""
        return math.sqrt(abs(first**2 + second**2 - 2 * self.correlation * first * second))  # negative only by rounding

    @property
    def detectable_difference(self) -> float:
        """The difference that is detected with 90 % power, if seeds are normal."""
        return self._of_difference(*self.detectable)

    def agrees_had_second_found(self, share: float) -> bool | None:
        """Whether the runs would agree with another effect of the second run, if this claim has one threshold.

        `share` is its distance from the threshold over that of the effect found; 0 is the threshold, -1 the other sign.
        """
        thresholds = [bound for bound in self.claimed if math.isfinite(bound)]
        if len(thresholds) != 1:
            return None
        first, second = self.effects
        value = thresholds[0] + share * (second.value - thresholds[0])
        below, above = second.value - second.low, second.high - second.value
        below, above = (above, below) if share < 0 else (below, above)
        return replace(self, effects=(first, Interval(value, value - below, value + above))).agrees

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
    scales = {entry["scale"] for pair in pairs.values() for entry in pair}
    shared = {id: _shared(*pair) for id, pair in pairs.items()} if len(scales) == 1 and None not in scales else {}
    several = [values for values in shared.values() if values.shape[1] >= T_SEEDS and np.ptp(values, axis=1).all()]
    correlations = [np.corrcoef(values)[0, 1] for values in several]
    correlation = float(np.mean(correlations)) if correlations else 0.0
    claims = [
        Replicate(
            id=id,
            verdicts=(a["verdict"], b["verdict"]),
            effects=(_interval(a), _interval(b)),
            claimed=_range(a if a["range"] else b),
            random=bool(a["seeds"]),
            alike=not (a["range"] and b["range"]) or _range(a) == _range(b),
            unit=a["unit"],
            detectable=(_known(a["detectable"]), _known(b["detectable"])),
            shared=(count := shared[id].shape[1] if id in shared else 0),
            correlation=correlation * count / math.sqrt(a["seeds"] * b["seeds"]) if count else 0.0,
        )
        for id, (a, b) in pairs.items()
    ]
    if not any(claim.compared for claim in claims):
        of = f" ({' and '.join(sorted(scales))} scale)" if len(scales) == 2 and None not in scales else ""
        raise UserError(f"{first} and {second}{of}: nothing to compare, as no claim has an interval over seeds in both")
    return claims


def detectable_by_unit(claims: list[Replicate]) -> dict[str, list[float]]:
    """Unit -> the known detectable differences of its claims."""
    by_unit: dict[str, list[float]] = {}
    for claim in claims:
        if not math.isnan(claim.detectable_difference):
            by_unit.setdefault(claim.unit, []).append(claim.detectable_difference)
    return by_unit


def agreeing_had_second_found(claims: list[Replicate], share: float) -> tuple[int, int]:
    """How many claims would agree, and of how many; see `Replicate.agrees_had_second_found`."""
    found = [claim.agrees_had_second_found(share) for claim in claims]
    return found.count(True), len(found) - found.count(None)


def _shared(first: dict[str, Any], second: dict[str, Any]) -> Float[np.ndarray, "2 seed"]:
    """The effects of a claim in both runs by the seeds that they share."""
    both = [(effect, second["by_seed"][seed]) for seed, effect in first["by_seed"].items() if seed in second["by_seed"]]
    return np.array(both, float).reshape(-1, 2).T


def _range(entry: dict[str, Any]) -> tuple[float, float]:
    low, high = entry["range"] or (math.nan, math.nan)
    return -math.inf if low is None else low, math.inf if high is None else high


def _interval(entry: dict[str, Any]) -> Interval:
    return Interval(_known(entry["effect"]), _known(entry["low"]), _known(entry["high"]))


def _known(number: float | None) -> float:
    return math.nan if number is None else number
