"""The command line: the stages one after another at a tiny size; mistakes that need files are one line."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from command_line import error, from_files, output, set_to, write_lines
from command_line import run as said
from conftest import MODEL, REAL_PROBLEMS, ROOT, SETS
from entropy_dynamics.arguments import command_parser
from entropy_dynamics.cli import main
from entropy_dynamics.models.storage import load_policy
from entropy_dynamics.results.files import sha256, write_parquet
from entropy_dynamics.results.layout import Layout, record_of
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.files import load_problems, write_problems
from entropy_dynamics.training.first_order import COLUMNS
from entropy_dynamics.training.trainer import Trainer
from fault_harness import files_in

SMALL = [
    *("data.train.size=24", "data.evaluation.aime24.size=3", "data.evaluation.aime25.size=3"),
    *("data.evaluation.dapo500.size=4", "data.evaluation.validation.size=2", f"toy_models[{MODEL}].warm_start.steps=2"),
    *("sampling.max_new_tokens=8", "training.steps=2", "training.prompts_per_step=3", "training.group_size=4"),
    *("training.validation_problems=2", "training.validation_samples=2", "training.validation_every=1"),
    *("training.entropy_change_every=1", "evaluation.samples={aime24: 2, aime25: 2, dapo500: 2}"),
]


@pytest.fixture
def run(tmp_path, capfd):
    """`run(stage, ...)` in tmp_path at a tiny laptop scale, which ends with `code` -> (stdout, stderr)."""

    def call(stage, *arguments, settings=(), code=0):
        words = [stage, "--results", tmp_path, *arguments, *set_to([*SMALL, *settings])]
        return output(capfd, *words, code=code)

    return call


@pytest.fixture
def refused(tmp_path, capfd):
    """The same for a command that is a mistake: `refused(stage, ...)` -> its line."""

    def call(stage, *arguments, settings=()):
        return error(capfd, stage, "--results", tmp_path, *arguments, *set_to([*SMALL, *settings]))

    return call


@pytest.fixture
def layout(tmp_path):
    return Layout.of("laptop", tmp_path)


TRAIN = ("train", "--model", MODEL, "--method", "grpo", "--seed", "0")


def keep(layout, kept):
    """A pass-rate file that keeps `kept` of the training problems: an untrained model solves none."""
    ids = [problem.id for problem in load_problems(layout.problems("train"))]
    frame = pd.DataFrame({"problem_id": ids, "rate": [0.5 * (index < kept) for index in range(len(ids))]})
    write_parquet(layout.pass_rates(0), frame)
    return set(ids[:kept])


# ---------------------------------------------------------------- the stages
def test_from_problems_to_evaluation(run, refused, layout, tmp_path):
    assert run("problems")[0].splitlines() == [
        "train: 18 problems",
        "aime24: 3 problems",
        "aime25: 3 problems",
        "dapo500: 4 problems split off train",
        "validation: 2 problems split off train",
    ]
    run("model", "--model", MODEL)
    facts = json.loads((layout.model(MODEL, 0) / "model.json").read_text())
    assert facts["toy"] is True
    assert facts["parameters"] == sum(one.numel() for one in load_policy(layout.model(MODEL, 0))[0].parameters())
    assert facts["weights_sha256"] == {"model.safetensors": sha256(layout.model(MODEL, 0) / "model.safetensors")}

    assert "(18 are 0, 0 are 1): nothing is left to train on" in refused("pass_rates")
    assert not layout.pass_rates(0).exists()
    made = "make it with: entropy-dynamics pass_rates --seed 0 --scale laptop --results"
    assert f"no {layout.pass_rates(0)}; {made}" in refused(*TRAIN)
    keep(layout, 6)
    _, err = run("train", "--model", MODEL, "--method", "clip_b@mu=0.5", "--seed", "0")
    assert err.startswith(f"{MODEL} runs as a toy model of {facts['parameters'] / 1e6:.2f} M parameters\n")
    out = layout.run(MODEL, "clip_b@mu=0.5", 0)
    assert {path.name for path in out.iterdir()} == {"config.yaml", "metrics.parquet", "policy", "provenance.json"}

    metrics = pd.read_parquet(out / "metrics.parquet")
    for step, row in metrics.iterrows():  # all of so small a batch
        sampled = pd.read_parquet(layout.step_samples(MODEL, "clip_b@mu=0.5", 0) / f"step{step}.parquet")
        assert sampled["correct"].mean() == row["accuracy"]
        tokens = sampled.explode(["token", "logp", "entropy", "s_star", "s_expected", "weight"])
        assert tokens["entropy"].mean() == pytest.approx(row["entropy"], rel=1e-5)
        assert (tokens["s_star"] - tokens["s_expected"]).mean() == pytest.approx(row["s_centered_mean"], abs=1e-6)
        assert (tokens["weight"] == 0).mean() == pytest.approx(row["clip_fraction"], abs=1e-6)
        assert sampled["token"].map(lambda texts: texts[-1] == "<end>").mean() == pytest.approx(1 - row["truncated"])
    assert metrics["step"].tolist() == [0, 1]
    assert metrics["validation_accuracy"].notna().all()
    assert (metrics["validation_pass"] >= metrics["validation_accuracy"]).all()
    measured = metrics.drop(columns=["validation_accuracy", "validation_pass", *COLUMNS])  # the last of GRPO alone
    assert np.isfinite(measured.to_numpy(dtype=float)).all()
    before, after = (load_policy(one)[0] for one in (layout.model(MODEL, 0), out / "policy"))
    facts |= {"method": "clip_b@mu=0.5", "seed": 0}
    del facts["outputs"], facts["config"]  # those of the run are in its record and its config.yaml
    facts["weights_sha256"] = {"model.safetensors": sha256(out / "policy" / "model.safetensors")}
    assert json.loads((out / "policy" / "model.json").read_text()) == facts
    assert any(not torch.equal(one, other) for one, other in zip(before.parameters(), after.parameters(), strict=True))
    config = yaml.safe_load((out / "config.yaml").read_text())
    assert config["method"]["params"]["mu"] == 0.5
    assert config["training"]["steps"] == 2
    record = json.loads((out / "provenance.json").read_text())
    assert (record["model"], record["method"], record["seed"]) == (MODEL, "clip_b@mu=0.5", 0)
    for file in (layout.pass_rates(0), layout.problems("train"), layout.model(MODEL, 0) / "model.json"):
        assert record["inputs"][file.as_posix()] == sha256(file)

    samples = layout.evaluation(MODEL, "clip_b@mu=0.5", 0)
    by_training = {path.name: path.read_bytes() for path in samples.iterdir()}
    assert sorted(by_training) == [f"{name}.{end}" for name in SETS for end in ("parquet", "provenance.json")]
    shutil.rmtree(samples)
    run("evaluate", "--model", MODEL, "--method", "clip_b@mu=0.5", "--seed", "0")
    assert {path.name: path.read_bytes() for path in samples.iterdir()} == by_training
    assert not list(tmp_path.rglob("*.partial"))


def test_a_toy_model_beside_problems_from_files(run, tmp_path):
    """The warm start leaves out the problems of its task among them, and does not trip over the rest."""
    texts = ["Find $x$ if $x + 1 = 2$.", "1,2,3=6", "4,5,6=3", "7,8,9=6", "1+2+3"]
    sources = []
    for key, text in zip(("train", *(f"evaluation.{name}" for name in SETS)), texts, strict=True):
        file = write_lines(tmp_path / f"{key}.jsonl", [{"id": key, "problem": text, "answer": 1}])
        sources.append(f"data.{key}={{source: file, path: {file}}}")
    run("problems", settings=sources)
    run("model", "--model", MODEL, settings=sources)


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    """Data, an untrained model, and a filter that keeps six problems."""
    folder = tmp_path_factory.mktemp("untrained")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        for stage in (["problems"], ["model", "--model", MODEL]):
            assert main([*stage, "--results", str(folder), *set_to(SMALL)]) == 0
    keep(Layout.of("laptop", folder), 6)
    return folder


@pytest.fixture
def ready(untrained, tmp_path, layout):
    """The layout of a test's own copy."""
    shutil.copytree(untrained, tmp_path, dirs_exist_ok=True)
    return layout


