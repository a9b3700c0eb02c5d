"""docs/tasks.md: its examples run to their end."""

import json
import re
import subprocess

import pandas as pd
import pytest

from conftest import MODEL, ROOT, SETS
from entropy_dynamics import tasks
from entropy_dynamics.cli import main
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.tasks.files import load_problems
from project_copy import copy_project, with_package

PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    return re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1]


def commands(section: str) -> list[str]:
    """The commands of a section, each on one line."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    text = re.sub(r"```.*?```", "", text, flags=re.DOTALL).replace("\\\n", " ")
    return re.findall(r"^    ((?:entropy-dynamics|snakemake) .*)$", text, re.MULTILINE)


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A copy of the project with the page's scale and task, which is here too; its environment."""
    project = copy_project(tmp_path)
    environment = with_package(project)
    (task := project / "src/entropy_dynamics/tasks/reverse").mkdir()
    (task / "__init__.py").write_text(block("python"))
    (project / "configs/scale/reverse.yaml").write_text(block("yaml"))
    monkeypatch.chdir(project)
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(task.parent)])
    tasks.tasks.cache_clear()
    yield project, environment
    tasks.tasks.cache_clear()


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
