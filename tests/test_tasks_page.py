"""docs/tasks.md: its example is a task that works, from the generator to the graded response of a toy model."""

import json
import re
import shutil

import pytest

from conftest import ROOT
from entropy_dynamics import tasks
from entropy_dynamics.cli import main
from entropy_dynamics.tasks.files import load_problems

PAGE = (ROOT / "docs" / "tasks.md").read_text(encoding="utf-8")


@pytest.fixture
def with_example(tmp_path, monkeypatch):
    """The page's task and scale, in the package and in a copy of the configs."""
    code, scale = (re.search(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)[1] for language in ("python", "yaml"))
    (tmp_path / "tasks" / "reverse").mkdir(parents=True)
    (tmp_path / "tasks" / "reverse" / "__init__.py").write_text(code)
    shutil.copytree(ROOT / "configs", tmp_path / "configs")
    (tmp_path / "configs" / "scale" / "reverse.yaml").write_text(scale)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tasks, "__path__", [*tasks.__path__, str(tmp_path / "tasks")])
    tasks.tasks.cache_clear()
    yield tmp_path / "results" / "reverse"
    tasks.tasks.cache_clear()


def test_the_example_is_a_task(with_example):
    assert main(["problems", "--scale", "reverse"]) == 0
    sets = {name: load_problems(with_example / "data" / f"{name}.parquet") for name in ("train", "aime24", "dapo500")}
    assert [len(problems) for problems in sets.values()] == [40, 10, 20]
    problem = sets["aime24"][0]
    assert problem.grade(f"\\boxed{{{problem.text[::-1]}}}", "stop").correct
    assert not problem.grade(f"\\boxed{{{problem.text}0}}", "stop").correct
    assert main(["model", "--scale", "reverse", "--model", "qwen2.5-7b-instruct"]) == 0
    facts = json.loads((with_example / "models" / "qwen2.5-7b-instruct" / "seed0" / "model.json").read_text())
    solutions = {key.rpartition(".")[2]: value for key, value in facts["config"].items() if ".solutions." in key}
    assert solutions == {"task": "reverse", "digits": 4, "unboxed": 0.1}
