"""The verdict on one claim: an effect, its 95 % interval, and on which side of the threshold the interval lies."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.claims import Claim, CurveClaim, LogitSteps, ScoreDifference
from entropy_dynamics.analysis.curves import SPARSE
from entropy_dynamics.analysis.experiments import Run
from entropy_dynamics.analysis.problem_scores import score_groups
from entropy_dynamics.analysis.results import Results, Samples
from entropy_dynamics.analysis.statistics import (
    MAX_SEEDS,
    Interval,
    bootstrap_interval,
    score_interval,
    seed_interval,
    seeds_needed,
)
from entropy_dynamics.config import BASE
from entropy_dynamics.errors import UserError

VERDICTS = ("holds", "does not hold", "inconclusive")
MIN_STEPS = 8  # fewer make no correlation

T = TypeVar("T")


@dataclass
class Finding:
    """What the runs of a claim show, and the verdict."""

    interval: Interval = field(default_factory=Interval)
    seeds: dict[str, int] = field(default_factory=dict)
    """Usable seeds per method."""
    interval_at: Callable[[int], Interval] | None = None
    """The interval as if every method had this many seeds."""
    missing: list[str] = field(default_factory=list)
    """Files, from results/<scale>."""
    obstacles: list[str] = field(default_factory=list)
    """Any obstacle, like any missing file, makes the verdict inconclusive."""
    notes: list[str] = field(default_factory=list)
    verdict: str = ""
    reason: str = ""

    def read(self, results: Results, path: Path, reader: Callable[[], T]) -> T | None:
        """`reader()`; None, with the reason, if the file is missing or unusable."""
        if not path.is_file():
            self.missing.append(str(path.relative_to(results.root)))
            return None
        try:
            return reader()
        except UserError as error:
            self.obstacles.append(str(error))
            return None

    def decide(self, low: float, high: float) -> Self:
        """Set the verdict for this claimed range, and its reason."""
        ends, obstacles = self.interval, list(self.obstacles)
        if self.missing:
            more = len(self.missing) - 1
            obstacles.insert(0, f"{self.missing[0]} {f'and {more} more files are' if more else 'is'} missing")
        self.verdict, self.reason = "inconclusive", "the interval includes the threshold"
        if obstacles:
            self.reason = "; ".join(obstacles)
        elif math.isnan(ends.value):
            self.reason = "no effect could be computed"
        elif math.isnan(ends.low):
            self.reason = "the runs do not differ at all, so the spread between them is unknown"
        elif low < ends.low and ends.high < high:
            self.verdict, self.reason = "holds", "the whole interval is on the claimed side"
        elif ends.high < low or high < ends.low:
            self.verdict, self.reason = "does not hold", "the whole interval is on the other side"
        elif self.interval_at:
            seeds = seeds_needed(self.interval_at, min(abs(ends.value - low), abs(ends.value - high)))
            self.notes.append(f"needs {f'about {seeds}' if seeds else f'more than {MAX_SEEDS}'} seeds")
        self.reason = "; ".join([self.reason, *self.notes])
        return self

    def entry(self, id: str, statement: str, place: str, **about: Any) -> dict[str, Any]:
        """An entry of claims.json, with null for an unknown number."""
        numbers = {name: _rounded(getattr(self.interval, name)) for name in ("low", "high", "detectable")}
        judged = {"verdict": self.verdict, "effect": _rounded(self.interval.value), **numbers}
        rest = {"seeds": self.seeds, "reason": self.reason}
        return {"id": id, "statement": statement, "place": place} | judged | about | rest


def _rounded(number: float) -> float | None:
    """Six digits: more would differ between machines."""
    return float(f"{number:.6g}") if math.isfinite(number) else None


def judge(claim: Claim, results: Results) -> Finding:
    """The verdict on one claim from the files of one scale; a missing file makes it inconclusive."""
    finding, spec = Finding(), claim.spec
    match spec:
        case LogitSteps():
            _logit_steps(spec, results, finding)
        case CurveClaim():
            _curve_claim(claim, spec, results, finding)
        case ScoreDifference():
            _score_difference(claim, spec, results, finding)
    if single := [method for method, seeds in finding.seeds.items() if seeds == 1 and method != BASE]:
        finding.obstacles.append(f"one seed of {', '.join(single)}")
    return finding.decide(*spec.bounds)


# Theorems: steps on single logits


def _logit_steps(spec: LogitSteps, results: Results, finding: Finding) -> None:
    frame = finding.read(results, results.layout.logit_steps, results.logit_steps)
    if frame is None:
        return
    frame = frame[frame["theorem"] == spec.theorem]
    # The theorems hold to first order: larger steps show their limit.
    smallest = frame[frame["step_size"] == frame["step_size"].min()]
    rows = smallest[["predicted", "realised"]].to_numpy(float)
    if len(rows) < MIN_STEPS:
        finding.obstacles.append(f"{len(rows)} steps of Theorem {spec.theorem} are too few")
    elif not np.isfinite(rows).all():
        finding.obstacles.append("some predicted or realized changes are not finite")
    else:
        finding.interval = bootstrap_interval(rows, partial(_statistic, spec.statistic))
        finding.notes.append(f"{len(rows)} tokens")


# Curves


def _curve_claim(claim: Claim, spec: CurveClaim, results: Results, finding: Finding) -> None:
    curves = _curves(claim, spec, results, finding)
    if not all(curves.values()):
        return
    groups = []
    for method, rows in curves.items():
        values = np.array([_statistic(spec.statistic, seed) for seed in rows])
        if not np.isfinite(values).all():
            finding.obstacles.append(f"the {spec.statistic} of {method} is undefined on these steps")
            return
        groups.append(claim.weights[method] * values)
    finding.interval_at = lambda seeds: seed_interval(groups, seeds=seeds)
    finding.interval = seed_interval(groups)
    if spec.statistic == "correlation":
        low, high = np.clip([finding.interval.low, finding.interval.high], -1, 1)
        finding.interval = replace(finding.interval, low=float(low), high=float(high))


def _curves(claim: Claim, spec: CurveClaim, results: Results, finding: Finding) -> dict[str, list[np.ndarray]]:
    """[steps, columns] of each usable seed of each method, in the claim's window of the steps that all runs share."""
    frames: dict[str, list[pd.DataFrame]] = {method: [] for method in claim.seeds}
    for run in claim.all_runs():
        frame = finding.read(results, run.metrics_file(results.root), partial(_curve, spec, results, run))
        frames[run.method] += [] if frame is None else [frame]
    lengths = {len(frame) for seeds in frames.values() for frame in seeds}
    shortest = min(lengths, default=0)
    if len(lengths) > 1:
        finding.notes.append(f"compared on the first {shortest} steps, where the shortest run ends")
    first = {"all": 0, "second_half": shortest // 2, "last_tenth": shortest - max(1, shortest // 10)}[spec.window]
    finding.seeds = {method: len(seeds) for method, seeds in frames.items()}
    windows = {
        method: [frame[spec.columns].to_numpy(float)[first:shortest] for frame in seeds]
        for method, seeds in frames.items()
    }
    return {method: [rows[np.isfinite(rows).all(axis=1)] for rows in seeds] for method, seeds in windows.items()}


def _curve(spec: CurveClaim, results: Results, run: Run) -> pd.DataFrame:
    """One run's curve. Raises UserError if it is damaged or diverged."""
    frame = results.metrics(run, dict.fromkeys(["entropy", *spec.columns]))
    for name in frame.columns.difference(["step", *SPARSE]):
        bad = ~np.isfinite(frame[name].to_numpy(float))
        if bad.any():
            step = frame["step"].to_numpy()[bad][0]
            raise UserError(f"{run.method} seed {run.seed} diverged: {name} is not finite from step {step} on")
    return frame


def _statistic(name: str, rows: np.ndarray) -> float:
    """The statistic of [steps, columns]; NaN if undefined."""
    if not len(rows) or (name in ("correlation", "same_sign") and len(rows) < MIN_STEPS):
        return float("nan")
    first, second = rows[:, 0], rows[:, -1]
    with np.errstate(divide="ignore", invalid="ignore"):
        match name:
            case "mean":
                return float(first.mean())
            case "ratio":
                return float(first.mean() / second.mean())
            case "same_sign":
                falls = rows < 0
                p, q = falls.mean(axis=0)
                return float((falls[:, 0] == falls[:, 1]).mean() - (p * q + (1 - p) * (1 - q)))
            case "variation":
                return float(first.std() / first.mean())
            case "drop":
                tenth = max(1, len(first) // 10)
                return float(1 - first[-tenth:].mean() / first[:tenth].mean())
            case "slope":
                return float(first @ second / (first @ first))
        return float(np.corrcoef(rows.T)[0, 1])


# Scores


def _score_difference(claim: Claim, spec: ScoreDifference, results: Results, finding: Finding) -> None:
    samples = _samples(claim, spec, results, finding)
    finding.seeds = {method: min(len(samples[model, method]) for model in spec.models) for method in claim.seeds}
    if not all(samples.values()):
        return
    groups = score_groups(samples, claim.weights, spec.metric, spec.problems)
    finding.interval_at = lambda seeds: score_interval(groups, seeds=seeds)
    finding.interval = score_interval(groups)


def _samples(
    claim: Claim, spec: ScoreDifference, results: Results, finding: Finding
) -> dict[tuple[str, str], list[dict[str, Samples]]]:
    """(model, method) -> for each usable seed {data set: counts}; all on the same problems."""
    usable: dict[tuple[str, str], list[dict[str, Samples]]] = {}
    expected: dict[str, tuple[str, int]] = {}
    for run in claim.all_runs():
        seeds = usable.setdefault((run.model, run.method), [])
        values = {}
        for dataset in spec.evaluations:
            path = run.evaluation_file(results.root, dataset)
            samples = finding.read(results, path, partial(results.samples, run, dataset))
            if samples is None:
                break
            if expected.setdefault(dataset, (samples.ids, samples.k)) != (samples.ids, samples.k):
                name = path.relative_to(results.root)
                finding.obstacles.append(f"{name} has other problems or another K than the rest")
                break
            values[dataset] = samples
        else:
            seeds.append(values)
    return usable
