"""Problem files: reading, cleaning, and sets that never share a problem."""

import json
import math
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest
from entropy_dynamics.tasks.problems import (
    CONFLICT,
    DUPLICATE,
    NO_ANSWER,
    NO_TEXT,
    NOT_AN_INTEGER,
    Problem,
    RawProblem,
    clean_problems,
    load_problems,
    read_answer,
    read_problems,
    write_problems,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from entropy_dynamics.config import DataConfig, ProblemSetConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import sha256
from entropy_dynamics.stages import problems as problem_sets
from entropy_dynamics.stages.problems import build_problem_sets, split_problems

REAL = Path(__file__).parents[2] / "shared" / "data"


def write_jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def rows(*problems, start=0):
    return [{"id": f"p{start + i}", "problem": text, "answer": answer} for i, (text, answer) in enumerate(problems)]


# Reading


def test_jsonl_and_parquet_read_alike(tmp_path):
    table = [
        {"id": 60, "problem": "one", "answer": 1},
        {"id": 61, "problem": None, "answer": None},  # beside a null an integer column must not turn into floats
        {"id": 62, "problem": "three", "answer": 2**60},
    ]
    write_jsonl(tmp_path / "a.jsonl", table)
    frame = pd.DataFrame(table, dtype=object).astype({"id": "int64", "answer": "Int64"})
    frame.to_parquet(tmp_path / "a.parquet")
    expected = [RawProblem("60", "one", 1), RawProblem("61", None, None), RawProblem("62", "three", 2**60)]
    assert read_problems(tmp_path / "a.jsonl") == expected
    assert read_problems(tmp_path / "a.parquet") == expected


def test_columns_may_have_other_names(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", [{"index": "a", "prompt": "q", "solution": "7", "problem": "x"}])
    read = read_problems(path, id_column="index", problem_column="prompt", answer_column="solution")
    assert read == [RawProblem("a", "q", "7")]


def test_a_jsonl_line_ends_at_a_line_feed_only(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes('\n{"id": "a", "problem": "u\u2028v\u0085w", "answer": 1}\r\n\n'.encode())
    assert read_problems(path) == [RawProblem("a", "u\u2028v\u0085w", 1)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"id": 1, "problem": "q", "answer": 2}\n\n{"id": 2, "probl', "line 3 is not JSON"),
        ("[1, 2]\n", "line 1 is not a JSON object"),
        ("[" * 100_000, "line 1 is not JSON"),
        ('{"id": ' + "9" * 5000 + "}", "line 1 is not JSON"),
        (b'{"id": 1, "problem": "\xff", "answer": 2}', "line 1 is not JSON"),
        ("", "holds no problems"),
        ("\n \n", "holds no problems"),
        ('{"id": 1, "problem": "q", "answr": 2}\n', r"no column 'answer'.*'id', 'problem'.*'answr' is nearest"),
        ('{"id": 1, "zzz": "q", "answer": 2}\n', r"no column 'problem'.*problem_column"),
        ('{"id": 1, "problem": "q", "answer": 2}\n{"problem": "r", "answer": 2}\n', "line 2: 'id' must be"),
        ('{"id": "", "problem": "q", "answer": 2}\n', "line 1: 'id' must be"),
        ('{"id": [1], "problem": "q", "answer": 2}\n', "line 1: 'id' must be"),
        ('{"id": 1, "problem": "\\ud800", "answer": 2}\n', "line 1: a character that is not Unicode"),
    ],
)  # fmt: skip
def test_a_broken_jsonl_file_is_one_line_that_says_where(tmp_path, content, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as error:
        read_problems(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read_problems(tmp_path / "none.jsonl")
    (tmp_path / "a.csv").write_text("id,problem,answer\n")
    with pytest.raises(UserError, match=r"\.jsonl or \.parquet, not '\.csv'"):
        read_problems(tmp_path / "a.csv")
    (tmp_path / "a.parquet").write_text("nothing of the kind")
    with pytest.raises(UserError, match="not a readable parquet file") as error:
        read_problems(tmp_path / "a.parquet")
    assert "\n" not in str(error.value)
    pd.DataFrame({"id": [1], "question": ["q"], "answer": [1]}).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"no column 'problem'.*'question'"):
        read_problems(tmp_path / "b.parquet")
    pd.DataFrame({"id": [], "problem": [], "answer": []}).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(UserError, match="holds no problems"):
        read_problems(tmp_path / "c.parquet")


# Cleaning


@pytest.mark.parametrize(
    ("value", "answer"),
    [
        (70, 70), ("070", 70), ("25.0", 25), (25.0, 25), (-3.0, -3), ("1,234", 1234),
        (r"336^\circ", 336), (Decimal("12.00"), 12),
        (3.5, NOT_AN_INTEGER), (24.999999999999996, NOT_AN_INTEGER), (1e16, NOT_AN_INTEGER),
        (math.inf, NOT_AN_INTEGER), ("1/2", NOT_AN_INTEGER), ("abc", NOT_AN_INTEGER), ("nan", NOT_AN_INTEGER),
        (True, NOT_AN_INTEGER), ([5], NOT_AN_INTEGER), (10**18, NOT_AN_INTEGER), (Decimal("1.5"), NOT_AN_INTEGER),
        (None, NO_ANSWER), (math.nan, NO_ANSWER), ("", NO_ANSWER), ("  ", NO_ANSWER),
    ],
)  # fmt: skip
def test_answers_from_files(value, answer):
    found = read_answer(value)
    assert found == answer
    assert type(found) is type(answer)


def test_cleaning_worked_by_hand():
    raw = [
        RawProblem("a", "  What is  $x$?\n", "070"),
        RawProblem("b", "what IS $X$?", 70),  # the same but for case and space, the same answer
        RawProblem("c", "Contested", 1),
        RawProblem("d", "contested ", "2"),
        RawProblem("e", "Contested", 1),
        RawProblem("f", "Half", "1/2"),
        RawProblem("g", " \n", 3),
        RawProblem("h", None, 3),
        RawProblem("i", "No answer", math.nan),
        RawProblem("j", "Half a contest", 5),
        RawProblem("k", "Half a contest", "5/2"),  # says something else, though nothing that could be kept
        RawProblem("l", "Kept", 5.0),
        RawProblem("m", "kept", None),  # says nothing else
        RawProblem("a", "What is $x$?", 70),  # a row given twice, id and all
    ]
    kept, dropped = clean_problems(raw)
    assert kept == [Problem("a", "What is  $x$?", 70), Problem("l", "Kept", 5)]
    assert list(dropped.columns) == ["id", "reason"]
    assert list(dropped.itertuples(index=False, name=None)) == [
        ("b", DUPLICATE),
        ("c", CONFLICT),
        ("d", CONFLICT),
        ("e", CONFLICT),
        ("f", NOT_AN_INTEGER),
        ("g", NO_TEXT),
        ("h", NO_TEXT),
        ("i", NO_ANSWER),
        ("j", CONFLICT),
        ("k", NOT_AN_INTEGER),
        ("m", NO_ANSWER),
        ("a", DUPLICATE),
    ]


def test_one_id_for_two_problems_is_an_error():
    with pytest.raises(UserError, match="'a' stands for two different problems"):
        clean_problems([RawProblem("a", "one", 1), RawProblem("a", "two", 2)])


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["q", "Q ", "r", "r\n", "s", ""]), st.sampled_from([1, "1", 2, 0.5, None]))))
def test_cleaning_accounts_for_every_row(table):
    raw = [RawProblem(str(i), text, answer) for i, (text, answer) in enumerate(table)]
    kept, dropped = clean_problems(raw)
    assert sorted([p.id for p in kept] + list(dropped["id"])) == sorted(row.id for row in raw)
    texts = [p.problem.casefold() for p in kept]
    assert len(set(texts)) == len(texts)
    for problem in kept:  # whatever else its text was said to have for an answer, it was this
        said = {str(a) for text, a in table if text.strip().casefold() == problem.problem.casefold() and a is not None}
        assert said == {str(problem.answer)}


