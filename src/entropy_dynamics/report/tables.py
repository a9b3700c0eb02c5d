"""Tables of scores as csv, Markdown and LaTeX."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.scores import POOLED, scored_datasets, scores_frame
from entropy_dynamics.analysis.statistics import LEVEL
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import HEADINGS, ScoresSpec
from entropy_dynamics.report.fill import fill, one_model
from entropy_dynamics.results.files import write_text


def write_table(experiment: Experiment[ScoresSpec], results: Results) -> list[Path]:
    """Write tables/<name>.csv, .md and .tex."""
    frame = scores_frame(experiment, results)
    values = table_values(experiment, results, frame)
    values |= {"heading": experiment.heading, "caption": _caption(experiment, results, frame), "name": experiment.name}
    texts = {"csv": frame.to_csv(index=False, float_format="%.4f")}
    texts |= {suffix: fill(f"table.{suffix}", **values) for suffix in ("md", "tex")}
    for suffix, text in texts.items():
        write_text(results.layout.table(experiment.name, suffix), text)
    return [results.layout.table(experiment.name, suffix) for suffix in texts]


def table_values(experiment: Experiment[ScoresSpec], results: Results, frame: pd.DataFrame) -> dict[str, Any]:
    """Values of `scores_frame` for the templates: headings, and a block of rows of cells per model."""
    datasets = experiment.evaluations
    # The mean first, as a phone shows only the first column.
    scored = sorted(scored_datasets(experiment), key=lambda column: column != POOLED)
    columns = [(column, metric) for column in scored for metric in experiment.spec.metrics]
    rows = frame.set_index(["model", "method"], drop=False)
    names = [f"{column}_{metric}" for column, metric in columns]
    blocks, failures = [], []
    for model in experiment.models:
        lines, shares = [], []
        for _, row in rows[rows["model"] == model].iterrows():
            lines.append(_lines(row, rows, experiment, names, results))
            unusable = [Cell(f"{row[f'{d}_unreadable']:.1f} / {row[f'{d}_truncated']:.1f}") for d in datasets]
            shares.append({row["label"]: unusable})
        ran = results.model(model).ran_with_size
        blocks.append((ran, lines))
        failures.append((ran, shares))
    return {
        "blocks": blocks,
        "failures": failures,
        "baseline": results.method_label(experiment.spec.baseline),
        "columns": ["Entropy (nats)"] * experiment.spec.entropy
        + [
            f"Mean {HEADINGS[metric]}@K"
            if column == POOLED
            else f"{results.dataset_label(column)} {HEADINGS[metric]}@{frame[f'{column}_samples'][0]}"
            for column, metric in columns
        ],
        "datasets": [results.dataset_label(dataset) for dataset in datasets],
    }


@dataclass(frozen=True)
class Cell:
    """A number with what stands in brackets after it; empty if unknown."""

    value: str = ""
    brackets: str = ""
    bold: bool = False


def _lines(
    row: pd.Series, rows: pd.DataFrame, experiment: Experiment[ScoresSpec], names: list[str], results: Results
) -> dict[str, list[Cell]]:
    """Label of each line of a method -> its cells: the scores, the differences from the baseline, the paper's scores.

    A line without any number is left out.
    """
    baseline = results.method_label(experiment.spec.baseline)
    key = row["model"], experiment.spec.baseline
    papers = rows.loc[key] if row["method"] != experiment.spec.baseline and key in rows.index else None
    lines = {
        row["label"]: [_number(row, name, ".1f") for name in names],
        f"{row['difference'].split()[0]} difference per seed": [
            _number(row, f"{name}_difference", "+z.1f", row[f"{name}_difference_p"] < 1 - LEVEL) for name in names
        ],
        "the paper": [_paper(row[f"{name}_paper"], papers, name) for name in names],
    }
    if experiment.spec.entropy:
        firsts = [_number(row, "entropy", ".3f"), Cell(f"exactly {baseline}" if row["equals_baseline"] else ""), Cell()]
        lines = {label: [first, *cells] for (label, cells), first in zip(lines.items(), firsts, strict=True)}
    return {label: cells for label, cells in lines.items() if any(cell.value for cell in cells)}


def _number(row: pd.Series, name: str, form: str, bold: bool = False) -> Cell:
    if pd.isna(row[name]):
        return Cell()
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return Cell(f"{row[name]:{form}}", "" if pd.isna(low) else f"[{low:{form}}, {high:{form}}]", bold)


def _paper(score: float, baseline: pd.Series | None, name: str) -> Cell:
    """The paper's score with its difference from the paper's baseline."""
    if pd.isna(score):
        return Cell()
    known = baseline is not None and not pd.isna(baseline[f"{name}_paper"])
    return Cell(f"{score:.2f}", f"({score - baseline[f'{name}_paper']:+z.2f})" if known else "")


def _caption(experiment: Experiment[ScoresSpec], results: Results, frame: pd.DataFrame) -> str:
    """The caption: content of the table, models that ran, and explanation of the intervals."""
    models, first = list(map(results.model, experiment.models)), frame.iloc[0]
    names = {dataset: results.dataset_label(dataset) for dataset in experiment.evaluations}
    text = fill(
        "table_caption.md",
        experiment=experiment,
        scale=results.scale,
        sets=[(label, first[f"{name}_problems"], first[f"{name}_samples"]) for name, label in names.items()],
        level=f"{LEVEL:.0%}",
        baseline=results.method_label(experiment.spec.baseline),
        difference=first["difference"],
        tests=frame.filter(regex="_difference_p$").notna().to_numpy().sum(),
        note=one_model(models),
        smaller=not all(model.is_the_papers for model in models),
    )
    return " ".join(text.splitlines())
