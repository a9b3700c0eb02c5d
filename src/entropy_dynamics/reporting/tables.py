"""Tables of scores as csv, Markdown, LaTeX and HTML."""

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from entropy_dynamics.analysis.experiments import METRICS, Experiment, ScoresSpec
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.analysis.scores import Cell, Row, score_rows, scores_frame
from entropy_dynamics.analysis.statistics import DRAWS, LEVEL, Interval
from entropy_dynamics.reporting.templates import fill
from entropy_dynamics.results.files import write_text


def write_table(experiment: Experiment[ScoresSpec], results: Results) -> list[Path]:
    """Write tables/<name>.csv, .md, .tex and .html."""
    rows = score_rows(experiment, results)
    first = rows[0]
    blocks = [(ran, [_texts(row) for row in of_model]) for ran, of_model in groupby(rows, key=lambda row: row.ran)]
    values = {
        "name": experiment.name,
        "heading": experiment.heading,
        "title": experiment.spec.title,
        "caption": _caption(experiment, results, rows),
        "columns": [f"{data.upper()} {METRICS[metric]}@{first.sizes[data][1]}" for data, metric in first.cells],
        "datasets": [dataset.upper() for dataset in experiment.evaluations],
        "blocks": blocks,
    }
    texts = {"csv": scores_frame(rows).to_csv(index=False, float_format="%.4f")}
    texts |= {suffix: fill(f"table.{suffix}", **values) for suffix in ("md", "tex", "html")}
    paths = [results.layout.table(experiment.name, suffix) for suffix in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return paths


@dataclass(frozen=True)
class CellLine:
    """One line of a cell: a score, its difference to the baseline, or the paper's score."""

    value: str
    brackets: str = ""
    bold: bool = False
    paper: bool = False


def _texts(row: Row) -> dict[str, Any]:
    failures = [f"{100 * row.unreadable[data]:.1f} / {100 * row.truncated[data]:.1f}" for data in row.sizes]
    return {"label": row.label, "cells": [_lines(cell) for cell in row.cells.values()], "failures": failures}


def _lines(cell: Cell) -> list[CellLine]:
    lines = [CellLine(f"{100 * cell.score.value:.1f}", _interval(cell.score, ".1f"))]
    if cell.difference is not None:
        text = f"{100 * cell.difference.value:+z.1f}"
        lines.append(CellLine(text, _interval(cell.difference, "+z.1f"), bold=cell.difference.excludes_zero))
    if cell.paper is not None:
        change = "" if cell.paper_difference is None else f"({cell.paper_difference:+z.2f})"
        lines.append(CellLine(f"paper {cell.paper:.2f}", change, paper=True))
    return lines


def _interval(interval: Interval, form: str) -> str:
    return f"[{100 * interval.low:{form}}, {100 * interval.high:{form}}]"


def _caption(experiment: Experiment[ScoresSpec], results: Results, rows: list[Row]) -> str:
    """What the table shows, what ran, and what its intervals do and do not cover."""
    baseline = results.method_label(experiment.spec.baseline)
    seeds = max(row.seeds for row in rows)
    if seeds > 1:
        drawn = f"bootstrap over {seeds} seeds and over problems, {DRAWS:,} draws"
    else:
        drawn = f"bootstrap over problems, {DRAWS:,} draws; one seed: another training run may differ by more"
    sets = []
    for dataset, (problems, k) in rows[0].sizes.items():
        kind = "toy problems" if results.toy_problems(dataset) else "problems"
        sets.append(f"{dataset.upper()} ({problems} {kind}, {k} samples per problem)")
    sentences = [
        f"{experiment.spec.title}, at the {results.scale} scale.",
        f"Models: {'; '.join(dict.fromkeys(row.ran for row in rows))}.",
        f"Problems: {'; '.join(sets)}.",
        f"In each cell, in per cent: the score with its {LEVEL:.0%} interval ({drawn}); its difference to {baseline} "
        "on the same problems, bold where that interval excludes zero (one in ten to twenty would by chance alone); "
        f"the paper's score with its difference to the paper's {baseline}.",
    ]
    if not all(results.model(model).is_the_papers for model in experiment.models):
        sentences.append(
            "A smaller model shows directions, not levels: its scores are not comparable with the paper's."
        )
    return " ".join(sentences)
