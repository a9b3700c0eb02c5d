"""The verdict on one claim: an effect, its 95 % interval, and on which side of the threshold the interval lies."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.claims import Claim, CurveClaim, ScoreDifference, SweepTrend, swept_value
from entropy_dynamics.analysis.curves import SPARSE
from entropy_dynamics.analysis.experiments import Run
from entropy_dynamics.analysis.problem_scores import score_groups
from entropy_dynamics.analysis.results import Results, Samples
from entropy_dynamics.analysis.statistics import (
    MAX_SEEDS,
    Interval,
    score_interval,
    seed_interval,
    seeds_needed,
    smallest,
)
from entropy_dynamics.analysis.temperatures import best_temperature, matched_pass
from entropy_dynamics.config import BASE
from entropy_dynamics.errors import UserError

VERDICTS = ("holds", "does not hold", "inconclusive")
MIN_STEPS = 8  # fewer make no correlation
MIN_VALUES = 3  # of a parameter: two make a difference, not a trend

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
        case CurveClaim():
            _curve_claim(claim, spec, results, finding)
        case ScoreDifference(temperature="matched_pass"):
            _matched_pass(claim, spec, results, finding)
        case ScoreDifference():
            _score_difference(claim, spec, results, finding)
    if single := [method for method, seeds in finding.seeds.items() if seeds == 1 and method != BASE]:
        finding.obstacles.append(f"one seed of {', '.join(single)}")
    return finding.decide(*spec.bounds)


# Curves


def _curve_claim(claim: Claim, spec: CurveClaim, results: Results, finding: Finding) -> None:
    curves = _curves(claim, spec, results, finding)
    if not all(curves.values()):
        return
    weights = _trend(claim, spec, results, finding) if isinstance(spec, SweepTrend) else claim.weights
    groups = []
    for method, weight in weights.items():
        values = np.array([_statistic(spec.statistic, seed) for seed in curves[method]])
        if not np.isfinite(values).all():
            finding.obstacles.append(f"the {spec.statistic} of {method} is undefined on these steps")
            return
        groups.append(weight * values)
    if not groups:
        return
    finding.interval_at = lambda seeds: seed_interval(groups, seeds=seeds)
    finding.interval = seed_interval(groups)
    if spec.statistic == "correlation":
        low, high = np.clip([finding.interval.low, finding.interval.high], -1, 1)
        finding.interval = replace(finding.interval, low=float(low), high=float(high))


def _trend(claim: Claim, spec: SweepTrend, results: Results, finding: Finding) -> dict[str, float]:
    """The weights that make a sum of methods the slope over the logarithm of their parameter (least squares).

    A value with which no step of any seed drops a token is not a dose of the method, but the baseline, and left out.
    """

    def drops(method: str) -> bool:
        runs = [Run(spec.model, method, seed) for seed in claim.seeds[method]]
        return any(results.metrics(run, ["clip_fraction"])["clip_fraction"].any() for run in runs)

    methods = [method for method in claim.runs if drops(method)]
    if without := [method for method in claim.runs if method not in methods]:
        finding.notes.append(f"without {', '.join(without)}, which drops no token")
    if len(methods) < MIN_VALUES:
        finding.obstacles.append(f"{len(methods)} values that drop tokens make no trend")
        return {}
    x = np.log([swept_value(method) for method in methods])
    x -= x.mean()
    return dict(zip(methods, x / (x @ x), strict=True))


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
    if not len(rows) or (name.startswith("correlation") and len(rows) < MIN_STEPS):
        return float("nan")
    means = rows.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        match name:
            case "mean":
                return float(means[0])
            case "log_mean":
                return float(np.log(means[0]))
            case "drop":
                first, tenth = rows[:, 0], max(1, len(rows) // 10)
                return float(1 - first[-tenth:].mean() / first[:tenth].mean())
            case "ratio":
                return float(means[0] / means[1])
            case "size_difference":
                return float(abs(means[0]) - abs(means[1]))
            case "ratio_difference":
                return float(means[0] / means[1] - means[2] / means[3])
        with_first = np.corrcoef(rows.T)[0]
        return float(with_first[1] - with_first[2] if name == "correlation_difference" else with_first[1])


# Scores


Pair = tuple[str, str]
"""A model and a method."""


def _score_difference(claim: Claim, spec: ScoreDifference, results: Results, finding: Finding) -> None:
    temperatures = _temperatures(claim, spec, results, finding)
    if finding.obstacles or finding.missing:
        return
    samples = _samples(claim, list(spec.datasets), results, finding, temperatures)
    finding.seeds = {method: min(len(samples[model, method]) for model in spec.models) for method in claim.seeds}
    if not all(samples.values()):
        return

    if spec.everywhere:
        cells = []
        for model, dataset in product(spec.models, spec.datasets):
            of_model = {pair: counts for pair, counts in samples.items() if pair[0] == model}
            groups = score_groups(of_model, claim.weights, spec.metric, spec.problems, {dataset: 1.0})
            cells.append(score_interval(groups))
        finding.interval = smallest(cells)
        note_cells(finding, cells, spec)
        return
    groups = score_groups(samples, claim.weights, spec.metric, spec.problems, spec.datasets)
    finding.interval_at = lambda seeds: score_interval(groups, seeds=seeds)
    finding.interval = score_interval(groups)


def note_cells(finding: Finding, cells: Sequence[Interval], spec: ScoreDifference) -> None:
    """On how many of the data sets a claim about each of them is true of the estimate."""
    low, high = spec.bounds
    true = sum(low < cell.value < high for cell in cells)
    finding.notes.append(f"the estimates of {true} of {len(cells)} are as claimed")


def _temperatures(claim: Claim, spec: ScoreDifference, results: Results, finding: Finding) -> dict[Pair, float | None]:
    """At which temperature each method is compared; None: that of all tables."""
    if spec.temperature != "best":
        one = 0.0 if isinstance(spec.temperature, str) else spec.temperature
        if one is not None and one not in results.temperatures:
            finding.obstacles.append(f"this scale has no evaluations at temperature {one:g}")
        return dict.fromkeys(product(spec.models, claim.seeds), one)
    best: dict[Pair, float | None] = {}
    validation = results.config.training.validation_set
    for pair, by_temperature in _at_all_temperatures(claim, [validation], results, finding).items():
        best[pair] = best_temperature(
            {temperature: [seed[validation] for seed in seeds] for temperature, seeds in by_temperature.items()}
        )
    finding.notes += [f"{method} at {temperature:g}" for (_, method), temperature in best.items()]
    return best


def _matched_pass(claim: Claim, spec: ScoreDifference, results: Results, finding: Finding) -> None:
    """The methods' difference per seed, with the one of `against` at the Pass@K of the other."""
    (method,), (other,) = claim.runs, claim.against
    [model], own = spec.models, results.config.evaluation.temperature
    counts = _at_all_temperatures(claim, list(spec.datasets), results, finding)
    if finding.obstacles or finding.missing:
        return
    finding.seeds = {name: len(seeds[own]) for (_, name), seeds in counts.items()}
    frontier = [
        seeds for temperature, seeds in counts[model, other].items() if temperature > 0
    ]  # greedy has one sample
    policies = zip(counts[model, method][own], *frontier, strict=False)
    seeds = [matched_pass(policy, others, spec.datasets) for policy, *others in policies]
    if outside := sum(seed is None for seed in seeds):
        what = f"the Pass@K of {method} is outside that of {other} at all temperatures"
        finding.obstacles.append(f"{what} in {outside} of {len(seeds)} seeds")
        return
    weights = spec.datasets.items()
    group = [100 * weight * np.stack([seed[dataset] for seed in seeds if seed]) for dataset, weight in weights]
    finding.interval_at = lambda seeds: score_interval([group], seeds=seeds)
    finding.interval = score_interval([group])


