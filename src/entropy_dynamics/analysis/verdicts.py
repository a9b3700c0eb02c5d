"""The verdict on one claim: an effect, its 95 % interval, and on which side of the threshold the interval lies.

Three seeds are too few for a percentile bootstrap over them: where the seeds lie further apart than the samples of one
run, it covers about nine in ten instead of 95 %. So here what varies between seeds gets Student's t interval.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import Run
from entropy_dynamics.analysis.results import Results, Samples
from entropy_dynamics.analysis.statistics import DRAWS, LEVEL, ROUNDING
from entropy_dynamics.errors import UserError
from entropy_dynamics.reporting.claims import Claim
from entropy_dynamics.results.layout import Layout

MIN_STEPS = 8  # fewer make neither a correlation nor a block bootstrap
SPARSE = {"entropy_change", "validation_accuracy"}  # columns that are NaN by design on the steps between
# Two-sided 95 % quantiles of Student's t for 1, 2, ... 30 degrees of freedom; beyond, that of 30 is 4 % too wide.
# fmt: off
T_95 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)
# fmt: on


@dataclass(frozen=True)
class Finding:
    """What a claim's runs say. effect, low and high are None where there is none; seeds: usable ones of each method."""

    verdict: str
    effect: float | None
    low: float | None
    high: float | None
    reason: str
    seeds: dict[str, int] = field(default_factory=dict)


@dataclass
class _Measured:
    """An effect and its interval before the verdict, with what speaks against one and what a reader should know."""

    effect: float | None = None
    low: float | None = None
    high: float | None = None
    obstacles: list[str] = field(default_factory=list)  # any of them makes the verdict `cannot tell`
    missing: list[str] = field(default_factory=list)  # files, which do the same
    notes: list[str] = field(default_factory=list)
    seeds: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """One value for each usable seed of a method on a model, and its weight in the effect."""

    weight: float
    values: np.ndarray  # [seeds]


def judge(claim: Claim, source: Results) -> Finding:
    """The verdict on one claim from the files of one scale; files that are missing make it `cannot tell`."""
    measure = {
        "logit_steps": _logit_steps,
        "within_run": _one_method,
        "over_seeds": _one_method,
        "curve_difference": _curve_difference,
        "score_difference": _score_difference,
    }
    found = measure[claim.test](claim, source)
    effect, low, high = (_rounded(number) for number in (found.effect, found.low, found.high))
    if found.missing:
        more = f" and {len(found.missing) - 1} more files are" if len(found.missing) > 1 else " is"
        found.obstacles.insert(0, f"{found.missing[0]}{more} missing")
    if low is None and not found.obstacles:
        found.obstacles.append("no interval could be computed")
    if found.obstacles:
        verdict, reasons = "cannot tell", found.obstacles
    else:
        verdict, side = verdict_of(low, high, claim.low, claim.high)
        reasons = [side]
    return Finding(verdict, effect, low, high, "; ".join([*reasons, *found.notes]), found.seeds)


def _rounded(number: float | None) -> float | None:
    """Six digits: more would differ between machines. None for what is not finite."""
    return float(f"{number:.6g}") if number is not None and np.isfinite(number) else None


def verdict_of(low: float, high: float, from_: float | None, to: float | None) -> tuple[str, str]:
    """Where the interval [low, high] lies to the claimed range, open where a bound is None; and that in words."""
    if (from_ is None or low > from_) and (to is None or high < to):
        return "holds", "the whole interval is on the claimed side"
    if (from_ is not None and high < from_) or (to is not None and low > to):
        return "does not hold", "the whole interval is on the other side"
    return "cannot tell", "the interval includes the threshold"


