"""What a result was made from: settings, code, inputs and the name that it is stored under, at each command."""

import json
import math
import os
import shlex
import shutil
import subprocess
import sys

import pandas as pd
import pytest

from command_line import error, output, set_to
from conftest import MODEL, ROOT
from entropy_dynamics.cli import main
from entropy_dynamics.config import USED, is_within, load_config, read_yaml
from entropy_dynamics.config.schema import RunConfig, marked_keys
from entropy_dynamics.distributed.lock import held
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.storage import save_policy
from entropy_dynamics.results.files import write_json
from entropy_dynamics.results.layout import CONFIG, FACTS, Layout, record_of
from entropy_dynamics.sampling.native import NativeSampler
from entropy_dynamics.sections import PER_MACHINE, Section
from entropy_dynamics.stages import train as train_stage
from entropy_dynamics.stages.inputs import new_settings
from entropy_dynamics.stages.theory import check_logit_steps
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.files import write_problems
from entropy_dynamics.training.checkpoints import Checkpoints
from entropy_dynamics.training.trainer import Trainer

OF_NO_STAGE = {  # the keys that no stage's settings have, and why no result is made again for them
    "scale": "the folder of the results",
    "seeds": "the name of a result",
    "models": "the name of a result",
    "experiments": "what is drawn",
    "experiments_folder": "what is drawn",
    "gate": "judged again when a run begins",
    "evaluation.temperatures": "the name of a result",
    "evaluation.control_temperatures": "the name of a result",
    "method.label": "written into tables and figures, which are drawn again",
}


@pytest.fixture
def made(small_results):
    return small_results


# ---------------------------------------------------------------- settings
def test_every_key_is_a_setting_of_a_stage_or_named_as_of_none():
    """A new key of the schema is in `USED`, is of the machine, or has its reason in `OF_NO_STAGE`."""
    known = [*OF_NO_STAGE, *marked_keys(PER_MACHINE), *(key for keys in USED.values() for key in keys), "toy_models"]

    def unknown(kind: type[Section], prefix: str = "") -> list[str]:
        keys = []
        for name, field in kind.model_fields.items():
            key, section = f"{prefix}{name}", field.annotation
            if is_within(key, known):
                continue
            inside = isinstance(section, type) and issubclass(section, Section)
            keys += unknown(section, f"{key}.") if inside else [key]
        return keys

    assert unknown(RunConfig) == []
    for key in OF_NO_STAGE:
        assert not any(is_within(key, used) for used in USED.values()), key


# ---------------------------------------------------------------- the gate
def test_the_gate_is_judged_by_the_bounds_of_now_when_a_run_begins(made, capsys):
    line = error(capsys, *made.train("grpo"), "--set", "gate.pass_rate=[0.99, 1]")
    assert line.startswith("no signal: pass_rate is ")
    assert ", below 0.99: try easier problems in data.train" in line
    assert not made.run("grpo").exists()
    gate = json.loads(made.layout.gate(0).read_text())
    assert (gate["bounds"]["pass_rate"], len(gate["faults"])) == ([0.99, 1], 1)
    assert main(made.train("grpo")) == 0  # wider again
    assert json.loads(made.layout.gate(0).read_text())["faults"] == []


@pytest.mark.parametrize(("key", "value"), [("faults", ["none"]), ("pass_rate", 0.7)])
def test_an_edited_gate_is_found(made, capsys, key, value):
    record = json.loads(made.layout.gate(0).read_text())
    (record["measured"] if key == "pass_rate" else record)[key] = value
    made.layout.gate(0).write_text(json.dumps(record))
    out, _ = output(capsys, "verify", str(made.layout.root), *made.settings, code=1)
    assert "modified: pass_rates/seed0.gate.json: " in out


def test_finished_runs_whose_gate_has_other_bounds_are_named(made, capsys):
    assert main(["verify", str(made.layout.root), *made.settings]) == 0
    narrow = ["--set", "gate.pass_rate=[0.99, 1]"]
    out, _ = output(capsys, "verify", str(made.layout.root), *made.settings, *narrow, code=1)
    assert "different config: pass_rates/seed0.gate.json: pass_rate is " in out


