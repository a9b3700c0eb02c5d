"""The verdict on one claim: an effect, its 95 % interval, and on which side of the threshold the interval lies.

Three seeds are too few for a percentile bootstrap over them: where the seeds differ more than the samples of one run,
it covers about 90 % instead of 95 %. So here what varies between seeds gets Student's t interval.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.claims import (
    Claim,
    ClaimSpec,
    CurveClaim,
    CurveDifference,
    LogitSteps,
    OverSeeds,
    ScoreDifference,
)
from entropy_dynamics.analysis.experiments import Run
from entropy_dynamics.analysis.results import Results, Samples
from entropy_dynamics.analysis.statistics import ROUNDING, Interval, block_bootstrap, student_interval
from entropy_dynamics.errors import UserError

VERDICTS = ("holds", "does not hold", "inconclusive")
MIN_STEPS = 8  # fewer make neither a correlation nor a block bootstrap
SPARSE = {"entropy_change", "validation_accuracy"}  # NaN by design on the steps between measurements


@dataclass(frozen=True)
class Finding:
    """What a claim's runs show."""

    verdict: str
    interval: Interval
    reason: str
    seeds: dict[str, int]
    """Usable ones of each method."""

    def entry(self, id: str, statement: str, place: str, **about: Any) -> dict[str, Any]:
        """An entry of claims.json, with null for an unknown number."""
        numbers = {name: _rounded(getattr(self.interval, name)) for name in ("low", "high", "detectable")}
        found = {"verdict": self.verdict, "effect": _rounded(self.interval.value), **numbers}
        rest = {"seeds": self.seeds, "reason": self.reason}
        return {"id": id, "statement": statement, "place": place} | found | about | rest


@dataclass
class Measured:
    """An effect before the verdict, with what stands against one and what a reader should know."""

    interval: Interval = field(default_factory=Interval)
    obstacles: list[str] = field(default_factory=list)
    """Any of them makes the verdict inconclusive."""
    notes: list[str] = field(default_factory=list)
    seeds: dict[str, int] = field(default_factory=dict)


def judge(claim: Claim[ClaimSpec], results: Results) -> Finding:
    """The verdict on one claim from the files of one scale; a missing file makes it inconclusive."""
    spec = claim.spec
    match spec:
        case LogitSteps():
            found = _logit_steps(spec, results)
        case CurveDifference():
            found = _curve_difference(claim, spec, results)
        case CurveClaim():
            found = _one_method(claim, spec, results)
        case _:
            assert isinstance(spec, ScoreDifference)
            found = _score_difference(claim, spec, results)
    interval = found.interval
    width = ROUNDING * max(1.0, abs(interval.value))
    if interval.high - interval.low < width and not isinstance(spec, LogitSteps):  # copies are no certainty
        interval = Interval(interval.value)
        found.obstacles.append("the runs do not differ at all, so the spread between them is unknown")
    verdict, reason = verdict_of(interval, *spec.bounds)
    if found.obstacles:
        verdict, reason = "inconclusive", "; ".join(found.obstacles)
    return Finding(verdict, interval, "; ".join([reason, *found.notes]), found.seeds)


def _rounded(number: float) -> float | None:
    """Six digits: more would differ between machines."""
    return float(f"{number:.6g}") if math.isfinite(number) else None


def verdict_of(interval: Interval, from_: float | None, to: float | None) -> tuple[str, str]:
    """The verdict for a claimed range, open where a bound is None; and why."""
    if not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return "inconclusive", "no interval could be computed"
    if (from_ is None or interval.low > from_) and (to is None or interval.high < to):
        return "holds", "the whole interval is on the claimed side"
    if (from_ is not None and interval.high < from_) or (to is not None and interval.low > to):
        return "does not hold", "the whole interval is on the other side"
    return "inconclusive", "the interval includes the threshold"


def _missing(files: list[str]) -> str:
    return f"{files[0]} is missing" if len(files) == 1 else f"{files[0]} and {len(files) - 1} more files are missing"


# Theorems: steps on single logits


