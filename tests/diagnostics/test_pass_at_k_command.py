"""pass-at-k: what it estimates, which rows are samples of one policy, and which problems are the same."""

import json
import math
from itertools import combinations
from math import comb

import numpy as np
import pandas as pd
import pytest

from command_line import error, output, run, write_lines

GRADES = {"a": [1, 0, 0, 0], "b": [1, 1, 0, 0], "c": [0, 0, 0, 0], "d": [1, 1, 1, 1]}
CURVE = {1: 43.8, 2: 58.3, 4: 75.0}  # c of 4 correct: 1 - C(4 - c, k) / C(4, k), averaged


def rows(**columns):
    """A row per sample; each column is a function of the problem's and the sample's number and of the row's."""
    return [
        {"problem_id": name, "correct": grade}
        | {key: of(place, sample, 4 * place + sample) for key, of in columns.items()}
        for place, (name, grades) in enumerate(GRADES.items())
        for sample, grade in enumerate(grades)
    ]


def graded(grades, **columns):
    return [{"problem_id": name, "correct": grade} | columns for name, row in grades.items() for grade in row]


def written(path, rows):
    pd.DataFrame(rows).to_parquet(path) if path.suffix == ".parquet" else write_lines(path, rows)
    return path


def json_rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def curve(text, column=1):
    """k -> Pass@k."""
    return {int(line.split()[0]): float(line.split()[column]) for line in text.splitlines()[1:]}


def curve_of(capsys, *arguments):
    """Pass@k of a file with one policy, and what the command says on stderr."""
    out, err = output(capsys, "pass-at-k", *arguments)
    assert out.split("\n")[0].split()[2:] == ["low", "high"]
    return curve(out), err


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
    for method in ("grpo", "clip_b@mu=2.5"):
        (folder := tmp_path / method / "seed0").mkdir(parents=True)
        for place, half in enumerate(halves):
            written(folder / f"part{place}.{('parquet', 'jsonl')[place]}", graded(half))
        written(folder / "T1" / "part0.jsonl", graded({"z": [1, 1, 1, 1]}))
        (folder / "notes.txt").write_text("")
    whole = written(tmp_path / "whole.parquet", graded(GRADES))
    header, *rows = run(
        capsys, "pass-at-k", tmp_path / "grpo" / "seed0", tmp_path / "clip_b@mu=2.5" / "seed0"
    ).splitlines()
    assert header.split() == ["k", "grpo", "low", "high", "clip_b@mu=2.5", "low", "high", "difference", "low", "high"]
    assert max(map(len, (header, *rows))) <= 80
    alone = run(capsys, "pass-at-k", whole).splitlines()
    assert alone[0].split() == ["k", "whole", "low", "high"]
    assert [row.split()[:4] for row in rows] == [row.split() for row in alone[1:]]
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


def test_ids_that_are_text_stay_apart(tmp_path, capsys):
    path = written(tmp_path / "ids.jsonl", graded({"007": [1], "7": [0], "7.0": [0]}))
    assert curve_of(capsys, path)[0] == {1: 33.3}  # one problem would have three samples


