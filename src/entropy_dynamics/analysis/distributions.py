"""Problems by their pass rate: histograms, after training and of the base model, and Pass@k as a function of k."""

from itertools import product

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.problem_scores import paired, pass_curve, with_seeds
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.statistics import Interval, share_interval, simultaneous
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import ComparedSpec, DataFilter, DistributionSpec


def solved_frame(experiment: Experiment[DistributionSpec], results: Results) -> pd.DataFrame:
    """For each method, the share of problems (percent) with 0, 1, ... K correct samples, with intervals."""
    (model,), (dataset,), rows = experiment.models, experiment.evaluations, []
    for (_, method), by_seed in results.counts(experiment).items():
        correct = with_seeds(method, {seed: of[dataset].correct for seed, of in by_seed.items()})
        k = next(iter(by_seed.values()))[dataset].k
        for count in range(k + 1):
            share = share_interval((correct == count).astype(float)).times(100)
            row = results.about(model) | {"method": method, "correct": count, "samples": k, "rate": count / k}
            row |= {"share": share.value, "low": share.low, "high": share.high}
            rows.append(row | {"problems": correct.shape[-1], "seeds": len(by_seed)})
    return pd.DataFrame(rows)


def filter_frame(experiment: Experiment[DataFilter], results: Results) -> pd.DataFrame:
    """Numbers of kept and dropped training problems by an untrained model's correct samples; sampled problems only."""
    ((model, seed),) = experiment.untrained.items()
    rates = results.pass_rates(seed)
    samples = int(rates["samples"].max())
    sampled, correct = rates[rates["samples"] > 0], np.arange(samples + 1)
    kept, every = (np.bincount(rows["correct"], minlength=samples + 1) for rows in (sampled[sampled["kept"]], sampled))
    columns = {"model_that_ran": results.model(model).ran_with_size, "seed": seed, "correct": correct}
    columns |= {"samples": samples, "rate": correct / samples, "kept": kept, "dropped": every - kept}
    return pd.DataFrame(columns)


def pass_frame(experiment: Experiment[ComparedSpec], results: Results) -> pd.DataFrame:
    """One row per model, data set, method and k = 1, 2, 4, ... K and K: Pass@k in percent, with its interval.

    `difference` is the median over seeds of the difference from the baseline in points, `_low` and `_high` a band over
    all k from 1 to K (`simultaneous`), and `loses_from` the first of these k at which the band is below 0, or NaN.
    """
    rows = []
    counts = {model: results.counts(experiment, model) for model in experiment.models}
    for model, dataset in product(experiment.models, experiment.evaluations):
        curves = {
            arm: {seed: pass_curve(of[dataset].correct, of[dataset].k) for seed, of in by_seed.items()}
            for arm, by_seed in counts[model].items()
        }
        for (_, method), by_seed in curves.items():
            row = results.about(model) | {"dataset": dataset, "method": method}
            scores, count = with_seeds(method, by_seed), len(next(iter(by_seed.values())))
            band = Interval(*np.full((3, count), np.nan))
            if method != experiment.spec.baseline and (model, experiment.spec.baseline) in curves:
                differences = paired(curves, {(model, method): 100.0, (model, experiment.spec.baseline): -100.0})
                band = simultaneous([np.moveaxis(differences, -2, 0)])
            below = np.flatnonzero(band.high < 0)
            for k in sorted({2**i for i in range(count.bit_length())} | {count}):
                difference = Interval(band.value[k - 1], band.low[k - 1], band.high[k - 1])
                share = share_interval(scores[..., k - 1, :]).times(100)
                numbers = {"k": k, "value": share.value, "low": share.low, "high": share.high, "seeds": len(by_seed)}
                rows.append(row | numbers | difference.columns("difference"))
                rows[-1]["loses_from"] = below[0] + 1 if len(below) else np.nan
    return pd.DataFrame(rows)