# ---------------------------------------------------------------- names
@pytest.mark.parametrize(
    ("method", "entry", "given", "stored"),
    [
        ("grpo@training.steps=1", "training.steps=3", "training.steps=3", "1"),
        ("grpo@training.steps=1", "training={steps: 3}", "training.steps=3", "1"),
        ("clip_b@mu=1.2", "method.params.mu=3", "method.params.mu=3", "1.2"),
        ("clip_b@mu=1.2", "method.params={}", "method.params.mu=None", "1.2"),
        ("grpo", "method={name: clip_b, label: x, params: {mu: 1.0}}", "method.name=clip_b", "grpo"),
    ],
)
@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_setting_does_not_contradict_the_name_of_the_run(made, capsys, command, method, entry, given, stored):
    named = ["--model", MODEL, "--method", method, "--seed", "0"]
    text = f"--set {given}: the run is stored as {method}, with {stored}; "
    assert text in error(capsys, *made.command(command, *named), "--set", entry)
    assert not made.run(method).exists()


def test_verify_compares_a_run_with_its_name(made, capsys):
    name = "grpo@training.steps=1"
    assert main(made.train(name)) == 0
    everything = [*made.settings, "--set", "training.steps=3"]
    output(capsys, "verify", made.layout.root, *everything)
    shutil.move(made.run(name), made.run("grpo@training.steps=3"))
    out, _ = output(capsys, "verify", str(made.layout.root), *everything, code=1)
    assert "grpo@training.steps=3/seed0/config.yaml: training.steps 1 -> 3" in out


# ---------------------------------------------------------------- the chain above a stage
OTHER_START = f"toy_models[{MODEL}].warm_start.steps=2"


@pytest.mark.parametrize(
    ("command", "setting", "made_anew"),
    [
        (["pass_rates"], OTHER_START, f"entropy-dynamics model --model {MODEL} --seed 0 --scale smoke"),
        (["train", "grpo"], OTHER_START, f"entropy-dynamics model --model {MODEL} --seed 0 --scale smoke"),
        (["evaluate", "base"], OTHER_START, f"entropy-dynamics model --model {MODEL} --seed 0 --scale smoke"),
        (["theory"], OTHER_START, f"entropy-dynamics model --model {MODEL} --seed 0 --scale smoke"),
        (["train", "grpo"], "pass_rates.samples=4", "entropy-dynamics pass_rates --seed 0 --scale smoke"),
        (["train", "grpo"], "data.seed=77", "entropy-dynamics problems --scale smoke"),
        (["model"], "data.seed=77", "entropy-dynamics problems --scale smoke"),
    ],
)
def test_a_stage_refuses_inputs_made_with_other_settings(made, capsys, command, setting, made_anew):
    name, *method = command
    of_run = ["--model", MODEL, *(["--method", *method] if method else []), "--seed", "0"]
    options = {"pass_rates": [], "theory": []}.get(name, of_run)
    line = error(capsys, *made.command(name, *options), "--set", setting)
    key = setting.partition("=")[0].replace("[", ".").replace("]", "")
    assert f"was made from something else: {key} " in line
    assert f"make it again with: {made_anew} --results {made.folder} --set " in line
    assert line.endswith(f" --set {shlex.quote(setting)}")


def test_a_stage_refuses_pass_rates_of_another_model(made, capsys):
    shutil.rmtree(made.layout.model(MODEL, 0))
    output(capsys, *made.command("model", "--model", MODEL), "--set", OTHER_START)
    line = error(capsys, *made.train("grpo"), "--set", OTHER_START)
    base = made.layout.facts(MODEL, "base", 0)
    assert f"{made.layout.pass_rates(0)} was made from something else: {base} has changed since; delete it" in line


def test_a_run_is_evaluated_with_other_samples_but_not_with_other_training(made, capsys):
    assert main([*made.train("grpo"), "--set", "training.steps=1"]) == 0
    of_run = ("--model", MODEL, "--method", "grpo", "--seed", "0")
    run = made.command("evaluate", *of_run, "--temperatures", "0.3")
    settings = set_to(["training.steps=1", "evaluation.samples.aime24=3"])
    output(capsys, *run, *settings)
    line = error(capsys, *run, "--set", "training.steps=2")
    assert f"{made.run('grpo')} was made from something else: training.steps 1 -> 2" in line


# ---------------------------------------------------------------- a shorter run beside a longer one
def test_a_longer_run_leaves_nothing_to_a_shorter_one_that_trains(made, capfd, monkeypatch):
    """What that one is writing stays."""
    name, writing = "grpo@training.steps=1", []

    def leave(self, *given, really=Checkpoints.leave):
        writing.append(self.folder / ".step1.partial")
        writing[0].mkdir(parents=True)
        really(self, *given)

    monkeypatch.setattr(Checkpoints, "leave", leave)
    longer = [*made.train("grpo"), *set_to(["training.steps=2", "training.keep_steps=[1]"])]
    with held(made.layout.lock(MODEL, name, 0)):
        assert main(longer) == 0
    assert "note: another job trains the run of 1 steps" in capfd.readouterr().err
    assert list(writing[0].parent.iterdir()) == writing