def _at_all_temperatures(
    claim: Claim, datasets: list[str], results: Results, finding: Finding
) -> dict[Pair, dict[float, list[dict[str, Samples]]]]:
    """(model, method) -> temperature -> for each seed {data set: counts}; empty, with the reason, if any is missing."""
    if len(results.temperatures) < 2:
        finding.obstacles.append(f"this scale has evaluations at temperature {results.temperatures[0]:g} alone")
        return {}
    pairs = list(product(claim.models, claim.seeds))
    of = {
        temperature: _samples(claim, datasets, results, finding, dict.fromkeys(pairs, temperature))
        for temperature in results.temperatures
    }
    if finding.obstacles or finding.missing:
        return {}
    return {pair: {temperature: samples[pair] for temperature, samples in of.items()} for pair in pairs}


def _samples(
    claim: Claim,
    datasets: list[str],
    results: Results,
    finding: Finding,
    temperatures: Mapping[Pair, float | None],
) -> dict[Pair, list[dict[str, Samples]]]:
    """(model, method) -> for each usable seed {data set: counts}; all on the same problems."""
    usable: dict[Pair, list[dict[str, Samples]]] = {}
    expected: dict[Any, Any] = {}
    own = results.config.evaluation.temperature
    for run in claim.all_runs():
        temperature = temperatures.get((run.model, run.method))
        seeds = usable.setdefault((run.model, run.method), [])
        values = {}
        for dataset in datasets:
            path = run.evaluation_file(results.root, dataset, None if temperature == own else temperature)
            samples = finding.read(results, path, partial(results.samples, run, dataset, temperature))
            if samples is None:
                break
            facts = {dataset: samples.ids, (dataset, temperature): samples.k}
            if any(expected.setdefault(what, fact) != fact for what, fact in facts.items()):
                name = path.relative_to(results.root)
                finding.obstacles.append(f"{name} has other problems or another K than the rest")
                break
            values[dataset] = samples
        else:
            seeds.append(values)
    return usable
