"""The workflow with another executor than SLURM's: what it asks for."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import MODEL
from entropy_dynamics.client import SERVER
from entropy_dynamics.config import load_config
from entropy_dynamics.planning.plan import resources
from project_copy import ROOT, copy_project

RUN = f"results/paper/runs/{MODEL}/grpo/seed0/metrics.parquet"
PAGE = (ROOT / "docs" / "paper-scale.md").read_text()


@pytest.fixture
def project(tmp_path) -> Path:
    """At the paper's scale, with what a run starts from."""
    folder = copy_project(tmp_path / "project")
    files = [f"data/{name}.parquet" for name in ("train", *load_config("paper").data.evaluation)]
    for name in (*files, "data/problems.json", f"models/{MODEL}/seed0/model.json", "pass_rates/seed0.parquet"):
        file = folder / "results" / "paper" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return folder


def snakemake(project: Path, *arguments: str) -> str:
    """What it says, without the server of the tests, which has looked for plugins before."""
    tools = f"{project.parent}:{os.environ['PATH']}"
    environment = {key: value for key, value in os.environ.items() if key != SERVER} | {"PATH": tools}
    command = [Path(sys.executable).with_name("snakemake"), *arguments]
    said = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    return said.stdout + said.stderr


def test_the_command_for_lsf_asks_for_what_is_planned(project):
    pytest.importorskip("snakemake_executor_plugin_cluster_generic", reason="this executor plugin is not installed")
    bsub = project.with_name("bsub")
    bsub.write_text("#!/bin/sh\nprintf '%s ' \"$@\" > bsub.txt\nexit 1\n")
    bsub.chmod(0o755)
    [command] = re.findall(r"^    (snakemake --executor cluster-generic (?:.*\\\n)*.*)$", PAGE, re.MULTILINE)
    documented = shlex.split(command.replace("\\\n", ""))[1:]
    said = snakemake(project, *documented, "--retries", "0", "--rerun-triggers", "mtime", "--", RUN)
    assert (project / "bsub.txt").is_file(), said
    asked = resources(load_config("paper", MODEL, "grpo"), "train")
    submitted = (project / "bsub.txt").read_text()
    assert submitted.startswith(f"-n {asked['threads']} -gpu num={asked['gpu']} -M {asked['mem_mb']}MB ")
    assert f" -W {asked['runtime']} -wt 30 -wa URG {project}" in submitted
