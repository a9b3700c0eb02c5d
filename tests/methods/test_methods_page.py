"""The method of docs/methods.md does what it says, with the parameters of its YAML."""

import re
import subprocess
import sys
from types import ModuleType

import pandas as pd
import pytest
import torch
import yaml

from conftest import ROOT
from entropy_dynamics import methods
from entropy_dynamics.core.token_stats import token_stats
from project_copy import copy_project, with_package

PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")


@pytest.fixture
def confident(monkeypatch):
    others = {name: kind for name, kind in methods.method_types().items() if name != "confident"}  # it may be a file
    monkeypatch.setattr(methods, "_METHODS", others)
    monkeypatch.setitem(sys.modules, "confident", module := ModuleType("confident"))
    exec(re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1], module.__dict__)
    config = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])["method"]
    return methods.load_method(config["name"], **config["params"])


def test_the_method_drops_sure_tokens_of_correct_answers(confident):
    logits = torch.tensor([[[6.0, 0.0], [1.0, 0.0]]]).repeat(2, 1, 1)  # p = 0.998, 0.731
    stats = token_stats(logits, torch.zeros(2, 2, dtype=torch.long))
    advantages = torch.tensor([[1.0, 1.0], [-1.0, -1.0]])
    weights = confident.token_weights(stats, advantages, torch.ones(2, 2))
    assert weights.tolist() == [[0, 1], [1, 1]]


def test_its_run_ends(tmp_path):
    """The page's files and its command, at the smoke scale."""
    project = copy_project(tmp_path)
    environment = with_package(project)
    for language in ("python", "yaml"):
        text = re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]
        (project / re.match(r"# (\S+)", text)[1]).write_text(text)
    target = re.search(r"`snakemake (\S+/metrics.parquet)`", PAGE)[1].replace("laptop", "smoke")
    command = ["snakemake", target, "--config", "scale=smoke"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    metrics = pd.read_parquet(project / target)
    assert len(metrics) == 4
    assert metrics["clip_fraction"].between(0, 1).all()
