"""Pass@k as a function of k, from a single sample to all of them."""

import pandas as pd

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.problem_scores import pass_curve, with_seeds
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.analysis.specs import PassSpec
from entropy_dynamics.analysis.statistics import share_interval


def pass_frame(experiment: Experiment[PassSpec], results: Results) -> pd.DataFrame:
    """One row per model, data set, method and k = 1, 2, 4, ... K and K: Pass@k in percent, with its interval."""
    rows = []
    for model in experiment.models:
        about = {"model": model, "model_that_ran": results.model(model).ran_with_size}
        for dataset in experiment.evaluations:
            for method, seeds in results.paired_samples(experiment, model, dataset).items():
                curves, samples = [pass_curve(seed.correct, seed.k) for seed in seeds], seeds[0].k
                for k in sorted({2**i for i in range(samples.bit_length())} | {samples}):
                    share = share_interval(with_seeds(method, [curve[k - 1] for curve in curves])).times(100)
                    ends = {"value": share.value, "low": share.low, "high": share.high}
                    row = about | {"dataset": dataset, "method": method, "k": k}
                    rows.append(row | ends | {"seeds": len(seeds)})
    return pd.DataFrame(rows)
