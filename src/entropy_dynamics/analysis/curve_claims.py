"""Claims about training curves: a statistic of each seed, its differences between methods, its trend over a sweep."""

from functools import partial

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.curves import SPARSE
from entropy_dynamics.analysis.finding import Finding
from entropy_dynamics.analysis.problem_scores import shared_seeds
from entropy_dynamics.analysis.run_data import Arm, Results
from entropy_dynamics.analysis.statistics import ROUNDING, seed_interval
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.claim_specs import CurveClaim, SweepTrend
from entropy_dynamics.experiments.claims import Claim, swept_value
from entropy_dynamics.experiments.load import Run

MIN_STEPS = 8  # minimum for a correlation
MIN_VALUES = 3  # minimum for a trend over a sweep: two values only give a difference


def find_in_curves(claim: Claim, spec: CurveClaim, results: Results, finding: Finding) -> None:
    """Set the effect of a claim about curves, or what prevents it."""
    curves = _curves(claim, spec, results, finding)
    if not finding.seeds:
        return
    weights = _trend(claim, results, finding) if isinstance(spec, SweepTrend) else claim.weights
    values = np.zeros(finding.seeds)
    for method, weight in weights.items():
        values += weight * np.array([_statistic(spec, rows) for rows in curves[spec.model, method]])
        if not np.isfinite(values).all():
            steps, needed = min(map(len, curves[spec.model, method])), _least_steps(spec.statistic)
            few = f": it needs {needed} and has {steps}" if steps < needed else ""
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
                smoothed = np.convolve(rows[:, 0] + ROUNDING, np.full(tenth, 1 / tenth), "valid")
                reached = np.flatnonzero(smoothed >= spec.target)
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
