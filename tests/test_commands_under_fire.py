"""Hostile names, seeds, parameters and data files through the commands: one line, exit code 2, nothing written."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import under_fire
from conftest import ROOT
from under_fire import LONG, MODEL, RUN, everything_in, one_line

project, refused = under_fire.project, under_fire.refused  # fixtures

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
        ("claims", "--results", "nowhere"),
        ("config", "--model", MODEL, "--method", "clip_b@mu=nan"),
        ("config", "--model", MODEL, "--method", "entropy_bonus@coefficient=1e999"),
        ("evaluate", *RUN, "--seed", "0", "--datasets", "../../evil"),
        ("evaluate", *RUN, "--seed", "0", "--datasets", ""),
        ("model", "--model", MODEL, "--set", "model.name=../../evil"),
        ("model", "--model", MODEL, "--set", "threads=" + "9" * 20),
        ("model", "--model", MODEL, "--set", f"stand_ins[{MODEL}].seed=" + "9" * 23),
        ("train", *RUN, "--seed", "0", "--set", "model.name=../../evil"),
        ("train", *RUN, "--seed", "0", "--set", "scale=../../evil"),
        ("pass-rates", "--set", "pass_rates.model=../../evil"),
        ("prompt", "--model", MODEL, "--problem", "../../evil"),
        ("data", "--prompts", "../../evil"),
        ("data", "--train", "x.jsonl", "--out", "mine", "--evaluation", "../../evil=x.jsonl"),
        ("data", "--train", "x.jsonl", "--out", "mine", "--evaluation", "=x.jsonl"),
        ("data", "--train", "x.jsonl", "--out", "mine", "--evaluation", "pass_rates=x.jsonl"),
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
