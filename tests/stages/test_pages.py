"""The how-to pages of docs/: their commands and files, copied from the pages, run to their end at a small size."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import yaml

from command_line import run, write_lines
from conftest import MODEL, ROOT, SETS
from entropy_dynamics.cli import main
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.tasks.files import load_problems
from project_copy import copy_project, with_package


def text_of(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def blocks(page: str, language: str = "yaml") -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text_of(page), re.DOTALL)


def commands(page: str, section: str = "") -> list[str]:
    """The indented commands of a page, or of a section, each on one line and without its comment."""
    text = text_of(page).partition(f"\n## {section}\n" if section else "\n")[2]
    text = re.sub(r"```.*?```", "", text.partition("\n## ")[0] if section else text, flags=re.DOTALL)
    found = re.findall(r"^    ((?:entropy-dynamics|snakemake) .*)$", text.replace("\\\n", " "), re.MULTILINE)
    return [re.sub(r"\s+# .*| {2,}# .*", "", line).strip() for line in found]


def completed(words: list[str], folder: Path, environment: dict[str, str]) -> str:
    """What a command says that has to end well."""
    if words[0] == "entropy-dynamics":
        words = ["python", "-m", "entropy_dynamics.cli", *words[1:]]
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


@pytest.fixture
def small(smoke_project, tmp_path):
    """A copy of the smoke scale's project, whose commands run at that scale: `small(command)` -> stdout."""
    folder = tmp_path / "project"
    shutil.copytree(smoke_project, folder, symlinks=True)
    environment = with_package(folder)

    def call(line: str) -> str:
        words = shlex.split(line.replace("results/laptop", "results/smoke").replace("scale laptop", "scale smoke"))
        if words[0] == "snakemake" and "--config" not in words:
            words += ["--config", "scale=smoke"]
        elif words[1] in ("train", "config", "claims", "draw", "report") and "--scale" not in words:
            words += ["--scale", "smoke"]
        return completed(words, folder, environment)

    call.folder = folder
    return call


def test_one_thing_is_run_again_as_the_page_says(small):
    runs = small.folder / "results/smoke/runs" / MODEL
    figure = small.folder / "results/smoke/figures/figure1.png"
    shutil.rmtree(runs / "s_star_keep_pos_gt")
    shutil.rmtree(figure.parent)
    rerun, dry, _, draw, arm = commands("rerun.md")[:5]
    assert "1 of them a training run" in small(dry)
    small(arm)
    assert len(pd.read_parquet(runs / "s_star_keep_pos_gt/seed0/metrics.parquet")) == 4
    small(rerun)
    before = figure.stat().st_mtime_ns
    small(draw)
    assert figure.stat().st_mtime_ns > before
    assert "mu" in small(commands("configuration.md")[1])
    table = re.findall(r"^\| (?:Figure|Table) \d.*$", text_of("rerun.md"), re.MULTILINE)
    named = {name for row in table for name in re.findall(r"`([a-z_]+)`", row.split("|")[2])}
    for name in named - {"pos", "gt", "neg", "lt"}:
        assert (ROOT / f"configs/method/{name}.yaml").is_file()


def test_what_is_there_after_a_stop_is_judged_drawn_and_shown(small):
    shutil.rmtree(small.folder / "results/smoke/runs" / MODEL / "clip_v")
    for line in commands("resume.md"):
        small(line)
    page = small.folder / "results/smoke/report.html"
    assert "clip_v" in page.read_text().lower()


def test_a_share_is_what_the_run_drops_and_what_the_lens_foretells(small):
    train, lens = commands("dose.md")
    small(train)
    metrics = pd.read_parquet(small.folder / "results/smoke/runs" / MODEL / "clip_b@share=0.02/seed0/metrics.parquet")
    assert metrics["clip_fraction"].between(0.005, 0.02).all()
    samples = small.folder / "results/smoke/samples" / MODEL / "grpo/seed0"
    [*_, last] = sorted(samples.glob("*.parquet"))
    assert "clip_b@share=0.02" in small(re.sub(r"results/laptop/samples/\S+", str(last), lens))


# ---------------------------------------------------------------- data.md


def countdown(rows: int) -> list[dict]:
    return [{"problem": f"{n},1={n + 1}", "answer": n + 1} for n in range(rows)]