def test_training_uses_kept_problems_only_and_each_set_has_its_own_answers(run, ready, monkeypatch):
    """A validation problem may have the id of a training problem, since sets can come from different files."""
    from entropy_dynamics.stages import train as run_module

    kept = keep(ready, 5)
    trained = {problem.id: problem.answer for problem in load_problems(ready.problems("train")) if problem.id in kept}
    write_problems(ready.problems("validation"), [Problem(name, "9,9,9=27", "27", "countdown") for name in trained])
    graders = []
    original = run_module.make_grader

    def spy(tokenizer, problems):
        graders.append({problem.id: problem.answer for problem in problems})
        return original(tokenizer, problems)

    monkeypatch.setattr(run_module, "make_grader", spy)
    run(*TRAIN)
    assert trained in graders
    assert dict.fromkeys(list(trained)[:2], "27") in graders  # as many as validation_problems


def not_finite(grade) -> float:
    return float("nan")


def ctrl_c(grade) -> float:
    raise KeyboardInterrupt


def break_step(monkeypatch, number, reward) -> None:
    """From this step on, rewards are `reward(grade)`."""

    def step(self, now, really=Trainer.step):
        self.reward = reward if now == number else self.reward
        return really(self, now)

    monkeypatch.setattr(Trainer, "step", step)


