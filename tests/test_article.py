"""`entropy-dynamics article` and its rule: filled with the numbers of the results, and a PDF where LaTeX is."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from entropy_dynamics.analysis.experiments import Run
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.cli import main
from entropy_dynamics.reporting import render
from entropy_dynamics.reporting.article import effect, needed, tally
from entropy_dynamics.reporting.claims import write_claims
from entropy_dynamics.results.files import write_json
from project_copy import copy_project, snakemake
from synthetic_results import DATASETS, MODEL, ROOT, SCALE, write_all

SEEDS = {"tables": 5, "extras": 5, "pilot": 1}
NAMES = ["table1", "figure1", "figure6"]
SET = ["--set", "seeds.tables=5", "--set", "seeds.extras=5"]

needs_latex = pytest.mark.skipif(not shutil.which("pdflatex"), reason="needs LaTeX")


@pytest.fixture(scope="module")
def complete(tmp_path_factory) -> Path:
    """Five seeds of Table 1 and two figures, with the verdicts that they allow."""
    root = tmp_path_factory.mktemp("results") / SCALE
    write_all(root, SEEDS, SCALE, NAMES)
    write_json(root / "data" / "problems.json", {"sets": {"train": {"source": "countdown", "kept": 1234}}})
    results = Results(root, SCALE, SEEDS, ROOT / "configs", ROOT / "experiments")
    for name in NAMES:
        render(name, results)
    write_claims(results)
    return root


@pytest.fixture
def root(complete, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(ROOT)
    return shutil.copytree(complete, tmp_path / SCALE)


def article(root: Path) -> str:
    assert main(["article", "--results", str(root.parent), *SET]) == 0
    return (root / "article" / "article.tex").read_text()


def without_latex(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")


def plain(latex: str) -> str:
    return latex.replace("$", "").replace("−", "-")


def test_every_claim_is_there_with_its_number(root, monkeypatch):
    without_latex(monkeypatch)
    text = article(root)
    entries = json.loads((root / "claims.json").read_text())
    claims = [entry for entry in entries if entry["subject"] == "this run"]
    rows = re.findall(r"^\\(holds|fails|open) & (.*?) & (.*?) & (.*?) & (.*?) \\\\$", text, re.MULTILINE)
    marks = {"holds": "holds", "does not hold": "fails", "inconclusive": "open"}
    assert [row[0] for row in rows] == [marks[claim["verdict"]] for claim in claims]
    assert sum(claim["effect"] is not None for claim in claims) > 10
    for claim, (*_, shown) in zip(claims, rows, strict=True):
        expected = [claim[key] for key in ("effect", "low", "high") if claim[key] is not None]
        numbers = [float(number) for number in re.findall(r"[-+]?[\d.]+(?:e-\d+)?", plain(shown))]
        half_a_digit = 0.0501 if claim["unit"].startswith("points") else 1e-12
        assert numbers == pytest.approx(expected, rel=0.051, abs=half_a_digit), claim["id"]


def test_nothing_is_left_of_the_template(root, monkeypatch):
    without_latex(monkeypatch)
    text = article(root)
    assert not re.search(r"<<|>>|<%|%>|<#|\b(None|nan|inf|Undefined)\b", text)
    assert text.count("{") == text.count("}")
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    assert all(len(re.findall(r"(?<!\\)\$", line)) % 2 == 0 for line in lines)
    inputs = re.findall(r"\\(?:input|includegraphics)(?:\[.*?\])?\{(.*?)\}", text)
    assert sorted(inputs) == [
        f"../{path}" for path in ("figures/figure1.pdf", "figures/figure6.pdf", "tables/table1.tex")
    ]
    assert all((root / "article" / name).is_file() for name in inputs)
    labels, references = set(re.findall(r"\\label\{(.*?)\}", text)), set(re.findall(r"\\ref\{(.*?)\}", text))
    assert references <= labels | {"tab:table1"}
    assert set(re.findall(r"\\cite\{(.*?)\}", text)) == set(re.findall(r"\\bibitem\{(.*?)\}", text))


def test_the_setup_is_that_of_the_runs(root, monkeypatch):
    without_latex(monkeypatch)
    text = article(root)
    shares = [
        pd.read_parquet(Run(model, "clip_b", seed).metrics_file(root))["clip_fraction"].mean()
        for model in (MODEL, "qwen3-4b-base")
        for seed in range(5)
    ]
    assert rf"Clip$_{{\mathcal{{B}}}}$ {100 * np.mean(shares):.2g}\,\%" in text
    assert "5 seeds per method" in text
    assert "Countdown, 1234 problems" in text
    assert "16 prompts, 16 rollouts, 50 steps" in text
    assert "Rollouts are drawn at temperature 1.0,\nevaluations at 0.7 (" in text
    table = pd.read_csv(root / "tables" / "table1.csv").iloc[0]
    assert f"toy AIME24: {table['aime24_problems']} problems, $K={table['aime24_samples']}$" in text


def test_training_problems_from_the_hub_are_named(root, monkeypatch):
    without_latex(monkeypatch)
    train = {"source": "hub", "repository": "open-r1/DAPO-Math", "kept": 13_600}
    write_json(root / "data" / "problems.json", {"sets": {"train": train}})
    assert "open-r1/DAPO-Math, 13600 problems, filtered by pass rate" in article(root)


def test_a_table_that_the_article_shows_has_the_numbers_of_its_csv(root):
    table = pd.read_csv(root / "tables" / "table1.csv")
    text = plain((root / "tables" / "table1.tex").read_text())
    for row in table.to_dict("records"):
        assert f"& {np.mean([row[f'{name}_pass'] for name in DATASETS]):.1f} [" in text


@needs_latex
def test_the_pdf_is_built_with_all_references_and_fits_eight_pages(root, capsys):
    article(root)
    pdf = root / "article" / "article.pdf"
    assert capsys.readouterr().out.splitlines() == [str(pdf.with_suffix(".tex")), str(pdf)]
    assert pdf.read_bytes().startswith(b"%PDF")
    assert sorted(path.name for path in pdf.parent.iterdir()) == ["article.pdf", "article.tex"]
    if not (shutil.which("pdfinfo") and shutil.which("pdftotext")):
        pytest.skip("needs poppler-utils for the rest")

    def run(*command) -> str:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert int(re.search(r"Pages: +(\d+)", run("pdfinfo", pdf))[1]) <= 8
    assert "??" not in (text := run("pdftotext", pdf, "-"))
    assert "Replication of" in text


@needs_latex
def test_what_latex_refuses_is_one_line(root, capsys):
    (root / "tables" / "table1.tex").write_text(r"\unknown")
    assert main(["article", "--results", str(root.parent), *SET]) == 2
    assert "article.tex: ! Undefined control sequence." in capsys.readouterr().err


def test_without_latex_the_source_is_written_and_a_line_says_what_is_missing(root, monkeypatch, capsys):
    without_latex(monkeypatch)
    article(root)
    path, line = capsys.readouterr().out.splitlines()
    assert Path(path).is_file()
    assert line.startswith("no PDF: pdflatex is not installed (Debian: apt install texlive")
    assert not Path(path).with_suffix(".pdf").exists()


@pytest.mark.parametrize("name", ["claims.json", "tables/table1.csv", "data/problems.json"])
def test_what_is_missing_is_one_line(root, capsys, name):
    (root / name).unlink()
    assert main(["article", "--results", str(root.parent), *SET]) == 2
    assert capsys.readouterr().err.startswith(f"error: no file {root / name}; make it with: ")


def entry(verdict: str, unit: str = "points", seeds: int | None = None, numbers: tuple = (1.25, -0.5, 3.0)) -> dict:
    return {"verdict": verdict, "unit": unit, "seeds_needed": seeds} | dict(
        zip(("effect", "low", "high"), numbers, strict=True)
    )


def test_sentences():
    holds, fails, unsure = (entry(verdict) for verdict in ("holds", "does not hold", "inconclusive"))
    assert tally([holds] * 5) == "all 5 claims hold"
    assert tally([fails] * 2) == "both claims do not hold"
    assert tally([unsure]) == "the claim is inconclusive"
    assert tally([holds, holds, fails, unsure, unsure]) == "of 5 claims 2 hold, 1 does not hold and 2 are inconclusive"
    assert tally([unsure, holds]) == "of 2 claims 1 holds and 1 is inconclusive"
    assert needed([entry("", seeds=seeds) for seeds in (101, 101, 13, 68, None)]) == (
        "2 would take more than 100 seeds, 2 take up to 68 and 1 has no effect or too few seeds to say"
    )


def test_numbers():
    assert effect(entry("")) == "$+1.2$ [$-0.5$, $+3.0$]"
    assert effect(entry("", "nats", numbers=(0.04321, -0.98765, 4321.0))) == "$0.043$ [$-0.988$, $4321$]"
    assert effect(entry("", "nats", numbers=(0.5, None, None))) == "$0.5$"


def test_the_rule_makes_it_and_only_on_request(tmp_path):
    project = copy_project(tmp_path)
    planned = snakemake(project, "article", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert re.search(r"^article +1$", planned.stdout + planned.stderr, re.MULTILINE)
    everything = snakemake(project, "--dry-run")
    assert not re.search(r"^article\b", everything.stdout + everything.stderr, re.MULTILINE)
