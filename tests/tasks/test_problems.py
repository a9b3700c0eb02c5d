"""Problem files: reading, cleaning, and sets that never share a problem."""

import json
from functools import partial

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import write_lines
from entropy_dynamics.config.schema.data import DataConfig
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import sha256
from entropy_dynamics.sections import parse
from entropy_dynamics.stages import problems as problem_sets
from entropy_dynamics.stages.problems import build_problem_sets, split_problems
from entropy_dynamics.tasks import Problem
from entropy_dynamics.tasks.cleaning import DUPLICATE, RawProblem, clean_problems
from entropy_dynamics.tasks.countdown import TASK as COUNTDOWN
from entropy_dynamics.tasks.countdown_sheet import TASK as SHEET
from entropy_dynamics.tasks.files import load_problems, write_problems
from entropy_dynamics.tasks.integers import NOT_AN_INTEGER
from entropy_dynamics.tasks.math import TASK as MATH
from entropy_dynamics.tasks.sources import FileSet, SplitSet
from mistakes import mistake


def rows(*problems, start=0):
    return [{"id": f"p{start + i}", "problem": text, "answer": answer} for i, (text, answer) in enumerate(problems)]


# Reading
def read_file(path, **columns) -> list[RawProblem]:
    return FileSet(source="file", path=str(path), **columns).read()


def test_jsonl_and_parquet_read_alike(tmp_path):
    table = [
        {"id": 60, "problem": "one", "answer": 1},
        {"id": 61, "problem": None, "answer": None},  # beside a null an integer column must not turn into floats
        {"id": 62, "problem": "three", "answer": 2**60},
    ]
    write_lines(tmp_path / "a.jsonl", table)
    frame = pd.DataFrame(table, dtype=object).astype({"id": "int64", "answer": "Int64"})
    frame.to_parquet(tmp_path / "a.parquet")
    expected = [RawProblem("60", "one", 1), RawProblem("61", None, None), RawProblem("62", "three", 2**60)]
    assert read_file(tmp_path / "a.jsonl") == expected
    assert read_file(tmp_path / "a.parquet") == expected


def test_columns_may_have_other_names(tmp_path):
    path = write_lines(tmp_path / "a.jsonl", [{"index": "a", "prompt": "q", "solution": "7", "problem": "x"}])
    columns = {"problem_column": "prompt", "answer_column": "solution"}
    assert read_file(path, id_column="index", **columns) == [RawProblem("a", "q", "7")]
    assert read_file(path, **columns) == [RawProblem(None, "q", "7")]
    assert read_file(path, id_column=None, **columns) == [RawProblem(None, "q", "7")]
    write_lines(path, [{"question": "q", "extra": {"gold": "7"}}])
    columns = {"problem_column": "question", "answer_column": "extra.gold"}
    assert read_file(path, **columns) == [RawProblem(None, "q", "7")]


