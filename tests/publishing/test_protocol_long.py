"""docs/reference/long/protocol.md against the config and the experiments of the scale `long`."""

import re
from pathlib import Path

import pytest

from conftest import ROOT
from entropy_dynamics.config import load_config
from entropy_dynamics.experiments.load import load_experiment

TEXT = (ROOT / "docs/reference/long/protocol.md").read_text()
METHODS = {"GRPO": "grpo", "GRPO, half the rate": "grpo_half_rate", "Clip_B": "clip_b", "Clip_V": "clip_v"}
MODELS = ["qwen2.5-7b-instruct", "qwen3-4b-base"]
ARMS = re.findall(r"^\| (.+) \| ([\de.-]+) \| (\d+) \| ([\d, ]+) \|$", TEXT, re.M)


def test_all_arms_are_stated():
    assert [name for name, *_ in ARMS] == [*METHODS]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("name", "rate", "steps", "checkpoints"), ARMS)
def test_an_arm(name, rate, steps, checkpoints, model):
    config, parent = (load_config(scale, model, METHODS[name]) for scale in ("long", "laptop"))
    assert config.training.optimizer.learning_rate == parent.training.optimizer.learning_rate == float(rate)
    assert config.training.steps == int(steps)
    assert [*config.training.keep_steps, config.training.steps] == [*map(int, checkpoints.split(", "))]
    for section in ("training", "method", "sampling", "pass_rates"):
        ours, theirs = (getattr(of, section) for of in (config, parent))
        differs = {key for key, value in ours if value != getattr(theirs, key)}
        assert differs <= {"steps", "keep_steps", "entropy_change_every", "entropy_change_first_order"}
    assert config.toy_models == parent.toy_models
    assert f"`data.train.size` is {config.data.train.size}" in TEXT


def test_what_is_compared():
    config = load_config("long")
    curves, left = (
        load_experiment(name, "long", dict(config.seeds), Path(config.experiments_folder))
        for name in config.experiments
    )
    steps = [*map(int, ARMS[0][3].split(", "))]
    points = {of if step == 150 else f"{of}@training.steps={step}" for of in METHODS.values() for step in steps}
    assert {run.method for run in left.runs} == points
    assert {run.method for run in curves.runs} == {*METHODS.values()}
    seeds = {run.seed for run in left.runs}
    assert f"**Seeds** are {min(seeds)} to {max(seeds)}." in TEXT
    for name, method in zip(left.spec.averages, ("clip_b", "clip_v", "grpo", "grpo_half_rate"), strict=True):
        assert left.spec.averages[name] == [*(f"{method}@training.steps={step}" for step in (130, 140)), method]
    temperatures = sorted({config.evaluation.temperature, *left.temperatures})
    assert "**Temperatures** are {}, {} and {}".format(*temperatures) in TEXT
