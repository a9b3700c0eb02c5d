"""Hostile configs, names and data files through the command: one line, exit code 2, nothing written."""

import io
import os
import shutil
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from conftest import ROOT
from entropy_dynamics.cli import main
from entropy_dynamics.config import load_config, to_yaml

MODEL = "qwen2.5-7b-instruct"
STAND_IN = f"stand_ins[{MODEL}]"
RUN = ("--model", MODEL, "--method", "grpo")
LONG = "x" * 300  # no file system takes such a name


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The project's configs, some folders deep so that a `../` shows, and a scale `mine` for hostile YAML."""
    folder = tmp_path / "home" / "user" / "project"
    for name in ("configs", "experiments"):
        shutil.copytree(ROOT / name, folder / name)
    (folder / "configs" / "scale" / "mine.yaml").write_text("extends: laptop\nscale: mine\n")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def refused(project, tmp_path, capfd):
    """`refused(step, ...)`: the line after `error: ` of a command that has to fail without a trace."""

    def call(*arguments: str) -> str:
        before = everything_in(tmp_path)
        capfd.readouterr()
        code, usage = run_main(arguments)
        out, err = capfd.readouterr()
        return one_line(code, out, err, usage, same=everything_in(tmp_path) == before)

    return call


def run_main(arguments) -> tuple[int, bool]:
    """Exit code, and whether argparse gave it: it prints its usage first."""
    try:
        return main(arguments), False
    except SystemExit as end:
        return end.code, True


def one_line(code: int, out: str, err: str, usage: bool, same: bool) -> str:
    assert code == 2, (out, err)
    assert out == ""
    assert "Traceback" not in err
    lines = err.splitlines()
    if usage:
        assert lines[0].startswith("usage: ")
        assert ": error: " in lines[-1]
    else:
        assert len(lines) == 1, err
        assert lines[0].startswith("error: ")
    assert same, "something was written"
    return lines[-1].partition("error: ")[2]


