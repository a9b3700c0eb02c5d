"""The verdict on one claim: an effect, its 95 % interval, and on which side of the threshold the interval lies.

Three seeds are too few for a percentile bootstrap over them: where the seeds differ more than the samples of one run,
it covers about 90 % instead of 95 %. So variation between seeds gets Student's t interval.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.claims import Claim, CurveClaim, CurveDifference, LogitSteps, OverSeeds, ScoreDifference
from entropy_dynamics.analysis.experiments import Run
from entropy_dynamics.analysis.results import Results, Samples
from entropy_dynamics.analysis.statistics import ROUNDING, Interval, block_bootstrap, student_interval
from entropy_dynamics.errors import UserError

VERDICTS = ("holds", "does not hold", "inconclusive")
MIN_STEPS = 8  # fewer make neither a correlation nor a block bootstrap
SPARSE = {"entropy_change", "validation_accuracy"}  # NaN by design on the steps between measurements

T = TypeVar("T")


@dataclass
class Finding:
    """The evidence of a claim's runs, and the verdict."""

    interval: Interval = field(default_factory=Interval)
    seeds: dict[str, int] = field(default_factory=dict)
    """Usable seeds per method."""
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
            obstacles.insert(
                0, f"{self.missing[0]} " + (f"and {more} more files are missing" if more else "is missing")
            )
        self.verdict, self.reason = "inconclusive", "the interval includes the threshold"
        if obstacles:
            self.reason = "; ".join(obstacles)
        elif not (math.isfinite(ends.low) and math.isfinite(ends.high)):
            self.reason = "no interval could be computed"
        elif low < ends.low and ends.high < high:
            self.verdict, self.reason = "holds", "the whole interval is on the claimed side"
        elif ends.high < low or high < ends.low:
            self.verdict, self.reason = "does not hold", "the whole interval is on the other side"
        self.reason = "; ".join([self.reason, *self.notes])
        return self

    def entry(self, id: str, statement: str, place: str, **about: Any) -> dict[str, Any]:
        """An entry of claims.json, with null for an unknown number."""
        numbers = {name: _rounded(getattr(self.interval, name)) for name in ("low", "high", "detectable")}
        found = {"verdict": self.verdict, "effect": _rounded(self.interval.value), **numbers}
        rest = {"seeds": self.seeds, "reason": self.reason}
        return {"id": id, "statement": statement, "place": place} | found | about | rest


def _rounded(number: float) -> float | None:
    """Six digits: more would differ between machines."""
    return float(f"{number:.6g}") if math.isfinite(number) else None


def judge(claim: Claim, results: Results) -> Finding:
    """The verdict on one claim from the files of one scale; a missing file makes it inconclusive."""
    found, spec = Finding(), claim.spec
    match spec:
        case LogitSteps():
            _logit_steps(spec, results, found)
        case CurveDifference():
            _curve_difference(claim, spec, results, found)
        case CurveClaim():
            _one_method(claim, spec, results, found)
        case ScoreDifference():
            _score_difference(claim, spec, results, found)
    ends = found.interval
    width = ROUNDING * max(1.0, abs(ends.value))
    if ends.high - ends.low < width and not isinstance(spec, LogitSteps):  # copies are no certainty
        found.interval = Interval(ends.value)
        found.obstacles.append("the runs do not differ at all, so the spread between them is unknown")
    return found.decide(*spec.bounds)


# Theorems: steps on single logits


def _logit_steps(spec: LogitSteps, results: Results, found: Finding) -> None:
    frame = found.read(results, results.layout.logit_steps, results.logit_steps)
    if frame is None:
        return
    frame = frame[frame["theorem"] == spec.theorem]
    # The theorems are of first order: larger steps show their limit.
    smallest = frame[frame["step_size"] == frame["step_size"].min()]
    rows = smallest[["predicted", "realised"]].to_numpy(float)
    if len(rows) < MIN_STEPS:
        found.obstacles.append(f"{len(rows)} steps of Theorem {spec.theorem} are too few")
    elif not np.isfinite(rows).all():
        found.obstacles.append("some predicted or realised changes are not finite")
    else:
        found.interval = block_bootstrap(rows, partial(_statistic, spec.statistic), block=1)
        found.notes.append(f"{len(rows)} tokens")


