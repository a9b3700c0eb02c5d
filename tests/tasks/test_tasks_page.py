"""docs/tasks.md: its examples run to their end."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
import yaml

from command_line import write_lines
from conftest import MODEL, ROOT, SETS
from entropy_dynamics import tasks
from entropy_dynamics.cli import main
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.tasks.files import load_problems
from project_copy import copy_project, with_package

PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")


def block(language: str, number: int = 0) -> str:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[number]


def commands(section: str) -> list[str]:
    """The commands of a section, each on one line."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL).replace("\\\n", " ")
    return re.findall(r"^    ((?:entropy-dynamics|snakemake) .*)$", text, re.MULTILINE)


@pytest.fixture
def project(tmp_path) -> tuple[Path, dict[str, str]]:
    """A copy of the project, with the page's task in its package and the page's scale, and its environment."""
    project = copy_project(tmp_path)
    environment = with_package(project)
    (task := project / "src/entropy_dynamics/tasks/reverse").mkdir()
    (task / "__init__.py").write_text(block("python"))
    (project / "configs/scale/reverse.yaml").write_text(block("yaml"))
    return project, environment


@pytest.fixture
def with_example(project, monkeypatch):
    """The page's task in the package of this process."""
    folder, _ = project
    monkeypatch.chdir(folder)
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(folder / "src/entropy_dynamics/tasks")])
    tasks.tasks.cache_clear()
    yield
    tasks.tasks.cache_clear()


@pytest.mark.usefixtures("with_example")
def test_the_example_is_a_task_and_runs_to_its_end(project, capsys):
    """Each command as printed; the last one adds the other run, here of one seed."""
    folder, environment = project
    layout = Layout(folder / "results/reverse")
    *single, everything = commands("A complete example")
    assert [line.split()[1] for line in single] == ["problems", "model", "pass_rates", "train"]
    for line in single:
        assert main(line.split()[1:]) == 0
    assert capsys.readouterr().out.count("results/reverse/") >= 3
    sets = {name: load_problems(layout.problems(name)) for name in ("train", "aime24", "dapo500")}
    assert [len(problems) for problems in sets.values()] == [200, 10, 20]
    problem = sets["aime24"][0]
    assert problem.grade(f"\\boxed{{{problem.text[::-1]}}}", "stop").correct
    assert not problem.grade(f"\\boxed{{{problem.text}0}}", "stop").correct
    command = [*everything.split(), "seeds=1", "extra_seeds=1"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    for method in ("grpo", "clip_b"):
        metrics = pd.read_parquet(layout.metrics(MODEL, method, 0))
        assert len(metrics) == 10
        assert metrics["grad_norm"].gt(0).any()
        assert all(layout.evaluation_file(MODEL, method, 0, name).is_file() for name in SETS)
    assert layout.figure("figure4", "png").is_file()
    config = json.loads(layout.facts(MODEL, "base", 0).read_text())["config"]
    solutions = {key.rpartition(".")[2]: config[key] for key in config if ".warm_start.solutions." in key}
    assert solutions == {"task": "reverse", "digits": 3, "unboxed": 0.1}


@pytest.mark.parametrize("rows", [31, 40])
def test_the_command_for_own_problems_needs_as_many_as_the_page_says(tmp_path, capsys, rows):
    [line] = commands("Your own problems")
    file = write_lines(tmp_path / "mine.jsonl", [{"problem": f"{n},1={n + 1}", "answer": n + 1} for n in range(rows)])
    line = line.replace("mine.jsonl", str(file)).replace("DIR", str(tmp_path / "results"))
    arguments = re.findall(r"'([^']*)'|(\S+)", line)
    assert main([quoted or word for quoted, word in arguments][1:]) == 0
    assert f"train: {rows - 30} problems" in capsys.readouterr().out


@pytest.mark.parametrize("number", [1, 2], ids=["reasoning gym", "expressions"])
def test_the_other_sources_are_read(tmp_path, monkeypatch, number):
    """The fragments of a `data` section, with a training set where they have none."""
    pytest.importorskip("reasoning_gym" if number == 1 else "math_verify")
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "configs", "configs")
    write_lines(Path("math500.jsonl"), [{"problem": "What is a half?", "answer": "\\frac{1}{2}"}])
    write_lines(Path("gsm8k.jsonl"), [{"question": "What is 9 + 9?", "answer": "9 + 9 = 18\n#### 18"}])
    write_lines(Path("train.jsonl"), [{"problem": "What is 2 + 2?", "answer": "4"}])
    data = {"train": {"source": "file", "path": "train.jsonl", "task": "math"}} | yaml.safe_load(block("yaml", number))
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
