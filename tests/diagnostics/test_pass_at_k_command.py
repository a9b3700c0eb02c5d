"""pass-at-k: what it estimates, which problems are the same, and what a grade is."""

import json
import math
from itertools import combinations
from math import comb

import numpy as np
import pandas as pd
import pytest

from command_line import error, output, run, write_lines
from graded_files import CURVE, GRADES, curve, curve_of, first_row, graded, rows, written


# ---------------------------------------------------------------- the estimate, and the difference of two files
@pytest.mark.parametrize(
    ("file", "problem", "correct", "options"),
    [
        ("ours.parquet", "problem_id", "correct", []),
        ("verl.jsonl", "input", "score", []),
        ("trl.parquet", "prompt", "my_reward", ["--correct", "my_reward"]),
        ("skyrl.jsonl", "input_prompt", "score", []),
    ],
)
def test_pass_at_k_is_the_mean_over_all_subsets(file, problem, correct, options, tmp_path, capsys):
    path = written(tmp_path / file, [{problem: row["problem_id"], correct: row["correct"]} for row in graded(GRADES)])
    printed = run(capsys, "pass-at-k", path, *options)
    assert curve(printed) == CURVE
    assert {
        k: pytest.approx(100 * np.mean([any(s) for row in GRADES.values() for s in combinations(row, k)]), abs=0.05)
        for k in (1, 2, 4)
    } == CURVE
    for line in printed.splitlines()[1:]:
        _, value, low, high = map(float, line.split())
        assert 0 <= low < value < high <= 100


def test_two_files_are_compared_on_the_same_problems(tmp_path, capsys):
    better = {name: [*row[1:], 1] for name, row in GRADES.items() if name != "d"} | {"e": [0, 0, 0, 0], "f": [1] * 4}
    one, two = (written(tmp_path / f"{name}.jsonl", graded(of)) for name, of in (("one", GRADES), ("two", better)))
    out, err = output(capsys, "pass-at-k", one, two)
    value, low, high = map(float, out.splitlines()[1].split()[7:])
    assert low < value < high
    gains = [np.mean(better[name]) - np.mean(GRADES[name]) for name in "abc"]
    assert value == pytest.approx(100 * np.mean(gains), abs=0.05)
    assert err.startswith("the difference is of the 3 problems that both have, of 4 and 5\n")


def test_two_files_are_compared_at_all_k_at_once(tmp_path, capsys):
    """The second always solves half of 60 problems, and none of the others; the first each in one sample of four."""
    each, half = {str(at): [1, 0, 0, 0] for at in range(60)}, {str(at): [at % 2] * 4 for at in range(60)}
    rng = np.random.default_rng(0)
    alike = {str(problem): rng.integers(0, 2, 4).tolist() for problem in range(60)}
    for first, second, change in (
        (each, half, "gains at k = 1, loses at k = 3 to 4"),
        (half, each, "gains at k = 3 to 4, loses at k = 1"),
        (alike, alike | {"0": [1, 1, 1, 1], "1": [0] * 4}, "neither gains nor loses"),
    ):
        files = written(tmp_path / "one.jsonl", graded(first)), written(tmp_path / "two.jsonl", graded(second))
        _, err = output(capsys, "pass-at-k", *files)
        assert err == f"all k to 4 at once (95 % band): the second {change}\n"