def test_problems_survive_writing(tmp_path):
    problems = [Problem("b", "x\u2028 \\boxed{} é", -5), Problem("a", "y", 10**18 - 1)]
    write_problems(tmp_path / "set.parquet", problems)
    assert load_problems(tmp_path / "set.parquet") == problems
    assert list(pd.read_parquet(tmp_path / "set.parquet").columns) == ["id", "problem", "answer"]
    with pytest.raises(UserError, match="no such file"):
        load_problems(tmp_path / "other.parquet")
    pd.DataFrame({"id": ["a"], "problem": ["q"], "answer": ["7"]}).to_parquet(tmp_path / "raw.parquet")
    with pytest.raises(UserError, match="'a' is not checked"):
        load_problems(tmp_path / "raw.parquet")


# Sets


def file_set(path, **columns):
    return ProblemSetConfig(source="file", path=str(path), **columns)


def split_set(size):
    return ProblemSetConfig(source="split", size=size)


def ids_of(path):
    return [problem.id for problem in load_problems(path)]


def test_sets_never_share_a_problem_and_the_report_adds_up(tmp_path):
    train = write_jsonl(
        tmp_path / "train.jsonl",
        rows(*[(f"train {i}", i) for i in range(20)], ("EVAL  1", 1), ("eval 2", "half"), ("Both", 9), ("train 3", 3)),
    )
    first = write_jsonl(tmp_path / "first.jsonl", rows(("eval 1", 1), ("both", 9)))
    second = write_jsonl(tmp_path / "second.jsonl", rows(("Both", 9), ("eval 2", 2)))
    data = DataConfig(
        folder=None,
        seed=3,
        train=file_set(train),
        evaluation={"dapo500": split_set(5), "first": file_set(first), "second": file_set(second)},
    )
    out = tmp_path / "out"
    report = build_problem_sets(data, out)
    assert json.loads((out / "problems.json").read_text()) == report
    assert sorted(path.name for path in out.iterdir()) == [
        "dapo500.parquet", "first.parquet", "problems.json", "second.parquet", "train.parquet",
    ]  # fmt: skip

    assert report["seed"] == 3
    sets = report["sets"]
    assert sets["first"]["dropped"] == {}
    assert sets["second"]["dropped"] == {"also in first": 1}
    assert sets["train"]["dropped"] == {
        NOT_AN_INTEGER: 1,
        DUPLICATE: 1,
        "also in first": 2,
        "taken for dapo500": 5,
    }
    assert sets["train"]["sha256"] == sha256(train)
    for name, entry in sets.items():
        assert entry["kept"] == len(load_problems(out / f"{name}.parquet"))
        assert entry["rows"] == entry["kept"] + sum(entry["dropped"].values())
    taken, rest = ids_of(out / "dapo500.parquet"), ids_of(out / "train.parquet")
    assert sorted(taken + rest) == sorted(f"p{i}" for i in range(20))
    assert len(taken) == 5