def everything_in(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


# ---------------------------------------------------------------- --set

# (entry, a part of what has to be said)
SETTINGS = [
    # no setting at all
    ("", "not of the form key=value"),
    ("=", "not of the form key=value"),
    ("training.steps", "not of the form key=value"),
    ("training.steps:3", "not of the form key=value"),
    ("../training.steps=3", "not of the form key=value"),
    ("training/steps=3", "not of the form key=value"),
    ("training steps=3", "not of the form key=value"),
    ("--training.steps=3", "unknown key '--training'"),
    ("training..steps=3", "training..steps"),
    (".=3", "--set .=3"),
    ("training.=3", "--set training.=3"),
    ("training[=3", "--set training[=3"),
    ("training]=3", "--set training]=3"),
    ("training[steps.optimizer]=3", "--set training[steps.optimizer]"),
    # unknown keys
    ("training.stepz=3", "did you mean 'steps'?"),
    ("Training.steps=3", "did you mean 'training'?"),
    ("training.steps.more=3", "training.steps"),
    ("training.optimizer.betas.5=0.1", "training.optimizer.betas"),
    ("data.train.sizes=3", "did you mean 'size'?"),
    ("__class__=3", "unknown key '__class__'"),
    ("training.__dict__.steps=3", "__dict__"),
    # wrong types
    ("training.steps=many", "training.steps"),
    ("training.steps=1.5", "training.steps"),
    ("training.steps=1e3", "training.steps"),
    ("training.steps=[3]", "training.steps"),
    ("training.steps={a: 3}", "training.steps"),
    ("training.steps=null", "training.steps"),
    ("training.steps=", "training.steps"),
    ("training.steps=true", "training.steps"),
    ("training=3", "training"),
    ("training=null", "training"),
    ("training.optimizer=[]", "training.optimizer"),
    ("training.activation_checkpointing=maybe", "training.activation_checkpointing"),
    ("training.optimizer.betas=0.9", "training.optimizer.betas"),
    ("training.optimizer.betas=[a, b]", "training.optimizer.betas"),
    ("training.optimizer.betas=[0.9, null]", "training.optimizer.betas"),
    ("models=qwen3-4b-base", "models"),
    ("models={a: b}", "models"),
    ("evaluation.samples=8", "evaluation.samples"),
    ("evaluation.samples={aime24: many}", "evaluation.samples"),
    ("evaluation.samples={1: 2}", "evaluation.samples"),
    ("evaluation.samples.aime24=null", "evaluation.samples"),
    ("data.evaluation.aime24=null", "data.evaluation"),
    ("data.train=null", "data.train"),
    ("trackers=[1, 2]", "trackers"),
    # broken or hostile YAML as a value
    ("training.steps=[1", "--set training.steps=[1"),
    ("training.steps=*a", "--set training.steps=*a"),
    ("training.steps=&a [*a]", "recursive"),
    ("training.steps=!!python/object/apply:os.getcwd []", "--set training.steps="),
    ("training.steps=!!python/name:os.system", "--set training.steps="),
    ("training.steps={a: 1, a: 2}", "duplicate key"),
    ("training.steps=\x00", "--set training.steps="),
    ("training.steps=" + "9" * 5000, "--set training.steps="),  # more digits than int() reads
    ("sampling.temperature=" + "9" * 400, "sampling.temperature"),  # an integer that no float holds
    ("training.steps=" + "[" * 100_000, "--set training.steps="),
    ("training.steps=one\ntwo", "training.steps"),
    ("training.steps='one\n\n  two'", "training.steps"),
    # values that are none
    ("training.steps=???", "??? stands for no value"),
    ("training.optimizer=???", "??? stands for no value"),
    ("training=???", "??? stands for no value"),
    ("evaluation.samples.aime24=???", "??? stands for no value"),
    ("training.optimizer.betas=[0.9, '???']", "??? stands for no value"),
    ("method.name=???", "??? stands for no value"),
    ("model.name=???", "??? stands for no value"),
    ("stand_ins.new.seed=3", "no value for stand_ins.new.architecture"),
    ("threads=${nowhere}", "threads: Interpolation key 'nowhere' not found"),
    ("data.seed=${nowhere.at.all}", "data.seed"),
    ("evaluation.samples.aime24=${nowhere}", "evaluation.samples.aime24"),
    ("training.optimizer.betas=[0.9, '${nowhere}']", "training.optimizer.betas"),
    ("method.params.mu=${nowhere}", "method.params.mu"),
    ("threads=${threads}", "threads"),
    ("threads=${sampling}", "threads"),
    ("threads=${oc.env:HOME}", "threads"),
    ("threads=${oc.env:NO_SUCH_VARIABLE}", "threads"),
    ("threads=${no_such_resolver:1}", "threads"),
    ("threads=${", "threads"),
    # out of range
    ("threads=-1", "threads is -1"),
    ("hardware.ranks=0", "hardware.ranks is 0"),
    ("hardware.ranks=-2", "hardware.ranks is -2"),
    ("hardware.ranks=7", "cannot be divided among 7 ranks"),
    ("hardware.device=tpu", "hardware.device is tpu"),
    ("seeds.tables=-1", "seeds.tables is -1"),
    ("training.steps=-1", "training.steps is -1"),
    ("training.group_size=1", "a group of one has no baseline"),
    ("training.group_size=-8", "training.group_size is -8"),
    ("training.prompts_per_step=0", "training.prompts_per_step is 0"),
    ("training.tokens_per_micro_batch=-1", "training.tokens_per_micro_batch is -1"),
    ("training.checkpoints_kept=0", "training.checkpoints_kept is 0"),
    ("training.optimizer.learning_rate=.nan", "training.optimizer.learning_rate is nan"),
    ("training.optimizer.learning_rate=-.inf", "training.optimizer.learning_rate is -inf"),
    ("training.optimizer.learning_rate=.inf", "has to be a finite number"),
    ("training.optimizer.weight_decay=.inf", "has to be a finite number"),
    ("training.optimizer.max_grad_norm=.nan", "training.optimizer.max_grad_norm is nan"),
    ("training.critic.weight_decay=-1", "training.critic.weight_decay is -1"),
    ("training.critic.gamma=1.1", "training.critic.gamma is 1.1"),
    ("training.objective.clip_low=.nan", "training.objective.clip_low is nan"),
    ("training.objective.dual_clip=.nan", "training.objective.dual_clip is nan"),
    ("sampling.temperature=.nan", "sampling.temperature is nan"),
    ("sampling.temperature=.inf", "has to be a finite number"),
    ("sampling.max_new_tokens=-5", "sampling.max_new_tokens is -5"),
    ("engine.tolerance=.nan", "engine.tolerance is nan"),
    ("engine.name=sglang", "engine.name is sglang"),
    ("pass_rates.samples=0", "pass_rates.samples is 0"),
    ("pass_rates.low=.nan", "pass_rates.low is nan"),
    ("pass_rates={low: 0.9, high: 0.1}", "no rate lies between"),
    ("evaluation.samples.aime24=-4", "1 or more for every data set"),
    ("evaluation.temperature=-.inf", "evaluation.temperature is -inf"),
    ("plan.safety=.inf", "has to be a finite number"),
    ("plan.measured=[]", "Cannot merge incompatible container types"),
    ("plan.tflops=-1", "plan.tflops is -1"),
    ("plan.startup_minutes=.nan", "plan.startup_minutes is nan"),
    ("plan.problems.train=0", "1 or more for every data set"),
    ("plan.measured.a={sampled: 0, trained: 1}", "tokens a second, above 0"),
    ("model.shape.layers=-3", "1 or more for every size"),
    (f"{STAND_IN}.layers=-1", "sizes have to be 1 or more"),
    (f"{STAND_IN}.heads=0", "sizes have to be 1 or more"),
    (f"{STAND_IN}.seed=-1", "the seed 0 or more"),
    (f"{STAND_IN}.warm_start.steps=0", "have to be above 0"),
    (f"{STAND_IN}.warm_start.learning_rate=.nan", "have to be above 0"),
    (f"{STAND_IN}.warm_start.terms=[3]", "[fewest, most]"),
    (f"{STAND_IN}.warm_start.habits.sloppy=.nan", "a chance from 0 to 1"),
    # names that would be folders or files elsewhere
    ("model.name=../../../evil", "model.name is '../../../evil'"),
    ("model.name=/evil", "model.name is '/evil'"),
    ("data.evaluation.x={source: arithmetic}", "evaluation.samples has no 'x'"),
    ("data.evaluation={../../evil: {source: split}}", "'../../evil' cannot name a set"),
    ("data.evaluation={/evil: {source: split}}", "'/evil' cannot name a set"),
    ("data.evaluation={..: {source: split}}", "'..' cannot name a set"),
    ('data.evaluation={"a\\0b": {source: split}}', "cannot name a set"),
    ("evaluation.samples={../../evil: 3}", "'../../evil' cannot name a set"),
]


@pytest.mark.parametrize(("entry", "said"), SETTINGS, ids=lambda value: value[:40])
def test_settings(refused, entry, said):
    assert said in refused("config", *RUN, f"--set={entry}")


def test_a_setting_that_only_a_step_can_refuse(refused):
    """What is measured against the data, or against the model's architecture."""
    for entry, said in [
        ("data.train.size=-1", "a number of problems above 0, not -1"),
        ("data.train.terms=[5, 2]", "2 <= fewest <= most"),
        ("data.train.terms=[2, 1000000000]", "2 <= fewest <= most"),
        ("data.train.terms=[-3, 2]", "2 <= fewest <= most"),
        ("data.train.terms=null", "terms"),
        ("data.train.source=magic", "'magic' is unknown"),
        ("data.evaluation.dapo500.size=100000", "leaves nothing"),
        ("data.train={source: file, path: nowhere.jsonl}", "no such file"),
        ('data.train={source: file, path: "a\\0b.jsonl"}', "without null characters"),
        (f"data.train={{source: file, path: {LONG}.jsonl}}", "File name too long"),
        ("data.train={source: hub, repository: a/b, revision: main}", "is not a commit"),
        ("data.folder=nowhere", "no folder nowhere"),
        ('data.folder="\\0"', "without null characters"),
    ]:
        assert said in refused("data", "--scale", "smoke", "--set", entry), entry


# ---------------------------------------------------------------- files

LAUGHS = "a0: &a0 [ha, ha]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)  # 10^11 times "ha"

FILES = [
    (b"", "no value for "),
    (b"\n\n# nothing\n", "no value for "),
    (b"--- \n...\n", "no value for "),
    (b"3\n", "mine.yaml"),
    (b"null\n", "no value for "),
    (b"words\n", "unknown key 'words'"),
    (b"- a\n- b\n", "a config is a mapping of keys to values"),
    (b"extends: laptop\nthreads: [1\n", "not valid YAML"),
    (b"extends: laptop\nthreads:\n\t1\n", "not valid YAML"),
    (b"extends: laptop\nthreads: 1\nthreads: 2\n", "duplicate key"),
    (b"extends: laptop\ntraining: {steps: 1, steps: 2}\n", "duplicate key"),
    (b"extends: laptop\n---\nthreads: 1\n", "not valid YAML"),
    (b"extends: laptop\nthreads: \x00\n", "not valid YAML"),
    (b"\x00" * 1000, "not valid YAML"),
    (bytes(range(256)) * 20, "not valid YAML"),
    (b"\x1f\x8b\x08\x00\x00\x00\x00\x00", "not valid YAML"),
    (b"PAR1" + bytes(range(128, 256)), "not valid YAML"),
    ("extends: laptop\n".encode("utf-16"), "not valid YAML"),
    (b"extends: laptop\nscale: \xff\xfe\n", "not valid YAML"),
    (b"a: &a [*a]\n", "recursive"),
    (b"extends: laptop\ntraining: &t {optimizer: *t}\n", "recursive"),
    (b"&a {training: *a}\n", "recursive"),
    (b"threads: *nobody\n", "not valid YAML"),
    (LAUGHS.encode(), "not valid YAML"),
    (b"extends: laptop\n<<: 3\n", "not valid YAML"),
    (b"extends: laptop\n? [a, b]\n: 3\n", "not valid YAML"),
    (b"extends: laptop\n? {a: b}\n: 3\n", "not valid YAML"),
    (b"[" * 100_000, "not valid YAML"),
    (b"{a: " * 100_000, "not valid YAML"),
    (b"- " * 100_000, "not valid YAML"),
    (b"extends: laptop\nthreads: !!python/object/apply:os.system [touch evil]\n", "not valid YAML"),
    (b"extends: laptop\nthreads: !!python/object/new:subprocess.Popen [[touch, evil]]\n", "not valid YAML"),
    (b"extends: laptop\nthreads: !!python/module:antigravity\n", "not valid YAML"),
    (b"extends: laptop\nthreads: !unknown 3\n", "not valid YAML"),
    (b"extends: laptop\nthreads: !!binary aGE=\n", "threads"),
    (b"extends: laptop\nthreads: !!set {a, b}\n", "mine.yaml"),
    (b"extends: laptop\nthreads: 2026-11-21\n", "threads"),
    (b"extends: laptop\n1: 2\n", "mine.yaml"),
    (b"extends: laptop\nnull: 2\n", "mine.yaml"),
    (b"extends: laptop\ntrue: 2\n", "mine.yaml"),
    (b"extends: laptop\n1.5: 2\n", "mine.yaml"),
    (b"extends: laptop\ntraining: {1: 2}\n", "mine.yaml"),
    (b"extends: laptop\n'': 2\n", "unknown key ''"),
    (b"extends: laptop\ntraining: null\n", "training"),
    (b"extends: laptop\ntraining: [steps]\n", "TrainingConfig"),
    (b"extends: mine\n", "has to be another scale"),
    (b"extends: ../scale/smoke\n", "unknown scale '../scale/smoke'"),
    (b"extends: [smoke]\n", "unknown scale"),
    (b"extends: {a: b}\n", "unknown scale"),
    (b"extends: ${nowhere}\n", "unknown scale"),
    (b"extends: ???\n", "unknown scale"),
    (f"extends: {LONG}\n".encode(), "unknown scale"),
    (b"extends: laptop\noverrides: 3\n", "overrides is a list"),
    (b"extends: laptop\noverrides: {for: {scale: mine}}\n", "overrides is a list"),
    (b"extends: laptop\noverrides: [3]\n", "overrides is a list"),
    (b"extends: laptop\noverrides: ???\n", "overrides is a list"),
    (b"extends: laptop\noverrides: ${nowhere}\n", "overrides is a list"),
    (b"extends: laptop\noverrides: [{for: 3, threads: 2}]\n", "overrides are `for`"),
    (b"extends: laptop\noverrides: [{for: null, threads: 2}]\n", "overrides are `for`"),
    (b"extends: laptop\noverrides: [{for: mine, threads: 2}]\n", "overrides are `for`"),
    (b"extends: laptop\noverrides: [{for: [scale], threads: 2}]\n", "overrides are `for`"),
    (b"extends: laptop\noverrides: [{for: {1: mine, a: b}, threads: 2}]\n", "overrides are `for`"),
    (b"extends: laptop\noverrides: [{for: {scale: mine}, training: 3}]\n", "TrainingConfig"),
    (b"extends: laptop\noverrides: [{for: {scale: mine}, 7: 3}]\n", "mine.yaml"),
    (b"extends: laptop\ndata: {evaluation: {../../evil: {source: arithmetic, size: 3, terms: [2, 3]}}}\n", "evil"),
    (b"extends: laptop\nevaluation: {samples: {aime24: .inf}}\n", "evaluation.samples"),
    (b"extends: laptop\ntraining: {optimizer: {learning_rate: .nan}}\n", "learning_rate is nan"),
]


@pytest.mark.parametrize(("content", "said"), FILES, ids=lambda value: repr(value[:40]))
def test_scale_files(refused, project, content, said):
    (project / "configs" / "scale" / "mine.yaml").write_bytes(content)
    assert said in refused("config", "--scale", "mine", *RUN)


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("base.yaml", None, "run this from the root of the repository"),
        ("base.yaml", "", "no value for "),
        ("scale/smoke.yaml", None, "unknown scale 'smoke'"),
        ("scale/laptop.yaml", None, "unknown scale 'laptop'"),  # which smoke extends
        ("scale/laptop.yaml", "extends: smoke\n", "extends none"),
        (f"model/{MODEL}.yaml", None, f"unknown model '{MODEL}'"),
        (f"model/{MODEL}.yaml", "", "no value for model."),
        (f"model/{MODEL}.yaml", "model: {name: ../../evil}\n", "no value for model."),
        (f"model/{MODEL}.yaml", "model: null\n", "model"),
        ("method/grpo.yaml", None, "unknown method 'grpo'"),
        ("method/grpo.yaml", "", "no value for method"),
        ("method/grpo.yaml", "method: {name: grpo}\n", "no value for method."),
        ("method/grpo.yaml", "method: {name: grpo, label: x, params: [1]}\n", "grpo.yaml"),
        ("method/grpo.yaml", "method: {name: grpo, label: x, params: {1: 2}}\n", "method"),
        ("machine.yaml", "training: {steps: 3}\n", "training.steps changes results"),
        ("machine.yaml", "trainin: {steps: 3}\n", "trainin.steps changes results"),
        ("machine.yaml", "plan: {gpuu: x}\n", "unknown key 'plan.gpuu'"),
        ("machine.yaml", "threads: &a [*a]\n", "recursive"),
        ("machine.yaml", "overrides: [{for: laptop, threads: 2}]\n", "overrides are `for`"),
        ("machine.yaml", "- 1\n", "a config is a mapping"),
        ("machine.yaml", "1: 2\n", "1 changes results"),
        ("machine.yaml", "threads: ${nowhere}\n", "threads: Interpolation key 'nowhere' not found"),
    ],
)
def test_the_other_files(refused, project, file, content, said):
    path = project / "configs" / file
    path.unlink() if content is None else path.write_text(content)
    assert said in refused("config", "--scale", "smoke", *RUN)