def test_a_folder_is_all_of_its_files_and_columns_are_named_by_what_differs(tmp_path, capsys):
    halves = [{name: GRADES[name] for name in names} for names in ("ab", "cd")]
    folders = [tmp_path / method / "seed0" for method in ("grpo", "clip_b@mu=2.5")]
    for folder in folders:
        for name, half in zip(("part0.parquet", "part1.jsonl"), halves, strict=True):
            written(folder / name, graded(half))
        written(folder / "T1" / "part0.jsonl", graded({"z": [1, 1, 1, 1]}))
        (folder / "notes.txt").write_text("")
    whole = written(tmp_path / "whole.parquet", rows())
    header, *lines = run(capsys, "pass-at-k", *folders).splitlines()
    assert header.split() == ["k", "grpo", "low", "high", "clip_b@mu=2.5", "low", "high", "difference", "low", "high"]
    assert max(map(len, (header, *lines))) <= 80
    alone = run(capsys, "pass-at-k", whole).splitlines()
    assert alone[0].split() == ["k", "whole", "low", "high"]
    assert [line.split()[:4] for line in lines] == [line.split() for line in alone[1:]]
    (empty := tmp_path / "empty").mkdir()
    assert error(capsys, "pass-at-k", empty) == f"{empty} has no .parquet, .jsonl or .csv file"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.jsonl", None, "no file {}"),
        ("samples.txt", "a,b", "{} should be a .parquet, .jsonl or .csv file"),
        ("samples.csv", "input;score\n1;0\n", "{} cannot be read: its columns are separated by ;, not by commas"),
        ("broken.jsonl", "{", "{}: line 1 is not a JSON object"),
        ("no.jsonl", '{"input": "1+1", "output": "2"}', "{} has no column for the grade of an answer"),
        ("text.jsonl", '{"input": "1", "score": "good"}', "{}: score is 'good'; it should be true, false or a finite"),
        ("ungraded.jsonl", '{"input": "1", "score": null}', "{}: no sample has a value of score"),
        ("empty.jsonl", '{"input": "1", "score": 1}\n{"input": "", "score": 0}', "{}: 1 of 2 samples have no input"),
        ("latin.jsonl", b'{"input": 1}\n{"input": "\xe9"}', "{}: line 2 is not a JSON object"),
    ],
)
def test_a_mistake_is_one_line(name, text, message, tmp_path, capsys):
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert error(capsys, "pass-at-k", path).startswith(message.format(path))


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_a_sample_without_a_grade_is_left_out_and_counted(suffix, tmp_path, capsys):
    grades = {"a": [True, None, True, False], "b": [None] * 4, "c": [False, False, None, False]}
    path = written(tmp_path / f"some.{suffix}", graded(grades))
    said = f"{path}: 6 of 12 samples have no correct and are left out; 2 of 3 problems are left\n"
    assert curve_of(capsys, path) == ({1: 33.3, 2: 50.0, 3: 50.0}, said)  # 2 of 3, and 0 of 3


def as_expected(rates, n):
    """Grades of n samples per problem, c correct ones as often as the rates, in quarters, would have them."""
    often = [sum(comb(n, c) * rate**c * (4 - rate) ** (n - c) for rate in rates) for c in range(n + 1)]
    counts = np.repeat(range(n + 1), np.array(often) // math.gcd(*often))
    return {str(problem): [1] * c + [0] * (n - c) for problem, c in enumerate(counts)}


def true_variance(p, n, k):
    """The variance of Pass@k estimated from n samples of a problem with success rate p."""
    chances = [comb(n, c) * p**c * (1 - p) ** (n - c) for c in range(n + 1)]
    estimates = [1 - comb(n - c, k) / comb(n, k) for c in range(n + 1)]
    return np.dot(chances, np.square(estimates)) - np.dot(chances, estimates) ** 2


@pytest.mark.parametrize(("rates", "n", "ks"), [((1, 3), 4, (1, 2)), ((2,), 8, (1, 2, 4))])
def test_the_power_from_few_samples_is_that_of_the_true_rates(rates, n, ks, tmp_path, capsys):
    """To put the file's rates for the true ones gives 1 - 1/n of it, for k = 1."""
    path = written(tmp_path / "samples.parquet", graded(as_expected(rates, n)))
    _, header, *rows = map(str.split, run(capsys, "pass-at-k", path, "--power", 5).splitlines())
    assert header == ["samples", *(f"k={k}" for k in ks)]
    of_both = 2 * ((1.959964 + 1.281552) / 0.05) ** 2
    expected = [
        [m, *(math.ceil(of_both * np.mean([true_variance(rate / 4, m, k) for rate in rates])) for k in ks)]
        for m in (n // 2, n, 2 * n, 4 * n)
    ]
    assert [list(map(int, row)) for row in rows] == expected
    problems, rng, found = int(rows[1][1]), np.random.default_rng(0), 0
    p = np.resize(np.array(rates) / 4, problems)
    for _ in range(1000):
        difference = (rng.binomial(n, p + 0.05) - rng.binomial(n, p)) / n
        found += difference.mean() / (difference.std(ddof=1) / problems**0.5) > 1.96
    assert found / 1000 == pytest.approx(0.9, abs=0.03)


# ---------------------------------------------------------------- lists, problems, grades
def test_lists_of_grades_are_samples(tmp_path, capsys):
    table = [
        {"problem_id": name, "correct": grades, "generations": [f"{name}{at}" for at in range(4)], "step": 0}
        for name, grades in GRADES.items()
    ]
    assert curve_of(capsys, write_lines(tmp_path / "all.jsonl", table)) == (CURVE, "")
    ungraded = {"problem_id": "e", "correct": None, "generations": ["e1"] * 4, "step": 0}
    found, err = curve_of(capsys, write_lines(tmp_path / "some.jsonl", [*table, ungraded]))
    assert found == CURVE
    assert err.endswith("1 of 17 samples have no correct and are left out; 4 of 5 problems are left\n")
    flags = [row | {"correct": [*map(bool, row["correct"])]} for row in table]
    path = written(tmp_path / "all.parquet", flags)
    assert curve_of(capsys, path) == (CURVE, "")
    chats = [[{"role": "system", "content": "s"}, {"role": "user", "content": name}] for name in GRADES]
    two = [{"prompt": chat, "score": GRADES[name][1:3]} for name, chat in zip(GRADES, chats, strict=True)]
    assert curve_of(capsys, write_lines(tmp_path / "two.jsonl", two))[0] == {1: 37.5, 2: 50.0}


def test_every_column_may_be_a_list_over_the_batch_of_a_step(tmp_path, capsys):
    """ms-swift's completions.jsonl."""
    names = [name for name in GRADES for _ in range(4)]
    grades = [float(grade) for row in GRADES.values() for grade in row]
    table = [
        {"step": [str(step)] * 16, "prompt": names, "completion": [f"{at}" for at in range(16)], "Math": of_step}
        for step, of_step in ((5, grades), (10, [1.0] * 16))
    ]
    out = run(capsys, "pass-at-k", write_lines(tmp_path / "completions.jsonl", table), "--correct", "Math")
    assert out.split("\n")[0].split()[1::3] == ["step=5", "step=10", "difference"]
    assert (curve(out), curve(out, 4)) == (CURVE, dict.fromkeys(CURVE, 100.0))


def test_prompts_of_many_token_ids_are_problems_of_their_own(tmp_path, capsys):
    """numpy abbreviates the text of more than 1,000 items."""
    ids = {name: np.arange(3000) + 100_000 * (np.arange(3000) == 1500 + place) for place, name in enumerate(GRADES)}
    for nested in (False, True):
        table = [
            {"prompt": [{"role": "user", "content": ids[row["problem_id"]]}] if nested else ids[row["problem_id"]]}
            | {"correct": row["correct"]}
            for row in rows()
        ]
        path = written(tmp_path / "tokens.parquet", table)
        assert curve_of(capsys, path)[0] == CURVE
        lines = json.loads(json.dumps(table, default=np.ndarray.tolist))
        out, err = output(capsys, "pass-at-k", path, write_lines(tmp_path / "tokens.jsonl", lines))
        assert "both have" not in err
        assert curve(out, 7) == dict.fromkeys(CURVE, 0.0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda at: at, float),
        (lambda at: at, str),
        (lambda at: f"How many?{at}", lambda at: f" How many?{at}\n"),
        (lambda at: f"How\nmany?{at}", lambda at: f"How\r\nmany?{at}"),
        (lambda at: [{"role": "user", "content": f"{at} "}], lambda at: [{"content": f"{at}", "role": "user"}]),
    ],
    ids=["floats", "texts", "blanks", "line ends", "chats"],
)
def test_the_same_problem_in_two_files(first, second, tmp_path, capsys):
    paths = []
    for name, key in (("one", first), ("two", second)):
        suffix = "parquet" if isinstance(key(0), float) else "jsonl"
        table = rows(problem_id=lambda place, *_, key=key: key(place))
        paths.append(written(tmp_path / f"{name}.{suffix}", table))
    out, err = output(capsys, "pass-at-k", *paths)
    assert (err, curve(out, 7)) == ("", dict.fromkeys(CURVE, 0.0))


