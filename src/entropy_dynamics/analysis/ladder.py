"""Effects of model size: scores, entropy and gains over the number of parameters, and predictions from small models."""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from entropy_dynamics.analysis.problem_scores import paired, score_columns
from entropy_dynamics.analysis.run_data import Arm, Results
from entropy_dynamics.analysis.statistics import mean_interval, score_interval, seed_interval
from entropy_dynamics.analysis.sweeps import ends_of, frontier_gain
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import LadderSpec

SCORES: Mapping[str, tuple[Any, float | None]] = {"avg": ("avg", None), "pass": ("pass", None), "greedy": ("avg", 0.0)}
"""Column -> metric and temperature of the evaluation (None: that of the tables)."""
LAW = ["entropy", "validation_accuracy"]
PER_DECADE = "per decade"

Sizes = Float[np.ndarray, " model"]


def ladder_frame(experiment: Experiment[LadderSpec], results: Results) -> pd.DataFrame:
    """One row per model and method, the smallest model first, and one per method for the slopes over size.

    - `scale`: that of the results; the rows of `LadderSpec.beyond` come last.
    - `avg`, `pass`, `greedy` (Avg@K, Pass@K, greedy accuracy, %) and `entropy` (mean over the last tenth of the steps,
      nats): means over seeds with `_low` and `_high`.
    - `<name>_gain` of these and of `matched` (Avg@K minus the baseline's frontier at the method's Pass@K): medians over
      seeds of the difference from the baseline with `_low` and `_high`; in the rows PER_DECADE the least-squares slope
      over log10 of the parameters.
    - `accuracy`: on the validation set, %.
    - `<score>_predicted`, `accuracy_predicted`: by `saturating` and `entropy_law`, fitted to the `fitted` models.
    """
    sizes = {model: results.model(model).parameters for model in experiment.models}
    models = sorted(sizes, key=lambda model: sizes[model])
    methods, baseline = experiment.methods(models[0]), experiment.spec.baseline
    fitted = experiment.spec.fitted
    rows: list[dict[str, Any]] = []
    for method in methods:
        laws = {}
        for model in models:  # [step, seed, entropy and accuracy] at the steps with a validation of every seed
            curves = [results.metrics(run, LAW).set_index("step").dropna() for run in experiment.of(model, method)]
            laws[model] = pd.concat(curves, axis=1, join="inner").to_numpy().reshape(-1, len(curves), len(LAW))
        validated = all(map(len, laws.values()))
        law = entropy_law({sizes[model]: laws[model] for model in fitted}) if fitted and validated else None
        for model in models:
            row = {"scale": results.scale, "model": model, "parameters": sizes[model], "method": method}
            row["seeds"] = len(experiment.of(model, method))
            for name, (metric, at) in SCORES.items():
                samples = results.counts(experiment, model, at)
                columns = score_columns(samples, {(model, method): 1}, metric, experiment.dataset_weights)
                row |= score_interval(columns, mean_interval).times(100).columns(name)
            ends = ends_of([(model, method)], experiment, results)[model, method]
            row |= mean_interval(np.concatenate(list(ends.values()))).columns("entropy")
            row["accuracy"] = 100 * laws[model][-1, :, 1].mean() if validated else np.nan
            if law:
                row["accuracy_predicted"] = 100 * law(sizes[model], laws[model][-1, :, 0])
            if method != baseline:
                row |= _gains({model: 1.0}, method, experiment, results)
            rows.append(row)
    frame = pd.DataFrame(rows)
    for score, method in product(SCORES if fitted else (), methods):
        chosen = frame["method"] == method
        known = frame.loc[chosen & frame["model"].isin(fitted), ["parameters", score]]
        frame.loc[chosen, f"{score}_predicted"] = saturating(*known.to_numpy().T)(frame.loc[chosen, "parameters"])
    parts = [frame]
    if len(models) > 1:
        x = np.log10([sizes[model] for model in models])
        slope = dict(zip(models, (x - x.mean()) / ((x - x.mean()) ** 2).sum(), strict=True))
        about = {"scale": results.scale, "model": PER_DECADE}
        compared = [method for method in methods if method != baseline]
        parts.append(pd.DataFrame([about | {"method": of} | _gains(slope, of, experiment, results) for of in compared]))
    if (larger := results.beyond(experiment)) is not None:
        parts.append(ladder_frame(*larger))
    return pd.concat(parts, ignore_index=True)


def saturating(sizes: Sizes, scores: Sizes) -> Callable[[Sizes], Sizes]:
    """The curve s = s_max N / (N + N_half), fitted to scores at sizes N by least squares: 1/s is linear in 1/N."""
    rise, start = np.polyfit(1 / sizes, 1 / scores, 1)
    return lambda sizes: 1 / (start + rise / sizes)


def entropy_law(
    points: Mapping[int, Float[np.ndarray, "step seed 2"]],
) -> Callable[[int, Float[np.ndarray, " seed"]], float]:
    """R = -a exp(H) + b, with a and b linear in log N (arXiv 2505.22617): the mean R at a size's entropies H, nats.

    Args:
        points: size N -> entropy H (nats) and accuracy R at training steps, to which a and b are fitted.
    """
    fits = [np.polyfit(np.exp(of_size[..., 0]).ravel(), of_size[..., 1].ravel(), 1) for of_size in points.values()]
    lines = np.polyfit(np.log(list(points)), np.array(fits), 1)  # [slope or intercept, -a or b]

    def predicted(size: int, entropies: Float[np.ndarray, " seed"]) -> float:
        minus_a, b = lines[0] * np.log(size) + lines[1]
        return float((minus_a * np.exp(entropies) + b).mean())

    return predicted


def _gains(
    of_model: Mapping[str, float], method: str, experiment: Experiment[LadderSpec], results: Results
) -> dict[str, float]:
    """Intervals of a method's differences from the baseline, summed over models with weights."""
    weights: dict[Arm, float] = {}
    for model, weight in of_model.items():
        weights |= {(model, method): weight, (model, experiment.spec.baseline): -weight}
    gains = {}
    for name, (metric, at) in SCORES.items():
        columns = score_columns(results.counts(experiment, at=at), weights, metric, experiment.dataset_weights)
        gains[name] = score_interval(columns).times(100)
    matched = [
        [weight * column for column in frontier_gain(model, method, experiment, results)]
        for model, weight in of_model.items()
    ]
    gains["matched"] = score_interval([np.sum(columns, axis=0) for columns in zip(*matched, strict=True)]).times(100)
    gains["entropy"] = seed_interval(paired(ends_of(weights, experiment, results), weights)[..., 0])
    return {column: end for name, gain in gains.items() for column, end in gain.columns(f"{name}_gain").items()}