# Curves


def _one_method(claim: Claim, spec: CurveClaim, results: Results, found: Finding) -> None:
    (rows,) = _curves(claim, spec, results, found).values()
    values = np.array([_statistic(spec.statistic, one) for one in rows])
    if not len(values):
        return
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


def _curve_difference(claim: Claim, spec: CurveDifference, results: Results, found: Finding) -> None:
    curves = _curves(claim, spec, results, found)
    values = {method: np.array([_statistic(spec.statistic, one) for one in rows]) for method, rows in curves.items()}
    values = {method: one[np.isfinite(one)] for method, one in values.items()}
    lacking = [method for method in (*claim.runs, *claim.against) if not len(values[method])]
    if lacking:
        if found.seeds[lacking[0]]:
            found.obstacles.append(f"the {spec.statistic} of {lacking[0]} is undefined on these steps")
        return
    groups = [
        (sign / len(side), values[method]) for sign, side in ((1, claim.runs), (-1, claim.against)) for method in side
    ]
    _set_difference(found, groups, [values[method] for method in claim.spread if len(values[method])])


def _curves(claim: Claim, spec: CurveClaim, results: Results, found: Finding) -> dict[str, list[np.ndarray]]:
    """[steps, columns] of each usable seed of each method, in the claim's window of the steps that all runs share."""
    frames: dict[str, list[pd.DataFrame]] = {method: [] for method in claim.seeds}
    for run in claim.all_runs():
        of_run = Finding() if run.method in claim.spread else found  # its variance needs only some seeds
        frame = of_run.read(results, run.metrics_file(results.root), partial(_curve, spec, results, run))
        frames[run.method] += [] if frame is None else [frame]
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
    return curves


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


def _score_difference(claim: Claim, spec: ScoreDifference, results: Results, found: Finding) -> None:
    scores = _scores(claim, spec, results, found)
    found.seeds = {method: min(len(scores[model, method]) for model in spec.models) for method in claim.seeds}
    if not all(found.seeds.values()):
        return
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


def _scores(
    claim: Claim, spec: ScoreDifference, results: Results, found: Finding
) -> dict[tuple[str, str], list[dict[str, np.ndarray]]]:
    """(model, method) -> for each usable seed {data set: points per problem}; all on the same problems."""
    scores: dict[tuple[str, str], list[dict[str, np.ndarray]]] = {}
    expected: dict[str, tuple[str, int]] = {}
    for run in claim.all_runs():
        seeds = scores.setdefault((run.model, run.method), [])
        values = {}
        for dataset in spec.evaluations:
            path = run.evaluation_file(results.root, dataset)
            samples = found.read(results, path, partial(results.samples, run, dataset))
            if samples is None:
                break
            if expected.setdefault(dataset, (samples.ids, samples.k)) != (samples.ids, samples.k):
                name = path.relative_to(results.root)
                found.obstacles.append(f"{name} has other problems or another K than the rest")
                break
            values[dataset] = 100 * _problem_scores(spec.metric, samples)
        else:
            seeds.append(values)
    return scores


def _problem_scores(metric: str, samples: Samples) -> np.ndarray:
    """[problems], in [-1, 1]."""
    scores: dict[str, np.ndarray] = {
        "avg": samples.pass_rates,
        "pass": samples.solved,
        "pass_minus_avg": samples.solved - samples.pass_rates,
        "extremes": np.isin(samples.correct, (0, samples.k)).astype(float),
    }
    return scores[metric]


def _set_difference(
    found: Finding,
    groups: list[tuple[float, np.ndarray]],
    spread: Sequence[np.ndarray] = (),
    problems: Sequence[tuple[float, float]] = (),
) -> None:
    found.interval = student_interval(groups, spread, problems)
    if math.isnan(found.interval.low):
        found.obstacles.append("one seed of each method: the spread between seeds is unknown")
    elif single := [method for method, seeds in found.seeds.items() if seeds == 1]:
        found.notes.append(f"one seed of {', '.join(single)}, assumed to vary between seeds as the others do")
