"""The verdict on a claim: an effect, its 95 % interval, and the side of the threshold on which the interval lies."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from entropy_dynamics.analysis.curves import SPARSE
from entropy_dynamics.analysis.envelope import left, mixed, point_columns
from entropy_dynamics.analysis.problem_scores import score_columns, shared_seeds
from entropy_dynamics.analysis.run_data import Arm, Evaluated, Results
from entropy_dynamics.analysis.statistics import (
    LEVEL,
    MAX_SEEDS,
    MIN_SEEDS,
    Interval,
    Scores,
    holm,
    over_problems,
    rounded,
    score_interval,
    seed_interval,
    seeds_needed,
    smallest_effect,
)
from entropy_dynamics.analysis.temperatures import best_point, matched_pass, mean_score, reached
from entropy_dynamics.config import BASE
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.claim_specs import CurveClaim, ScoreDifference, SweepTrend
from entropy_dynamics.experiments.claims import Claim, swept_value
from entropy_dynamics.experiments.load import Run

VERDICTS = ("holds", "does not hold", "inconclusive")
MIN_STEPS = 8  # minimum for a correlation
MIN_VALUES = 3  # minimum for a trend over a sweep: two values only give a difference
SHOWN = 2  # maximum number of obstacles in a reason, as the seeds of a method tend to have the same

T = TypeVar("T")


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


_rounded = partial(rounded, digits=6)  # further ones differ between machines


def judge(claim: Claim, results: Results) -> Finding:
    """Judge a claim by the files of one scale; a missing file makes the verdict inconclusive."""
    finding, spec = Finding(), claim.spec
    if isinstance(spec, CurveClaim):
        _curve_claim(claim, spec, results, finding)
    elif isinstance(spec, ScoreDifference):
        _score_claim(claim, spec, results, finding)
    finding.usable = finding.usable and results.original(finding.usable)
    if finding.seeds is not None and 0 < finding.seeds < MIN_SEEDS:
        finding.obstacles.append(f"{finding.seeds} seed{'s' * (finding.seeds > 1)}, and a verdict takes {MIN_SEEDS}")
    return finding.decide(*spec.bounds, spec.smallest)


def correct_primary(claims: Sequence[Claim], findings: Sequence[Finding]) -> None:
    """Holm's correction over two-sided sign tests of the primary claims: seeds above against seeds below the threshold.

    A verdict stays only if the corrected p is below 0.05. A primary claim that has no verdict yet counts, with p = 1.
    """
    primary = [finding for claim, finding in zip(claims, findings, strict=True) if claim.spec.primary]
    p = []
    for finding in primary:
        low, high = finding.claimed
        differences = np.array([*finding.by_seed]) - (low if math.isfinite(low) else high)
        differences = differences[differences != 0]
        judged = finding.verdict != "inconclusive" and len(differences)
        p.append(binomtest(int((differences > 0).sum()), len(differences)).pvalue if judged else 1.0)
    for corrected, finding in zip(holm(np.array(p)), primary, strict=True):
        if finding.verdict != "inconclusive":
            finding.reason += f"; p = {corrected:.2g} after Holm's correction over {len(primary)} primary outcomes"
            if corrected >= 1 - LEVEL:
                finding.verdict = "inconclusive"


# Curves


def _curve_claim(claim: Claim, spec: CurveClaim, results: Results, finding: Finding) -> None:
    curves = _curves(claim, spec, results, finding)
    if not finding.seeds:
        return
    weights = _trend(claim, results, finding) if isinstance(spec, SweepTrend) else claim.weights
    values = np.zeros(finding.seeds)
    for method, weight in weights.items():
        values += weight * np.array([_statistic(spec, rows) for rows in curves[spec.model, method]])
        if not np.isfinite(values).all():
            steps = min(map(len, curves[spec.model, method]))
            takes = _least_steps(spec.statistic)
            few = f" ({steps}, and it takes {takes})" if steps < takes else ""
            finding.obstacles.append(f"the {spec.statistic} of {method} is undefined on these steps{few}")
            return
    if weights:
        finding.interval, finding.by_seed = seed_interval(values), values


def _trend(claim: Claim, results: Results, finding: Finding) -> dict[str, float]:
    """Weights such that the weighted sum over methods is the least-squares slope over the log of their parameter.

    Parameter values with which no step of any seed drops a token are left out, as they are just the baseline.
    """
    if finding.missing or finding.obstacles:
        return {}
    fractions = {run: results.metrics(run, ["clip_fraction"])["clip_fraction"] for run in claim.all_runs()}
    dropping = {run.method for run, fraction in fractions.items() if fraction.any()}
    methods = [method for method in claim.runs if method in dropping]
    if without := [method for method in claim.runs if method not in dropping]:
        finding.notes.append(f"without {', '.join(without)}, which drops no token")
    if len(methods) < MIN_VALUES:
        finding.obstacles.append(f"{len(methods)} values that drop tokens make no trend")
        return {}
    x = np.log([swept_value(method) for method in methods])
    x -= x.mean()
    return dict(zip(methods, x / (x @ x), strict=True))


def _curves(claim: Claim, spec: CurveClaim, results: Results, finding: Finding) -> dict[Arm, list[np.ndarray]]:
    """[steps, columns] for each usable seed of each arm, in the claim's window of the steps that all of them have."""
    frames: dict[Arm, dict[int, pd.DataFrame]] = {(spec.model, method): {} for method in claim.seeds_by_method}
    for run in claim.all_runs():
        frame = finding.read(results, run.metrics_file(results.root), partial(_curve, spec, results, run))
        if frame is not None:
            frames[run.model, run.method][run.seed] = frame
    finding.usable = shared_seeds(frames)
    paired = {arm: [of[seed][spec.columns].to_numpy(float) for seed in finding.usable] for arm, of in frames.items()}
    lengths = {len(rows) for seeds in paired.values() for rows in seeds}
    shortest = min(lengths, default=0)
    if len(lengths) > 1:
        finding.notes.append(f"compared on the first {shortest} steps, where the shortest run ends")
    first = {"all": 0, "second_half": shortest // 2, "last_tenth": shortest - max(1, shortest // 10)}[spec.window]
    windows = {arm: [rows[first:shortest] for rows in seeds] for arm, seeds in paired.items()}
    return {arm: [rows[np.isfinite(rows).all(axis=1)] for rows in seeds] for arm, seeds in windows.items()}


def _curve(spec: CurveClaim, results: Results, run: Run) -> pd.DataFrame:
    """The curve of a run. Raises UserError if its file is damaged or it diverged."""
    frame = results.metrics(run, ["entropy", *spec.columns])
    for name in frame.columns.difference(["step", *SPARSE]):
        bad = ~np.isfinite(frame[name].to_numpy(float))
        if bad.any():
            step = frame["step"].to_numpy()[bad][0]
            raise UserError(f"{run.method} seed {run.seed} diverged: {name} is not finite from step {step} on")
    return frame


def _least_steps(statistic: str) -> int:
    return MIN_STEPS if statistic.startswith(("correlation", "same_sign")) else 1 + statistic.endswith("_sd")


def _statistic(spec: CurveClaim, rows: np.ndarray) -> float:
    """The statistic of a [steps, columns] array; NaN if undefined."""
    name = spec.statistic
    if len(rows) < _least_steps(name):
        return float("nan")
    means, tenth = rows.mean(axis=0), max(1, len(rows) // 10)
    with np.errstate(divide="ignore", invalid="ignore"):
        match name:
            case "mean":
                return float(means[0])
            case "log_mean":
                return float(np.log(means[0]))
            case "log_sd" | "log_relative_sd":
                values = rows[:, 0] if name == "log_sd" else np.log(rows[:, 0])
                return float(np.log(values.std(ddof=1)))
            case "same_sign":
                falls = rows < 0
                p, q = falls.mean(axis=0)
                return float((falls[:, 0] == falls[:, 1]).mean() - (p * q + (1 - p) * (1 - q)))
            case "drop":
                return float(1 - rows[-tenth:, 0].mean() / rows[:tenth, 0].mean())
            case "steps_to" | "sum_to":
                reached = np.flatnonzero(np.convolve(rows[:, 0], np.full(tenth, 1 / tenth), "valid") >= spec.target)
                steps = reached[0] + tenth if len(reached) else 0
                return float(steps if name == "steps_to" else rows[:steps, 1].sum()) if steps else float("nan")
            case "ratio":
                return float(means[0] / means[1])
            case "relative_error":
                return float(np.abs(rows[:, 0] - rows[:, 1]).mean() / np.abs(rows[:, 1]).mean())
            case "size_difference":
                return float(abs(means[0]) - abs(means[1]))
            case "ratio_difference":
                return float(means[0] / means[1] - means[2] / means[3])
        with_first = np.corrcoef(rows.T)[0]
        return float(with_first[1] - with_first[2] if name == "correlation_difference" else with_first[1])


# Scores


def _score_claim(claim: Claim, spec: ScoreDifference, results: Results, finding: Finding) -> None:
    temperatures, chosen = claim.temperatures, spec.temperature not in (None, "greedy")
    if not temperatures:
        finding.obstacles.append("this scale has no evaluations at temperature 0")
    elif chosen and len(temperatures) < 2:
        finding.obstacles.append(f"this scale has evaluations at temperature {temperatures[0]:g} alone")
    if finding.obstacles:
        return
    counts = {at: _samples(claim, at, results, finding) for at in temperatures}
    if chosen and (finding.obstacles or finding.missing):
        return
    match spec.temperature:
        case "matched_pass":
            _matched_pass(claim, spec, counts, finding)
        case "matched_avg" | "best_point":
            _best_points(claim, spec, counts, finding)
        case "envelope":
            _left(claim, spec, counts, finding)
        case "best":
            _score_difference(claim, spec, _at_best(claim, spec, counts, finding), finding)
        case _:
            _score_difference(claim, spec, counts[temperatures[0]], finding)


def _samples(claim: Claim, temperature: float, results: Results, finding: Finding) -> Evaluated:
    """The counts at a temperature; those of the untrained models are at the temperature of the tables."""
    usable: Evaluated = {}
    expected: dict[Any, Any] = {}
    for run in claim.all_runs():
        at = results.config.evaluation.temperature if run.method == BASE else temperature
        if at not in claim.temperatures_of(run):
            continue
        seeds = usable.setdefault((run.model, run.method), {})
        values = {}
        for dataset in claim.evaluations:
            path = results.evaluation_file(run, dataset, at)
            samples = finding.read(results, path, partial(results.samples, run, dataset, at))
            if samples is None:
                break
            facts = {dataset: samples.ids, (dataset, at): samples.k}
            if any(expected.setdefault(what, fact) != fact for what, fact in facts.items()):
                name = path.relative_to(results.root)
                finding.obstacles.append(f"{name} has other problems or another K than the rest")
                break
            values[dataset] = samples
        else:
            seeds[run.seed] = values
    return usable


def _score_difference(claim: Claim, spec: ScoreDifference, samples: Evaluated, finding: Finding) -> None:
    finding.usable = shared_seeds({arm: samples[arm] for arm in product(spec.models, claim.seeds_by_method)})
    if not finding.seeds or not all(samples.values()):
        return
    parts = [(spec.models, spec.datasets)]
    if spec.everywhere:
        parts = [([model], {dataset: 1.0}) for model, dataset in product(spec.models, spec.datasets)]
    cells = []
    for models, datasets in parts:
        arms = {(model, method): weight / len(models) for model in models for method, weight in claim.weights.items()}
        finding.measure(score_columns(samples, arms, spec.metric, datasets, spec.problems))
        cells.append((finding.interval, finding.by_seed))
    if spec.everywhere:
        _, finding.by_seed = min(cells, key=lambda cell: cell[0].value)
        judge_cells(finding, [interval for interval, _ in cells], spec)


def judge_cells(finding: Finding, cells: Sequence[Interval], spec: ScoreDifference) -> None:
    """Set the smallest of the effects on models and data sets, and note in how many the estimate is as claimed."""
    finding.interval = smallest_effect(cells)
    low, high = spec.bounds
    true = sum(low < cell.value < high for cell in cells)
    finding.notes.append(f"the estimates of {true} of {len(cells)} are as claimed")


def _at_best(claim: Claim, spec: ScoreDifference, counts: Mapping[float, Evaluated], finding: Finding) -> Evaluated:
    """The counts of each arm at its best temperature on the validation set."""
    held_out, best = claim.config.training.validation_set, {}
    for arm in product(spec.models, claim.seeds_by_method):
        validation = {at: [seed[held_out] for seed in samples[arm].values()] for at, samples in counts.items()}
        best[arm] = best_point(spec.metric, validation)
    finding.notes += [f"{method} at {at:g}" for (_, method), at in best.items()]
    if not any(best.values()):
        finding.notes.append("greedy decoding, about which there is a claim of its own")
    usual = counts[claim.config.evaluation.temperature]  # also holds the untrained models
    return usual | {arm: counts[at][arm] for arm, at in best.items()}


def _matched_pass(claim: Claim, spec: ScoreDifference, counts: Mapping[float, Evaluated], finding: Finding) -> None:
    """Difference between the methods per seed, with the method of `against` interpolated to the other's Pass@K."""
    (method,), (other,), [model] = claim.runs, claim.against, spec.models
    policies = counts[claim.config.evaluation.temperature][model, method]
    frontier = [samples[model, other] for at, samples in counts.items() if at > 0]  # greedy has one sample
    finding.usable = sorted(set(policies).intersection(*frontier))
    pairs = [(policies[seed], [at[seed] for at in frontier]) for seed in finding.usable]
    seeds = [matched_pass(*pair, spec.datasets) for pair in pairs]
    above = sum(not reached(*pair, spec.datasets) for pair in pairs)
    outside = sum(bool(np.isnan(next(iter(seed.values()))).any()) for seed in seeds)
    for count, obstacle in (
        (above, f"{other} does not reach the Pass@K of {method} at any temperature"),
        (outside - above, f"the Pass@K of {method} is below the frontier of {other}"),
    ):
        finding.obstacles += [f"{obstacle} in {count} of {len(seeds)} seeds"] if count else []
    if seeds and not finding.obstacles:
        weights = spec.datasets.items()
        finding.measure([weight * np.stack([seed[dataset] for seed in seeds]) for dataset, weight in weights])


def _best_points(claim: Claim, spec: ScoreDifference, counts: Mapping[float, Evaluated], finding: Finding) -> None:
    """Difference between two sides, each at a method and a temperature chosen on the validation set."""
    [model], held_out, least = spec.models, claim.config.training.validation_set, 0.0
    matched = spec.temperature == "matched_avg"
    arms: Evaluated = {}
    for side, methods in (("runs", claim.runs), ("against", claim.against)):
        read = [(method, at) for method in methods for at in counts if (model, method) in counts[at]]
        points = {(method, at): counts[at][model, method] for method, at in read}
        validation = {point: [seed[held_out] for seed in seeds.values()] for point, seeds in points.items()}
        if matched and side == "runs":
            chosen = (next(iter(methods)), claim.config.evaluation.temperature)
            least = mean_score("avg", validation[chosen])
        else:
            chosen = best_point("pass" if matched else spec.metric, validation, least)
            if mean_score("avg", validation[chosen]) < least:
                finding.notes.append("no point has that Avg@K on the validation set, the nearest is compared")
        finding.notes.append(f"{chosen[0]} at {chosen[1]:g}")
        arms[model, side] = points[chosen]
    finding.usable = shared_seeds(arms)
    if finding.seeds:
        signs = {(model, "runs"): 1.0, (model, "against"): -1.0}
        finding.measure(score_columns(arms, signs, spec.metric, spec.datasets))


def _left(claim: Claim, spec: ScoreDifference, counts: Mapping[float, Evaluated], finding: Finding) -> None:
    """What is left at equal Avg@K over the envelope of the points of `against`."""
    usual = counts[claim.config.evaluation.temperature]
    own = {model: [usual[model, method] for method in claim.runs] for model in spec.models}
    named = {f"{method} at {at:g}": (at, method) for method in claim.against for at in counts}
    others = {model: [[counts[at][model, method]] for at, method in named.values()] for model in spec.models}
    every = [seeds for model in spec.models for point in (own[model], *others[model]) for seeds in point]
    finding.usable = sorted(set.intersection(*map(set, every)))
    if not finding.seeds:
        return
    models = [point_columns([own[model], *others[model]], spec.datasets, finding.usable) for model in spec.models]
    finding.interval = found = left(models)
    finding.notes += [f"over {mixed(mixture, list(named))}" for mixture in found.mixtures]
    if math.isnan(found.value):
        finding.obstacles.append("no point that it is compared with has that Avg@K")
    if found.spare:
        at_most = f"at most, as all points have more Avg@K, by {found.spare:.1f}"
        (finding.obstacles if spec.above is not None else finding.notes).append(at_most)
