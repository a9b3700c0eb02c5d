"""Problem sets from a data set in the Hub's layout, and from a folder where there is no network."""

import hashlib
import os
import subprocess
import sys

import pandas as pd
import pytest

from command_line import run, write_lines
from countdown import countdown_set
from entropy_dynamics.config import load_config
from entropy_dynamics.config.schema.data import DataConfig
from entropy_dynamics.results.files import sha256
from entropy_dynamics.stages.problems import build_problem_sets
from entropy_dynamics.tasks.cleaning import CONFLICT, DUPLICATE, NO_ANSWER, NO_TEXT
from entropy_dynamics.tasks.countdown.problems import CountdownSet
from entropy_dynamics.tasks.files import load_problems
from entropy_dynamics.tasks.integers import NOT_AN_INTEGER
from entropy_dynamics.tasks.sources import HubSet, SplitSet
from instructions import AFTER, BEFORE
from mistakes import mistake

COMMIT = "0123456789abcdef0123456789abcdef01234567"

BEFORE, AFTER = f"{BEFORE}\n\n", f"\n\n{AFTER}"


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A data set with two subsets as the Hub stores them; `datasets` reads it as it does a downloaded one."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    folder = tmp_path / "dapo"
    subsets = {
        "en": {"prompt": ["One?", "Two?", "one?", "Pi?"], "solution": ["1", "002", "1.0", "3.14"], "extra": [0] * 4},
        "cn": {"prompt": ["Yi?"], "solution": ["1"], "extra": [0]},
    }
    for subset, columns in subsets.items():
        (folder / subset).mkdir(parents=True)
        pd.DataFrame(columns).to_parquet(folder / subset / "train-00000-of-00001.parquet")
    configs = "".join(
        f"- config_name: {one}\n  data_files:\n  - split: train\n    path: {one}/train-*\n" for one in subsets
    )
    (folder / "README.md").write_text(f"---\nconfigs:\n{configs}---\n")
    return folder


def hub_set(place, **changes):
    columns = {"subset": "en", "id_column": None, "problem_column": "prompt", "answer_column": "solution"}
    return HubSet(**{"source": "hub", "repository": str(place), "revision": COMMIT} | columns | changes)


def build(train, out, folder=None, seed=1, **evaluation):
    data = DataConfig(seed=seed, folder=None if folder is None else str(folder), train=train, evaluation=evaluation)
    return build_problem_sets(data, out)["sets"]


def digits(text):
    return hashlib.sha256(text.encode()).hexdigest()[:16]


# ---------------------------------------------------------------- the Hub
def test_a_data_set_of_the_hub(repository, tmp_path):
    entry = build(hub_set(repository), tmp_path / "out")["train"]
    place = {"source": "hub", "repository": str(repository), "revision": COMMIT, "subset": "en", "split": "train"}
    assert entry.items() >= (place | {"rows": 4, "kept": 2}).items()
    assert entry["dropped"] == {DUPLICATE: 1, NOT_AN_INTEGER: 1}
    kept = load_problems(tmp_path / "out" / "train.parquet")
    assert [(one.id, one.text, one.answer, one.task) for one in kept] == [
        (digits("one?"), "One?", "1", "math"),
        (digits("two?"), "Two?", "2", "math"),
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"subset": "fr"}, r"'fr' not found. Available: \['en', 'cn'\]"),
        ({"hub_split": "test"}, r"""Unknown split "test". Should be one of \['train'\]"""),
        ({"repository": "/nowhere"}, r"cannot be loaded \(.*NotFoundError: .*data.folder"),
    ],
)
def test_mistakes_are_one_line(repository, tmp_path, changes, message):
    with mistake(match=message):
        build(hub_set(repository, **changes), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_without_a_network(tmp_path):
    """The command at the paper's scale, as it is where the Hub is out of reach."""
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "hf")}
    environment.pop("ENTROPY_DYNAMICS_PROBLEMS", None)
    command = [sys.executable, "-m", "entropy_dynamics.cli", "problems", "--scale", "paper", "--results", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    assert done.stderr.startswith("error: data.evaluation.aime24: HuggingFaceH4/aime_2024 at 2fe88a2f cannot be loaded")
    assert "ENTROPY_DYNAMICS_PROBLEMS to a folder with <set>.jsonl or <set>.parquet" in done.stderr


def test_the_configured_revisions_are_commits():
    data = load_config("paper").data
    revisions = [one.revision for one in (data.train, *data.evaluation.values()) if one.source == "hub"]
    assert revisions
    assert "0" * 40 not in revisions  # the schema demands 40 hex digits


# ---------------------------------------------------------------- a folder instead
def test_files_of_a_folder_take_the_place_of_sources(tmp_path):
    folder = tmp_path / "mine"
    train = write_lines(folder / "train.jsonl", [{"problem": f"q{i}", "answer": i} for i in range(10)])
    pd.DataFrame({"id": ["a", "b"], "problem": ["x", "Q3"], "answer": ["1", "3"]}).to_parquet(folder / "aime24.parquet")
    unreachable = hub_set("nobody/nothing")
    split = SplitSet(source="split", size=4)
    sets = build(unreachable, tmp_path / "out", folder, aime24=unreachable, made=countdown_set(size=3), dapo500=split)
    assert sets["train"]["source"] == "file"
    assert sets["train"]["path"] == str(train)
    assert sets["train"]["sha256"] == sha256(train)
    assert sets["train"]["dropped"] == {"also in aime24": 1, "taken for dapo500": 4}
    assert (sets["aime24"]["kept"], sets["made"]["source"], sets["dapo500"]["source"]) == (2, "countdown", "split")
    assert [one.id for one in load_problems(tmp_path / "out" / "aime24.parquet")] == ["a", "b"]
    ids = [one.id for name in ("train", "dapo500") for one in load_problems(tmp_path / "out" / f"{name}.parquet")]
    assert sorted(ids) == sorted(digits(f"q{i}") for i in range(10) if i != 3)
    write_lines(folder / "dapo500.jsonl", [{"problem": "own", "answer": 5}])
    sets = build(unreachable, tmp_path / "again", folder, aime24=unreachable, dapo500=split)
    assert (sets["dapo500"]["source"], sets["dapo500"]["kept"], sets["train"]["kept"]) == ("file", 1, 9)


def test_a_file_is_graded_by_the_task_of_the_source_that_it_replaces(tmp_path):
    folder = tmp_path / "mine"
    write_lines(folder / "train.jsonl", [{"problem": "3,8=24", "answer": 24}, {"problem": "8,3=24", "answer": 24}])
    drawn = CountdownSet(source="countdown", size=9, numbers=(3, 3), values=(1, 9), targets=(1, 9))
    build(drawn, tmp_path / "out", folder)
    [problem] = load_problems(tmp_path / "out" / "train.parquet")
    assert (problem.task, problem.id) == ("countdown", digits("3,8=24"))
    assert problem.grade(r"\boxed{8*3}", "stop").correct


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (None, "data.folder: no folder "),
        (["train.jsonl", "train.parquet"], "data.folder: both .*train.jsonl and train.parquet exist"),
        (["train.txt"], "data.train: .*cannot be loaded"),
    ],
)
def test_a_bad_folder(tmp_path, files, message):
    folder = tmp_path / "mine"
    for name in files or []:
        write_lines(folder / name, [{"problem": "q", "answer": 1}])
    with mistake(match=message):
        build(hub_set(tmp_path / "nowhere"), tmp_path / "out", folder)


