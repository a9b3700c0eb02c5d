"""docs/reference/smollm2/protocol-rates.md against the config and the experiments of the scale `smollm2-rates`."""

import re
from pathlib import Path

import pytest

from conftest import ROOT
from entropy_dynamics.config import load_config
from entropy_dynamics.experiments.load import load_experiment

SCALE, MODEL = "smollm2-rates", "smollm2-135m-instruct"
TEXT = (ROOT / "docs/reference/smollm2/protocol-rates.md").read_text()
METHODS = {"GRPO": "grpo", "GRPO, half the rate": "grpo_half_rate"}
METHODS |= {"Clip_V": "clip_v", "Clip_V, half the rate": "clip_v_half_rate"}
ARMS = re.findall(r"^\| (.+) \| ([\de.-]+) \| (\d+) \| ([\d, ]+) \|$", TEXT, re.M)


def test_all_arms_are_stated():
    assert [name for name, *_ in ARMS] == [*METHODS]


@pytest.mark.parametrize(("name", "rate", "steps", "checkpoints"), ARMS)
def test_an_arm(name, rate, steps, checkpoints):
    config = load_config(SCALE, MODEL, METHODS[name])
    parent = load_config("smollm2-gpu", MODEL, METHODS[name].removesuffix("_half_rate"))
    assert config.training.optimizer.learning_rate == float(rate)
    assert config.training.steps == int(steps)
    assert [*config.training.keep_steps, config.training.steps] == [*map(int, checkpoints.split(", "))]
    assert config.method.params == parent.method.params
    assert config.sampling == parent.sampling
    assert config.gate == parent.gate


def test_what_is_compared():
    config = load_config(SCALE)
    frontier, left = (
        load_experiment(name, SCALE, dict(config.seeds), Path(config.experiments_folder)) for name in config.experiments
    )
    methods = {
        of if step == 50 else f"{of}@training.steps={step}" for of in METHODS.values() for step in range(10, 60, 10)
    }
    assert {run.method for run in left.runs} == methods == {run.method for run in frontier.runs}
    assert {run.seed for run in left.runs} == {*range(200, 208)}
    for name, method in zip(left.spec.averages, ("clip_v", "clip_v_half_rate", "grpo", "grpo_half_rate"), strict=True):
        steps = [f"{method}@training.steps=30", f"{method}@training.steps=40", method]
        assert left.spec.averages[name] == steps
    assert f"The margin is {left.spec.margin:g} points" in TEXT
    temperatures = sorted({config.evaluation.temperature, *left.temperatures})
    assert "**Temperatures** are " + ", ".join(map(str, temperatures[:-1])) + f" and {temperatures[-1]}" in TEXT
    sizes = [config.data.evaluation[name].size for name in left.evaluations]
    assert "{} problems of three numbers and {} of four".format(*sizes) in TEXT
    assert {config.evaluation.samples[name] for name in left.evaluations} == {8}