def student_interval(
    groups: Sequence[Group], spread: Sequence[np.ndarray] = (), problems: Sequence[tuple[float, int]] = ()
) -> tuple[float, float, float] | None:
    """Sum of weight * mean over the groups with its 95 % interval, or None where no method has two seeds.

    The variance between seeds is pooled over the groups and over the methods of `spread`, which have no other part in
    it. `problems`: further variances of the effect with their degrees of freedom, added (Satterthwaite 1946).
    """
    effect = sum(group.weight * group.values.mean() for group in groups)
    pooled = [*(group.values for group in groups), *spread]
    df = sum(len(values) - 1 for values in pooled)
    if df == 0:
        return None
    between = sum(((values - values.mean()) ** 2).sum() for values in pooled) / df
    parts = [(between * sum(group.weight**2 / len(group.values) for group in groups), df), *problems]
    variance = sum(part for part, _ in parts)
    if variance > 0:
        df = variance**2 / sum(part**2 / own for part, own in parts)
    half = T_95[min(max(int(df + ROUNDING), 1), len(T_95)) - 1] * variance**0.5
    return effect, effect - half, effect + half


# Theorems: steps on single logits


def _logit_steps(claim: Claim, source: Results) -> _Measured:
    path = Layout(source.root).logit_steps
    if not path.is_file():
        return _Measured(missing=[str(path.relative_to(source.root))])
    try:
        frame = pd.read_parquet(path)
        frame = frame[frame["theorem"] == claim.theorem]
        if "step_size" in frame:  # the theorems are of first order: larger steps show their limit
            frame = frame[frame["step_size"] == frame["step_size"].min()]
        rows = frame[["predicted", "realised"]].to_numpy(float)
    except (OSError, ValueError, KeyError) as error:
        return _Measured(obstacles=[f"{path.relative_to(source.root)} is not readable: {' '.join(str(error).split())}"])
    if len(rows) < MIN_STEPS:
        return _Measured(obstacles=[f"{len(rows)} steps of Theorem {claim.theorem} in it, too few"])
    if not np.isfinite(rows).all():
        return _Measured(obstacles=["some predicted or realised changes are not finite"])
    low, high = _bootstrap(rows, lambda drawn: _statistic(claim.statistic, drawn), block=1)
    return _Measured(_statistic(claim.statistic, rows), low, high, notes=[f"{len(rows)} tokens"])


# Curves


def _one_method(claim: Claim, source: Results) -> _Measured:
    (method,) = claim.runs
    curves, found = _curves(claim, source)
    rows = curves[method]
    values = np.array([_statistic(claim.statistic, one) for one in rows])
    if not len(values):
        return found
    found.effect = float(values.mean())
    if not np.isfinite(values).all():
        found.obstacles.append(f"the {claim.statistic} is not defined on these steps ({min(map(len, rows))} of them)")
    elif len(values) > 1:
        found.effect, found.low, found.high = student_interval([Group(1.0, values)])
        _require_spread(found)
    elif claim.test == "over_seeds":
        found.obstacles.append("one seed: the spread between seeds is not known")
    elif len(rows[0]) < MIN_STEPS:
        found.obstacles.append(f"one seed, and {len(rows[0])} steps are too few for an interval within it")
    else:
        block = int(np.ceil(len(rows[0]) ** 0.5))
        found.low, found.high = _bootstrap(rows[0], lambda drawn: _statistic(claim.statistic, drawn), block)
        found.notes.append("one seed: the interval is over the steps of this run and says nothing of others")
        _require_spread(found)
    if claim.statistic == "correlation" and found.low is not None:
        found.low, found.high = max(found.low, -1.0), min(found.high, 1.0)
    return found


def _curve_difference(claim: Claim, source: Results) -> _Measured:
    curves, found = _curves(claim, source)
    values = {m: np.array([_statistic(claim.statistic, rows) for rows in curves[m]]) for m in curves}
    values = {method: one[np.isfinite(one)] for method, one in values.items()}
    lacking = [method for method in (*claim.runs, *claim.against) if not len(values[method])]
    if lacking:
        if found.seeds[lacking[0]]:
            found.obstacles.append(f"the {claim.statistic} of {lacking[0]} is not defined on these steps")
        return found
    groups = [
        Group(sign / len(part), values[method])
        for sign, part in ((1, claim.runs), (-1, claim.against))
        for method in part
    ]
    _set_difference(found, groups, [values[method] for method in claim.spread if len(values[method])])
    return found


