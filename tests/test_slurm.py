"""The slurm profile, end to end, over stand-ins of SLURM's commands: what is submitted, and what becomes of it."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("snakemake_executor_plugin_slurm", reason="the extra `slurm` is not installed")

ROOT = Path(__file__).parents[1]
NEEDED = ["Snakefile", "workflow", "profiles", "configs", "experiments", "environment.yml"]
COMMANDS = ["sbatch", "sacct", "srun", "scancel", "sacctmgr", "sinfo", "scontrol", "squeue"]
TINY = """
extends: laptop
scale: tiny
seeds: {tables: 1, extras: 1}
data:
  train: {size: 24}
  evaluation:
    dapo500: {size: 4}
sampling: {max_new_tokens: 8}
pass_rates: {samples: 2, low: null, high: null}
stand_ins:
  qwen2.5-7b-instruct: {warm_start: {steps: 2}}
"""
ON_GPUS = f"""{TINY}
hardware: {{device: cuda, ranks: 2}}
engine: {{name: vllm}}
plan: {{gpu: H100, gpu_memory_gib: 79, tflops: 989, bandwidth_gb_s: 3350}}
"""


class Cluster:
    """A copy of the project, and a folder with what the stand-ins did."""

    def __init__(self, folder: Path, scale: str):
        self.project, self.slurm, tools = folder / "project", folder / "slurm", folder / "bin"
        for name in NEEDED:
            source = ROOT / name
            self.project.mkdir(exist_ok=True)
            (shutil.copytree if source.is_dir() else shutil.copy)(source, self.project / name)
        (self.project / "configs/scale/tiny.yaml").write_text(scale)
        profile = self.project / "profiles/slurm/config.yaml"
        profile.write_text(profile.read_text().replace("my_account", "lab"))  # as a user edits it
        self.slurm.mkdir()
        tools.mkdir()
        for name in COMMANDS:
            (tools / name).write_text(f'#!/bin/sh\nexec {sys.executable} {ROOT}/tests/slurm_stand_in.py {name} "$@"\n')
            (tools / name).chmod(0o755)
        clean = {key: value for key, value in os.environ.items() if not key.startswith("SLURM")}
        self.environment = clean | {"PATH": f"{tools}:{os.environ['PATH']}", "CLUSTER_STAND_IN": str(self.slurm)}

    def make(self, target: str, *arguments: str) -> subprocess.CompletedProcess:
        command = [
            Path(sys.executable).parent / "snakemake",
            target,
            "--workflow-profile",
            "profiles/slurm",
            *arguments,
        ]
        soon = ["--slurm-init-seconds-before-status-checks", "1", "--latency-wait", "5"]
        return subprocess.run(
            [*command, *soon, "--config", "scale=tiny"],
            cwd=self.project,
            env=self.environment,
            capture_output=True,
            text=True,
        )

    def calls(self, command: str) -> list[dict[str, str]]:
        file = self.slurm / f"{command}.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def submitted(self) -> list[str]:
        return [call["--comment"] for call in self.calls("sbatch")]


def test_each_job_is_submitted_once_and_a_cancelled_one_is_made_again(tmp_path):
    cluster = Cluster(tmp_path, TINY)
    target = "results/tiny/data/pass_rates.parquet"
    (cluster.slurm / "cancel").write_text("measure_pass_rates")
    run = cluster.make(target)
    said = run.stdout + run.stderr
    assert run.returncode != 0
    assert "measure_pass_rates" in said
    assert "CANCELLED" in said
    assert cluster.submitted() == ["rule_base_model_wildcards_qwen2.5-7b-instruct", "rule_measure_pass_rates"]
    for call in cluster.calls("sbatch"):
        assert (call["-A"], call["-p"], call["--nodes"]) == ("lab", "gpu", "1")
        assert int(call["--mem"]) >= 1000
        assert int(call["-t"]) >= 10
        assert call["--cpus-per-task"] == "1"
        assert "--gpus" not in call
    results = cluster.project / "results/tiny"
    assert (results / "models/qwen2.5-7b-instruct/model.json").is_file()
    assert not (cluster.project / target).exists()
    assert not list(results.rglob("*.partial"))

    (cluster.slurm / "cancel").unlink()
    run = cluster.make(target)
    assert run.returncode == 0, run.stdout + run.stderr
    assert cluster.submitted()[2:] == ["rule_measure_pass_rates"]
    assert (cluster.project / target).is_file()
    assert [call["started"] for call in cluster.calls("srun")] == [1, 1, 1]


def test_a_job_on_two_gpus_is_started_once_and_its_failure_is_named(tmp_path):
    """Both of its ranks end with a mistake: on a machine without GPUs that of the device."""
    cluster = Cluster(tmp_path, ON_GPUS)
    run = cluster.make("results/tiny/data/pass_rates.parquet")
    said = run.stdout + run.stderr
    assert run.returncode != 0
    assert "measure_pass_rates" in said
    assert "FAILED" in said
    *_, call = cluster.calls("sbatch")
    assert call["--comment"] == "rule_measure_pass_rates"
    assert (call["--gpus"], call["--nodes"], call["--cpus-per-gpu"]) == ("2", "1", "8")
    assert int(call["--mem"]) > 10_000
    assert int(call["-t"]) > 0
    assert "--ntasks-per-gpu" not in call
    *_, step = cluster.calls("srun")
    assert (step["-n"], step["--gpus"], step["started"]) == ("1", "2", 1)
    log = (cluster.project / "results/tiny/logs/pass_rates.log").read_text()
    assert log.count(" of 2 ended with exit code 2") == 1
    assert not (cluster.project / "results/tiny/data/pass_rates.parquet").exists()


def test_an_account_that_is_none_of_the_users_is_named(tmp_path):
    cluster = Cluster(tmp_path, TINY)
    profile = cluster.project / "profiles/slurm/config.yaml"
    profile.write_text(profile.read_text().replace("slurm_account: lab", "slurm_account: my_account"))
    run = cluster.make("results/tiny/models/qwen2.5-7b-instruct/model.json")
    assert run.returncode != 0
    assert "my_account appears to be invalid" in run.stdout + run.stderr
    assert cluster.submitted() == []
