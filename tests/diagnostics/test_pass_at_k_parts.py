"""pass-at-k: what tells the rows of a file apart, and columns that are no grades of samples."""

import pandas as pd
import pytest

from command_line import error, run, write_lines


def graded(grades, **columns):
    return [{"problem_id": name, "correct": grade} | columns for name, row in grades.items() for grade in row]


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
