"""The verdict on one claim: an effect, its 95 % interval, and on which side of the threshold the interval lies."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.claims import Claim, CurveClaim, LogitSteps, ScoreDifference
from entropy_dynamics.analysis.curves import SPARSE
from entropy_dynamics.analysis.experiments import Run
from entropy_dynamics.analysis.problem_scores import Arm, on_shared_seeds, score_columns
from entropy_dynamics.analysis.results import Results, Samples
from entropy_dynamics.analysis.statistics import (
    MAX_SEEDS,
    MIN_SEEDS,
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
    seeds: int | None = None
    """Usable seeds, those that every method has; None: no seed is involved."""
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

    def decide(self, low: float, high: float, smallest: float | None = None) -> Self:
        """Set the verdict for this claimed range, and its reason.

        `smallest`: the smallest effect of interest; an inconclusive claim says how many seeds find it with 90 % power.
        """
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
        elif smallest and self.seeds:
            seeds = seeds_needed(self.interval, smallest)
            self.notes.append(f"an effect of {smallest:g} takes {seeds or f'more than {MAX_SEEDS}'} seeds")
        self.reason = "; ".join([self.reason, *self.notes])
        return self

    def entry(self, id: str, statement: str, place: str, **about: Any) -> dict[str, Any]:
        """An entry of claims.json, with null for an unknown number."""
        ends = {"low": self.interval.low, "high": self.interval.high, "detectable": self.interval.detectable()}
        numbers = {name: _rounded(end) for name, end in ends.items()}
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
    if finding.seeds is not None and 0 < finding.seeds < MIN_SEEDS:
        finding.obstacles.append(f"{finding.seeds} seed{'s' * (finding.seeds > 1)}, and a verdict takes {MIN_SEEDS}")
    return finding.decide(*spec.bounds, spec.smallest)


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
    if not finding.seeds:
        return
    values = np.zeros(finding.seeds)
    for (_, method), seeds in curves.items():
        values += claim.weights[method] * np.array([_statistic(spec.statistic, rows) for rows in seeds])
        if not np.isfinite(values).all():
            finding.obstacles.append(f"the {spec.statistic} of {method} is undefined on these steps")
            return
    finding.interval = seed_interval(values)


def _curves(claim: Claim, spec: CurveClaim, results: Results, finding: Finding) -> dict[Arm, list[np.ndarray]]:
    """[steps, columns] of each arm's usable seeds, in the claim's window of the steps that all of them have."""
    frames: dict[Arm, dict[int, pd.DataFrame]] = {(spec.model, method): {} for method in claim.seeds}
    for run in claim.all_runs():
        frame = finding.read(results, run.metrics_file(results.root), partial(_curve, spec, results, run))
        if frame is not None:
            frames[run.model, run.method][run.seed] = frame
    paired = on_shared_seeds(frames)
    finding.seeds = min(map(len, paired.values()))
    lengths = {len(frame) for seeds in paired.values() for frame in seeds}
    shortest = min(lengths, default=0)
    if len(lengths) > 1:
        finding.notes.append(f"compared on the first {shortest} steps, where the shortest run ends")
    first = {"all": 0, "second_half": shortest // 2, "last_tenth": shortest - max(1, shortest // 10)}[spec.window]
    windows = {
        arm: [frame[spec.columns].to_numpy(float)[first:shortest] for frame in seeds] for arm, seeds in paired.items()
    }
    return {arm: [rows[np.isfinite(rows).all(axis=1)] for rows in seeds] for arm, seeds in windows.items()}


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
            case "log_mean":
                return float(np.log(first.mean()))
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
    arms = {(model, method): samples[model, method] for model in spec.models for method in claim.seeds}
    finding.seeds = min(len(seeds) for (_, method), seeds in on_shared_seeds(arms).items() if method != BASE)
    if not finding.seeds:
        return
    finding.interval = score_interval(score_columns(samples, claim.weights, spec.metric, spec.problems))


def _samples(
    claim: Claim, spec: ScoreDifference, results: Results, finding: Finding
) -> dict[Arm, dict[int, dict[str, Samples]]]:
    """Arm -> usable seed -> {data set: counts}; all on the same problems."""
    usable: dict[Arm, dict[int, dict[str, Samples]]] = {}
    expected: dict[str, tuple[str, int]] = {}
    for run in claim.all_runs():
        seeds = usable.setdefault((run.model, run.method), {})
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
            seeds[run.seed] = values
    return usable