def test_files_without_a_common_problem_show_what_theirs_are_like(tmp_path, capsys):
    for name in ("one", "two"):
        write_lines(tmp_path / f"{name}.jsonl", [{"problem_id": f"{name}-7", "correct": 1}])
    message = error(capsys, "pass-at-k", tmp_path / "one.jsonl", tmp_path / "two.jsonl")
    assert message.endswith("have no problem in common; their first ones are one-7 and two-7")


def test_a_problem_with_fewer_samples_is_named_as_what_ends_k(tmp_path, capsys):
    path = write_lines(tmp_path / "all.jsonl", rows()[:-3])
    found, err = curve_of(capsys, path)
    assert list(found) == [1]
    assert err == "k ends at 1, the number of samples of 1 of 4 problems of all; others have up to 4\n"


def test_grades_of_float32_are_whole_numbers_and_reach_a_threshold(tmp_path, capsys):
    nearly = np.nextafter(np.float32(1), np.float32(0))
    assert nearly < 1
    frame = pd.DataFrame(rows())
    for threshold, wrong, right in ((None, 1e-9, nearly), (1, 1e-9, nearly), (0.7, 0.6, 0.7)):
        options = ["--threshold", threshold] if threshold else []
        grades = np.where(frame["correct"], right, wrong).astype("float32")
        path = written(tmp_path / "all.parquet", frame.assign(correct=grades))
        assert curve_of(capsys, path, *options)[0] == CURVE