def build_split(tmp_path, name, table, seed):
    path = write_jsonl(tmp_path / f"{name}.jsonl", table)
    data = DataConfig(folder=None, seed=seed, train=file_set(path), evaluation={"held": split_set(30)})
    report = build_problem_sets(data, tmp_path / name)
    return set(ids_of(tmp_path / name / "held.parquet")), report["sets"]["held"]["ids_sha256"]


def test_a_split_depends_on_the_seed_and_not_on_the_order_of_rows(tmp_path):
    table = rows(*[(f"q{i}", i) for i in range(100)])
    forward = build_split(tmp_path, "forward", table, seed=1)
    backward = build_split(tmp_path, "backward", table[::-1], seed=1)
    other = build_split(tmp_path, "other", table, seed=2)
    assert forward == backward
    assert forward[0] != other[0]
    assert forward[1] != other[1]


def test_a_split_prefers_no_place():
    problems = [Problem(f"{i:03d}", f"q{i}", i) for i in range(200)]
    counts = [0] * 200
    for seed in range(400):
        for problem in split_problems(problems, 50, seed)[0]:
            counts[problem.answer] += 1
    # each is taken in a quarter of 400 draws: 100, standard deviation sqrt(400 x 1/4 x 3/4) = 8.66
    assert max(abs(count - 100) for count in counts) < 5 * 8.66
    assert abs(sum(counts[:100]) - sum(counts[100:])) < 1200


