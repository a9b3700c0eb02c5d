"""Tables of scores: ours with an interval, the difference to the baseline, the paper's value."""

from dataclasses import dataclass

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import Experiment, ScoresSpec
from entropy_dynamics.analysis.results import Results, Samples
from entropy_dynamics.analysis.statistics import Interval, bootstrap_interval, paired_difference


@dataclass(frozen=True)
class Cell:
    """One score, in [0, 1]; the paper's in per cent."""

    score: Interval
    difference: Interval | None
    """To the baseline, on the same problems."""
    paper: float | None
    paper_difference: float | None


@dataclass(frozen=True)
class Row:
    """One method on one model."""

    model: str
    ran: str
    """What ran under the model's name."""
    method: str
    label: str
    seeds: int
    cells: dict[tuple[str, str], Cell]
    """(data set, metric): cell."""
    unreadable: dict[str, float]
    """Data set: share of samples without an answer in the required format."""
    truncated: dict[str, float]
    """Data set: share of samples cut off at the token limit."""
    sizes: dict[str, tuple[int, int]]
    """Data set: (problems, samples per problem)."""


def score_rows(experiment: Experiment[ScoresSpec], results: Results) -> list[Row]:
    """One row per model and method, in the order of the experiment."""
    rows = []
    for model in experiment.models:
        samples = {dataset: results.paired_samples(experiment, model, dataset) for dataset in experiment.evaluations}
        for method in experiment.methods(model):
            own = {dataset: samples[dataset][method] for dataset in experiment.evaluations}
            rows.append(
                Row(
                    model=model,
                    ran=results.model(model).ran_with_size,
                    method=method,
                    label=results.method_label(method),
                    seeds=len(experiment.of(model, method)),
                    cells={
                        (dataset, metric): _cell(experiment, results, model, method, dataset, metric, samples[dataset])
                        for dataset in experiment.evaluations
                        for metric in experiment.spec.metrics
                    },
                    unreadable={d: float(np.mean([one.unreadable for one in own[d]])) for d in own},
                    truncated={d: float(np.mean([one.truncated for one in own[d]])) for d in own},
                    sizes={d: (len(own[d][0].correct), own[d][0].k) for d in own},
                )
            )
    return rows


def _cell(
    experiment: Experiment[ScoresSpec],
    results: Results,
    model: str,
    method: str,
    dataset: str,
    metric: str,
    samples: dict[str, list[Samples]],
) -> Cell:
    values, baseline = _values(samples[method], metric), experiment.spec.baseline
    compared = method != baseline and baseline in samples
    paper, paper_baseline = (results.paper.score(model, one, dataset, metric) for one in (method, baseline))
    known = compared and paper is not None and paper_baseline is not None
    return Cell(
        score=bootstrap_interval(values),
        difference=paired_difference(values, _values(samples[baseline], metric)) if compared else None,
        paper=paper,
        paper_difference=paper - paper_baseline if known else None,
    )


def _values(samples: list[Samples], metric: str) -> np.ndarray:
    """[seeds, problems]."""
    return np.stack([one.pass_rates if metric == "avg" else one.solved for one in samples])


def scores_frame(rows: list[Row]) -> pd.DataFrame:
    """One row per model and method, all scores in per cent."""
    records = []
    for row in rows:
        record: dict[str, object] = {"model": row.model, "model_that_ran": row.ran}
        record |= {"method": row.method, "label": row.label, "seeds": row.seeds}
        for (dataset, metric), cell in row.cells.items():
            name = f"{dataset}_{metric}"
            record |= _per_cent(name, cell.score)
            record[f"{name}_paper"] = cell.paper
            record |= _per_cent(f"{name}_difference", cell.difference)
        for dataset, (problems, k) in row.sizes.items():
            record[f"{dataset}_unreadable"] = 100 * row.unreadable[dataset]
            record[f"{dataset}_truncated"] = 100 * row.truncated[dataset]
            record |= {f"{dataset}_problems": problems, f"{dataset}_samples": k}
        records.append(record)
    return pd.DataFrame(records)


def _per_cent(name: str, interval: Interval | None) -> dict[str, float | None]:
    if interval is None:
        return dict.fromkeys((name, f"{name}_low", f"{name}_high"))
    return {name: 100 * interval.value, f"{name}_low": 100 * interval.low, f"{name}_high": 100 * interval.high}