def as_expected(rates, n):
    """Grades of n samples per problem, c correct ones as often as the rates, in quarters, would have them."""
    often = [sum(comb(n, c) * rate**c * (4 - rate) ** (n - c) for rate in rates) for c in range(n + 1)]
    counts = np.repeat(range(n + 1), np.array(often) // math.gcd(*often))
    return {str(problem): [1] * c + [0] * (n - c) for problem, c in enumerate(counts)}


def true_variance(p, n, k):
    """Of Pass@k from n samples, over what they may be."""
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


# ---------------------------------------------------------------- seeds and ids
@pytest.mark.parametrize("name", ["seed", "trial_id", "epoch", "run", "Run Number"])
@pytest.mark.parametrize(
    "value",
    [int, str, float, "try-{}".format, "seed_{}".format],
    ids=["int", "str", "float", "try-", "seed_"],
)
def test_a_number_of_any_type_of_which_a_problem_has_one_row_is_a_sample(name, value, tmp_path, capsys):
    path = write_lines(tmp_path / "all.jsonl", rows(**{name: lambda _, sample, __: value(sample)}))
    assert curve_of(capsys, path)[0] == CURVE


@pytest.mark.parametrize("name", ["run_id", "trial_name", "job_id", "experiment", "seed"])
def test_an_id_that_no_two_rows_share_names_a_sample(name, tmp_path, capsys):
    path = write_lines(tmp_path / "all.jsonl", rows(**{name: lambda place, _, row: f"{place}__{row * 7919:08x}"}))
    assert curve_of(capsys, path) == (CURVE, "")
    steps = [row | {"step": step, name: f"{row[name]}{step}"} for step in (0, 20) for row in json_rows(path)]
    header = run(capsys, "pass-at-k", write_lines(path, steps)).split("\n")[0].split()
    assert header[1::3] == ["step=0", "step=20", "difference"]


@pytest.mark.parametrize("name", ["run", "seed", "name"])
def test_names_that_differ_in_more_than_the_number_of_a_sample_are_policies(name, tmp_path, capsys):
    """Sizes and learning rates are numbers too; what to do if they are samples is said."""
    for names in (["qwen-7b", "qwen-32b"], ["lr1e-6", "lr3e-6"], ["step100", "step200"], ["grpo_seed1", "ppo_seed1"]):
        two = [row | {name: names[at % 2]} for at, row in enumerate(rows()) if at % 4 < 2]
        out, err = output(capsys, "pass-at-k", write_lines(tmp_path / "all.jsonl", two))
        assert len(out.split("\n")[0].split()) == 1 + 3 * 3
        assert f"if they are samples of one policy, remove the column {name}\n" in err


def in_files(folder, named, suffix="jsonl"):
    """A file per sample."""
    for sample in range(4):
        of_sample = pd.DataFrame([row for at, row in enumerate(rows()) if at % 4 == sample])
        (path := folder / f"{named.format(sample)}.{suffix}").parent.mkdir(exist_ok=True)
        if suffix == "jsonl":
            write_lines(path, of_sample.to_dict("records"))
        else:
            getattr(of_sample, f"to_{suffix}")(path, index=False)
    return folder


@pytest.mark.parametrize("named", ["output-rs{}", "seed_{}", "math.run={}", "aime-trial{}-done"])
@pytest.mark.parametrize("suffix", ["jsonl", "parquet", "csv"])
def test_files_named_by_the_seed_are_samples(named, suffix, tmp_path, capsys):
    found, err = curve_of(capsys, in_files(tmp_path / "run", named, suffix))
    assert found == CURVE
    assert err == f"{tmp_path}/run: file numbers the samples ({named.format('*')})\n"


def test_a_greedy_file_beside_those_of_seeds_is_a_policy_of_its_own(tmp_path, capsys):
    folder = in_files(tmp_path / "run", "output-rs{}")
    write_lines(folder / "output.jsonl", [{"problem_id": name, "correct": 1} for name in GRADES])
    header, first = run(capsys, "pass-at-k", folder).splitlines()
    assert header.split()[1::3] == ["file=output-rs*", "file=output", "difference"]
    assert first.split()[1::3] == ["43.8", "100.0", "56.2"]


@pytest.mark.parametrize("files", [4, 9])
def test_files_of_which_nothing_says_that_they_are_samples_are_columns(files, tmp_path, capsys):
    """verl names them by steps."""
    for step in range(files):
        write_lines(tmp_path / f"val/{step}.jsonl", [{"problem_id": name, "correct": 1} for name in GRADES])
    remedy = "; if they are samples of one policy, join the files into one"
    if files == 4:
        assert output(capsys, "pass-at-k", tmp_path / "val")[1].endswith(f"{remedy}\n")
    else:
        message = f"{tmp_path}/val has rows of file=0, file=1 and 7 more; keep those of one{remedy}"
        assert error(capsys, "pass-at-k", tmp_path / "val") == message


# ---------------------------------------------------------------- repeated rows
NUMBERED = {"sample_idx": lambda _, sample, __: sample, "response": lambda *at: f"It is {at[2] // 2}."}


def test_rows_that_a_resumed_run_or_every_rank_writes_again_are_left_out(tmp_path, capsys):
    once = rows(**NUMBERED)
    path = tmp_path / "all.jsonl"
    of_rank = [[row | {"rank": rank, "timestamp": rank + 0.5} for row in once] for rank in range(3)]
    for first, again in ((once, once[5:9]), (once, once), (once, 6 * once), (of_rank[0], of_rank[1] + of_rank[2])):
        found, err = curve_of(capsys, write_lines(path, first + again))
        assert found == CURVE
        assert err.startswith(f"{path}: {len(again)} of {16 + len(again)} rows repeat another row and are left out\n")


def test_rows_are_repeated_only_if_all_of_their_lists_are(tmp_path, capsys):
    once = [row | {"tokens": [row["correct"]] * 1200, "seed": at % 4} for at, row in enumerate(rows())]
    pd.DataFrame(once + once[:3]).to_parquet(path := tmp_path / "all.parquet")
    assert curve_of(capsys, path) == (CURVE, f"{path}: 3 of 19 rows repeat another row and are left out\n")
    again = [row | {"tokens": [*row["tokens"][:-1], 7]} for row in once[:4]]
    pd.DataFrame(once + again).to_parquet(path)
    assert "left out" not in output(capsys, "pass-at-k", path)[1]


@pytest.mark.parametrize("numbered", [{}, {"sample_idx": lambda _, sample, __: sample}], ids=["no number", "numbers"])
def test_a_response_that_is_there_several_times_is_counted_but_stays(numbered, tmp_path, capsys):
    """A model may answer twice in the same words, so these are samples."""
    path = write_lines(tmp_path / "all.jsonl", rows(response=lambda place, _, __: f"It is {place}.", **numbered))
    again = 12 - 1 - 1  # problems a and b have right and wrong ones
    found, err = curve_of(capsys, path)
    assert (found, err) == (CURVE, f"{path}: {again} of 16 samples repeat an earlier response; are they copies?\n")
    assert curve_of(capsys, write_lines(path, rows())) == (CURVE, "")
    assert curve_of(capsys, write_lines(path, rows(response=lambda *at: str(at)))) == (CURVE, "")


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
    pd.DataFrame(table).assign(correct=[[bool(one) for one in row["correct"]] for row in table]).to_parquet(
        path := tmp_path / "all.parquet"
    )
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
        pd.DataFrame(table).to_parquet(path := tmp_path / "tokens.parquet")
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
        table = [row | {"problem_id": key(at // 4)} for at, row in enumerate(rows())]
        if isinstance(key(0), float):
            pd.DataFrame(table).to_parquet(path := tmp_path / f"{name}.parquet")
        else:
            path = write_lines(tmp_path / f"{name}.jsonl", table)
        paths.append(path)
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
    nearly = {1: float(np.nextafter(np.float32(1), np.float32(0))), 0: 1e-9}
    assert nearly[1] < 1
    path = write_lines(tmp_path / "all.jsonl", [row | {"correct": nearly[row["correct"]]} for row in rows()])
    assert curve_of(capsys, path)[0] == CURVE
    assert curve_of(capsys, path, "--threshold", 1)[0] == CURVE
    frame = pd.DataFrame(rows())
    frame.assign(correct=frame["correct"].map({1: 0.7, 0: 0.6}).astype("float32")).to_parquet(
        path := tmp_path / "all.parquet"
    )
    assert curve_of(capsys, path, "--threshold", 0.7)[0] == CURVE


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
    frame = pd.DataFrame(rows(response=lambda *at: f"{at}\nend")).replace({"problem_id": names})
    for grades in ({1: 1, 0: 0}, {1: "True", 0: "False"}, {1: "TRUE", 0: "FALSE"}, {1: 1.0, 0: -1.0}):
        frame.assign(correct=frame["correct"].map(grades)).to_csv(path := tmp_path / "all.csv", index=False)
        assert curve_of(capsys, path) == (CURVE, "")
    frame.to_csv(path, index=False, sep=";")
    assert error(capsys, "pass-at-k", path).endswith("its columns are separated by ;, not by commas")
    frame.to_csv(path, index=False, encoding="utf-16")
    assert error(capsys, "pass-at-k", path) == f"{path} cannot be read: the file is in UTF-16; save it as UTF-8"
    path.write_text("")
    assert error(capsys, "pass-at-k", path).startswith(f"{path} cannot be read: ")


def test_hidden_files_of_a_folder_are_not_read(tmp_path, capsys):
    write_lines(tmp_path / "val/all.jsonl", rows())
    (tmp_path / "val/._all.jsonl").write_bytes(b"\x00\x05\x16\x07Mac OS X")
    write_lines(tmp_path / "val/.ipynb_checkpoints/all-checkpoint.jsonl", rows())
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


# ---------------------------------------------------------------- what tells rows apart
def first_row(capsys, *arguments):
    """The columns of the table without bounds, and their values at k = 1."""
    header, row, *_ = (line.split() for line in run(capsys, "pass-at-k", *arguments).splitlines())
    return {name: float(value) for name, value in zip(header, row, strict=True) if name not in ("low", "high")}


WEAK, STRONG = {"a": [1, 0], "b": [0, 0]}, {"a": [1, 1], "b": [1, 0]}


@pytest.mark.parametrize("name", ["global_step", "checkpoint_path", "temperature", "Run Name", "method", "seed"])
def test_rows_of_two_policies_are_two_columns(name, tmp_path, capsys):
    path = write_lines(tmp_path / "all.jsonl", graded(WEAK, **{name: "x"}) + graded(STRONG, **{name: "y"}))
    named = {f"{name}=x": 25.0, f"{name}=y": 75.0}
    if " " not in name:
        assert first_row(capsys, path) == {"k": 1.0, **named, "difference": 50.0}
    assert [line.split()[0] for line in run(capsys, "pass-at-k", path).splitlines()[1:]] == ["1", "2"]


def test_a_folder_of_steps_is_a_column_per_step_even_without_common_problems(tmp_path, capsys):
    write_lines(tmp_path / "val/0.jsonl", graded(WEAK, step=0))
    write_lines(tmp_path / "val/20.jsonl", graded({"c": [1, 1], "d": [1, 0]}, step=20))
    assert first_row(capsys, tmp_path / "val") == {"k": 1, "step=0": 25.0, "step=20": 75.0}


def test_files_of_a_folder_with_the_same_problems_are_columns(tmp_path, capsys):
    for name, grades in (("completions_00001", WEAK), ("completions_00002", STRONG)):
        (tmp_path / "run").mkdir(exist_ok=True)
        pd.DataFrame(graded(grades)).to_parquet(tmp_path / f"run/{name}.parquet")
    expected = {"file=completions_00001": 25.0, "file=completions_00002": 75.0, "difference": 50.0}
    assert first_row(capsys, tmp_path / "run") == {"k": 1, **expected}


def test_graders_and_data_sets_with_the_same_ids_are_columns(tmp_path, capsys):
    for name in ("filter", "dataset"):
        path = write_lines(tmp_path / f"{name}.jsonl", graded(WEAK, **{name: "x"}) + graded(STRONG, **{name: "y"}))
        assert first_row(capsys, path) == {"k": 1, f"{name}=x": 25.0, f"{name}=y": 75.0, "difference": 50.0}
    apart = graded({"a": [1, 0]}, dataset="x") + graded({"b": [1, 1]}, dataset="y")
    assert first_row(capsys, write_lines(tmp_path / "apart.jsonl", apart)) == {"k": 1, "apart": 75.0}


@pytest.mark.parametrize("numbers", ["seed", "trial_id"])
def test_a_number_per_sample_and_a_name_per_problem_split_nothing(numbers, tmp_path, capsys):
    rows = [row | {numbers: number % 2, "name": row["problem_id"]} for number, row in enumerate(graded(STRONG))]
    assert first_row(capsys, write_lines(tmp_path / "one.jsonl", rows)) == {"k": 1, "one": 75.0}


def test_many_policies_in_a_file_are_one_line(tmp_path, capsys):
    path = write_lines(tmp_path / "all.jsonl", [row for step in range(9) for row in graded(WEAK, step=step)])
    message = f"{path} has rows of step=0, step=1 and 7 more; keep those of one"
    assert error(capsys, "pass-at-k", path) == message
    write_lines(path, [row for step in range(2) for row in graded(WEAK, step=step)])
    assert (
        error(capsys, "pass-at-k", path, "--power", 5)
        == f"{path} has rows of step=0, step=1; --power takes those of one"
    )


def test_a_session_of_several_outputs_is_one_sample_of_its_prompt(tmp_path, capsys):
    """verl's V1 trainer; the input of a later output has the conversation so far, and its grade counts."""
    rows = [
        {"uid": f"{prompt}_{session}_{output}", "input": prompt + "..." * output, "score": int(output == 1 == session)}
        for prompt in ("p_1", "q")
        for session in (0, 1)
        for output in (1, 0)
    ]
    path = write_lines(tmp_path / "v1.jsonl", rows)
    assert first_row(capsys, path) == {"k": 1, "v1": 50.0}
    assert run(capsys, "pass-at-k", path, "--problem", "uid") == run(capsys, "pass-at-k", path)
    assert run(capsys, "pass-at-k", path).splitlines()[2].split()[:2] == ["2", "100.0"]
    two_steps = [row | {"step": step, "score": row["score"] * step} for step in (0, 1) for row in rows]
    expected = {"k": 1, "step=0": 0.0, "step=1": 50.0, "difference": 50.0}
    assert first_row(capsys, write_lines(path, two_steps)) == expected


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