def test_a_rerun_replaces_the_old_run(run, ready):
    """That it gives the same bytes is shown by test_preload.py."""
    left = ready.run(MODEL, "grpo", 0) / "left over"
    left.parent.mkdir(parents=True)
    left.write_text("from an older version")
    run(*TRAIN)
    assert not left.exists()


@pytest.mark.parametrize("reward", [ctrl_c, not_finite])
def test_an_interrupted_run_leaves_nothing(run, ready, tmp_path, monkeypatch, reward):
    break_step(monkeypatch, 1, reward)
    before = files_in(tmp_path)
    out, err = run(*TRAIN, code=130 if reward is ctrl_c else 2)
    assert not ready.run(MODEL, "grpo", 0).exists()
    failure = ready.failure(MODEL, "grpo", 0)
    kept = (failure, ready.step_samples(MODEL, "grpo", 0))  # the samples of a step, as soon as it is done
    left = {path for path in files_in(tmp_path) if not any((tmp_path / path).is_relative_to(folder) for folder in kept)}
    assert left == set(before)
    if reward is ctrl_c:
        assert err.splitlines()[-1].startswith("interrupted")
        assert not failure.exists()
    else:
        assert err.splitlines()[-1].startswith("error: step 1: the loss is nan")
        assert str(failure) in err.splitlines()[-1]
    assert "Traceback" not in out + err


@pytest.mark.parametrize("broken_step", [0, 1])
def test_a_broken_run_resumes_from_the_last_good_step(run, ready, monkeypatch, broken_step):
    settings = ["training.steps=3", "training.checkpoint_every=2"]
    with monkeypatch.context() as patched:
        break_step(patched, broken_step, not_finite)
        run(*TRAIN, settings=settings, code=2)
    _, err = run(*TRAIN, settings=settings)
    assert ("resumes from the checkpoint after step 1" in err) == (broken_step == 1)
    assert not ready.checkpoints(MODEL, "grpo", 0).exists()


def test_a_run_whose_files_another_job_has_removed_can_be_finished(run, ready, monkeypatch):
    """Snakemake removes outputs before the command of a second job is refused, here at the end of the evaluation."""
    from entropy_dynamics.stages.evaluate import evaluate

    def evaluated(*arguments, **settings):
        samples = evaluate(*arguments, **settings)
        [file] = ready.root.glob("runs/*/*/*/metrics.parquet")
        file.unlink()
        return samples

    settings = ["training.checkpoint_every=1"]
    with monkeypatch.context() as patched:
        patched.setattr("entropy_dynamics.stages.train.evaluate", evaluated)
        _, err = run(*TRAIN, settings=settings, code=2)
    assert re.fullmatch(r"error: \S+/\w+\.parquet is gone: .* checkpoints are kept.*", err.splitlines()[-1])
    _, err = run(*TRAIN, settings=settings)
    assert "resumes from the checkpoint after step 2" in err
    assert not ready.checkpoints(MODEL, "grpo", 0).exists()