def test_a_folder_or_a_locked_file_in_place_of_a_config(refused, project):
    (project / "configs" / "scale" / "dir.yaml").mkdir()
    assert "dir.yaml" in refused("config", "--scale", "dir", *RUN)
    (project / "configs" / "scale" / "loop.yaml").symlink_to("loop.yaml")
    assert "loop" in refused("config", "--scale", "loop", *RUN)
    shutil.rmtree(project / "configs")
    assert "run this from the root of the repository" in refused("config", *RUN)


# ---------------------------------------------------------------- names, seeds, parameters

NAMES = ["../smoke", "/etc/passwd", "..", ".", "", " ", "smoke ", "smoke.yaml", "smoke\n", "SMOKE", "a;touch evil"]
NAMES += ["$(id)", "*", "smoke\x00", "\u202esmoke", "s\udcffmoke", LONG, "x" * 100_000, "-", "sm\u043eke"]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:20]))
@pytest.mark.parametrize("option", ["--scale", "--model", "--method"])
def test_names(refused, option, name):
    if option != "--scale":
        name = name.replace("smoke", "grpo" if option == "--method" else "qwen3-4b-base")
    values = {"--scale": "smoke", "--model": MODEL, "--method": "grpo"} | {option: name}
    said = refused("config", *(f"{key}={value}" for key, value in values.items()))
    assert option.strip("-") in said


