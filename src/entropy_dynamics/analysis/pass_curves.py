"""Pass@k as a function of k, from a single sample to all of them."""

from itertools import product

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.problem_scores import paired, pass_curve, with_seeds
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.specs import PassSpec
from entropy_dynamics.analysis.statistics import Interval, share_interval, simultaneous


def pass_frame(experiment: Experiment[PassSpec], results: Results) -> pd.DataFrame:
    """One row per model, data set, method and k = 1, 2, 4, ... K and K: Pass@k in percent, with its interval.

    `difference` is the median over seeds of the difference from the baseline in points, `_low` and `_high` a band over
    all k from 1 to K (`simultaneous`), and `loses_from` the first of these k at which the band is below 0, or NaN.
    """
    rows = []
    for model, dataset in product(experiment.models, experiment.evaluations):
        about = {"model": model, "model_that_ran": results.model(model).ran_with_size, "dataset": dataset}
        samples = results.paired_samples(experiment, model, dataset)
        curves = {
            (model, method): {
                run.seed: pass_curve(of_seed.correct, of_seed.k)
                for run, of_seed in zip(experiment.of(model, method), seeds, strict=True)
            }
            for method, seeds in samples.items()
        }
        for (_, method), by_seed in curves.items():
            scores, row = with_seeds(method, list(by_seed.values())), about | {"method": method}
            band, count = Interval(), len(next(iter(by_seed.values())))
            if method != experiment.spec.baseline and (model, experiment.spec.baseline) in curves:
                difference = paired(curves, {(model, method): 100.0, (model, experiment.spec.baseline): -100.0})
                band = simultaneous([np.moveaxis(difference, -2, 0)])
            below = np.flatnonzero(band.high < 0)
            for k in sorted({2**i for i in range(count.bit_length())} | {count}):
                ends = {end: np.broadcast_to(getattr(band, end), count)[k - 1] for end in ("value", "low", "high")}
                share = share_interval(scores[..., k - 1, :]).times(100)
                numbers = {"k": k, "value": share.value, "low": share.low, "high": share.high, "seeds": len(by_seed)}
                rows.append(row | numbers | Interval(**ends).columns("difference"))
                rows[-1]["loses_from"] = below[0] + 1 if len(below) else np.nan
    return pd.DataFrame(rows)