def test_the_same_build_twice_is_the_same_bytes(tmp_path):
    path = write_jsonl(tmp_path / "a.jsonl", rows(*[(f"q{i}", i) for i in range(30)]))
    data = DataConfig(folder=None, seed=1, train=file_set(path), evaluation={"held": split_set(10)})
    for out in "one", "two":
        build_problem_sets(data, tmp_path / out)
    for name in "train.parquet", "held.parquet", "problems.json":
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def bad_data(tmp_path):
    good = file_set(write_jsonl(tmp_path / "good.jsonl", rows(("q", 1), ("r", 2))))
    same = file_set(write_jsonl(tmp_path / "same.jsonl", rows(("Q", 1), ("R", 2))))
    unread = file_set(write_jsonl(tmp_path / "unread.jsonl", rows(("s", "x"), ("t", 0.5))))
    twice = file_set(write_jsonl(tmp_path / "twice.jsonl", rows(("u", 1)) + rows(("v", 1))))
    return {
        r"data.train: none of its 2 problems is left \(2 x also in aime24\)": (good, {"aime24": same}),
        r"data.evaluation.b: none of its 2 problems is left \(2 x also in a\)": (unread, {"a": good, "b": same}),
        r"data.train: none of its 2 problems is left \(2 x the answer is not an integer\)": (unread, {}),
        r"twice.jsonl: the id 'p0' stands for two": (twice, {}),
        r"data.evaluation.held.size: 2 leaves nothing": (good, {"held": split_set(2)}),
        r"data.evaluation.held.size: must be .* not None": (good, {"held": split_set(None)}),
        r"data.evaluation.held.size: must be .* not 0": (good, {"held": split_set(0)}),
        r"data.train.source: 'split' is unknown": (split_set(1), {}),
        r"data.evaluation.a.source: 'web' is unknown": (good, {"a": ProblemSetConfig(source="web")}),
        r"data.train.path": (ProblemSetConfig(source="file"), {}),
        r"data.train.terms": (ProblemSetConfig(source="arithmetic", size=3), {}),
        r"data.train.size": (ProblemSetConfig(source="arithmetic", terms=[2, 3]), {}),
        r"'train' cannot name a set": (good, {"train": good}),
        r"'../a' cannot name a set": (good, {"../a": good}),
    }


@pytest.mark.parametrize("case", range(14))
def test_a_bad_set_is_one_line_and_nothing_is_written(tmp_path, case):
    message, (train, evaluation) = list(bad_data(tmp_path).items())[case]
    with pytest.raises(UserError, match=message) as error:
        build_problem_sets(DataConfig(folder=None, seed=1, train=train, evaluation=evaluation), tmp_path / "out")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "out").exists()


def test_an_interrupted_build_leaves_what_was_there(tmp_path, monkeypatch):
    path = write_jsonl(tmp_path / "a.jsonl", rows(*[(f"q{i}", i) for i in range(30)]))
    out = tmp_path / "out"
    build_problem_sets(DataConfig(folder=None, seed=1, train=file_set(path), evaluation={"held": split_set(10)}), out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}

    def interrupted(path, problems):
        write_problems(path, problems)
        if "held" in str(path):
            raise KeyboardInterrupt

    monkeypatch.setattr(problem_sets, "write_problems", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_problem_sets(
            DataConfig(folder=None, seed=2, train=file_set(path), evaluation={"held": split_set(10)}), out
        )
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before


def test_arithmetic_sets_share_no_sum_in_any_order(tmp_path):
    sums = {"source": "arithmetic", "terms": [2, 4]}
    data = DataConfig(
        folder=None,
        seed=1,
        train=ProblemSetConfig(size=300, **sums),
        evaluation={
            "aime24": ProblemSetConfig(size=30, **sums),
            "aime25": ProblemSetConfig(size=30, **sums),
            "dapo500": split_set(50),
        },
    )
    report = build_problem_sets(data, tmp_path)
    assert {name: entry["kept"] for name, entry in report["sets"].items()} == {
        "train": 250, "aime24": 30, "aime25": 30, "dapo500": 50,
    }  # fmt: skip
    problems = [p for name in report["sets"] for p in load_problems(tmp_path / f"{name}.parquet")]
    assert len({tuple(sorted(p.problem.split("+"))) for p in problems}) == 360
    assert len({p.id for p in problems}) == 360
    assert all(p.answer == sum(map(int, p.problem.split("+"))) for p in problems)


@pytest.mark.skipif(not (REAL / "dapo_slice.jsonl").exists(), reason="real problems are not on this machine")
def test_the_real_files_make_checked_sets(tmp_path):
    data = DataConfig(
        folder=None,
        seed=42,
        train=file_set(REAL / "dapo_slice.jsonl"),
        evaluation={
            "aime24": file_set(REAL / "aime24.jsonl"),
            "dapo500": split_set(500),
            "math500": file_set(REAL / "math500.jsonl"),
        },
    )
    sets = build_problem_sets(data, tmp_path)["sets"]
    # counts from the files' own notes: 10,601 cleaned problems; 30; 311 plain integers of 500, and some with units
    assert (sets["train"]["rows"], sets["aime24"]["kept"], sets["dapo500"]["kept"]) == (10601, 30, 500)
    assert sets["train"]["kept"] == 10101 - sum(n for r, n in sets["train"]["dropped"].items() if "dapo500" not in r)
    assert sets["math500"]["kept"] >= 311
    source = {row["id"]: row["answer"] for row in map(json.loads, (REAL / "dapo_slice.jsonl").open())}
    assert all(source[p.id] == p.answer for p in load_problems(tmp_path / "dapo500.parquet"))