def _logit_steps(spec: LogitSteps, results: Results) -> Measured:
    path = results.layout.logit_steps
    if not path.is_file():
        return Measured(obstacles=[_missing([str(path.relative_to(results.root))])])
    try:
        frame = results.logit_steps()
    except UserError as error:
        return Measured(obstacles=[str(error)])
    frame = frame[frame["theorem"] == spec.theorem]
    # The theorems are of first order: larger steps show their limit.
    smallest = frame[frame["step_size"] == frame["step_size"].min()]
    rows = smallest[["predicted", "realised"]].to_numpy(float)
    if len(rows) < MIN_STEPS:
        return Measured(obstacles=[f"{len(rows)} steps of Theorem {spec.theorem} are too few"])
    if not np.isfinite(rows).all():
        return Measured(obstacles=["some predicted or realised changes are not finite"])
    return Measured(block_bootstrap(rows, partial(_statistic, spec.statistic), block=1), notes=[f"{len(rows)} tokens"])


# Curves


def _one_method(claim: Claim[ClaimSpec], spec: CurveClaim, results: Results) -> Measured:
    curves, found = _curves(claim, spec, results)
    rows = curves[claim.runs[0]]
    values = np.array([_statistic(spec.statistic, one) for one in rows])
    if not len(values):
        return found
    found.interval = Interval(float(values.mean()))
    if not np.isfinite(values).all():
        found.obstacles.append(f"the {spec.statistic} is undefined on these steps ({min(map(len, rows))} of them)")
    elif len(values) > 1:
        found.interval = student_interval([(1.0, values)])
    elif isinstance(spec, OverSeeds):
        found.obstacles.append("one seed: the spread between seeds is unknown")
    elif len(rows[0]) < MIN_STEPS:
        found.obstacles.append(f"one seed, and {len(rows[0])} steps are too few for an interval within it")
    else:
        block = math.ceil(len(rows[0]) ** 0.5)
        found.interval = block_bootstrap(rows[0], partial(_statistic, spec.statistic), block)
        found.notes.append("one seed: the interval is over the steps of this run and says nothing about others")
    if spec.statistic == "correlation":
        low, high = np.clip([found.interval.low, found.interval.high], -1, 1)
        found.interval = replace(found.interval, low=float(low), high=float(high))
    return found


def _curve_difference(claim: Claim[ClaimSpec], spec: CurveDifference, results: Results) -> Measured:
    curves, found = _curves(claim, spec, results)
    values = {m: np.array([_statistic(spec.statistic, rows) for rows in curves[m]]) for m in curves}
    values = {method: one[np.isfinite(one)] for method, one in values.items()}
    lacking = [method for method in (*claim.runs, *claim.against) if not len(values[method])]
    if lacking:
        if found.seeds[lacking[0]]:
            found.obstacles.append(f"the {spec.statistic} of {lacking[0]} is undefined on these steps")
        return found
    groups = [
        (sign / len(side), values[method]) for sign, side in ((1, claim.runs), (-1, claim.against)) for method in side
    ]
    _set_difference(found, groups, [values[method] for method in claim.spread if len(values[method])])
    return found


