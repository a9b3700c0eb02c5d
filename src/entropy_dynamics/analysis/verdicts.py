"""The verdict on one claim: an effect, its 95 % interval, and on which side of the threshold the interval lies.

Three seeds are too few for a percentile bootstrap over them: where the seeds differ more than the samples of one run,
it covers about 90 % instead of 95 %. So here what varies between seeds gets Student's t interval.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtrit

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
from entropy_dynamics.analysis.statistics import DRAWS, LEVEL, ROUNDING
from entropy_dynamics.errors import UserError

VERDICTS = ("holds", "does not hold", "inconclusive")
POWER = 0.9
MIN_STEPS = 8  # fewer make neither a correlation nor a block bootstrap
MAX_DF = 30  # of the t quantiles: an interval is at most 4 % too wide
SPARSE = {"entropy_change", "validation_accuracy"}  # NaN by design on the steps between measurements


@dataclass(frozen=True)
class Estimate:
    """An effect and what is known of its precision."""

    effect: float
    low: float | None = None
    high: float | None = None
    detectable: float | None = None
    """Distance from the threshold at which the claim's test finds an effect with 90 % power."""

    @classmethod
    def of(cls, effect: float, error: float, df: float) -> "Estimate":
        """With the t interval of a standard error."""
        half = float(stdtrit(df, (1 + LEVEL) / 2)) * error
        return cls(effect, effect - half, effect + half, half + float(stdtrit(df, POWER)) * error)


@dataclass(frozen=True)
class Finding:
    """What a claim's runs show. Numbers are None where there are none."""

    verdict: str
    effect: float | None
    low: float | None
    high: float | None
    detectable: float | None
    reason: str
    seeds: dict[str, int]
    """Usable ones of each method."""

    @classmethod
    def of(cls, verdict: str, estimate: Estimate, reason: str, seeds: dict[str, int]) -> "Finding":
        numbers = [_rounded(getattr(estimate, one.name)) for one in fields(estimate)]
        return cls(verdict, *numbers, reason, seeds)

    def entry(self, id: str, statement: str, place: str, **about: Any) -> dict[str, Any]:
        """An entry of claims.json."""
        entry = {"id": id, "statement": statement, "place": place, "verdict": self.verdict, "effect": self.effect}
        entry |= {"low": self.low, "high": self.high, "detectable": self.detectable}
        return entry | about | {"seeds": self.seeds, "reason": self.reason}


@dataclass
class Measured:
    """An estimate before the verdict, with what stands against one and what a reader should know."""

    estimate: Estimate | None = None
    obstacles: list[str] = field(default_factory=list)
    """Any of them makes the verdict inconclusive."""
    missing: list[str] = field(default_factory=list)
    """Files; so does any of them."""
    notes: list[str] = field(default_factory=list)
    seeds: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """One value per usable seed of a method on a model, and the weight of their mean in the effect."""

    weight: float
    values: np.ndarray  # [seeds]


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
    estimate = found.estimate or Estimate(np.nan)
    if _has_no_width(estimate) and not isinstance(spec, LogitSteps):  # the runs are copies, which is no certainty
        estimate = Estimate(estimate.effect)
        found.obstacles.append("the runs do not differ at all, so the spread between them is unknown")
    if found.missing:
        more = f" and {len(found.missing) - 1} more files are" if len(found.missing) > 1 else " is"
        found.obstacles.insert(0, f"{found.missing[0]}{more} missing")
    verdict, reason = verdict_of(estimate, *spec.bounds)
    if found.obstacles:
        verdict, reason = "inconclusive", "; ".join(found.obstacles)
    return Finding.of(verdict, estimate, "; ".join([reason, *found.notes]), found.seeds)


def _has_no_width(estimate: Estimate) -> bool:
    if estimate.low is None or estimate.high is None:
        return False
    return estimate.high - estimate.low < ROUNDING * max(1.0, abs(estimate.effect))


def _rounded(number: float | None) -> float | None:
    """Six digits: more would differ between machines. None for what is not finite."""
    return float(f"{number:.6g}") if number is not None and np.isfinite(number) else None


