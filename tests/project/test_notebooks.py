"""The notebooks run from the first cell to the last, and are saved without what they print."""

import json
import re
import shutil
from html import unescape
from pathlib import Path

import nbformat
import pandas as pd
import pytest
from nbclient import NotebookClient

from conftest import MODEL, ROOT, SETS
from entropy_dynamics.config import load_config
from entropy_dynamics.models.storage import save_policy
from entropy_dynamics.results.files import write_json, write_parquet
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.stages.train import train
from entropy_dynamics.tasks.files import write_problems

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def executed(name: str, project: Path = ROOT) -> nbformat.NotebookNode:
    notebook = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    # The client may miss a message of the kernel, and looks again only when this time is over.
    NotebookClient(notebook, timeout=180, resources={"metadata": {"path": str(project / "notebooks")}}).execute()
    return notebook


def shown(notebook: nbformat.NotebookNode, kind: str) -> list[str]:
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    if kind in ("stdout", "stderr"):
        return [output["text"] for output in outputs if output.get("name") == kind]
    return [output["data"][kind] for output in outputs if kind in output.get("data", {})]


@pytest.fixture
def results(tmp_path, tokenizer, problems, make_model) -> Path:
    """Two steps of GRPO and of a Clip_B that drops many tokens, on an untrained model of one layer."""
    layout = Layout.of("smoke", tmp_path)
    write_problems(layout.problems("train"), problems[:8])
    for name in SETS:
        write_problems(layout.problems(name), problems[8:])
    write_parquet(layout.pass_rates(0), pd.DataFrame({"problem_id": [one.id for one in problems[:8]], "rate": 0.5}))
    save_policy(make_model(), tokenizer, layout.model(MODEL, 0))
    write_json(layout.model(MODEL, 0) / "model.json", {"name": MODEL})
    small = ["training.steps=2", "training.group_size=4", "sampling.max_new_tokens=12"]
    for method in ("grpo", "clip_b"):
        clip = ["method.params.mu=0.1"] if method == "clip_b" else []
        train(load_config("smoke", MODEL, method, small + clip), layout, method, 0)
    return tmp_path


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_saved_without_outputs(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            assert cell.outputs == []
            assert cell.execution_count is None


def test_the_badge_opens_the_notebook_of_the_repository_that_it_installs():
    opened = r"colab\.research\.google\.com/github/([\w.-]+/[\w.-]+)/blob/main/([\w./]+)"
    in_readers_hands = [*re.findall(opened, (ROOT / "docs/first-run.md").read_text())]
    for name in ("theory", "first_run"):
        text = (ROOT / f"notebooks/{name}.ipynb").read_text()
        installed = re.findall(r"https://github\.com/([\w.-]+/[\w.-]+)", text)
        in_readers_hands += (badges := re.findall(opened, text))
        assert {(repository, f"notebooks/{name}.ipynb") for repository in installed} == set(badges) != set()
    assert len({repository for repository, _ in in_readers_hands}) == 1


def test_first_run(monkeypatch, smoke_project, tmp_path):
    """At the smoke scale, whose other runs are there: the notebook trains one, draws and shows."""
    project = shutil.copytree(smoke_project, tmp_path / "project", symlinks=True)
    shutil.copytree(ROOT / "notebooks", project / "notebooks")
    run = project / "results/smoke/runs" / MODEL / "clip_b/seed0"
    before = (run / "metrics.parquet").read_bytes()
    for folder in (run, project / "results/smoke/samples" / MODEL / "clip_b"):
        shutil.rmtree(folder)
    monkeypatch.setenv("SCALE", "smoke")
    notebook = executed("first_run", project)
    assert "learning is ready: results/smoke/figures/learning.png" in "".join(shown(notebook, "stderr"))
    assert (run / "metrics.parquet").read_bytes() != before  # its wall times
    assert len(shown(notebook, "image/png")) == 1
    [frame] = shown(notebook, "text/html")
    page = unescape(re.search('srcdoc="([^"]*)"', frame)[1])
    assert page == (project / "results/smoke/report.html").read_text()
    assert 'id="samples"' in page
    sampled = json.loads(re.search('id="data">(.*?)</script>', page, re.DOTALL)[1])
    assert (MODEL, "clip_b") in {(of["model"], of["method"]) for of in sampled}


def test_theory(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    notebook = executed("theory")
    text = "".join(shown(notebook, "stdout"))
    assert "the entropy peaks at update" in text
    assert len(shown(notebook, "image/png")) == 2
    assert len(shown(notebook, "text/html")) == 2
    (widgets,) = notebook.metadata["widgets"].values()
    states = [widget["state"] for widget in widgets["state"].values()]
    assert [state["description"] for state in states if "max" in state and "step" in state] == ["probability", "α"]
    (drawn,) = [output for state in states for output in state.get("outputs", [])]
    assert "image/png" in drawn["data"]  # an error would be here too


def test_inspect_run(monkeypatch, results):
    for name, value in {"SCALE": "smoke", "RESULTS": str(results), "OMP_NUM_THREADS": "1"}.items():
        monkeypatch.setenv(name, value)
    notebook = executed("inspect_run")
    text = "".join(shown(notebook, "stdout"))
    assert "mu=0.1" in text
    assert "2 steps of 4 prompts" in text
    assert "after: " in text
    assert len(shown(notebook, "image/png")) == 1
    pages = "".join(shown(notebook, "text/html"))
    assert "before: the most dropped tokens" in pages
    assert "line-through" in pages
    assert "(= " in pages  # the table of answers


def test_a_missing_run_is_named(monkeypatch, tmp_path):
    monkeypatch.setenv("RESULTS", str(tmp_path))
    with pytest.raises(Exception, match=r"no run in .*: make it with: snakemake --config scale=laptop"):
        executed("inspect_run")
