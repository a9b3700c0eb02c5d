"""Tables of scores: ours with an interval, the difference to the baseline, the paper's value beside it."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from pathlib import Path

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.experiments import METRICS, Experiment
from entropy_dynamics.analysis.results import Results, Samples
from entropy_dynamics.analysis.statistics import DRAWS, LEVEL, Interval, bootstrap_interval, paired_difference
from entropy_dynamics.results.files import write_text

STYLE = """\
body { font: 14px/1.4 system-ui, sans-serif; color: #111; max-width: 60rem; margin: 1rem auto; padding: 0 1rem; }
h1 { font-size: 1.15rem; }
table { border-collapse: collapse; margin: 1.2rem 0; font-size: 12px; }
caption { text-align: left; padding-bottom: .4rem; color: #444; }
th, td { padding: .3rem .45rem; text-align: right; vertical-align: top; }
thead th { border-top: 2px solid #111; border-bottom: 1px solid #111; }
tbody th { text-align: left; font-weight: normal; min-width: 6rem; }
i { font-style: normal; white-space: nowrap; }
tbody tr.model th { font-style: italic; border-top: 1px solid #999; padding-top: .6rem; }
tbody:last-child tr:last-child > * { border-bottom: 2px solid #111; }
td span { display: block; }
td .paper { color: #666; }
.text td, .text th { text-align: left; }
.text tbody tr > * { border-bottom: 1px solid #ddd; }
.text td:nth-child(2) { min-width: 15rem; }
"""


@dataclass(frozen=True)
class Cell:
    """One score in [0, 1]; the paper's in per cent."""

    score: Interval
    difference: Interval | None  # to the baseline, on the same problems
    paper: float | None
    paper_difference: float | None


@dataclass(frozen=True)
class Row:
    model: str
    ran: str  # the model that ran
    method: str
    label: str
    seeds: int
    cells: dict[tuple[str, str], Cell]  # (data set, metric)
    unreadable: dict[str, float]  # data set: share of samples without a readable answer
    truncated: dict[str, float]
    sizes: dict[str, tuple[int, int]]  # data set: problems, samples of each


def write_table(experiment: Experiment, results: Path, scale: str, configs: Path, experiments: Path) -> list[Path]:
    """Write tables/<name>.csv, .md, .tex and .html."""
    source = Results(results, scale, configs, experiments)
    rows = score_rows(experiment, source)
    caption = caption_of(experiment, source, rows)
    texts = {
        "csv": to_frame(rows).to_csv(index=False, float_format="%.4f"),
        "md": to_markdown(experiment, rows, caption),
        "tex": to_latex(experiment, rows, caption),
        "html": to_html(experiment, rows, caption),
    }
    paths = [results / "tables" / f"{experiment.name}.{ending}" for ending in texts]
    for path, text in zip(paths, texts.values(), strict=True):
        write_text(path, text)
    return paths


def score_rows(experiment: Experiment, source: Results) -> list[Row]:
    """A row for each model and method, in the order of the experiment."""
    rows = []
    for model in experiment.models:
        samples = {dataset: source.paired_samples(experiment, model, dataset) for dataset in experiment.evaluations}
        for method in experiment.methods(model):
            own = {dataset: samples[dataset][method] for dataset in experiment.evaluations}
            rows.append(
                Row(
                    model=model,
                    ran=source.model(model).ran_with_size,
                    method=method,
                    label=source.method_label(method),
                    seeds=len(experiment.seeds(model, method)),
                    cells={
                        (dataset, metric): _cell(experiment, source, model, method, dataset, metric, samples[dataset])
                        for dataset in experiment.evaluations
                        for metric in experiment.metrics
                    },
                    unreadable={d: float(np.mean([s.unreadable for s in own[d]])) for d in own},
                    truncated={d: float(np.mean([s.truncated for s in own[d]])) for d in own},
                    sizes={d: (len(own[d][0].problems), own[d][0].k) for d in own},
                )
            )
    return rows


def _cell(
    experiment: Experiment,
    source: Results,
    model: str,
    method: str,
    dataset: str,
    metric: str,
    samples: dict[str, list[Samples]],
) -> Cell:
    values, baseline = _values(samples[method], metric), experiment.baseline
    compared = method != baseline and baseline in samples
    paper = source.paper_score(model, method, dataset, metric)
    paper_baseline = source.paper_score(model, baseline, dataset, metric)
    return Cell(
        score=bootstrap_interval(values),
        difference=paired_difference(values, _values(samples[baseline], metric)) if compared else None,
        paper=paper,
        paper_difference=paper - paper_baseline if compared and None not in (paper, paper_baseline) else None,
    )


def _values(samples: list[Samples], metric: str) -> np.ndarray:
    """[seeds, problems]: each problem's share of right samples (avg), or whether one of all K is right (pass)."""
    return np.stack([s.pass_rates if metric == "avg" else s.solved for s in samples])


def to_frame(rows: list[Row]) -> pd.DataFrame:
    """One row for each model and method, all scores in per cent."""
    records = []
    for row in rows:
        record = {
            "model": row.model,
            "model_that_ran": row.ran,
            "method": row.method,
            "label": row.label,
            "seeds": row.seeds,
        }
        for (dataset, metric), cell in row.cells.items():
            name = f"{dataset}_{metric}"
            record |= _in_per_cent(name, cell.score)
            record[f"{name}_paper"] = cell.paper
            record |= _in_per_cent(f"{name}_difference", cell.difference)
        for dataset, (problems, k) in row.sizes.items():
            record[f"{dataset}_unreadable"] = 100 * row.unreadable[dataset]
            record[f"{dataset}_truncated"] = 100 * row.truncated[dataset]
            record |= {f"{dataset}_problems": problems, f"{dataset}_samples": k}
        records.append(record)
    return pd.DataFrame(records)


def _in_per_cent(name: str, interval: Interval | None) -> dict[str, float | None]:
    value, low, high = (None,) * 3 if interval is None else (interval.value, interval.low, interval.high)
    return {
        f"{name}{end}": None if number is None else 100 * number
        for end, number in (("", value), ("_low", low), ("_high", high))
    }


def caption_of(experiment: Experiment, source: Results, rows: list[Row]) -> str:
    """What stands in the table, which models ran, and what its intervals do and do not cover."""
    baseline = source.method_label(experiment.baseline)
    seeds = max(row.seeds for row in rows)
    if seeds > 1:
        drawn = f"bootstrap over {seeds} seeds and over problems, {DRAWS:,} draws"
    else:
        drawn = f"bootstrap over problems, {DRAWS:,} draws; one seed: another training run may differ by more"
    sets = []
    for dataset, (problems, k) in rows[0].sizes.items():
        kind = "stand-in, " if source.stand_in_problems(dataset) else ""
        sets.append(f"{dataset.upper()} ({kind}{problems} problems, {k} samples of each)")
    lines = [
        f"{experiment.title}, at the {source.scale} scale.",
        f"Models: {'; '.join(dict.fromkeys(row.ran for row in rows))}.",
        f"Problems: {'; '.join(sets)}.",
        f"In each cell, in per cent: the score with its {LEVEL:.0%} interval ({drawn}); its difference to {baseline} "
        "on the same problems, bold where that interval excludes zero (one in ten to twenty would by chance alone); "
        f"the paper's score with its difference to the paper's {baseline}.",
    ]
    if any(source.model(model).substitute for model in experiment.models):
        lines.append("A stand-in shows directions, not levels: its scores are not comparable with the paper's.")
    return " ".join(lines)


def to_markdown(experiment: Experiment, rows: list[Row], caption: str) -> str:
    blocks = [f"**{_heading(experiment)}.** {caption}"]
    for model in experiment.models:
        of_model = [row for row in rows if row.model == model]
        head = ["", *(_column_heading(row_key, of_model[0]) for row_key in of_model[0].cells)]
        body = [
            [row.label, *("<br>".join(_lines(cell, "**", "**")) for cell in row.cells.values())] for row in of_model
        ]
        blocks += [f"{of_model[0].ran}:", _markdown_table(head, body)]
    head = ["", *(dataset.upper() for dataset in experiment.evaluations)]
    body = []
    for model in experiment.models:
        of_model = [row for row in rows if row.model == model]
        body.append([f"*{of_model[0].ran}*", *[""] * len(experiment.evaluations)])
        for row in of_model:
            shares = [f"{100 * row.unreadable[d]:.1f} / {100 * row.truncated[d]:.1f}" for d in row.sizes]
            body.append([row.label, *shares])
    blocks += [
        "Samples without a readable answer / cut off at the token limit, in per cent:",
        _markdown_table(head, body),
    ]
    return "\n\n".join(blocks) + "\n"


def _markdown_table(head: list[str], body: list[list[str]]) -> str:
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, rule, *body])


def to_latex(experiment: Experiment, rows: list[Row], caption: str) -> str:
    """A table environment that needs booktabs and graphicx; three lines a method: score, difference, paper."""
    keys = list(rows[0].cells)
    body = []
    for model in experiment.models:
        of_model = [row for row in rows if row.model == model]
        body += [r"\midrule", rf"\multicolumn{{{len(keys) + 1}}}{{l}}{{\emph{{{_tex(of_model[0].ran)}}}}} \\"]
        for row in of_model:
            lines = [_lines(cell, r"\textbf{", "}") for cell in row.cells.values()]
            for i in range(max(map(len, lines))):
                first = _tex(row.label) if i == 0 else ""
                cells = [column[i].replace("-", "$-$") if i < len(column) else "" for column in lines]
                body.append(" & ".join([first, *cells]) + (r" \\[3pt]" if i == max(map(len, lines)) - 1 else r" \\"))
    heads = " & ".join(_tex(_column_heading(key, rows[0])) for key in keys)
    return "\n".join(
        [
            "% needs \\usepackage{booktabs,graphicx}",
            r"\begin{table}",
            rf"\caption{{{_tex(caption)}}}",
            rf"\label{{tab:{experiment.name}}}",
            r"\centering",
            r"\resizebox{\textwidth}{!}{%",
            rf"\begin{{tabular}}{{l{'r' * len(keys)}}}",
            r"\toprule",
            rf" & {heads} \\",
            *body,
            r"\bottomrule",
            r"\end{tabular}}",
            r"\end{table}",
            "",
        ]
    )


def to_html(experiment: Experiment, rows: list[Row], caption: str) -> str:
    """A page that stands alone, for the report: a block for each model, unreadable and cut-off samples below."""
    heading = _heading(experiment)
    datasets = list(rows[0].sizes)
    scores = _html_table(
        [_column_heading(key, rows[0]) for key in rows[0].cells],
        rows,
        lambda row: [_html_cell(cell) for cell in row.cells.values()],
    )
    failures = _html_table(
        [dataset.upper() for dataset in datasets],
        rows,
        lambda row: [f"{100 * row.unreadable[d]:.1f} / {100 * row.truncated[d]:.1f}" for d in datasets],
        "Samples without a readable answer / cut off at the token limit, in per cent",
    )
    return "\n".join(
        [
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f"<title>{escape(heading)}</title>\n<style>{STYLE}</style>\n</head>\n<body>",
            f"<h1>{escape(heading)}. {_html(experiment.title)}</h1>",
            f"<p>{_html(caption)}</p>",
            scores,
            failures,
            "</body>\n</html>\n",
        ]
    )


def _html_table(heads: list[str], rows: list[Row], cells_of: Callable[[Row], list[str]], caption: str = "") -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in ["", *heads])
    blocks = []
    for model in dict.fromkeys(row.model for row in rows):
        of_model = [row for row in rows if row.model == model]
        lines = [f'<tr class="model"><th colspan="{len(heads) + 1}">{escape(of_model[0].ran)}</th></tr>']
        for row in of_model:
            cells = "".join(f"<td>{cell}</td>" for cell in cells_of(row))
            lines.append(f"<tr><th>{_html(row.label)}</th>{cells}</tr>")
        blocks.append("<tbody>\n" + "\n".join(lines) + "\n</tbody>")
    above = f"<caption>{escape(caption)}</caption>\n" if caption else ""
    return f"<table>\n{above}<thead><tr>{head}</tr></thead>\n" + "\n".join(blocks) + "\n</table>"


def _html_cell(cell: Cell) -> str:
    parts = []
    for text in _lines(cell, "<b>", "</b>"):  # numbers and brackets: nothing to escape
        line = re.sub(r"[\[(].+?[\])]", r"<i>\g<0></i>", text)  # where room is short, an interval goes below its value
        parts.append(f'<span class="paper">{line}</span>' if line.startswith("paper") else f"<span>{line}</span>")
    return "".join(parts)


def _html(text: str) -> str:
    """Plain text as HTML."""
    return re.sub(r"Clip_([BV])\b", r"Clip<sub>\1</sub>", escape(text))


def _lines(cell: Cell, bold: str, end_bold: str) -> list[str]:
    """The three lines of a cell: score, difference to the baseline, paper."""
    lines = [f"{100 * cell.score.value:.1f} {_brackets(cell.score, '.1f')}"]
    if cell.difference is not None:
        text = f"{100 * cell.difference.value:+z.1f} {_brackets(cell.difference, '+z.1f')}"
        lines.append(f"{bold}{text}{end_bold}" if cell.difference.excludes_zero else text)
    if cell.paper is not None:
        change = "" if cell.paper_difference is None else f" ({cell.paper_difference:+z.2f})"
        lines.append(f"paper {cell.paper:.2f}{change}")
    return lines


def _brackets(interval: Interval, form: str) -> str:
    return f"[{100 * interval.low:{form}}, {100 * interval.high:{form}}]"


def _column_heading(key: tuple[str, str], row: Row) -> str:
    dataset, metric = key
    return f"{dataset.upper()} {METRICS[metric]}@{row.sizes[dataset][1]}"


def _heading(experiment: Experiment) -> str:
    return re.sub(r"^([a-z]+)(\d+)$", lambda m: f"{m[1].capitalize()} {m[2]}", experiment.name)


def _tex(text: str) -> str:
    """Plain text as LaTeX."""
    text = re.sub(r"([%&#])", r"\\\1", text)
    text = re.sub(r"Clip_([BV])\b", r"Clip$_{\\mathcal{\1}}$", text)
    text = re.sub(r"([<>])", r"$\1$", text)
    return re.sub(r"(?<!\$)_", r"\\_", text)