def _curves(claim: Claim, source: Results) -> tuple[dict[str, list[np.ndarray]], _Measured]:
    """[steps, columns] of each usable seed of each method, in the claim's window of the steps that all of them have."""
    found = _Measured()
    frames: dict[str, list[pd.DataFrame]] = {run.method: [] for run in claim.all_runs()}
    for run in claim.all_runs():
        path = run.metrics_file(source.root)
        try:
            if path.is_file():
                frames[run.method].append(_curve(claim, source, run))
            elif run.method not in claim.spread:  # a spread can do with the seeds it has
                found.missing.append(str(path.relative_to(source.root)))
        except UserError as error:
            if run.method not in claim.spread:
                found.obstacles.append(str(error))
    lengths = {len(frame) for seeds in frames.values() for frame in seeds}
    shortest = min(lengths, default=0)
    if len(lengths) > 1:
        found.notes.append(f"compared on the first {shortest} steps, where the shortest run ends")
    first = {"all": 0, "second_half": shortest // 2, "last_tenth": shortest - max(1, shortest // 10)}[claim.window]
    found.seeds = {method: len(seeds) for method, seeds in frames.items()}
    columns = list(claim.columns)
    curves = {}
    for method, seeds in frames.items():
        windows = [frame[columns].to_numpy(float)[first:shortest] for frame in seeds]
        curves[method] = [rows[np.isfinite(rows).all(axis=1)] for rows in windows]
    return curves, found


def _curve(claim: Claim, source: Results, run: Run) -> pd.DataFrame:
    """One run's curve. Raises UserError, short enough for a reason, where it is broken or diverged."""
    frame = source.metrics(run, dict.fromkeys(["entropy", *claim.columns]))
    for name in frame.columns.difference(["step", *SPARSE]):
        bad = ~np.isfinite(frame[name].to_numpy(float))
        if bad.any():
            step = frame["step"].to_numpy()[bad][0]
            raise UserError(f"{run.method} seed {run.seed} diverged: {name} is not finite from step {step} on")
    return frame


def _statistic(name: str, rows: np.ndarray) -> float:
    """A number from [steps, columns]; NaN where it is not defined."""
    with np.errstate(divide="ignore", invalid="ignore"):
        if not len(rows):
            return float("nan")
        if name == "mean":
            return float(rows[:, 0].mean())
        if name == "ratio":
            return float(rows[:, 0].mean() / rows[:, 1].mean())
        if name == "variation":
            return float(rows[:, 0].std() / rows[:, 0].mean())
        if name == "drop":
            tenth = max(1, len(rows) // 10)
            return float(1 - rows[-tenth:, 0].mean() / rows[:tenth, 0].mean())
        if name == "slope":
            return float(rows[:, 0] @ rows[:, 1] / (rows[:, 0] @ rows[:, 0]))
        return float(np.corrcoef(rows.T)[0, 1]) if len(rows) >= MIN_STEPS else float("nan")


def _bootstrap(rows: np.ndarray, statistic: Callable[[np.ndarray], float], block: int) -> tuple[float, float]:
    """Percentile interval of a statistic of [n, ...]; blocks of neighbours stay together, round the end (circular)."""
    n = len(rows)
    rng = np.random.default_rng(0)
    blocks = -(-n // block)
    drawn = np.empty(DRAWS)
    for i in range(DRAWS):
        starts = rng.integers(0, n, blocks)
        drawn[i] = statistic(rows[((starts[:, None] + np.arange(block)) % n).ravel()[:n]])
    tail = (1 - LEVEL) / 2
    low, high = np.quantile(drawn, [tail, 1 - tail])
    return float(low), float(high)


# Scores


def _score_difference(claim: Claim, source: Results) -> _Measured:
    found = _Measured()
    scores = _scores(claim, source, found)
    methods = (*claim.runs, *claim.against)
    counts = {m: [len(scores[model, m]) for model in claim.models] for m in methods}
    found.seeds = {method: min(count) for method, count in counts.items()}
    if not all(min(count) for count in counts.values()):
        return found
    weights = {m: 1 / len(claim.runs) / len(claim.models) for m in claim.runs}
    weights |= {m: -1 / len(claim.against) / len(claim.models) for m in claim.against}
    groups = []
    by_problem = dict.fromkeys(claim.evaluations, 0.0)  # each problem's difference, [problems]
    for (_, method), seeds in scores.items():
        means = [np.mean([values.mean() for values in seed.values()]) for seed in seeds]
        groups.append(Group(weights[method], np.array(means)))
        for dataset in claim.evaluations:
            by_problem[dataset] += weights[method] * np.mean([seed[dataset] for seed in seeds], axis=0)
    # The data sets count alike, so the variance of each one's mean counts by the square of its share.
    problems = [
        (float(one.var(ddof=1)) / len(one) / len(by_problem) ** 2, len(one) - 1)
        for one in by_problem.values()
        if len(one) > 1
    ]
    _set_difference(found, groups, [], problems)
    return found


def _scores(claim: Claim, source: Results, found: _Measured) -> dict[tuple[str, str], list[dict[str, np.ndarray]]]:
    """(model, method) -> for each usable seed {data set: points of each problem}; all on the same problems."""
    scores: dict[tuple[str, str], list[dict[str, np.ndarray]]] = {}
    expected: dict[str, tuple] = {}
    for run in claim.all_runs():
        seeds = scores.setdefault((run.model, run.method), [])
        values = {}
        for dataset in claim.evaluations:
            path = run.evaluation_file(source.root, dataset).relative_to(source.root)
            if not (source.root / path).is_file():
                found.missing.append(str(path))
                break
            try:
                samples = source.samples(run, dataset)
            except UserError as error:
                found.obstacles.append(str(error))
                break
            if expected.setdefault(dataset, (samples.problems, samples.k)) != (samples.problems, samples.k):
                found.obstacles.append(f"{path} has other problems or another K than the rest")
                break
            values[dataset] = 100 * _problem_scores(claim.metric, samples)
        else:
            seeds.append(values)
    return scores


def _problem_scores(metric: str, samples: Samples) -> np.ndarray:
    """[problems], in [-1, 1]."""
    if metric == "avg":
        return samples.pass_rates
    if metric == "extremes":
        return np.isin(samples.right, (0, samples.k)).astype(float)
    return samples.solved if metric == "pass" else samples.solved - samples.pass_rates


def _set_difference(
    found: _Measured, groups: list[Group], spread: list[np.ndarray], problems: Sequence[tuple[float, int]] = ()
) -> None:
    found.effect = float(sum(group.weight * group.values.mean() for group in groups))
    interval = student_interval(groups, spread, problems)
    if interval is None:
        found.obstacles.append("one seed of each method: the spread between seeds is not known")
        return
    _, found.low, found.high = interval
    single = [method for method, seeds in found.seeds.items() if seeds == 1]
    if single:
        found.notes.append(f"one seed of {', '.join(single)}, taken to scatter as the others do")
    _require_spread(found)


def _require_spread(found: _Measured) -> None:
    """An interval without any width comes from runs that are copies of each other, and is no certainty."""
    if found.low is not None and found.high - found.low < ROUNDING * max(1.0, abs(found.effect)):
        found.low = found.high = None
        found.obstacles.append("the runs do not differ at all, so there is no spread to judge by")
