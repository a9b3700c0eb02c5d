"""Scores as functions of a method's strength, at matched entropy, and over the temperature of the evaluation."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from entropy_dynamics.analysis.problem_scores import paired, score_columns
from entropy_dynamics.analysis.run_data import Arm, Results, final_means
from entropy_dynamics.analysis.statistics import Interval, mean_interval, score_interval
from entropy_dynamics.analysis.temperatures import matched_pass, on_front
from entropy_dynamics.config import BASE, scale_names
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import METRICS, ComparedSpec, FrontierSpec, MatchedSpec, Metric, SweepsSpec

SCORES: tuple[Metric, ...] = ("avg", "pass", "pass_area")


def strength_frame(experiment: Experiment[SweepsSpec], results: Results) -> pd.DataFrame:
    """One row per model, method and value of its swept parameter (NaN for runs outside the sweeps).

    `run` is the full name of the run; `method` is the name of the swept method, or the full name outside the sweeps.
    Columns: `clip_fraction` (mean over all steps, percent), `entropy` (mean over the last tenth of the steps, nats),
    `avg`, `pass` and `pass_area` (mean over data sets, percent), the last four with `_low` and `_high`.
    """
    rows = []
    swept = {
        run: (sweep.method, sweep.parameter, value)
        for sweep in experiment.spec.sweeps
        for run, value in sweep.methods(scale_names(results.scale, results.configs)).items()
    }
    for model in experiment.models:
        samples = results.counts(experiment, model)
        for method in experiment.methods(model):
            name, parameter, value = swept.get(method, (method, "", np.nan))
            runs = experiment.of(model, method)
            row = results.about(model) | {"run": method, "method": name, "parameter": parameter}
            row |= {"value": float(value), "seeds": len(runs)}
            frames = [results.metrics(run, ("clip_fraction", "entropy")) for run in runs]
            row["clip_fraction"] = 100 * np.mean([frame["clip_fraction"].mean() for frame in frames])
            row |= mean_interval(final_means(frame["entropy"].to_numpy() for frame in frames)).columns("entropy")
            for metric in SCORES:
                columns = score_columns(samples, {(model, method): 1}, metric, experiment.dataset_weights)
                row |= score_interval(columns, mean_interval).times(100).columns(metric)
            rows.append(row)
    return pd.DataFrame(rows)


def ends_of(
    arms: Iterable[Arm], experiment: Experiment[Any], results: Results
) -> dict[Arm, dict[int, Float[np.ndarray, " 1"]]]:
    """The final entropy of each arm and seed, nats."""
    return {
        arm: {run.seed: final_means([results.metrics(run, ["entropy"])["entropy"]]) for run in experiment.of(*arm)}
        for arm in arms
    }


def matched_frame(experiment: Experiment[MatchedSpec], results: Results) -> pd.DataFrame:
    """The rows of `strength_frame`, one per method and strength, sorted by entropy within a method.

    - `avg_front`, `pass_front`: whether the row is on the Pareto front of entropy and score.
    - `avg_matched`, `pass_matched` with `_low` and `_high`: the score of the row's method at the reference's entropy
      minus the reference's score, in points; NaN for the reference method, and if no two strengths enclose its entropy.
    """
    frame = strength_frame(experiment, results).sort_values(["method", "entropy"], kind="stable")
    frame = frame.reset_index(drop=True)
    for metric in METRICS:
        frame[f"{metric}_front"] = on_front(frame["entropy"].to_numpy(), frame[metric].to_numpy())
        matched = {
            method: _matched(metric, rows, frame, experiment, results).columns(f"{metric}_matched")
            for method, rows in frame.groupby("method")
        }
        frame = frame.join(pd.DataFrame.from_dict(matched, orient="index").astype(float), on="method")
    return frame


def _matched(
    metric: Metric, rows: pd.DataFrame, frame: pd.DataFrame, experiment: Experiment[MatchedSpec], results: Results
) -> Interval:
    """The difference from the reference, interpolated between the two strengths whose entropies enclose its entropy.

    Each seed is corrected along that line for the deviation of its entropies from the means, whose spread thus counts.
    """
    (model,), reference = experiment.models, experiment.spec.reference
    entropies = rows["entropy"].to_numpy()  # ascending
    matched = float(frame.loc[frame["run"] == reference, "entropy"].iloc[0])
    if reference in set(rows["run"]) or len(rows) < 2 or not entropies[0] <= matched <= entropies[-1]:
        return Interval()
    above = max(1, int(np.searchsorted(entropies, matched)))
    pair = slice(above - 1, above + 1)
    (width,), (rise,) = np.diff(entropies[pair]), np.diff(rows[metric].to_numpy()[pair] / 100)
    share = (matched - entropies[above - 1]) / width
    weights = dict(zip([(model, run) for run in rows["run"].iloc[pair]], (1 - share, share), strict=True))
    weights[model, reference] = -1.0
    distance = rise / width * paired(ends_of(weights, experiment, results), weights) / len(experiment.evaluations)
    columns = score_columns(results.counts(experiment), weights, metric, experiment.dataset_weights)
    return score_interval([column - distance for column in columns]).times(100)


def frontier_frame(experiment: Experiment[FrontierSpec], results: Results) -> pd.DataFrame:
    """One row per model, method and temperature: `avg` and `pass` with `_low` and `_high`, means over data sets, %.

    At temperature 0 one sample is drawn: `avg` is the greedy accuracy and `pass` is NaN. `matched`, in the rows at the
    temperature of the tables, is the median over seeds of Avg@K minus the baseline's frontier at equal Pass@K, in
    percentage points; NaN if a seed's Pass@K is outside the frontier.
    """
    usual, rows = results.config.evaluation.temperature, []
    for model in experiment.models:
        for at in sorted({usual, *experiment.temperatures}):
            samples = results.counts(experiment, model, at)
            for method in experiment.methods(model):
                row = results.about(model) | {"method": method, "temperature": at}
                for metric in METRICS:
                    columns = score_columns(samples, {(model, method): 1}, metric, experiment.dataset_weights)
                    known = at != 0 or metric == "avg"
                    interval = score_interval(columns, mean_interval) if known else Interval()
                    row |= interval.times(100).columns(metric)
                if at == usual and method not in (BASE, experiment.spec.baseline):
                    gain = score_interval(frontier_gain(model, method, experiment, results))
                    row |= gain.times(100).columns("matched")
                rows.append(row | {"seeds": len(experiment.of(model, method))})
    return pd.DataFrame(rows)


def frontier_gain(
    model: str, method: str, experiment: Experiment[ComparedSpec], results: Results
) -> list[Float[np.ndarray, "seed problem"]]:
    """Avg@K minus the baseline's frontier at equal Pass@K, from -1 to 1: the columns of `score_interval`.

    NaN for a seed whose Pass@K is outside the frontier.
    """
    shares = experiment.dataset_weights
    warm = sorted({results.config.evaluation.temperature, *filter(None, experiment.temperatures)})
    policies = results.counts(experiment, model)[model, method]
    frontiers = [results.counts(experiment, model, at)[model, experiment.spec.baseline] for at in warm]
    shared = sorted(set(policies).intersection(*frontiers))
    seeds = [matched_pass(policies[seed], [of[seed] for of in frontiers], shares) for seed in shared]
    return [share * np.stack([seed[dataset] for seed in seeds]) for dataset, share in shares.items()]
