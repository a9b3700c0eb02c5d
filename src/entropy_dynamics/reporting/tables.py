"""Tables of scores as csv, Markdown and LaTeX."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.scores import POOLED, score_columns, scores_frame
from entropy_dynamics.analysis.specs import HEADINGS, ScoresSpec
from entropy_dynamics.analysis.statistics import LEVEL
from entropy_dynamics.reporting.templates import fill, one_model
from entropy_dynamics.results.files import write_text


def write_table(experiment: Experiment[ScoresSpec], results: Results) -> list[Path]:
    """Write tables/<name>.csv, .md and .tex."""
    frame = scores_frame(experiment, results)
    values = table_values(experiment, results, frame) | {"heading": experiment.heading}
    texts = {
        "csv": frame.to_csv(index=False, float_format="%.4f"),
        "md": fill("table.md", **values, caption=_caption(experiment, results, frame)),
        "tex": fill("table.tex", **_means(experiment, results)),
    }
    for suffix, text in texts.items():
        write_text(results.layout.table(experiment.name, suffix), text)
    return [results.layout.table(experiment.name, suffix) for suffix in texts]


def _means(experiment: Experiment[ScoresSpec], results: Results) -> dict[str, Any]:
    """Values for a table that fits in a column of an article: the entropy and the means over the data sets.

    The paper prints no means, so the cells have no scores of the paper.
    """
    columns = {POOLED: list(experiment.evaluations)}
    frame = scores_frame(experiment, results, columns)  # Holm's correction is for the comparisons that are shown
    caption = f"{_caption(experiment, results, frame, paper=False)} Each data set's scores: {experiment.name}.csv."
    return table_values(experiment, results, frame, columns) | {"name": experiment.name, "caption": caption}


def table_values(
    experiment: Experiment[ScoresSpec],
    results: Results,
    frame: pd.DataFrame,
    shown: Mapping[str, list[str]] | None = None,
) -> dict[str, Any]:
    """Values of `scores_frame` for the templates: headings, and the cells of each method of each model.

    Args:
        shown: score columns, as in `scores_frame`.
    """
    datasets = experiment.evaluations
    # The mean first, as a phone shows only the first column.
    scored = sorted(shown or score_columns(experiment), key=lambda column: column != POOLED)
    columns = [(column, metric) for column in scored for metric in experiment.spec.metrics]
    rows, baseline = frame.set_index(["model", "method"], drop=False), results.method_label(experiment.spec.baseline)
    return {
        "columns": ["Entropy (nats)"] * experiment.spec.entropy
        + [
            f"Mean {HEADINGS[metric]}@K"
            if column == POOLED
            else f"{results.dataset_label(column)} {HEADINGS[metric]}@{frame[f'{column}_samples'][0]}"
            for column, metric in columns
        ],
        "datasets": [results.dataset_label(dataset) for dataset in datasets],
        "blocks": [
            (
                results.model(model).ran_with_size,
                [
                    {
                        "label": row["label"],
                        "cells": ([_entropy(row, baseline)] if experiment.spec.entropy else [])
                        + [_lines(row, rows, experiment.spec.baseline, f"{d}_{m}") for d, m in columns],
                        "failures": [f"{row[f'{d}_unreadable']:.1f} / {row[f'{d}_truncated']:.1f}" for d in datasets],
                    }
                    for _, row in rows[rows["model"] == model].iterrows()
                ],
            )
            for model in experiment.models
        ],
    }


@dataclass(frozen=True)
class CellLine:
    """A line of a cell: a score, its difference from the baseline, or the paper's score."""

    value: str
    brackets: str = ""
    bold: bool = False
    paper: bool = False


def _lines(row: pd.Series, rows: pd.DataFrame, baseline: str, name: str) -> list[CellLine]:
    lines = [CellLine(f"{row[name]:.1f}", _brackets(row[f"{name}_low"], row[f"{name}_high"], ".1f"))]
    difference, low, high = (row[f"{name}_difference{end}"] for end in ("", "_low", "_high"))
    compared = not pd.isna(difference)
    if compared:
        bold = row[f"{name}_difference_p"] < 1 - LEVEL
        lines.append(CellLine(f"{difference:+z.1f}", _brackets(low, high, "+z.1f"), bold=bold))
    paper = row[f"{name}_paper"]
    if not pd.isna(paper):
        gain = paper - rows.loc[(row["model"], baseline), f"{name}_paper"] if compared else np.nan
        lines.append(CellLine(f"paper {paper:.2f}", "" if pd.isna(gain) else f"({gain:+z.2f})", paper=True))
    return lines


def _entropy(row: pd.Series, baseline: str) -> list[CellLine]:
    if np.isnan(row["entropy"]):
        return []
    lines = [CellLine(f"{row['entropy']:.3f}", _brackets(row["entropy_low"], row["entropy_high"], ".3f"))]
    return [*lines, CellLine(f"exactly {baseline}")] if row["equals_baseline"] else lines


def _brackets(low: float, high: float, form: str) -> str:
    return "" if np.isnan(low) else f"[{low:{form}}, {high:{form}}]"


def _caption(experiment: Experiment[ScoresSpec], results: Results, frame: pd.DataFrame, paper: bool = True) -> str:
    """The caption: content of the table, models that ran, and explanation of the intervals."""
    baseline = results.method_label(experiment.spec.baseline)
    tests = int(frame.filter(regex="_difference_p$").notna().to_numpy().sum())
    covered = f"over {experiment.seeds} and over problems"
    if experiment.seeds == "one seed":
        covered = "over problems for the untrained model, none for one seed of a trained one"
    papers = f"; the paper's score with its difference to the paper's {baseline}" if paper else ""
    sets = []
    for dataset in experiment.evaluations:
        problems, k = (frame[f"{dataset}_{what}"][0] for what in ("problems", "samples"))
        sets.append(f"{results.dataset_label(dataset)} ({problems} problems, {k} samples per problem)")
    sentences = [
        f"{experiment.spec.title}, at the {results.scale} scale.",
        *([f"Models: {'; '.join(frame['model_that_ran'].unique())}."] if paper else []),  # LaTeX: above the rows
        f"Problems: {'; '.join(sets)}.",
        f"In each cell, in percent: the score with its {LEVEL:.0%} interval ({covered}); its difference to {baseline} "
        f"(median over seeds) on the same problems, bold where it is not zero after Holm's correction for {tests} "
        f"comparisons{papers}.",
    ]
    if experiment.spec.entropy:
        sentences.append(
            f"Entropy: mean over the response tokens of the last tenth of the steps, with its {LEVEL:.0%} interval "
            f"over seeds; 'exactly {baseline}': that of every step is the same to the bit."
        )
    if single := one_model(map(results.model, experiment.models)):
        sentences.append(f"{single}.")
    if not all(results.model(model).is_the_papers for model in experiment.models):
        sentences.append(
            "A smaller model shows directions, not levels: its scores are not comparable with the paper's."
        )
    return " ".join(sentences)
