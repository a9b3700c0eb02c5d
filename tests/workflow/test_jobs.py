"""What the rules take from `entropy_dynamics.workflow`, and what LSF is asked for."""

import os
import re
import shlex
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

from conftest import MODEL
from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.planning.plan import resources
from entropy_dynamics.workflow import RULES, Jobs
from project_copy import ROOT, copy_project, snakemake, without_server


@pytest.fixture
def jobs(monkeypatch) -> Jobs:
    monkeypatch.chdir(ROOT)
    return Jobs({"scale": "laptop"})


def test_the_reserved_names_are_the_rules_that_no_experiment_names(jobs):
    listed = snakemake(ROOT, "--list", "--config", "scale=laptop").stdout.split()
    assert set(listed) - jobs.experiments.keys() == RULES


@pytest.mark.parametrize("name", ["train", "temperatures", "field"])
def test_an_experiment_with_a_reserved_name_is_refused(tmp_path, monkeypatch, name):
    """Also if the scale has no further temperatures, so that other scales take the same file."""
    project = copy_project(tmp_path)
    monkeypatch.chdir(project)
    (project / "experiments/table1.yaml").rename(project / f"experiments/{name}.yaml")
    with pytest.raises(UserError, match=rf"experiments/{name}.yaml: the workflow has a rule of that"):
        Jobs({"scale": "smoke"})


def test_the_earlier_step_of_a_finished_run_is_the_one_that_its_config_names(tmp_path, jobs):
    """Even if the configs of now say otherwise."""
    jobs.layout = type(jobs.layout)(tmp_path)
    metrics = jobs.layout.metrics(MODEL, "grpo", 0)
    metrics.parent.mkdir(parents=True)
    kept = {"training": {"steps": 70, "keep_steps": [7]}}
    metrics.with_name("config.yaml").write_text(yaml.safe_dump(kept))
    for steps, needed in (("7", [metrics]), ("8", [])):
        run = SimpleNamespace(model=MODEL, method=f"grpo@training.steps={steps}", seed="0")
        assert jobs.longer(run) == needed
    assert jobs.longer(SimpleNamespace(model=MODEL, method="grpo", seed="0")) == []


def test_a_table_is_one_file_and_its_rule_makes_three(jobs):
    assert [file.name for file in jobs.files_of(["table1", "figure1"])] == ["table1.csv", "figure1.png"]
    files, shown = jobs.drawn("table1")
    assert [file.suffix for file in [*files, shown]] == [".csv", ".tex", ".md"]
    assert jobs.in_report("table1")["category"] == "2 Tables"
    assert jobs.in_report("table6")["category"] == "4 Further"
    assert (jobs.bounds("table1"), jobs.bounds("data_filter")) == (None, [0.0625, 0.9375])


def test_the_command_for_lsf_asks_for_what_is_planned(tmp_path):
    """Snakemake runs without the server of the tests, which has looked for plugins before."""
    pytest.importorskip("snakemake_executor_plugin_cluster_generic", reason="this executor plugin is not installed")
    project = copy_project(tmp_path / "project")
    files = [f"data/{name}.parquet" for name in ("train", *load_config("paper").data.evaluation)]
    for name in (*files, "data/problems.json", f"models/{MODEL}/seed0/model.json", "pass_rates/seed0.parquet"):
        file = project / "results" / "paper" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    bsub = project.with_name("bsub")
    bsub.write_text("#!/bin/sh\nprintf '%s ' \"$@\" > bsub.txt\nexit 1\n")
    bsub.chmod(0o755)
    page = (ROOT / "docs" / "paper-scale.md").read_text()
    [command] = re.findall(r"^    (snakemake --executor cluster-generic (?:.*\\\n)*.*)$", page, re.MULTILINE)
    documented = shlex.split(command.replace("\\\n", ""))[1:]
    run = f"results/paper/runs/{MODEL}/grpo/seed0/metrics.parquet"
    words = [f"{os.path.dirname(sys.executable)}/snakemake", *documented, "--retries", "0"]
    environment = without_server(PATH=f"{project.parent}:{os.environ['PATH']}")
    command = [*words, "--rerun-triggers", "mtime", "--", run]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert (project / "bsub.txt").is_file(), done.stdout + done.stderr
    asked = resources(load_config("paper", MODEL, "grpo"), "train")
    submitted = (project / "bsub.txt").read_text()
    assert submitted.startswith(f"-n {asked['threads']} -gpu num={asked['gpu']} -M {asked['mem_mb']}MB ")
    assert f" -W {asked['runtime']} -wt 30 -wa URG {project}" in submitted
