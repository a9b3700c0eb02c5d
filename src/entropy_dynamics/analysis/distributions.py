"""Histograms of problems by pass rate, after training and of the base model."""

from typing import Any

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.problem_scores import with_seeds
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.specs import DataFilter, DistributionSpec
from entropy_dynamics.analysis.statistics import share_interval


def solved_frame(experiment: Experiment[DistributionSpec], results: Results) -> pd.DataFrame:
    """For each method, the share of problems (percent) with 0, 1, ... K correct samples, with intervals."""
    (model,), (dataset,) = experiment.models, experiment.evaluations
    frames = []
    for method, seeds in results.paired_samples(experiment, model, dataset).items():
        k, correct = seeds[0].k, np.stack([samples.correct for samples in seeds])  # [seeds, problems]
        shares = [share_interval(with_seeds(method, (correct == count).astype(float))) for count in range(k + 1)]
        columns = {"method": method, "correct": np.arange(k + 1), "samples": k, "rate": np.arange(k + 1) / k}
        for name, end in (("share", "value"), ("low", "low"), ("high", "high")):
            columns[name] = 100 * np.array([getattr(share, end) for share in shares])
        frames.append(pd.DataFrame(columns | {"problems": correct.shape[1], "seeds": len(seeds)}))
    return results.identified(pd.concat(frames, ignore_index=True), model)


def filter_frame(experiment: Experiment[DataFilter], results: Results) -> pd.DataFrame:
    """Numbers of kept and dropped training problems by an untrained model's correct samples; sampled problems only."""
    ((model, seed),) = experiment.untrained.items()
    rates = results.pass_rates(seed)
    samples = int(rates["samples"].max())
    sampled, correct = rates[rates["samples"] > 0], np.arange(samples + 1)
    kept, every = (np.bincount(rows["correct"], minlength=samples + 1) for rows in (sampled[sampled["kept"]], sampled))
    ran = results.model(model).ran_with_size
    columns: dict[str, Any] = {
        "model_that_ran": ran,
        "seed": seed,
        "correct": correct,
        "samples": samples,
        "rate": correct / samples,
    }
    return pd.DataFrame(columns | {"kept": kept, "dropped": every - kept})