def verdict_of(estimate: Estimate, from_: float | None, to: float | None) -> tuple[str, str]:
    """The verdict for a claimed range, open where a bound is None; and why."""
    low, high = estimate.low, estimate.high
    if low is None or high is None or not np.isfinite([low, high]).all():
        return "inconclusive", "no interval could be computed"
    if (from_ is None or low > from_) and (to is None or high < to):
        return "holds", "the whole interval is on the claimed side"
    if (from_ is not None and high < from_) or (to is not None and low > to):
        return "does not hold", "the whole interval is on the other side"
    return "inconclusive", "the interval includes the threshold"


def student_interval(
    groups: Sequence[Group], spread: Sequence[np.ndarray] = (), problems: Sequence[tuple[float, float]] = ()
) -> Estimate | None:
    """Sum of weight * mean over the groups with its t interval, or None where no method has two seeds.

    Args:
        groups: what is compared. The variance between seeds is pooled over them and `spread`.
        spread: values of further methods, one per seed, for that variance only.
        problems: further variances of the effect with their degrees of freedom, added (Satterthwaite 1946).
    """
    effect = float(sum(group.weight * group.values.mean() for group in groups))
    pooled = [*(group.values for group in groups), *spread]
    df = sum(len(values) - 1 for values in pooled)
    if df == 0:
        return None
    between = sum(((values - values.mean()) ** 2).sum() for values in pooled) / df
    parts = [(between * sum(group.weight**2 / len(group.values) for group in groups), df), *problems]
    variance = sum(part for part, _ in parts)
    if variance > 0:
        df = variance**2 / sum(part**2 / own for part, own in parts)
    return Estimate.of(effect, variance**0.5, min(int(df + ROUNDING), MAX_DF))


# Theorems: steps on single logits


def _logit_steps(spec: LogitSteps, results: Results) -> Measured:
    path = results.layout.logit_steps
    if not path.is_file():
        return Measured(missing=[str(path.relative_to(results.root))])
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
    return Measured(_bootstrap(rows, spec.statistic, block=1), notes=[f"{len(rows)} tokens"])


# Curves


def _one_method(claim: Claim[ClaimSpec], spec: CurveClaim, results: Results) -> Measured:
    curves, found = _curves(claim, spec, results)
    rows = curves[claim.runs[0]]
    values = np.array([_statistic(spec.statistic, one) for one in rows])
    if not len(values):
        return found
    found.estimate = Estimate(float(values.mean()))
    if not np.isfinite(values).all():
        found.obstacles.append(f"the {spec.statistic} is undefined on these steps ({min(map(len, rows))} of them)")
    elif len(values) > 1:
        found.estimate = student_interval([Group(1.0, values)])
    elif isinstance(spec, OverSeeds):
        found.obstacles.append("one seed: the spread between seeds is unknown")
    elif len(rows[0]) < MIN_STEPS:
        found.obstacles.append(f"one seed, and {len(rows[0])} steps are too few for an interval within it")
    else:
        found.estimate = _bootstrap(rows[0], spec.statistic, block=int(np.ceil(len(rows[0]) ** 0.5)))
        found.notes.append("one seed: the interval is over the steps of this run and says nothing about others")
    if spec.statistic == "correlation" and found.estimate and found.estimate.low is not None:
        low, high = np.clip([found.estimate.low, found.estimate.high], -1, 1)
        found.estimate = replace(found.estimate, low=float(low), high=float(high))
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
        Group(sign / len(side), values[method])
        for sign, side in ((1, claim.runs), (-1, claim.against))
        for method in side
    ]
    _set_difference(found, groups, [values[method] for method in claim.spread if len(values[method])])
    return found