PARAMETERS = [
    "clip_b@mu=nan",
    "clip_b@mu=.nan",
    "clip_b@mu=.inf",
    "clip_b@mu=-.inf",
    "clip_b@mu=1e999",
    "clip_b@mu=-1",
    "clip_b@mu=true",
    "clip_b@mu=yes",
    "clip_b@mu=null",
    "clip_b@mu=high",
    "clip_b@mu=1..2",
    "clip_b@mu=1,mu=2",
    "clip_b@mu=1,mu=1",
    "clip_b@=3",
    "clip_b@mu",
    "clip_b@mu=",
    "clip_b@mu==3",
    "clip_b@mu=1,",
    "clip_b@,mu=1",
    "clip_b@mu=[1]",
    "clip_b@mu=1 ",
    "clip_b@mu=../../evil",
    "clip_b@mu=${threads}",
    "clip_b@mu=1@mu=2",
    "clip_b@@",
    "clip_b@mu=1;touch=evil",
    "clip_b@mmu=1",
    "clip_b@name=grpo",
    "clip_b@self=1",
    "clip_b@cls=1",
    "clip_b@__class__=1",
    "clip_b@has_bounds=true",
    "clip_b@apply_to=nobody",
    "clip_b@apply_to=1",
    "clip_b@denominator=some",
    "clip_b@mu_plus=-1",
    "clip_v@max_frac=true",
    "clip_v@max_frac=2",
    "clip_v@drop_zero_advantage=1",
    "clip_cov@ratio=0",
    "clip_cov@lb=5",
    "clip_cov@ub=nan",
    "kl_cov@beta=.inf",
    "forking_tokens@keep_fraction=0",
    "entropy_bonus@coefficient=-1",
    "advantage_reweighting@alpha=2",
    "unlikeliness@beta=nan",
    "s_star_keep_pos_gt@side=lt",
    "grpo@mu=1",
    "base@mu=1",
    f"clip_b@mu=0.{'1' * 300}",  # its folder's name is too long
    f"clip_b@mu={'1' * 5000}",
    f"clip_b@{LONG}=1",
]