# ---------------------------------------------------------------- mistakes; more in test_user_errors.py
def test_a_source_is_not_overwritten(refused, layout, tmp_path):
    rows = [{"id": 1, "problem": "1+1", "answer": 2}]
    file = write_lines(layout.data / "train.jsonl", rows)
    settings = [f"data.train={{source: file, path: {file}, task: math}}"]
    assert "choose another folder" in refused("problems", settings=settings)
    assert [*files_in(tmp_path)] == ["laptop/data/train.jsonl"]


def test_results_of_another_config_are_not_replaced(run, refused, ready, tmp_path):
    ready.pass_rates(0).unlink()
    no_filter = ("pass_rates.low=null", "pass_rates.high=null", "pass_rates.samples=2")
    stages = [
        (("problems",), "data.seed=9", ready.problems_report),
        (("model", "--model", MODEL), f"toy_models[{MODEL}].seed=9", ready.facts(MODEL, "base", 0)),
        (("pass_rates",), "pass_rates.samples=3", ready.pass_rates(0)),
        (TRAIN, "training.optimizer.learning_rate=0.5", ready.run(MODEL, "grpo", 0) / "config.yaml"),
        (("theory",), "sampling.temperature=0.5", ready.logit_steps),
        (
            ("evaluate", *TRAIN[1:], "--datasets", "aime24", "aime24"),
            "evaluation.samples.aime24=3",
            ready.evaluation_file(MODEL, "grpo", 0, "aime24"),
        ),
    ]
    for command, _, _ in stages:
        run(*command, settings=no_filter)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for command, changed, result in stages:
        assert f"{result} was made with another config" in refused(*command, settings=(*no_filter, changed))
    assert "no folder nowhere" in refused("problems", settings=(*no_filter, "data.folder=nowhere"))
    (ready.run(MODEL, "grpo", 0) / "config.yaml").write_text("")
    assert "was made with another config" in refused(*TRAIN, settings=no_filter)
    (record := record_of(ready.pass_rates(0))).unlink()
    assert f"{ready.pass_rates(0)} has no config in {record.name}; " in refused("pass_rates", settings=no_filter)
    shutil.rmtree(ready.run(MODEL, "grpo", 0))  # what a run ends with is not refused at its end
    message = f"{ready.evaluation_file(MODEL, 'grpo', 0, 'aime24')} was made with another config"
    record.write_bytes(before[record])
    assert message in refused(*TRAIN, settings=(*no_filter, "evaluation.temperature=0.5"))
    assert all(path.read_bytes() == before[path] for path in tmp_path.rglob("*") if path.is_file())


def test_a_fresh_clone_says_what_makes_a_run(monkeypatch, tmp_path, capfd):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    run = f"{MODEL}/grpo/seed0"
    every = "--scale laptop; all that is missing: snakemake --config scale=laptop -- results/laptop"
    made = f"make it with: entropy-dynamics problems {every}/runs/{run}/metrics.parquet"
    assert error(capfd, *TRAIN).endswith(made)
    evaluate = ("evaluate", *TRAIN[1:], "--temperatures", "0.33")  # which no rule makes
    assert error(capfd, *evaluate).endswith(f"{every}/evaluations/{run}/aime24.parquet")


def test_without_a_command_the_commands_are_listed(capfd):
    assert main([]) == 0
    assert "entropy-watch" in capfd.readouterr().out
    assert main(["--version"]) == 0
    assert re.fullmatch(r"entropy-dynamics \d+\.\d+\.\d+\n", capfd.readouterr().out)