def test_the_folder_of_the_environment(tmp_path, monkeypatch, capfd):
    folder = tmp_path / "mine"
    for name in ("train", "aime24", "aime25"):
        write_lines(folder / f"{name}.jsonl", [{"problem": f"{name} {i}", "answer": i} for i in range(6)])
    monkeypatch.setenv("ENTROPY_DYNAMICS_PROBLEMS", str(folder))
    small = ("--set", "data.evaluation.dapo500.size=2")
    lines = ["train: 4 problems", "aime24: 6 problems", "aime25: 6 problems", "dapo500: 2 problems split off train"]
    assert run(capfd, "problems", "--scale", "paper", "--results", tmp_path, *small).splitlines() == lines


# ---------------------------------------------------------------- what real data is like
def test_raw_rows_of_the_training_data(tmp_path):
    """Each kind of fault that the public files have, and what becomes of it."""
    wrapped = f"{BEFORE}How many?{AFTER}"
    rows = [(wrapped, "34")] * 100  # the original repeats every prompt a hundred times
    rows += [
        ("How  many?\n", 34.0),  # the same without the instructions around it
        (f"{BEFORE}Only the front", "1"), (f"Only the end{AFTER}", "2"),
        ("an angle", r"336^\circ"), ("zeros", "070"), ("a float", "1.0"),
        ("gone wrong", "34.00000001"), ("gone wrong, as a number", 34.00000001),
        ("huge", "1e21"), ("huge, as a number", 1e21),
        ("not a number", "nan"), ("no number", float("nan")), ("no answer", None),
        ("said twice", "1"), ("Said  TWICE", "2"), (None, "3"), ("tested", "5"),
    ]  # fmt: skip
    train = write_lines(tmp_path / "raw" / "train.jsonl", [{"problem": q, "answer": a} for q, a in rows])
    write_lines(tmp_path / "raw" / "aime24.jsonl", [{"problem": "TESTED", "answer": 5}])
    entry = build(hub_set("a/b"), tmp_path / "out", train.parent, aime24=hub_set("c/d"))["train"]
    assert entry["instructions_removed"] == 102
    expected = {DUPLICATE: 100, NOT_AN_INTEGER: 5, NO_ANSWER: 2, CONFLICT: 2, NO_TEXT: 1}
    assert entry["dropped"] == expected | {"also in aime24": 1}
    kept = {one.text: one.answer for one in load_problems(tmp_path / "out" / "train.parquet")}
    expected = {"How many?": "34", "Only the front": "1", "Only the end": "2"}
    assert kept == expected | {"an angle": "336", "zeros": "70", "a float": "1"}
    assert entry["rows"] == entry["kept"] + sum(entry["dropped"].values())
