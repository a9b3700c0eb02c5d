"""The arithmetic of `benchmarks/reproduce.py`."""

import json
import os
import sys

import pandas as pd
import pytest

from conftest import ROOT
from entropy_dynamics.results.files import write_parquet

START = 1_700_000_000
JOBS = {  # record: (start, end)
    "problems": (0, 1),
    "models/qwen2.5-7b-instruct/seed0": (1, 5),
    "pass_rates/seed0": (5, 7),
    "runs/qwen2.5-7b-instruct/grpo/seed0": (7, 17),
    "runs/qwen2.5-7b-instruct/clip_b/seed0": (8, 16),
    "evaluations/qwen2.5-7b-instruct/grpo/seed0": (18, 22),
    "tables/table1": (22, 23),
}
METRICS = {  # two steps each, of 7 and of 5 seconds; 2 more of clip_b are its evaluation
    "grpo": {"seconds_sample": [3.0, 1.0], "seconds_update": [1.0, 2.0]},
    "clip_b": {"seconds_sample": [2.0, 3.0], "seconds_update": [0.0, 0.0]},
}


@pytest.fixture
def reproduce(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import reproduce

    return reproduce


@pytest.fixture
def account(reproduce, tmp_path, monkeypatch, capsys):
    """`account(...)` runs the script on a made-up run on two cores and returns its JSON."""
    root = tmp_path / "laptop"
    for name, (start, end) in JOBS.items():
        timed = {"start": START + start, "seconds": end - start}
        record = {"rule": name.split("/")[0], "log": f"{root}/logs/{name}.log", **timed}
        (root / "logs").mkdir(parents=True, exist_ok=True)
        with open(root / "logs" / "jobs.jsonl", "a") as file:
            print(json.dumps(record), file=file)
    for method, columns in METRICS.items():
        frame = pd.DataFrame(columns).assign(step=[0, 1])
        write_parquet(root / "runs/qwen2.5-7b-instruct" / method / "seed0" / "metrics.parquet", frame)
    run, samples = (root / kind / "qwen2.5-7b-instruct/clip_b/seed0" for kind in ("runs", "evaluations"))
    samples.mkdir(parents=True)
    ends = {run: 13, samples / "aime24.provenance.json": 14, samples / "aime25.provenance.json": 15}
    for path, end in ends.items():
        if path != run:
            path.touch()
        os.utime(path, (START + end, START + end))

    def call(*arguments):
        out = tmp_path / "out.json"
        command = ["reproduce.py", "--results", str(tmp_path), "--cores", "2", "--out", str(out), *arguments]
        monkeypatch.setattr(sys, "argv", command)
        reproduce.main()
        return json.loads(out.read_text())

    return call


def test_every_core_second_is_accounted_for(account, reproduce):
    found = account()
    seconds = {what: entry["seconds"] for what, entry in found["core_seconds"].items()}
    # Start-up: 3 + 1 of the two runs; their median, 2, of all others with a model.
    assert seconds == {
        reproduce.STARTUP: 3 + 1 + 2 + 2 + 2,
        "sampling": 9,
        "updates": 3,
        "warm starts": 2,
        "evaluation": 2 + 2,
        "pass rates": 0,
        "problem sets": 1,
        reproduce.DRAWING: 1,
        reproduce.WAITING: 2,  # clip_b from 7 to 8, the evaluation from 17 to 18
        reproduce.NOTHING: 7 + 1 + 1 + 5,  # one core until 7, from 16 to 17, from 18 on; the other from 17 to 18
    }
    assert sum(seconds.values()) == 2 * 23
    assert found["wall_minutes"] == round(23 / 60, 2)
    assert found["core_seconds"]["sampling"]["share"] == round(9 / 46, 4)
    assert list(found["shares"].values()) == [round(10 / 46, 4), round((10 + 1 + 1 + 2 + 14) / 46, 4)]
    assert (found["startup_seconds_per_job"], found["job_seconds"]) == (2, 30)
