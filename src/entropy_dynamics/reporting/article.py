"""A replication article: article/article.tex with the verdicts, numbers, tables and figures of a run, and its PDF."""

import shutil
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.claims import read_claims
from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.statistics import MAX_SEEDS
from entropy_dynamics.analysis.verdicts import VERDICTS
from entropy_dynamics.config import BASE, TRAIN
from entropy_dynamics.errors import UserError
from entropy_dynamics.reporting.claims import gains_line
from entropy_dynamics.reporting.report import what_ran
from entropy_dynamics.reporting.summary import in_a_sentence
from entropy_dynamics.reporting.templates import fill
from entropy_dynamics.results.files import read_json, write_text, written_whole

Entry = dict[str, Any]  # of claims.json

VERBS = {  # of one claim, and of several
    "holds": ("holds", "hold"),
    "does not hold": ("does not hold", "do not hold"),
    "inconclusive": ("is inconclusive", "are inconclusive"),
}
PACKAGES = "texlive-latex-recommended texlive-fonts-recommended lmodern"


def write_article(results: Results) -> Path:
    """Fill the template with claims.json, the existing tables and figures, and facts about the runs.

    Raises:
        UserError: there are no verdicts, or a file of the results (such as Table 1) is missing or damaged.
    """
    layout, experiment = results.layout, results.experiment("table1")
    claims = list(verdicts_of(layout.claims("json")).values())
    gains = list(verdicts_of(layout.claims("json"), "paper").values())
    if any(claim["range"] is None for claim in claims):
        raise UserError(f"{layout.claims('json')} is of an older version; make it with: entropy-dynamics claims")
    table = layout.table("table1", "csv")
    for file in (table, layout.problems_report):
        if not file.is_file():
            raise UserError(f"no file {file}; make it with: snakemake --config scale={results.scale} table1")

    def judged(*beginnings: str, ours: bool | None = None) -> list[Entry]:
        """The claims whose ids have one of these prefixes; `ours`: only this project's own, or only the paper's."""
        chosen = [claim for claim in claims if claim["id"].startswith(beginnings)]
        return [claim for claim in chosen if ours in (None, claim["ours"])]

    if (paper := read_claims(results.folder).paper) is None:
        raise UserError(f"the article is about the paper's claims, and {results.folder / 'claims.yaml'} has others")
    scores, of_paper = pd.read_csv(table).iloc[0], paper.evaluations
    models = [results.model(name) for name in experiment.models]
    path = layout.article("tex")
    text = fill(
        "article.tex",
        scale=results.scale,
        judged=judged,
        all_hold=lambda *beginnings: {claim["verdict"] for claim in judged(*beginnings)} == {"holds"},
        tally=tally,
        effect=effect,
        needed=needed,
        sentence=in_a_sentence(claims),
        gains=gains_line(gains),
        toy=all(model.toy for model in models),
        models=[(model.label, model.ran_with_size) for model in models],
        seeds=experiment.seeds,
        training=_training(results),
        config=results.config,
        temperatures=_listed([f"{t:g}" for t in results.temperatures if t != results.config.evaluation.temperature]),
        datasets=[
            (results.dataset_label(name), scores[f"{name}_problems"], scores[f"{name}_samples"], paper, paper_k)
            for name in experiment.evaluations
            for paper, paper_k in [(of_paper[name].problems, of_paper[name].samples)]
        ],
        doses=_doses(results),
        tables=[file.stem for file in layout.root.glob("tables/*.tex")],
        figures=[file.stem for file in layout.root.glob("figures/*.pdf")],
        ran=", ".join(what_ran(layout)),
    )
    write_text(path, text)
    return path


def build_pdf(tex: Path) -> Path | None:
    """Build the PDF next to `tex`; None if LaTeX is not installed. Raises UserError with LaTeX's first error."""
    latex, pdf = shutil.which("pdflatex"), tex.with_suffix(".pdf")
    if latex is None:
        return None
    with TemporaryDirectory() as folder:
        command = [latex, "-no-shell-escape", "-interaction=nonstopmode", "-halt-on-error", "-output-directory", folder]
        for _ in range(2):  # the second resolves references
            run = subprocess.run([*command, tex.name], cwd=tex.parent, capture_output=True, text=True, errors="replace")
            if run.returncode:
                complaint = next((line for line in run.stdout.splitlines() if line[:1] == "!"), "pdflatex failed")
                raise UserError(f"{tex}: {complaint} (its packages are in Debian's {PACKAGES})")
        with written_whole(pdf) as whole:
            shutil.copyfile(Path(folder, pdf.name), whole)
    return pdf


def tally(claims: Sequence[Entry]) -> str:
    """'of 8 claims 7 hold and 1 is inconclusive', 'both claims hold', 'the claim does not hold'."""
    counts = Counter(claim["verdict"] for claim in claims)
    if not claims:
        return "nothing was judged"
    phrases = {verdict: VERBS[verdict][count > 1] for verdict, count in counts.items()}
    if len(counts) == 1:
        subject = {1: "the claim", 2: "both claims"}.get(len(claims), f"all {len(claims)} claims")
        return f"{subject} {phrases[claims[0]['verdict']]}"
    return f"of {len(claims)} claims {_listed([f'{counts[v]} {phrases[v]}' for v in VERDICTS if v in counts])}"


def effect(claim: Entry, unit: str | None = None) -> str:
    """A claim's effect and interval as LaTeX: points with one decimal, others with three digits, or two below 0.1."""
    numbers = [claim[key] for key in ("effect", "low", "high")]
    points = (unit or claim["unit"]).startswith("points")
    value, *ends = (_number(x, points) for x in numbers if x is not None)
    return f"{value} [{ends[0]}, {ends[1]}]" if ends else value


def needed(claims: Sequence[Entry]) -> str:
    """The number of seeds that the open claims would need, in words."""
    takes = [claim["seeds_needed"] for claim in claims]
    beyond = sum(seeds is not None and seeds > MAX_SEEDS for seeds in takes)
    within = [seeds for seeds in takes if seeds is not None and seeds <= MAX_SEEDS]
    parts = [f"{beyond} would take more than {MAX_SEEDS} seeds"] if beyond else []
    parts += [f"{len(within)} {'take' if parts else 'would take'} up to {max(within)}"] if within else []
    unknown = takes.count(None)
    parts += [f"{unknown} {'has' if unknown == 1 else 'have'} no effect or too few seeds to say"] if unknown else []
    return _listed(parts)


def _number(x: float, points: bool) -> str:
    form = "+.1f" if points else ".2g" if abs(x) < 0.1 else ".3g" if abs(x) < 1000 else ".0f"
    return f"${x:{form}}$"


def _listed(parts: Sequence[str]) -> str:
    """'a, b and c'."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def _training(results: Results) -> str:
    """The task that generated the training problems, or their origin."""
    train = read_json(results.layout.problems_report)["sets"][TRAIN]
    name = train.get("repository") or train.get("path") or train["source"].capitalize()
    return f"{name}, {train['kept']} problems"


def _doses(results: Results) -> list[tuple[str, str]]:
    """The methods of Table 1 that drop tokens, with the percentage dropped, averaged over all runs."""
    experiment, shares = results.experiment("table1"), {}
    for run in experiment.runs:
        if run.method not in (BASE, experiment.spec.baseline):
            share = results.metrics(run, ["clip_fraction"])["clip_fraction"].mean()
            shares.setdefault(results.method_label(run.method), []).append(100 * share)
    return [(method, f"{np.mean(of_runs):.2g}") for method, of_runs in shares.items()]