def test_a_jsonl_line_ends_at_a_line_feed_only(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes('\n{"id": "a", "problem": "u\u2028v\u0085w", "answer": 1}\r\n\n'.encode())
    assert read_file(path) == [RawProblem("a", "u\u2028v\u0085w", 1)]


def test_a_parquet_file_without_a_column(tmp_path):
    pd.DataFrame({"id": [1], "question": ["q"], "answer": [1]}).to_parquet(tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"no column 'problem'.*question"):
        read_file(tmp_path / "b.parquet")
    pd.DataFrame({"id": [], "problem": [], "answer": []}).to_parquet(tmp_path / "c.parquet")
    assert read_file(tmp_path / "c.parquet") == []


CHAT = [
    {"content": "Be brief.", "role": "system"},
    {"content": 'It\'s "2"}\n {3; how many?', "role": "user", "name": None},
    {"content": "So", "role": "assistant"},
]
BLOCKS = [{"role": "user", "content": [{"type": "text", "text": "How"}, {"type": "text", "text": "many?"}]}]


@pytest.mark.parametrize(
    "written",
    [
        *(list, json.dumps, partial(json.dumps, indent=1), repr),
        partial(json.dumps, sort_keys=True, ensure_ascii=False),
        lambda chat: {"messages": chat},
        lambda chat: json.dumps({"messages": chat}),
        lambda chat: [json.dumps(message) for message in chat],
        lambda chat: json.dumps(json.dumps(chat)),
        lambda chat: str(np.array(chat, dtype=object)),
        lambda chat: repr(np.array(chat, dtype=object)),
    ],
)
def test_a_chat_is_the_users_message_however_it_is_written(written, tmp_path):
    for chat, text in ((CHAT, CHAT[1]["content"]), (BLOCKS, "How\nmany?"), ([CHAT[1]], CHAT[1]["content"])):
        truth = {"ground_truth": "30"}
        for of in (truth, json.dumps(truth)):
            path = write_lines(tmp_path / "chats.jsonl", [{"prompt": written(chat), "reward_model": of}])
            assert read_file(path) == [RawProblem(None, text, "30")]


IMAGE = [{"role": "user", "content": [{"type": "image", "image": "cube.png"}, {"type": "text", "text": "Which?"}]}]


@pytest.mark.parametrize(
    ("chat", "reason"),
    [
        ([{"from": "human", "value": "q"}], "the messages have 'from', 'value', not 'role' and 'content'"),
        ([{"type": "human", "content": "q"}], "the messages have 'type', 'content', not 'role' and 'content'"),
        (IMAGE, "a message has a part of type image"),
        ([{"role": "assistant", "content": "q"}], "no problem text"),
        ('{"content": "q"}', "a chat without messages"),
        (repr(CHAT)[:-9], "a list or chat that is neither JSON nor Python's repr"),
    ],
)
def test_a_chat_without_the_text_of_a_problem_is_dropped_for_a_reason(chat, reason, tmp_path):
    for written in [chat] if isinstance(chat, str) else (chat, json.dumps(chat), repr(chat)):
        path = write_lines(tmp_path / "chats.jsonl", [{"problem": written, "answer": 1}])
        assert file_set(path).load("train", 0, ()).dropped == {reason: 1}


def test_a_problem_that_begins_with_a_bracket_is_no_chat(tmp_path):
    texts = ["[1, 2] and {3}: how many?", '{"a": 1} has how many keys?', "[{x}] is what?"]
    path = write_lines(tmp_path / "sets.jsonl", [{"problem": text, "answer": 1} for text in texts])
    assert [problem.text for problem in file_set(path).load("train", 0, ()).problems] == texts


@pytest.mark.parametrize(
    "answer",
    [
        *(["$1,234$"], ["1234"], "['$1234$']", '["1234"]', "\\boxed{1{,}234}"),
        "Two boxes: \\boxed{5}, so the answer is $\\boxed{1234}$.",
        "We count <<1200+34=1234>>1234 things.\n#### 1,234",
    ],
)
def test_answers_in_lists_solutions_and_boxes(answer, tmp_path):
    path = write_lines(tmp_path / "answers.jsonl", [{"problem": "How many?", "answer": answer}])
    pd.DataFrame({"problem": ["How many?"], "answer": [answer]}).to_parquet(tmp_path / "answers.parquet")
    for file in (path, tmp_path / "answers.parquet"):
        assert [problem.answer for problem in file_set(file).load("train", 0, ()).problems] == ["1234"]


def test_half_a_surrogate_pair_becomes_the_replacement_character(tmp_path):
    table = [{"problem": f"Let \ud835 be {n}. \U0001d465?", "answer": n, "other": "\udc80"} for n in (1, 2)]
    table.append({"problem": json.dumps([{"role": "user", "content": "3 \ud835"}]), "answer": 3})
    path = write_lines(tmp_path / "halves.jsonl", table)
    build_problem_sets(data_config(file_set(path), held=split_set(1)), tmp_path / "out")
    texts = [one.text for name in ("train", "held") for one in load_problems(tmp_path / "out" / f"{name}.parquet")]
    assert sorted(texts) == ["3 \ufffd", *(f"Let \ufffd be {n}. \U0001d465?" for n in (1, 2))]


# Cleaning
def test_the_task_says_which_texts_state_the_same_problem():
    raw = [RawProblem("a", "1,2=3", 3), RawProblem("b", "2,1=3", "3")]
    assert len(clean_problems(raw, MATH)[0]) == 2
    assert clean_problems(raw, COUNTDOWN) == ([Problem("a", "1,2=3", "3", "countdown")], {DUPLICATE: 1})


def test_blank_lines_around_a_text_change_nothing():
    sheet = "3,5=8\n2,4=6"
    kept, dropped = clean_problems([RawProblem("a", f"\n{sheet}\n\n", 1)], SHEET)
    assert (kept, dropped) == ([Problem("a", sheet, "1", "countdown_sheet")], {})


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["q", "Q ", "r", "r\n", "s", ""]), st.sampled_from([1, "1", 2, 0.5, None]))))
def test_cleaning_accounts_for_every_row(table):
    raw = [RawProblem(str(i), text, answer) for i, (text, answer) in enumerate(table)]
    kept, dropped = clean_problems(raw, MATH)
    assert len(kept) + dropped.total() == len(raw)
    texts = [p.text.casefold() for p in kept]
    assert len(set(texts)) == len(texts)
    for problem in kept:  # no row states another answer for its text
        said = {str(a) for text, a in table if text.strip().casefold() == problem.text.casefold() and a is not None}
        assert said == {problem.answer}