@pytest.mark.parametrize("method", PARAMETERS, ids=lambda method: method[:30])
def test_method_parameters(refused, method):
    assert refused("train", "--scale", "smoke", "--model", MODEL, f"--method={method}", "--seed", "0")


SEEDS = ["-1", "1e3", "1.0", "", " ", "0x1", "1_0", "+1", "\u2153", "\u00b2", "9" * 20, "9" * 5000, "../1"]


@pytest.mark.parametrize("seed", SEEDS, ids=lambda seed: ascii(seed[:30]))
@pytest.mark.parametrize("step", ["train", "evaluate"])
def test_seeds(refused, step, seed):
    assert "0 or more" in refused(step, *RUN, f"--seed={seed}")


# ---------------------------------------------------------------- commands and their files


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("",),
        ("trian",),
        ("train",),
        ("train", "--model", MODEL, "--method", "grpo"),
        ("train", *RUN, "--seed", "0", "--stepz", "3"),
        ("train", *RUN, "--seed", "0", "more"),
        ("config", *RUN, "--set"),
        ("config", "--method", "grpo"),
        ("report",),
        ("report", "../table1"),
        ("report", "claims"),
        ("report", "paper_values"),
        ("report", LONG),
        ("report", "table1", "--results", "nowhere"),
        ("evaluate", *RUN, "--seed", "0", "--datasets", "../../evil"),
        ("evaluate", *RUN, "--seed", "0", "--datasets", ""),
        ("model", "--model", MODEL, "--set", "model.name=../../evil"),
        ("train", *RUN, "--seed", "0", "--set", "model.name=../../evil"),
        ("pass-rates", "--set", "pass_rates.model=../../evil"),
        ("prompt", "--model", MODEL, "--problem", "../../evil"),
        ("data", "--prompts", "../../evil"),
        ("data", "--train", "x.jsonl", "--out", "mine", "--evaluation", "../../evil=x.jsonl"),
        ("data", "--train", "x.jsonl", "--out", "mine", "--evaluation", "=x.jsonl"),
        ("data", "--train", "x.jsonl", "--out", "mine", "--split", "dapo500=-1"),
        ("data", "--train", "x.jsonl", "--out", "mine", "--split", "dapo500=1e3"),
        ("data", "--train", "x.jsonl", "--out", "mine", "--split", "dapo500=" + "9" * 5000),
        ("data", "--scale", "smoke", "--results", "configs/base.yaml"),
        ("data", "--scale", "smoke", "--results", "/proc/nowhere"),
        ("data", "--scale", "smoke", "--results", "configs/base.yaml/deeper"),
        ("plan", "--scale", "gpu", "--set", "plan.tflops=0"),
        ("plan", "--scale", "gpu", "--set", "plan.bandwidth_gb_s=.nan"),
        ("plan", "--scale", "gpu", "--set", "plan.safety=.inf"),
        ("plan", "--scale", "gpu", "--set", "experiments=[../table1]"),
        ("plan", "--scale", "gpu", "--set", "models=[]"),
        ("plan", "--scale", "smoke", "--set", "hardware.device=cuda"),
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_commands(refused, arguments):
    assert refused(*arguments)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".txt", ""])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\n\n\n",
        b"\x00" * 100,
        bytes(range(256)),
        b"PAR1" + b"\x00" * 100 + b"PAR1",
        b"null\n",
        b"[]\n",
        b"{}\n",
        b'{"id": 1, "problem": "1+1", "answer": 2',
        b'{"id": 1, "problem": "1+1"}\n',
        b'{"id": 1, "problem": "1+1", "answer": NaN}\n',
        b'{"id": 1, "problem": "1+1", "answer": 1e999}\n',
        b'{"id": 1, "problem": "1+1", "answer": "__import__(\'os\').system(\'touch evil\')"}\n',
        b'{"id": 1, "problem": "1+1", "answer": "9**9**9**9"}\n',
        b'{"id": 1, "problem": ["1+1"], "answer": 2}\n',
        b'{"id": [1], "problem": "1+1", "answer": 2}\n',
        b'{"id": 1, "problem": "\\ud800", "answer": 2}\n',
        b'{"id": 1, "problem": "1+1", "answer": ' + b"9" * 5000 + b"}\n",
        b'{"id": 1, "problem": "1+1", "answer": ' + b"[" * 100_000 + b"}\n",
    ],
    ids=lambda content: repr(content[-40:]),
)
def test_problem_files(refused, project, suffix, content):
    file = project / f"mine{suffix}"
    file.write_bytes(content)
    said = refused("data", "--train", str(file), "--out", "out")
    assert f"{file}: " in said or "none of its 1 problems is left" in said


