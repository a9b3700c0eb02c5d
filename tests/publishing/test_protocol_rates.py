"""docs/reference/rates/protocol.md against the configs and experiments of the scales `rates` and `rates-desk`."""

import re
from pathlib import Path

import pytest

from conftest import ROOT
from entropy_dynamics.config import load_config
from entropy_dynamics.experiments.load import load_experiment

TEXT = (ROOT / "docs/reference/rates/protocol.md").read_text()
PROTOCOL = " ".join(TEXT.split())
METHODS = {
    "GRPO": "grpo",
    "GRPO, half the rate": "grpo_half_rate",
    "GRPO, a quarter of the rate": "grpo_quarter_rate",
    "Clip_V": "clip_v",
    "Clip_V, half the rate": "clip_v_half_rate",
}
MODELS = ["qwen2.5-7b-instruct", "qwen3-4b-base"]
SCALES = ["rates", "rates-desk"]


def arms(scale):
    """Method -> (learning rate, steps, checkpoints) of the protocol's table of arms."""
    at = SCALES.index(scale)
    for row in re.findall(r"^\| (.+) \| ([\de.-]+); ([\de.-]+) \| (.+) \| ([\d, ]+) \|$", TEXT, re.M):
        name, rates, (steps, desk), checkpoints = (
            row[0],
            row[1:3],
            re.fullmatch(r"(\d+)(?: \(1 M: (\d+)\))?", row[3]).groups(),
            row[4],
        )
        steps = int(desk or steps) if at else int(steps)
        yield (
            METHODS[name],
            (float(rates[at]), steps, [step for step in map(int, checkpoints.split(", ")) if step <= steps]),
        )


@pytest.mark.parametrize("scale", SCALES)
def test_arms_are_those_of_the_protocol(scale):
    stated = dict(arms(scale))
    assert list(stated) == list(METHODS.values())
    for model in MODELS:
        for method, (rate, steps, checkpoints) in stated.items():
            config = load_config(scale, model, method)
            assert config.training.optimizer.learning_rate == rate
            assert config.training.steps == steps
            assert {*checkpoints} <= {*config.training.keep_steps, steps}
            plain = load_config(scale, model, method.removesuffix("_half_rate").removesuffix("_quarter_rate"))
            assert config.method.params == plain.method.params


@pytest.mark.parametrize("scale", SCALES)
def test_points_are_those_of_the_protocol(scale):
    config = load_config(scale)
    name = config.experiments[0]
    experiment = load_experiment(name, scale, dict(config.seeds), Path(config.experiments_folder))
    points = {
        method if last else f"{method}@training.steps={step}"
        for method, (_, steps, checkpoints) in arms(scale)
        for step in checkpoints
        for last in [step == steps]
    }
    assert {run.method for run in experiment.runs} == points
    assert {run.model for run in experiment.runs} == {*MODELS}
    seeds = {run.seed for run in experiment.runs}
    assert f"**Seeds** are {min(seeds)} to {max(seeds)} at both sizes" in PROTOCOL
    temperatures = sorted({config.evaluation.temperature, *experiment.temperatures})
    assert "**Temperatures** are " + ", ".join(map(str, temperatures[:-1])) + f" and {temperatures[-1]}" in PROTOCOL


def test_training_is_that_of_the_scales_it_extends():
    for scale, parent in zip(SCALES, ("laptop", "desk"), strict=True):
        for model in MODELS:
            for method in ("grpo", "clip_v"):
                ours, theirs = (load_config(name, model, method).model_dump() for name in (scale, parent))
                for section in ("training", "method", "sampling", "data", "pass_rates"):
                    differs = {key for key in ours[section] if ours[section][key] != theirs[section][key]}
                    assert differs <= {"entropy_change_every", "entropy_change_first_order"}, (section, differs)


@pytest.mark.parametrize("scale", SCALES)
def test_what_is_left_is_over_the_grid_of_the_protocol(scale):
    config = load_config(scale)
    frontier, left = (
        load_experiment(name, scale, dict(config.seeds), Path(config.experiments_folder)) for name in config.experiments
    )
    spec, model = left.spec, MODELS[0]
    assert set(left.runs) == set(frontier.runs)
    steps = {method: of_method for method, (_, of_method, _) in arms(scale)}

    def at(method, *of):
        return [method if step == steps[method] else f"{method}@training.steps={step}" for step in of]

    assert [spec.averages[name] for name in spec.compared] == [
        at(of, 30, 40, 50) for of in ("clip_v", "clip_v_half_rate")
    ]
    wanted = [at("grpo", 30, 40, 50), at("grpo_half_rate", 30, 40, 50), at("grpo_quarter_rate", 30, 40, 50)]
    if scale == "rates":
        wanted += [at("grpo_half_rate", 80, 90, 100), at("grpo_quarter_rate", 180, 190, 200)]
    means = {name: of for name, of in spec.averages.items() if name not in spec.compared}
    assert sorted(means.values()) == sorted(wanted)
    added = [[*left.methods(model, patterns), *means.keys() & set(patterns)] for patterns in spec.grids.values()]
    assert [{name.partition("@")[0] for name in left.methods(model, of)} for of in spec.grids.values()] == [
        {"grpo"}, {"grpo_half_rate"}, {"grpo_quarter_rate"}
    ]  # fmt: skip
    of_grpo = {method for method in left.methods(model) if method.startswith("grpo")}
    assert {name for names in added for name in names} == of_grpo | means.keys()
    for patterns, mean in zip(spec.grids.values(), ("grpo", "grpo_half_rate", "grpo_quarter_rate"), strict=True):
        assert {means[name][0].partition("@")[0] for name in means.keys() & set(patterns)} == {mean}
