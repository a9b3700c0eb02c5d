"""The paper's scale on a CPU by the command that a user types: vLLM, two ranks, real problems if available."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import psutil
import pytest

from conftest import REAL_PROBLEMS
from countdown import countdown_set
from entropy_dynamics.models.storage import load_policy
from project_copy import copy_project

BIN = Path(sys.executable).parent
MODELS = ("qwen2.5-7b-instruct", "qwen3-4b-base")
METHODS = ("base", "grpo", "clip_b", "clip_v")

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def problems(tmp_path_factory) -> Path:
    """A folder of problem files, as for a machine without a network: real AIME and DAPO problems, or Countdown's."""
    folder = tmp_path_factory.mktemp("problems")
    for seed, (name, source, count) in enumerate(
        (("train", "dapo_slice", 30), ("aime24", "aime24", 30), ("aime25", "aime25", 4))
    ):
        if REAL_PROBLEMS.is_dir():
            lines = (REAL_PROBLEMS / f"{source}.jsonl").read_text(encoding="utf-8").splitlines()[:count]
        else:
            rules = {"numbers": [3 + seed, 3 + seed], "values": [1, 9], "targets": [1, 40]}
            made = countdown_set(size=count, **rules).generate(name, seed, exclude=())
            lines = [json.dumps({"id": one.id, "problem": one.text, "answer": one.answer}) for one in made]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def environment(problems) -> dict[str, str]:
    return os.environ | {"ENTROPY_DYNAMICS_PROBLEMS": str(problems), "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def project(tmp_path_factory, problems, environment) -> Path:
    """A copy of the project with the finished rehearsal."""
    folder = copy_project(tmp_path_factory.mktemp("project"))
    if REAL_PROBLEMS.is_dir():  # whose answers are integers, not expressions
        config = folder / "configs/scale/rehearsal.yaml"
        file = rf"{{source: file, path: {problems}/\1.jsonl, task: math}}"
        text, changed = re.subn(r"(?<= )(\w+): {source: countdown.*}", rf"\1: {file}", config.read_text())
        assert changed == 3
        config.write_text(text)
    run = subprocess.run(
        [BIN / "snakemake", "--config", "scale=rehearsal"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    return folder


@pytest.fixture(scope="module")
def results(project) -> Path:
    return project / "results" / "rehearsal"


def test_table1_has_the_papers_layout(results):
    table = pd.read_csv(results / "tables" / "table1.csv").set_index(["model", "method"])
    assert set(table.index) == {(model, method) for model in MODELS for method in METHODS}
    for dataset in ("aime24", "aime25", "dapo500"):
        for metric in ("avg", "pass"):
            assert table[f"{dataset}_{metric}"].between(0, 100).all()
    assert table.loc[("qwen2.5-7b-instruct", "grpo"), "aime24_avg_paper"] == 16.88
    assert "toy" in (results / "tables" / "table1.md").read_text()


def test_the_engine_agrees_with_the_trainer_at_every_step(results):
    for model in MODELS:
        for method in METHODS[1:]:
            run = results / "runs" / model / method / "seed0"
            metrics = pd.read_parquet(run / "metrics.parquet")
            assert metrics["step"].tolist() == [0, 1, 2]
            assert (metrics["engine_logp_difference_max"] < 1e-4).all()
            assert (metrics["grad_norm"] > 0).any()
            assert json.loads((run / "provenance.json").read_text())["ranks"] == 2


def test_transformers_reads_the_trained_policies(results):
    for model in MODELS:
        base, _ = load_policy(results / "models" / model / "seed0")
        trained, _ = load_policy(results / "runs" / model / "clip_b" / "seed0" / "policy")
        assert [name for name, _ in base.named_parameters()] == [name for name, _ in trained.named_parameters()]
        assert any((one != other).any() for one, other in zip(base.parameters(), trained.parameters(), strict=True))


@pytest.mark.skipif(not REAL_PROBLEMS.is_dir(), reason="no real problems")
def test_real_problems_were_evaluated(results, project, environment):
    rows = pd.read_parquet(results / "evaluations" / MODELS[0] / "clip_b" / "seed0" / "aime24.parquet")
    assert rows["problem_id"].nunique() == 30
    assert rows["problem_id"].str.startswith("aime2024-").all()
    shown = subprocess.run(
        [BIN / "entropy-dynamics", "prompt", "--scale", "rehearsal", "--model", MODELS[1], "--problem", "aime2024-I-1"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.startswith("System:Please reason step by step")
    assert "Every morning Aya goes for a $9$-kilometer-long walk" in shown


def test_a_killed_rank_ends_the_run_and_the_next_call_resumes_it(project, results, environment):
    """A separate run with more steps, so that it has a checkpoint when its rank 1 is killed."""
    for name in (f"models/{MODELS[0]}/seed", "pass_rates/seed"):  # what a run of seed 7 starts from
        end = ".parquet" if name.startswith("pass") else ""
        (results / f"{name}7{end}").symlink_to((results / f"{name}0{end}").resolve())
    command = [
        *(BIN / "entropy-dynamics", "train", "--scale", "rehearsal", "--model", MODELS[0], "--method", "grpo"),
        *("--seed", "7", "--set", "training.steps=40", "--set", "training.validation_every=0"),
    ]
    checkpoints = results / "checkpoints" / MODELS[0] / "grpo" / "seed7"
    run = subprocess.Popen(command, cwd=project, env=environment, stderr=subprocess.PIPE, text=True)
    while not list(checkpoints.glob("*/step*/checkpoint.json")):
        assert run.poll() is None, run.stderr.read()
        time.sleep(0.02)
    os.kill(rank_of(project, 1), signal.SIGKILL)
    _, said = run.communicate(timeout=60)
    assert run.returncode == 2
    assert "error: rank 1 of 2 was ended by SIGKILL" in said.splitlines()[-1]
    assert not (results / "runs" / MODELS[0] / "grpo" / "seed7").exists()
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=True)
    assert "resumes from the checkpoint after step" in done.stderr
    metrics = pd.read_parquet(results / "runs" / MODELS[0] / "grpo" / "seed7" / "metrics.parquet")
    assert metrics["step"].tolist() == list(range(40))
    assert not checkpoints.exists()


def rank_of(project: Path, rank: int) -> int:
    """The process id of a rank of the training run in this project, which may be a child of the preloaded process."""
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            runs = "train" in process.cmdline() and process.cwd() == str(project)
            if runs and process.environ().get("RANK") == str(rank):
                return process.pid
    raise AssertionError(f"no rank {rank} in {project}")


# ---------------------------------------------------------------- the scale smollm2
MODEL = "smollm2-135m-instruct"
MEAN, LARGEST = 1e-4, 1e-3  # nats; fp32 on both sides


def test_its_log_probabilities_are_the_trainers(tmp_path):
    """By the command that a user types, for two steps of Clip_B: the second samples with pushed weights."""
    project = copy_project(tmp_path)
    with (project / "configs/scale/smollm2-mini.yaml").open("a") as file:
        file.write("\nengine: {name: vllm, dtype: float32, kv_cache_gib: 0.5}\n")
    metrics = f"results/smollm2-mini/runs/{MODEL}/clip_b/seed0/metrics.parquet"
    command = [Path(sys.executable).parent / "snakemake", "--cores=1", "--config", "scale=smollm2-mini", "--", metrics]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    run = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout[-5000:] + run.stderr[-5000:]
    rows = pd.read_parquet(project / metrics)
    assert rows["step"].tolist() == [0, 1]
    assert (rows["tokens"] > 0).all()
    assert rows["engine_logp_difference"].between(0, MEAN).all()
    assert rows["engine_logp_difference_max"].between(0, LARGEST).all()