EXPERIMENTS = [
    "",
    "3\n",
    "[]\n",
    "kind: [scores]\n",
    "kind: {a: b}\n",
    "kind: nothing\n",
    "kind: scores\n",
    "kind: scores\nkind: curves\n",
    "kind: &a [*a]\n",
    "kind: theory\ntitle: !!python/object/apply:os.system [touch evil]\nshows: a\nseeds: tables\nruns: []\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: tables\nruns: 3\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: tables\nruns: null\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: tables\nruns: [3]\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: tables\nruns: [{models: 3, methods: [grpo]}]\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: tables\nruns: [{models: [[a]], methods: [grpo]}]\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: 3\nruns: [{models: [a], methods: [grpo]}]\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: [tables]\nruns: [{models: [a], methods: [grpo]}]\n",
    "kind: theory\ntitle: a\nshows: a\nseeds: tables\nruns: [{models: [a], methods: [grpo], seeds: -1}]\n",
    "kind: scores\ntitle: a\nshows: a\nseeds: tables\nruns: []\nevaluations: 3\nmetrics: [avg]\n",
    "kind: scores\ntitle: a\nshows: a\nseeds: tables\nruns: []\nevaluations: [a]\nmetrics: avg\n",
    "kind: curves\ntitle: a\nshows: a\nseeds: tables\nruns: [{models: [a], methods: [b]}]\npanels: {a: b}\n",
    "kind: curves\ntitle: a\nshows: a\nseeds: tables\nruns: [{models: [a], methods: [b]}]\npanels: [3]\n",
    "kind: curves\ntitle: a\nshows: a\nseeds: tables\nruns: [{models: [a], methods: [b]}]\npanels: [{columns: 3}]\n",
    "kind: curves\ntitle: a\nshows: a\nseeds: tables\nruns: []\npanels: [{columns: [entropy]}]\n",
    "kind: curves\ntitle: a\nshows: a\nseeds: tables\nruns: []\npanels: []\nsweeps: [{models: [a], method: b, "
    "parameter: c, values: 3}]\n",
    "kind: curves\ntitle: a\nshows: a\nseeds: tables\nruns: []\npanels: []\nsweeps: [{models: [a], method: b, "
    "parameter: c, values: {default: 3}}]\n",
]