# ---------------------------------------------------------------- code
def test_a_run_by_another_version_of_its_method_is_named_and_refused(made, tmp_path):
    """Only those of the edited method, and of methods that inherit from it."""
    for method in ("grpo", "clip_b", "random_mask"):
        assert main([*made.train(method), "--set", "training.steps=1"]) == 0
    source = shutil.copytree(ROOT / "src", tmp_path / "src")
    file = source / "entropy_dynamics" / "methods" / "clip_b.py"
    program = "import sys; from entropy_dynamics.cli import main; sys.exit(main())"

    def run(*arguments: str) -> subprocess.CompletedProcess:
        command = [sys.executable, "-c", program, *arguments, *made.settings, "--set", "training.steps=1"]
        environment = os.environ | {"PYTHONPATH": str(source)}
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    text = file.read_text()
    file.write_text(text.replace("0.0, mask.float())", "0.5, mask.float())"))
    assert file.read_text() != text
    found = run("verify", str(made.layout.root)).stdout.splitlines()[:-1]
    runs = f"different config: runs/{MODEL}"
    assert found == [
        f"{runs}/clip_b/seed0/config.yaml: made by another version of methods.clip_b",
        f"{runs}/random_mask/seed0/config.yaml: made by another version of methods.random_mask",
    ]
    of_run = ["--scale", "smoke", "--results", str(made.folder), "--model", MODEL, "--method", "clip_b"]
    refused = run("evaluate", *of_run, "--seed", "0", "--temperatures", "0.3")
    assert refused.returncode == 2
    assert "made from something else: made by another version of methods.clip_b; delete it" in refused.stderr


# ---------------------------------------------------------------- settings that stages hand on
def test_a_run_validates_as_it_evaluates_and_records_its_prompts(made, monkeypatch):
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
    assert main([*made.train("grpo"), *set_to(settings)]) == 0
    assert asked == {"train": 1.0, "validation": 0.5, "evaluation": 0.5}
    record = json.loads((made.run("grpo") / "provenance.json").read_text())
    assert record["prompts"] == made_from[0]["prompts"]
    assert len(set(record["prompts"])) == 2  # the training set's and the validation set's
    evaluation = made.layout.evaluation_file(MODEL, "grpo", 0, "aime24")
    for file in (made.layout.pass_rates(0), evaluation):
        assert len(json.loads(record_of(file).read_text())["prompts"]) == 16


@pytest.mark.parametrize("temperature", [1.0, 100.0])
def test_the_theory_is_checked_at_the_temperature_of_the_rollouts(make_model, tokenizer, tmp_path, temperature):
    model, layout = make_model("qwen2", layers=2), Layout(tmp_path / "laptop")
    write_problems(layout.problems("train"), [Problem(f"p{n}", f"1+{n}", str(1 + n), "math") for n in range(4)])
    save_policy(model, tokenizer, layout.model(MODEL, 0))
    (layout.model(MODEL, 0) / FACTS).write_text("{}")
    overrides = [f"sampling.temperature={temperature}"]
    check_logit_steps(load_config("laptop", MODEL, overrides=overrides), layout, 0)
    relative = pd.read_parquet(layout.logit_steps)["entropy"] / math.log(model.config.vocab_size)
    if temperature == 1.0:
        assert relative.mean() < 0.9
    else:  # nearly uniform
        assert relative.min() > 0.999


def test_a_text_with_a_literal_interpolation_is_trained_and_verified(made):
    settings = ["training.steps=1", r"method.label=\${a b}"]
    train = [*made.train("grpo"), *set_to(settings)]
    assert main(train) == 0
    config = read_yaml(made.run("grpo") / CONFIG, resolve=True)
    assert config["method"]["label"] == "${a b}"
    assert main(train) == 0  # the same config
    assert main(["verify", str(made.layout.root), *made.settings, *set_to(settings)]) == 0


@pytest.mark.parametrize("write", ["to_yaml", "write_json"])
def test_what_cannot_be_written_is_said_before_the_first_step(made, monkeypatch, capsys, write):
    def refuse(*_):
        raise UserError("cannot be written")

    monkeypatch.setattr(train_stage, write, refuse)
    monkeypatch.setattr(Trainer, "step", lambda *_: pytest.fail("trains"))
    assert error(capsys, *made.train("grpo")) == "cannot be written"


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
