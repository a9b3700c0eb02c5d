"""Mistakes on the command line: one line on stderr, exit code 2, nothing written."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT
from entropy_dynamics.cli import main
from entropy_dynamics.config import select_scale
from entropy_dynamics.errors import UserError

MODEL = "qwen2.5-7b-instruct"
RUN = ("--model", MODEL, "--method", "grpo")
LONG = "x" * 300  # no file system takes such a name


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The project's configs, some folders deep so that a `../` shows."""
    folder = tmp_path / "home" / "user" / "project"
    for name in ("configs", "experiments"):
        shutil.copytree(ROOT / name, folder / name)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def refused(project, tmp_path, capfd):
    """`refused(stage, ...)`: the message of a command that has to fail without a trace."""

    def call(*arguments: str) -> str:
        before = files_in(tmp_path)
        capfd.readouterr()
        try:
            code, usage = main(arguments), False
        except SystemExit as end:  # argparse prints its usage first
            code, usage = end.code, True
        out, err = capfd.readouterr()
        assert (code, out, files_in(tmp_path)) == (2, "", before), err
        lines = err.splitlines()
        assert "Traceback" not in err
        assert lines[0].startswith("usage: ") if usage else len(lines) == 1, err
        return lines[-1].partition("error: ")[2]

    return call


def files_in(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


NAMES = ["../smoke", "/etc/passwd", "..", "", "smoke ", "smoke.yaml", "a;touch evil", "$(id)", "*", "smoke\x00", LONG]


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name[:20]))
@pytest.mark.parametrize("option", ["--scale", "--model", "--method"])
def test_names(refused, option, name):
    if option != "--scale":
        name = name.replace("smoke", "grpo" if option == "--method" else "qwen3-4b-base")
    values = {"--scale": "smoke", "--model": MODEL, "--method": "grpo"} | {option: name}
    assert option.strip("-") in refused("config", *(f"{key}={value}" for key, value in values.items()))


@pytest.mark.parametrize(
    ("method", "message"),
    [
        ("clip_b@mu=nan", "it should be"),
        ("clip_b@mu=.inf", "it should be a finite number"),
        ("clip_b@mu=-1", "greater than or equal to 0"),
        ("clip_b@mu=true", "valid number"),
        ("clip_b@mu=high", "valid number"),
        ("clip_b@mu=1,mu=2", "gives a parameter twice"),
        ("clip_b@=3", "is not of the form"),
        ("clip_b@mu=../../evil", "is not of the form"),
        ("clip_b@mmu=1", "unknown key 'method.params.mmu'"),
        ("clip_b@apply_to=nobody", "'negative', 'positive' or 'both'"),
        ("clip_b@denominator=some", "'kept' or 'all'"),
        ("clip_v@max_frac=2", "less than or equal to 1"),
        ("clip_v@drop_zero_advantage=1", "valid boolean"),
        ("clip_cov@ratio=0", "greater than 0"),
        ("clip_cov@lb=5", "it should be below ub (5.0)"),
        ("kl_cov@beta=.inf", "finite number"),
        ("entropy_bonus@coefficient=-1", "greater than or equal to 0"),
        ("unlikeliness@beta=2", "less than or equal to 1"),
        ("s_star_keep_pos_gt@side=lt", "unknown key 'method.params.side'"),
        ("gspo@loss_scope=tokens", "'per_sequence'"),
        ("grpo@mu=1", "unknown key 'method.params.mu'"),
        ("base@mu=1", "unknown key 'method.params.mu'"),
    ],
)
def test_method_parameters(refused, method, message):
    assert message in refused("train", "--scale", "smoke", "--model", MODEL, f"--method={method}", "--seed", "0")