def _curves(
    claim: Claim[ClaimSpec], spec: CurveClaim, results: Results
) -> tuple[dict[str, list[np.ndarray]], Measured]:
    """[steps, columns] of each usable seed of each method, in the claim's window of the steps that all of them have."""
    found = Measured()
    frames: dict[str, list[pd.DataFrame]] = {method: [] for method in claim.seeds}
    for run in claim.all_runs():
        needed = run.method in (*claim.runs, *claim.against)  # of `spread`, the seeds that are there will do
        path = run.metrics_file(results.root)
        try:
            if path.is_file():
                frames[run.method].append(_curve(spec, results, run))
            elif needed:
                found.missing.append(str(path.relative_to(results.root)))
        except UserError as error:
            if needed:
                found.obstacles.append(str(error))
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


def _bootstrap(rows: np.ndarray, statistic: str, block: int) -> Estimate:
    """A statistic of [n, columns] with its percentile interval; neighbours stay together in circular blocks."""
    n = len(rows)
    rng = np.random.default_rng(0)
    blocks = -(-n // block)
    drawn = np.empty(DRAWS)
    for i in range(DRAWS):
        starts = rng.integers(0, n, blocks)
        drawn[i] = _statistic(statistic, rows[((starts[:, None] + np.arange(block)) % n).ravel()[:n]])
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    normal = Estimate.of(0.0, float(drawn.std()), np.inf)
    return Estimate(_statistic(statistic, rows), float(low), float(high), normal.detectable)


# Scores


def _score_difference(claim: Claim[ClaimSpec], spec: ScoreDifference, results: Results) -> Measured:
    found = Measured()
    scores = _scores(claim, spec, results, found)
    found.seeds = {method: min(len(scores[model, method]) for model in spec.models) for method in claim.seeds}
    if not all(found.seeds.values()):
        return found
    weights = {method: 1 / len(claim.runs) / len(spec.models) for method in claim.runs}
    weights |= {method: -1 / len(claim.against) / len(spec.models) for method in claim.against}
    groups = []
    by_problem = dict.fromkeys(spec.evaluations, 0.0)  # each problem's difference, [problems]
    for (_, method), seeds in scores.items():
        means = [np.mean([values.mean() for values in seed.values()]) for seed in seeds]
        groups.append(Group(weights[method], np.array(means)))
        for dataset in spec.evaluations:
            by_problem[dataset] += weights[method] * np.mean([seed[dataset] for seed in seeds], axis=0)
    # The data sets count alike, so the variance of each one's mean counts by the square of its share.
    problems = [
        (float(one.var(ddof=1)) / len(one) / len(by_problem) ** 2, len(one) - 1)
        for one in by_problem.values()
        if len(one) > 1
    ]
    _set_difference(found, groups, [], problems)
    return found


def _scores(
    claim: Claim[ClaimSpec], spec: ScoreDifference, results: Results, found: Measured
) -> dict[tuple[str, str], list[dict[str, np.ndarray]]]:
    """(model, method) -> for each usable seed {data set: points of each problem}; all on the same problems."""
    scores: dict[tuple[str, str], list[dict[str, np.ndarray]]] = {}
    expected: dict[str, tuple[str, int]] = {}
    for run in claim.all_runs():
        seeds = scores.setdefault((run.model, run.method), [])
        values = {}
        for dataset in spec.evaluations:
            path = run.evaluation_file(results.root, dataset)
            name = str(path.relative_to(results.root))
            if not path.is_file():
                found.missing.append(name)
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
    return scores


def _problem_scores(metric: str, samples: Samples) -> np.ndarray:
    """[problems], in [-1, 1]."""
    match metric:
        case "avg":
            return samples.pass_rates
        case "pass":
            return samples.solved
        case "pass_minus_avg":
            return samples.solved - samples.pass_rates
    return np.isin(samples.correct, (0, samples.k)).astype(float)


def _set_difference(
    found: Measured, groups: list[Group], spread: list[np.ndarray], problems: Sequence[tuple[float, float]] = ()
) -> None:
    found.estimate = student_interval(groups, spread, problems)
    if found.estimate is None:
        found.estimate = Estimate(float(sum(group.weight * group.values.mean() for group in groups)))
        found.obstacles.append("one seed of each method: the spread between seeds is unknown")
    elif single := [method for method, seeds in found.seeds.items() if seeds == 1]:
        found.notes.append(f"one seed of {', '.join(single)}, assumed to vary between seeds as the others do")
