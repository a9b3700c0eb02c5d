"""The slurm profile end to end, with fakes of SLURM's commands: submissions and their outcomes."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from preloaded import program
from project_copy import ROOT, copy_project

pytest.importorskip("snakemake_executor_plugin_slurm", reason="the extra `slurm` is not installed")

COMMANDS = ["sbatch", "sacct", "srun", "scancel", "sacctmgr", "sinfo", "scontrol", "squeue"]
MODEL = "results/tiny/models/qwen2.5-7b-instruct/seed0/model.json"
TINY = """
extends: laptop
scale: tiny
seeds: {tables: 1, extras: 1}
data:
  train: {size: 24}
  evaluation:
    dapo500: {size: 4}
    validation: {size: 2}
sampling: {max_new_tokens: 8}
pass_rates: {samples: 2, low: null, high: null}
toy_models:
  qwen2.5-7b-instruct: {warm_start: {steps: 2}}
"""
ON_GPUS = f"""{TINY}
hardware: {{device: cuda, ranks: 2}}
engine: {{name: vllm}}
"""


class Cluster:
    """A copy of the project, and a folder with the records of the fakes."""

    def __init__(self, folder: Path, scale: str):
        self.project, self.slurm, tools = folder / "project", folder / "slurm", folder / "bin"
        self.project.mkdir()
        copy_project(self.project)
        (self.project / "configs/scale/tiny.yaml").write_text(scale)
        profile = self.project / "profiles/slurm/config.yaml"
        profile.write_text(profile.read_text().replace("my_account", "lab"))  # as a user edits it
        self.slurm.mkdir()
        tools.mkdir()
        for name in COMMANDS:
            fake = shlex.join([sys.executable, f"{ROOT}/tests/fake_slurm.py", name])
            (tools / name).write_text(f'#!/bin/sh\nexec {fake} "$@"\n')
            (tools / name).chmod(0o755)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
        self.environment = clean | {"PATH": f"{tools}:{os.environ['PATH']}", "FAKE_SLURM": str(self.slurm)}

    def make(self, target: str, *arguments: str, retries: int = 0) -> subprocess.CompletedProcess:
        command = ["snakemake", target, "--workflow-profile", "profiles/slurm", *arguments]
        quick = ["--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "5", "--retries", str(retries)]
        return self.run(*command, *quick, "--config", "scale=tiny")

    def run(self, name: str, *arguments: str) -> subprocess.CompletedProcess:
        command = [program(name), *arguments]
        return subprocess.run(command, cwd=self.project, env=self.environment, capture_output=True, text=True)

    def calls(self, command: str) -> list[dict[str, str]]:
        file = self.slurm / f"{command}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def submitted(self) -> list[str]:
        return [call["--comment"] for call in self.calls("sbatch")]


def test_each_job_is_submitted_once_and_a_canceled_one_is_rerun(tmp_path):
    cluster = Cluster(tmp_path, TINY)
    (cluster.slurm / "cancel").write_text("rule_model")
    run = cluster.make(MODEL)
    assert run.returncode != 0
    assert "CANCELLED" in run.stdout + run.stderr
    assert cluster.submitted() == ["rule_model_wildcards_qwen2.5-7b-instruct_0"]
    [call] = cluster.calls("sbatch")
    assert (call["-A"], call["-p"], call["--nodes"], call["--cpus-per-task"]) == ("lab", "gpu", "1", "1")
    assert int(call["--mem"]) >= 1000
    assert int(call["-t"]) >= 10
    assert "--gpus" not in call
    assert (cluster.project / "results/tiny/data/train.parquet").is_file()  # made on the login node
    assert not (cluster.project / MODEL).exists()
    assert not list(cluster.project.rglob("*.partial"))

    (cluster.slurm / "cancel").unlink()
    run = cluster.make(MODEL)
    assert run.returncode == 0, run.stdout + run.stderr
    assert cluster.submitted() == ["rule_model_wildcards_qwen2.5-7b-instruct_0"] * 2
    assert (cluster.project / MODEL).is_file()
    assert [call["started"] for call in cluster.calls("srun")] == [1, 1]


def test_a_cold_start_is_a_training_and_is_submitted(tmp_path):
    """A pretrained model without one is only downloaded, on the login node."""
    cluster = Cluster(tmp_path, "{extends: smollm2, scale: tiny}")
    (cluster.slurm / "cancel").write_text("rule_model")
    cluster.make("results/tiny/models/smollm2-135m-instruct/seed0/model.json")
    assert cluster.submitted() == ["rule_model_wildcards_smollm2-135m-instruct_0"]


@pytest.mark.parametrize(
    ("nodes", "geometry", "said"),
    [
        (1, (None, None), " of 2 ended with exit code 2"),
        pytest.param(2, ("2", "1"), "error: srun ended with exit code 2", marks=pytest.mark.long),
    ],
)
def test_a_job_on_two_gpus_is_started_once_and_its_failure_is_named(tmp_path, nodes, geometry, said):
    """Both of its ranks end with an error, before they read anything: this machine has no GPUs."""
    cluster = Cluster(tmp_path, ON_GPUS.replace("ranks: 2", f"ranks: 2, nodes: {nodes}"))
    target = "results/tiny/pass_rates/seed0.parquet"
    problems = [f"results/tiny/data/{name}.parquet" for name in ("train", "aime24", "aime25", "dapo500")]
    for name in (*problems, "results/tiny/data/problems.json", MODEL):
        (cluster.project / name).parent.mkdir(parents=True, exist_ok=True)
        (cluster.project / name).touch()
    run = cluster.make(target)
    assert run.returncode != 0
    assert "pass_rates" in run.stdout + run.stderr
    assert "FAILED" in run.stdout + run.stderr
    [call] = cluster.calls("sbatch")
    assert call["--comment"] == "rule_pass_rates_wildcards_0"
    assert (call["--gpus"], call["--nodes"], call["--cpus-per-gpu"]) == ("2", str(nodes), "8")
    assert (call.get("--ntasks"), call.get("--gpus-per-node")) == geometry
    assert int(call["--mem"]) > 10_000 / nodes
    assert int(call["-t"]) > 0
    assert "--ntasks-per-gpu" not in call
    [step] = cluster.calls("srun")
    assert step["started"] == nodes
    assert nodes > 1 or (step["-n"], step["--gpus"]) == ("1", "2")
    log = (cluster.project / "results/tiny/logs/pass_rates/seed0.log").read_text()
    assert log.count(said) == 1
    assert not (cluster.project / target).exists()


def test_an_invalid_account_is_named(tmp_path):
    cluster = Cluster(tmp_path, TINY)
    profile = cluster.project / "profiles/slurm/config.yaml"
    profile.write_text(profile.read_text().replace("slurm_account: lab", "slurm_account: my_account"))
    run = cluster.make(MODEL)
    assert run.returncode != 0
    assert "my_account appears to be invalid" in run.stdout + run.stderr
    assert cluster.submitted() == []


def test_where_no_command_knows_accounts_the_documented_line_says_so(tmp_path):
    """As with an accounting daemon that is down: nothing is submitted."""
    cluster = Cluster(tmp_path, TINY)
    for name in ("sacctmgr", "sshare"):
        (tmp_path / "bin" / name).write_text("#!/bin/sh\necho 'error: no database' >&2; exit 1\n")
        (tmp_path / "bin" / name).chmod(0o755)
    run = cluster.make(MODEL)
    assert run.returncode != 0
    [documented] = re.findall(r"it ends with `(.+?)` and what SLURM's", (ROOT / "docs/paper-scale.md").read_text())
    said = run.stdout + run.stderr
    assert documented in said
    assert "error: no database" in said
    assert cluster.submitted() == []