@pytest.mark.parametrize("content", EXPERIMENTS, ids=lambda content: repr(content[-50:]))
def test_experiment_files(refused, project, content):
    (project / "experiments" / "mine.yaml").write_text(content)
    assert "mine.yaml" in refused("report", "mine", "--scale", "smoke")


# ---------------------------------------------------------------- the installed commands


def in_a_process(project, tmp_path, *command: str) -> tuple[subprocess.CompletedProcess, bool]:
    before = everything_in(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["HOME"] = environment["XDG_CACHE_HOME"] = str(tmp_path / "elsewhere")
    run = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    after = {path: content for path, content in everything_in(tmp_path).items() if tmp_path / "elsewhere" not in
             (path, *path.parents) and ".snakemake" not in path.parts}  # fmt: skip
    return run, after == before


@pytest.mark.parametrize(
    "arguments",
    [
        ("config", *RUN, "--scale", "../x"),
        ("config", *RUN, "--scale", "mine"),  # 100,000 brackets, for a parser in C
        ("config", *RUN, "--set", "training.steps=\udcff"),  # bytes that are no UTF-8
        ("train", "--model", MODEL, "--method", "clip_b@mu=nan", "--seed", "0"),
        ("train", *RUN, "--seed", "9" * 20),
    ],
    ids=["name", "nesting", "bytes", "nan", "seed"],
)
def test_from_a_shell(project, tmp_path, arguments):
    (project / "configs" / "scale" / "mine.yaml").write_bytes(b"[{a: " * 100_000)
    run, same = in_a_process(project, tmp_path, sys.executable, "-m", "entropy_dynamics.cli", *arguments)
    one_line(run.returncode, run.stdout, run.stderr, run.stderr.startswith("usage"), same)


@pytest.mark.parametrize(
    ("selection", "said"),
    [
        ("scale=../x", "unknown scale '../x'"),
        ("scale=mine", "recursive"),
        ("seeds=-1", "-1"),
        ("extra_seeds=many", "many"),
        ("trainin=3", "trainin"),
    ],
)
def test_snakemake(project, tmp_path, selection, said):
    """Snakemake says it in its own way: it names the mistake, starts nothing and writes nothing but its cache."""
    for name in ("Snakefile", "workflow", "profiles", "environment.yml"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, project / name)
    (project / "configs" / "scale" / "mine.yaml").write_text("training: &t {optimizer: *t}\n")
    snakemake = str(Path(sys.executable).parent / "snakemake")
    run, same = in_a_process(project, tmp_path, snakemake, "--config", selection)
    assert run.returncode != 0
    assert said in run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr
    assert same


# ---------------------------------------------------------------- any value at any key


def known_keys() -> list[str]:
    def keys(value, prefix):
        yield prefix
        for name, one in value.items() if isinstance(value, dict) else ():
            yield from keys(one, f"{prefix}[{name}]" if "." in name else f"{prefix}.{name}" if prefix else name)

    config = load_config("laptop", MODEL, "clip_v", configs=ROOT / "configs")
    return [key for key in keys(yaml.safe_load(to_yaml(config)), "") if key]


FRAGMENTS = ["null", "???", "true", "[]", "{}", "[1, 2]", "{a: 1}", "[a", "}", "&a [*a]", "*a", "!!str 3", "${threads}"]
FRAGMENTS += ["${nowhere}", "${oc.env:HOME}", "${oc.decode:'[1'}", "${", "\\${x}", "'", '"', "\n", "../../x", "1e999"]
FRAGMENTS += [".nan", ".inf", "-.inf", "0x10", "1_000", "1:30", "2026-01-01", "!!python/name:os.system", "9" * 30, "-"]
VALUES = st.one_of(
    st.sampled_from(FRAGMENTS),
    st.integers(-(10**20), 10**20).map(str),
    st.floats().map(repr),
    st.text(max_size=20),
    st.lists(st.sampled_from(FRAGMENTS), max_size=4).map("".join),
    st.lists(st.integers(-3, 3) | st.floats(), max_size=3).map(str),
)
FEW, MANY = 100, 10_000


def any_value_at_any_key(entries: list[tuple[str, str]]) -> None:
    arguments = [part for key, value in entries for part in ("--set", f"{key}={value}")]
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code, usage = run_main(["config", "--model", MODEL, "--method", "clip_v", *arguments])
    if code == 0:
        assert err.getvalue() == ""
        assert yaml.safe_load(out.getvalue())["model"]["name"] == MODEL
    else:
        one_line(code, out.getvalue(), err.getvalue(), usage, same=True)


ENTRIES = st.lists(st.tuples(st.sampled_from(known_keys()), VALUES), min_size=1, max_size=3)
SLOW = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@settings(max_examples=FEW, deadline=None, suppress_health_check=SLOW)
@given(ENTRIES)
@example([("threads", "${sampling.batch_size}"), ("sampling.batch_size", "${threads}")])
def test_any_value_at_any_key(monkeypatch, entries):
    monkeypatch.chdir(ROOT)
    any_value_at_any_key(entries)


@pytest.mark.long
@settings(max_examples=MANY, deadline=None, suppress_health_check=SLOW)
@given(ENTRIES)
def test_any_value_at_any_key_for_long(monkeypatch, entries):
    monkeypatch.chdir(ROOT)
    any_value_at_any_key(entries)