def _curves(
    claim: Claim[ClaimSpec], spec: CurveClaim, results: Results
) -> tuple[dict[str, list[np.ndarray]], Measured]:
    """[steps, columns] of each usable seed of each method, in the claim's window of the steps that all of them have."""
    found, missing = Measured(), []
    frames: dict[str, list[pd.DataFrame]] = {method: [] for method in claim.seeds}
    for run in claim.all_runs():
        needed = run.method in (*claim.runs, *claim.against)  # of `spread`, the seeds that are there will do
        path = run.metrics_file(results.root)
        try:
            if path.is_file():
                frames[run.method].append(_curve(spec, results, run))
            elif needed:
                missing.append(str(path.relative_to(results.root)))
        except UserError as error:
            if needed:
                found.obstacles.append(str(error))
    found.obstacles[:0] = [_missing(missing)] if missing else []
    lengths = {len(frame) for seeds in frames.values() for frame in seeds}
    shortest = min(lengths, default=0)
    if len(lengths) > 1:
        found.notes.append(f"compared on the first {shortest} steps, where the shortest run ends")
    first = {"all": 0, "second_half": shortest // 2, "last_tenth": shortest - max(1, shortest // 10)}[spec.window]
    found.seeds = {method: len(seeds) for method, seeds in frames.items()}
    curves = {}
    for method, seeds in frames.items():
        windows = [frame[spec.columns].to_numpy(float)[first:shortest] for frame in seeds]
        curves[method] = [rows[np.isfinite(rows).all(axis=1)] for rows in windows]
    return curves, found


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
    """A number from [steps, columns]; NaN where it is undefined."""
    if not len(rows) or (name == "correlation" and len(rows) < MIN_STEPS):
        return float("nan")
    first, second = rows[:, 0], rows[:, -1]
    with np.errstate(divide="ignore", invalid="ignore"):
        match name:
            case "mean":
                return float(first.mean())
            case "ratio":
                return float(first.mean() / second.mean())
            case "variation":
                return float(first.std() / first.mean())
            case "drop":
                tenth = max(1, len(first) // 10)
                return float(1 - first[-tenth:].mean() / first[:tenth].mean())
            case "slope":
                return float(first @ second / (first @ first))
        return float(np.corrcoef(rows.T)[0, 1])


# Scores


def _score_difference(claim: Claim[ClaimSpec], spec: ScoreDifference, results: Results) -> Measured:
    found = Measured()
    scores = _scores(claim, spec, results, found)
    found.seeds = {method: min(len(scores[model, method]) for model in spec.models) for method in claim.seeds}
    if not all(found.seeds.values()):
        return found
    weights = {method: 1 / len(claim.runs) / len(spec.models) for method in claim.runs}
    weights |= {method: -1 / len(claim.against) / len(spec.models) for method in claim.against}
    groups, problems = [], []
    for (_, method), seeds in scores.items():
        means = [np.mean([values.mean() for values in seed.values()]) for seed in seeds]
        groups.append((weights[method], np.array(means)))
    for dataset in spec.evaluations:
        means = [
            weights[method] * np.mean([seed[dataset] for seed in seeds], axis=0)
            for (_, method), seeds in scores.items()
        ]
        one = np.sum(means, axis=0)  # each problem's difference
        if len(one) > 1:  # the data sets count alike, so the variance of each one's mean counts by its squared share
            problems.append((float(one.var(ddof=1)) / len(one) / len(spec.evaluations) ** 2, len(one) - 1))
    _set_difference(found, groups, problems=problems)
    return found


def _scores(
    claim: Claim[ClaimSpec], spec: ScoreDifference, results: Results, found: Measured
) -> dict[tuple[str, str], list[dict[str, np.ndarray]]]:
    """(model, method) -> for each usable seed {data set: points of each problem}; all on the same problems."""
    scores: dict[tuple[str, str], list[dict[str, np.ndarray]]] = {}
    expected: dict[str, tuple[str, int]] = {}
    missing = []
    for run in claim.all_runs():
        seeds = scores.setdefault((run.model, run.method), [])
        values = {}
        for dataset in spec.evaluations:
            path = run.evaluation_file(results.root, dataset)
            name = str(path.relative_to(results.root))
            if not path.is_file():
                missing.append(name)
                break
            try:
                samples = results.samples(run, dataset)
            except UserError as error:
                found.obstacles.append(str(error))
                break
            if expected.setdefault(dataset, (samples.ids, samples.k)) != (samples.ids, samples.k):
                found.obstacles.append(f"{name} has other problems or another K than the rest")
                break
            values[dataset] = 100 * _problem_scores(spec.metric, samples)
        else:
            seeds.append(values)
    found.obstacles[:0] = [_missing(missing)] if missing else []
    return scores


def _problem_scores(metric: str, samples: Samples) -> np.ndarray:
    """[problems], in [-1, 1]."""
    scores: np.ndarray
    match metric:
        case "avg":
            scores = samples.pass_rates
        case "pass":
            scores = samples.solved
        case "pass_minus_avg":
            scores = samples.solved - samples.pass_rates
        case _:
            scores = np.isin(samples.correct, (0, samples.k)).astype(float)
    return scores


def _set_difference(
    found: Measured,
    groups: list[tuple[float, np.ndarray]],
    spread: Sequence[np.ndarray] = (),
    problems: Sequence[tuple[float, float]] = (),
) -> None:
    found.interval = student_interval(groups, spread, problems)
    if math.isnan(found.interval.low):
        found.obstacles.append("one seed of each method: the spread between seeds is unknown")
    elif single := [method for method, seeds in found.seeds.items() if seeds == 1]:
        found.notes.append(f"one seed of {', '.join(single)}, assumed to vary between seeds as the others do")
