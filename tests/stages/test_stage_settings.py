"""Settings of a run that its stages hand on: temperatures, and the prompts that its records name, one warning."""

import json
import math

import pandas as pd
import pytest

from command_line import set_to
from conftest import ROOT
from entropy_dynamics.cli import main
from entropy_dynamics.config import load_config, read_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.storage import save_policy
from entropy_dynamics.results.files import write_json
from entropy_dynamics.results.layout import CONFIG, FACTS, Layout, record_of
from entropy_dynamics.sampling.native import NativeSampler
from entropy_dynamics.stages import train as train_stage
from entropy_dynamics.stages.inputs import new_settings
from entropy_dynamics.stages.theory import check_logit_steps
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.files import write_problems
from entropy_dynamics.training.trainer import Trainer

MODEL = "qwen2.5-7b-instruct"


def test_a_run_validates_as_it_evaluates_and_records_its_prompts(small_results, monkeypatch):
    monkeypatch.chdir(ROOT)
    asked, made_from = {}, []
    sample, checkpoints = NativeSampler.sample, train_stage.Checkpoints

    def spy(self, prompts, *, temperature, stream, **more):
        asked[stream.partition("/")[0]] = temperature
        return sample(self, prompts, temperature=temperature, stream=stream, **more)

    def remember(*arguments, **settings):
        made_from.append(settings["made_from"])
        return checkpoints(*arguments, **settings)

    monkeypatch.setattr(NativeSampler, "sample", spy)
    monkeypatch.setattr(train_stage, "Checkpoints", remember)
    settings = ["training.steps=1", "sampling.temperature=1.0", "evaluation.temperature=0.5"]
    assert main([*small_results.train("grpo"), *set_to(settings)]) == 0
    assert asked == {"train": 1.0, "validation": 0.5, "evaluation": 0.5}
    layout = Layout.of("smoke", small_results.folder)
    record = json.loads((small_results.run("grpo") / "provenance.json").read_text())
    assert record["prompts"] == made_from[0]["prompts"]
    assert len(set(record["prompts"])) == 2  # the training set's and the validation set's
    for file in (layout.pass_rates(0), layout.evaluation_file(MODEL, "grpo", 0, "aime24")):
        assert len(json.loads(record_of(file).read_text())["prompts"]) == 16


@pytest.mark.parametrize("temperature", [1.0, 100.0])
def test_the_theory_is_checked_at_the_temperature_of_the_rollouts(make_model, tokenizer, tmp_path, temperature):
    model, layout = make_model("qwen2", layers=2), Layout(tmp_path / "laptop")
    write_problems(layout.problems("train"), [Problem(f"p{n}", f"1+{n}", str(1 + n), "math") for n in range(4)])
    save_policy(model, tokenizer, layout.model(MODEL, 0))
    (layout.model(MODEL, 0) / FACTS).write_text("{}")
    overrides = [f"sampling.temperature={temperature}"]
    check_logit_steps(load_config("laptop", MODEL, overrides=overrides, configs=ROOT / "configs"), layout, 0)
    relative = pd.read_parquet(layout.logit_steps)["entropy"] / math.log(model.config.vocab_size)
    if temperature == 1.0:
        assert relative.mean() < 0.9
    else:  # nearly uniform
        assert relative.min() > 0.999


def test_a_text_with_a_literal_interpolation_is_trained_and_verified(small_results, monkeypatch, capsys):
    monkeypatch.chdir(ROOT)
    settings = ["training.steps=1", r"method.label=\${a b}"]
    train = [*small_results.train("grpo"), *set_to(settings)]
    assert main(train) == 0
    config = read_config(small_results.run("grpo") / CONFIG)
    assert config["method"]["label"] == "${a b}"
    assert main(train) == 0  # the same config
    capsys.readouterr()
    assert main(["verify", str(small_results.folder / "smoke"), *small_results.settings, *set_to(settings)]) == 0
    assert main([*train, "--set", "training.prompts_per_step=3"]) == 2
    assert f"{CONFIG} was made with another config" in capsys.readouterr().err


@pytest.mark.parametrize("write", ["to_yaml", "write_json"])
def test_what_cannot_be_written_is_said_before_the_first_step(small_results, monkeypatch, capsys, write):
    def refuse(*_):
        raise UserError("cannot be written")

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(train_stage, write, refuse)
    monkeypatch.setattr(Trainer, "step", lambda *_: pytest.fail("trains"))
    assert main(small_results.train("grpo")) == 2
    assert capsys.readouterr().err == "error: cannot be written\n"


@pytest.mark.parametrize("folder", ["seed0", "seed0/T1.3"])
def test_what_is_new_in_the_settings_of_samples(tmp_path, folder):
    """Those at a temperature of their own are not made again for another one of the config."""
    layout = Layout(tmp_path)
    file = layout.root / "evaluations" / MODEL / "grpo" / folder / "aime24.parquet"
    now = {"evaluation.temperature": 0.7, "a.b": [1, 3], "same": None, "versions.methods.clip_b": "0" * 63 + "2"}
    assert new_settings(layout, file, now) == []  # no record
    was = {"evaluation.temperature": 1.3, "a.b": [1, 2], "same": None, "versions.methods.clip_b": "0" * 63 + "1"}
    write_json(record_of(file), {"config": was})
    others = ["a.b [1, 2] -> [1, 3]", "made by another version of methods.clip_b"]
    temperature = ["evaluation.temperature 1.3 -> 0.7"] if folder == "seed0" else []
    assert new_settings(layout, file, now) == temperature + others