@pytest.mark.parametrize("seed", ["-1", "1e3", "1.0", "", "0x1", "\u00b2", "9" * 20, "../1"], ids=ascii)
@pytest.mark.parametrize("stage", ["train", "evaluate"])
def test_seeds(refused, stage, seed):
    assert "0 or more" in refused(stage, *RUN, f"--seed={seed}")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("trian",),
        ("train",),
        ("train", "--model", MODEL, "--method", "grpo"),
        ("train", *RUN, "--seed", "0", "--stepz", "3"),
        ("config", *RUN, "--set"),
        ("config", "--method", "grpo"),
        ("draw",),
        ("draw", "../table1"),
        ("draw", "claims"),
        ("draw", "tabel1"),
        ("draw", "table1", "--results", "nowhere"),
        ("claims", "--results", "nowhere"),
        ("verify", "nowhere"),
        ("evaluate", *RUN, "--seed", "0", "--datasets", "../../evil"),
        ("model", "--model", MODEL, "--set", "model.name=../../evil"),
        ("train", *RUN, "--seed", "0", "--set", "scale=../../evil"),
        ("pass_rates", "--set", "pass_rates.model=../../evil"),
        ("prompt", "--model", MODEL, "--problem", "../../evil"),
        ("problems", "--prompts", "../../evil"),
        ("problems", "--train", "x.jsonl"),
        ("problems", "--train", "nowhere.jsonl", "--out", "mine"),
        ("problems", "--train", "x.jsonl", "--out", "mine", "--task", "maths"),
        ("problems", "--train", "x.jsonl", "--out", "mine", "--evaluation", "../../evil=x.jsonl"),
        ("problems", "--train", "x.jsonl", "--out", "mine", "--evaluation", "=x.jsonl"),
        ("problems", "--train", "x.jsonl", "--out", "mine", "--split", "dapo500=-1"),
        ("problems", "--split", "dapo500=3"),
        ("problems", "--scale", "smoke", "--results", "configs/base.yaml"),
        ("problems", "--scale", "smoke", "--set", "data.evaluation.dapo500.size=100000"),
        ("problems", "--scale", "smoke", "--set", "data.train={source: file, path: nowhere.jsonl}"),
        ("problems", "--scale", "smoke", "--set", "data.train={source: hub, repository: a/b, revision: main}"),
        ("problems", "--scale", "smoke", "--set", "data.folder=nowhere"),
        ("plan", "--scale", "gpu", "--set", "plan.gpus.A100.tflops=0"),
        ("plan", "--scale", "gpu", "--set", "experiments=[../table1]"),
        ("plan", "--scale", "gpu", "--set", "models=[]"),
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_commands(refused, arguments):
    assert refused(*arguments)


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet", ".txt"])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        bytes(range(256)),
        b"[]\n",
        b'{"id": 1, "problem": "1+1", "answer": 2',
        b'{"id": 1, "problem": "1+1"}\n',
        b'{"id": 1, "problem": "1+1", "answer": "__import__(\'os\').system(\'touch evil\')"}\n',
        b'{"id": 1, "problem": ["1+1"], "answer": 2}\n',
        b'{"id": [1], "problem": "1+1", "answer": 2}\n',
    ],
    ids=lambda content: repr(content[-40:]),
)
def test_problem_files(refused, project, suffix, content):
    file = project / f"mine{suffix}"
    file.write_bytes(content)
    message = refused("problems", "--train", str(file), "--out", "out")
    assert f"{file}: " in message or "none of its 1 problems is left" in message


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        ({"scale": "smok"}, "unknown scale 'smok'; did you mean 'smoke'"),
        ({"scale": "../x"}, "unknown scale '../x'"),
        ({"scal": "smoke"}, "unknown key 'scal'; did you mean 'scale'"),
        ({"trainin": 3}, "unknown key 'trainin'"),
        ({"seeds": 0}, "seeds is 0; it should be greater than 0"),
        ({"seeds": -1}, "seeds is -1; it should be greater than 0"),
        ({"extra_seeds": "many"}, "extra_seeds is 'many'"),
    ],
)
def test_selections(project, selection, message):
    with pytest.raises(UserError, match=re.escape(message)):
        select_scale(selection)


def test_a_selection_for_snakemake(project, tmp_path):
    """Snakemake formats the error; nothing starts, and nothing but its cache is written."""
    for name in ("Snakefile", "workflow", "profiles", "environment.yml"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, project / name)
    before = files_in(tmp_path)
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    environment["HOME"] = environment["XDG_CACHE_HOME"] = str(tmp_path / "elsewhere")
    command = [str(Path(sys.executable).parent / "snakemake"), "--config", "scale=smok"]
    run = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "unknown scale 'smok'; did you mean 'smoke'" in run.stdout + run.stderr
    assert "Traceback" not in run.stdout + run.stderr
    left = {path for path in files_in(tmp_path) if not {".snakemake", "elsewhere"} & set(path.parts)}
    assert left == set(before)