def test_problems_survive_writing(tmp_path):
    problems = [Problem("b", "x\u2028 \\boxed{} é", "-5", "math"), Problem("a", "y", "(1+2)*3", "countdown")]
    write_problems(tmp_path / "set.parquet", problems)
    assert load_problems(tmp_path / "set.parquet") == problems
    assert list(pd.read_parquet(tmp_path / "set.parquet").columns) == ["id", "problem", "answer", "task"]
    with pytest.raises(UserError, match="no such file"):
        load_problems(tmp_path / "other.parquet")
    pd.DataFrame({"id": ["a"], "problem": ["q"], "answer": ["7"]}).to_parquet(tmp_path / "raw.parquet")
    with pytest.raises(UserError, match="not a problem set of this version"):
        load_problems(tmp_path / "raw.parquet")


# Sets
def file_set(path) -> FileSet:
    return FileSet(source="file", path=str(path))


def split_set(size) -> SplitSet:
    return SplitSet(source="split", size=size)


def data_config(train, seed=1, **evaluation) -> DataConfig:
    return DataConfig(folder=None, seed=seed, train=train, evaluation=evaluation)


def ids_of(path):
    return [problem.id for problem in load_problems(path)]


def test_sets_never_share_a_problem_and_the_report_adds_up(tmp_path):
    train = write_lines(
        tmp_path / "train.jsonl",
        rows(*[(f"train {i}", i) for i in range(20)], ("EVAL  1", 1), ("eval 2", "half"), ("Both", 9), ("train 3", 3)),
    )
    first = write_lines(tmp_path / "first.jsonl", rows(("eval 1", 1), ("both", 9)))
    second = write_lines(tmp_path / "second.jsonl", rows(("Both", 9), ("eval 2", 2)))
    data = data_config(file_set(train), seed=3, dapo500=split_set(5), first=file_set(first), second=file_set(second))
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
    assert sets["train"]["dropped"] == {NOT_AN_INTEGER: 1, DUPLICATE: 1, "also in first": 2, "taken for dapo500": 5}
    assert sets["train"]["sha256"] == sha256(train)
    for name, entry in sets.items():
        assert entry["kept"] == len(load_problems(out / f"{name}.parquet"))
        assert entry["rows"] == entry["kept"] + sum(entry["dropped"].values())
    taken, rest = ids_of(out / "dapo500.parquet"), ids_of(out / "train.parquet")
    assert sorted(taken + rest) == sorted(f"p{i}" for i in range(20))
    assert len(taken) == 5