def test_own_data_trains_as_a_scale_of_its_own(tmp_path):
    """With the smoke scale's model and steps in place of the laptop's, without a filter, as they solve too little."""
    folder = copy_project(tmp_path / "project")
    environment = with_package(folder)
    write_lines(folder / "mine.jsonl", countdown(60))
    scale = yaml.safe_load(blocks("data.md")[0])
    scale |= {"extends": "smoke", "pass_rates": {"low": None, "high": None}}
    (folder / "configs/scale/mine.yaml").write_text(yaml.safe_dump(scale))
    for line in commands("data.md")[:2]:
        completed(shlex.split(line), folder, environment)
    layout = Layout(folder / "results/mine")
    assert len(load_problems(layout.problems("train"))) == 30
    assert layout.figure("figure4", "png").is_file()
    assert all(layout.evaluation_file(MODEL, method, 0, "dapo500").is_file() for method in ("grpo", "clip_b"))


@pytest.mark.parametrize("rows", [31, 40])
def test_the_command_for_own_problems_needs_as_many_as_the_page_says(tmp_path, monkeypatch, capsys, rows):
    monkeypatch.chdir(ROOT)
    [line] = commands("data.md", "What is read")
    file = write_lines(tmp_path / "mine.jsonl", countdown(rows))
    words = shlex.split(line.replace("mine.jsonl", str(file)).replace("DIR", str(tmp_path / "results")))
    assert f"train: {rows - 30} problems" in run(capsys, *words[1:])


@pytest.mark.parametrize("number", [1, 2], ids=["reasoning gym", "expressions"])
def test_the_other_sources_are_read(tmp_path, monkeypatch, number):
    """The fragments of a `data` section, with a training set where they have none."""
    pytest.importorskip("reasoning_gym" if number == 1 else "math_verify")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "configs", "configs")
    write_lines(Path("math500.jsonl"), [{"problem": "What is a half?", "answer": "\\frac{1}{2}"}])
    write_lines(Path("gsm8k.jsonl"), [{"question": "What is 9 + 9?", "answer": "9 + 9 = 18\n#### 18"}])
    write_lines(Path("train.jsonl"), [{"problem": "What is 2 + 2?", "answer": "4"}])
    given = yaml.safe_load(blocks("data.md")[number])
    data = {"train": {"source": "file", "path": "train.jsonl", "task": "math"}} | given
    names = list(data["evaluation"])
    without = dict.fromkeys(SETS)
    scale = {"extends": "smoke", "scale": "mine", "data": data | {"evaluation": without | data["evaluation"]}}
    scale |= {"training": {"validation_set": names[0]}, "evaluation": {"samples": dict.fromkeys(names, 1)}}
    Path("configs/scale/mine.yaml").write_text(yaml.safe_dump(scale))
    assert main(["problems", "--scale", "mine"]) == 0
    sets = {name: load_problems(f"results/mine/data/{name}.parquet") for name in ("train", *names)}
    if number == 1:
        assert {name: len(problems) for name, problems in sets.items()} == {"train": 2000, "longer": 200}
    else:
        answers = {"math500": "A half: \\boxed{0.5}", "gsm8k": "\\boxed{18}"}
        assert all(sets[name][0].grade(answer, "stop").correct for name, answer in answers.items())


# ---------------------------------------------------------------- model.md


def test_a_model_of_ones_own_is_trained_and_compared(smoke_project, tmp_path):
    """A toy model's directory as the model, on bare Countdown, which is all that its tokenizer can write."""
    folder = copy_project(tmp_path / "project")
    environment = with_package(folder)
    directory = smoke_project / "results/smoke/models" / MODEL / "seed0"
    shutil.copytree(directory, tmp_path / "model")
    model, scale = (yaml.safe_load(block) for block in blocks("model.md"))
    assert model["model"]["path"] == "/path/to/my-model"
    model["model"]["path"] = str(tmp_path / "model")
    sets = ("countdown3", "countdown4", "validation")
    bare = {"train": {"sentences": False}, "evaluation": {name: {"sentences": False} for name in sets}}
    scale |= {"extends": "smollm2-mini", "data": bare}
    for name, content in (("model/my-model", model), ("scale/my-scale", scale)):
        (folder / f"configs/{name}.yaml").write_text(yaml.safe_dump(content))
    lines = commands("model.md")
    assert [line.split()[1] for line in lines] == [
        *("problems", "model", "prompt", "pass_rates", "train", "train", "pass-at-k"),
    ]
    for line in lines:
        said = completed(shlex.split(line), folder, environment)
    assert "difference" in said
    facts = json.loads((folder / "results/my-scale/models/my-model/seed0/model.json").read_text())
    assert not facts["toy"]