# ---------------------------------------------------------------- files
def test_half_a_surrogate_pair_is_read_in_any_column(tmp_path, capsys):
    path = write_lines(tmp_path / "all.jsonl", rows(response=lambda *at: f"\ud835{at} \U0001d465 \udc00"))
    assert curve_of(capsys, path) == (CURVE, "")
    halves = {"a": "a \ud835", "b": "b \udc00", "c": "\ud835\ud835 c", "d": "d \U0001d465"}
    write_lines(path, [row | {"problem_id": halves[row["problem_id"]]} for row in rows()])
    assert curve_of(capsys, path)[0] == CURVE
    path.write_bytes(path.read_bytes().replace(rb"\udc00", b"\xed\xb0\x80"))  # as some programs encode it
    assert curve_of(capsys, path)[0] == CURVE


def test_a_csv_file_is_read_and_its_ids_stay_text(tmp_path, capsys):
    names = {"a": "007", "b": "7", "c": "7.0", "d": 'a "quoted", one'}
    renamed = {names[name]: grades for name, grades in GRADES.items()}
    for values in ([0, 1], ["False", "True"], ["FALSE", "TRUE"], [-1.0, 1.0]):
        table = graded(renamed, response=lambda *at: f"{at}\nend")
        given = [row | {"correct": values[row["correct"]]} for row in table]
        path = written(tmp_path / "all.csv", given)
        assert curve_of(capsys, path) == (CURVE, "")
    path.write_text("")
    assert error(capsys, "pass-at-k", path).startswith(f"{path} cannot be read: ")


def test_hidden_files_of_a_folder_are_not_read(tmp_path, capsys):
    write_lines(tmp_path / "val/all.jsonl", rows())
    (tmp_path / "val/._all.jsonl").write_bytes(b"\x00\x05\x16\x07Mac OS X")
    assert curve_of(capsys, tmp_path / "val") == (CURVE, "")


def test_data_sets_that_are_pooled_are_named(tmp_path, capsys):
    for name, ids in (("aime", "ab"), ("amc", "c"), ("math", "d")):
        of_set = [row for row in rows() if row["problem_id"] in ids]
        write_lines(tmp_path / f"val/{name}.jsonl", of_set)
        write_lines(tmp_path / f"named/{name}.jsonl", [row | {"dataset": name} for row in of_set])
    said_of_sets = "the problems of 3 datasets (aime, amc, math) are pooled\n"
    assert curve_of(capsys, tmp_path / "named") == (CURVE, f"{tmp_path}/named: {said_of_sets}")
    said = "the problems of 3 files (aime, amc, math) are pooled\n"
    assert curve_of(capsys, tmp_path / "val") == (CURVE, f"{tmp_path}/val: {said}")
    path = write_lines(tmp_path / "all.jsonl", rows(benchmark=lambda place, *_: "xxyy"[place]))
    assert curve_of(capsys, path) == (CURVE, f"{path}: the problems of 2 benchmarks (x, y) are pooled\n")


@pytest.mark.parametrize(
    ("grades", "shown"),
    [
        ({"a": [0.25], "b": [0.5]}, "2 values (0.25, 0.5; mean 0.375), not only 0 and 1: each problem has one row, so"),
        ({"a": [100, 0], "b": [100, 0]}, "2 values (0, 100; mean 50), not only 0 and 1: name the grade"),
    ],
)
def test_rates_counts_and_partial_credit_are_no_grades(grades, shown, tmp_path, capsys):
    path = write_lines(tmp_path / "credit.jsonl", graded(grades))
    assert error(capsys, "pass-at-k", path).startswith(f"{path}: correct has {shown}")


def test_a_threshold_makes_grades_of_scores(tmp_path, capsys):
    path = write_lines(tmp_path / "credit.jsonl", graded({"a": [0.1, 1], "b": [0.1, 0.9]}))
    assert [first_row(capsys, path, "--threshold", at)["credit"] for at in (0.1, 0.9, 1)] == [100.0, 50.0, 25.0]


def test_equal_scores_have_an_interval_with_a_width(tmp_path, capsys):
    """Of 2 problems, at least a share of 0.025^(1/2) has this score."""
    path = write_lines(tmp_path / "same.jsonl", graded({"a": [1, 0], "b": [0, 1]}))
    share = 0.025**0.5
    assert list(map(float, run(capsys, "pass-at-k", path).splitlines()[1].split()[1:])) == pytest.approx(
        [50, 50 * share, 100 - 50 * share], abs=0.05
    )
    none = write_lines(tmp_path / "none.jsonl", graded({"a": [0, 0], "b": [0, 0]}))
    row = run(capsys, "pass-at-k", path, none).split()
    assert list(map(float, row[row.index("1") + 7 :][:3])) == pytest.approx(
        [-50, -50 * share - 100 * (1 - share), -50 * share + 100 * (1 - share)], abs=0.05
    )