def build_split(tmp_path, name, table, seed):
    path = write_lines(tmp_path / f"{name}.jsonl", table)
    data = data_config(file_set(path), seed, held=split_set(30))
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
    problems = [Problem(f"{i:03d}", f"q{i}", str(i), "math") for i in range(200)]
    counts = [0] * 200
    for seed in range(400):
        for problem in split_problems(problems, 50, seed)[0]:
            counts[int(problem.answer)] += 1
    # each is taken in a quarter of 400 draws: 100, standard deviation sqrt(400 x 1/4 x 3/4) = 8.66
    assert max(abs(count - 100) for count in counts) < 5 * 8.66
    assert abs(sum(counts[:100]) - sum(counts[100:])) < 1200


@pytest.mark.parametrize(
    ("train", "evaluation", "message"),
    [
        ("good", {"aime24": "same"}, r"data.train: none of its 2 problems is left \(2 x also in aime24\)"),
        ("unread", {}, r"is left \(2 x the answer is not an integer\); the first answer is \['x', 'y'\]"),
        ("twice", {}, r"data.train: two different problems have the id 'p0'"),
        ("good", {"held": split_set(2)}, r"data.evaluation.held.size: 2 leaves nothing"),
        (split_set(1), {}, "data.train: a split is taken out of the training set"),
    ],
)
def test_a_bad_set_is_one_line_and_nothing_is_written(tmp_path, train, evaluation, message):
    contents = {"good": rows(("q", 1), ("r", 2)), "same": rows(("Q", 1), ("R", 2))}
    contents |= {"unread": rows(("s", ["x", "y"]), ("t", 0.5)), "twice": rows(("u", 1)) + rows(("v", 1))}
    files = {name: file_set(write_lines(tmp_path / f"{name}.jsonl", table)) for name, table in contents.items()}
    sources = {name: files.get(one, one) if isinstance(one, str) else one for name, one in evaluation.items()}
    data = data_config(files[train] if isinstance(train, str) else train, **sources)
    with mistake(match=message):
        build_problem_sets(data, tmp_path / "out")
    assert not (tmp_path / "out").exists()


MADE = {"source": "countdown", "size": 3, "numbers": [2, 3], "values": [1, 9], "targets": [1, 9]}


@pytest.mark.parametrize(
    ("train", "evaluation", "message"),
    [
        ({"source": "web"}, {}, "train: unknown source 'web'; known: countdown, .*file, hub"),
        ({"source": "file"}, {}, "no value for train.path"),
        (MADE | {"numbers": [3, 2]}, {}, r"train.numbers: \[3, 2\] should be \[min, max\]"),
        (MADE, {"train": MADE}, "'train' cannot name an evaluation set"),
        (MADE, {"../a": MADE}, "'../a' cannot name an evaluation set"),
    ],
)
def test_a_bad_source_is_one_line(train, evaluation, message):
    with mistake(match=message):
        parse(DataConfig, {"seed": 1, "folder": None, "train": train, "evaluation": evaluation}, "a config")


def test_an_interrupted_build_leaves_what_was_there(tmp_path, monkeypatch):
    path = write_lines(tmp_path / "a.jsonl", rows(*[(f"q{i}", i) for i in range(30)]))
    out = tmp_path / "out"
    build_problem_sets(data_config(file_set(path), held=split_set(10)), out)
    before = {file.name: file.read_bytes() for file in out.iterdir()}

    def interrupted(path, problems):
        write_problems(path, problems)
        if "held" in str(path):
            raise KeyboardInterrupt

    monkeypatch.setattr(problem_sets, "write_problems", interrupted)
    write_lines(path, rows(*[(f"r{i}", i) for i in range(30)]))
    with pytest.raises(KeyboardInterrupt):
        build_problem_sets(data_config(file_set(path), held=split_set(10)), out)
    assert {file.name: file.read_bytes() for file in out.iterdir()} == before
