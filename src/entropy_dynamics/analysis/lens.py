"""The share of GRPO's push on the entropy that each method keeps, drops or amplifies in each quadrant."""

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.columns import KEPT, PARTS
from entropy_dynamics.analysis.experiments import Experiment, Run
from entropy_dynamics.analysis.run_data import Results, final_means
from entropy_dynamics.analysis.specs import LensSpec


def lens_frame(experiment: Experiment[LensSpec], results: Results) -> pd.DataFrame:
    """One row per method: the share of each quadrant's push that it keeps, summed over steps, and its final entropy."""
    (model,) = experiment.models
    runs = {method: experiment.of(model, method) for method in experiment.methods(model)}
    return results.identified(pd.DataFrame(_row(results, *of_method) for of_method in runs.items()), model)


def _row(results: Results, method: str, runs: list[Run]) -> dict[str, object]:
    """Means over the seeds. A share is kept / total, each summed over the steps of a run; NaN if the total is 0."""
    seeds = [results.metrics(run, ["entropy", *PARTS, *KEPT]) for run in runs]
    row: dict[str, object] = {"method": method, "label": results.method_label(method), "seeds": len(seeds)}
    for part in PARTS:
        totals = np.array([seed[part].sum() for seed in seeds])
        kept = np.array([seed[f"{part}_kept"].sum() for seed in seeds])
        row[f"{part}_mean"] = np.mean([seed[part].mean() for seed in seeds])
        row[f"{part}_share"] = np.mean(np.divide(kept, totals, out=np.full_like(kept, np.nan), where=totals != 0))
    last = final_means(seed["entropy"].to_numpy() for seed in seeds)
    low, high = (last.min(), last.max()) if len(seeds) > 1 else (np.nan, np.nan)
    return row | {"final_entropy": last.mean(), "final_entropy_low": low, "final_entropy_high": high}