def test_every_command_is_in_a_group_and_its_example_is_one_of_it():
    """And no help names a folder that a wheel lacks."""
    parser = command_parser()
    groups = parser.get_default("groups")
    assert sum(map(len, groups.values())) == len(parser.get_default("commands"))
    for commands in groups.values():
        for name, sub in commands.items():
            heading, example = map(str.strip, sub.epilog.splitlines())
            assert heading == "example:"
            options = parser.parse_args(shlex.split(example)[1:])
            assert options.command == name.replace("-", "_")
            text = sub.format_help()
            assert text.startswith(f"usage: entropy-dynamics {name} ")
            assert "configs/" not in text
            assert "experiments/" not in text


def test_from_a_shell(tmp_path):
    """The installed command itself, and from a place without configs."""
    command = [sys.executable, "-m", "entropy_dynamics.cli", "train", "--model", MODEL, "--method", "clip_bb"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    for folder, message in ((ROOT, "unknown method 'clip_bb'"), (tmp_path, "run this from the root")):
        result = subprocess.run([*command, "--seed", "0"], capture_output=True, text=True, cwd=folder, env=environment)
        assert (result.returncode, result.stdout) == (2, "")
        [line] = result.stderr.splitlines()
        assert line.startswith("error: ")
        assert message in line


def test_variables_of_a_notebook_and_of_an_interpreter_without_docstrings(tmp_path):
    path = write_lines(tmp_path / "batch.jsonl", [{"logp": -1.0, "entropy": 1.0, "advantage": 1.0}])
    command = [sys.executable, "-m", "entropy_dynamics.cli", "lens", str(path), "--figure", str(tmp_path / "lens.svg")]
    changed = {"PYTHONPATH": str(ROOT / "src"), "PYTHONOPTIMIZE": "2", "MPLBACKEND": "nonsense"}
    result = subprocess.run(command, capture_output=True, text=True, env=os.environ | changed)
    assert (result.returncode, result.stderr) == (0, "")
    assert (tmp_path / "lens.svg").is_file()


@pytest.mark.parametrize(("ending", "code"), [("return 2", 2), ("raise ValueError('a bug')", 1)])
def test_the_command_exits_at_once_but_in_order(ending, code):
    """Output is flushed, libraries' exit handlers run, the exit code is kept; a bug shows its traceback."""
    program = f"""
import atexit
from entropy_dynamics import cli

def main():
    atexit.register(print, "handled")
    print("said", end=" ")
    {ending}

class Kept:
    def __del__(self):
        print("taken apart")

kept = Kept()
cli.main = main
cli.program()
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert result.returncode == code
    assert result.stdout.startswith("said handled\n")
    assert ("taken apart" in result.stdout) == ("a bug" in result.stderr) == (code == 1)


def test_the_resolved_config_is_shown(run):
    shown = yaml.safe_load(run("config", "--model", MODEL, "--method", "clip_v@mu=3")[0])
    assert shown["method"]["params"]["mu"] == 3
    assert shown["training"]["steps"] == 2
    assert shown["model"]["name"] == MODEL
    assert "model" not in yaml.safe_load(run("config")[0])
    schema = json.loads(run("config", "--schema")[0], parse_constant=pytest.fail)
    assert schema["properties"]["training"]


# ---------------------------------------------------------------- the real data
@pytest.mark.skipif(not (REAL_PROBLEMS / "dapo_slice.jsonl").is_file(), reason="the real data files are not here")
def test_the_real_files(tmp_path, capsys):
    files = from_files(REAL_PROBLEMS / "dapo_slice.jsonl", aime24=REAL_PROBLEMS / "aime24.jsonl", dapo500=500)
    assert "dapo500: 500 problems split off train" in said(capsys, "problems", *files, "--results", tmp_path)
    out = tmp_path / "smoke" / "data"
    report = json.loads((out / "problems.json").read_text())["sets"]
    split = {problem.id for problem in load_problems(out / "dapo500.parquet")}
    assert len(split) == 500
    train, aime24 = (load_problems(out / f"{name}.parquet") for name in ("train", "aime24"))
    assert len(aime24) == 30
    assert len(train) == report["train"]["kept"] > 9000
    for name, entry in report.items():
        assert entry["kept"] + sum(entry["dropped"].values()) == entry["rows"], name
    texts = {problem.text for problem in train}
    assert not texts & {problem.text for problem in aime24}
    assert not {problem.id for problem in train} & split
