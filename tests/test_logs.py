"""entropy-watch: which files it reads, and what is wrong with them."""

import json
import math

import pandas as pd
import pytest

from command_line import error, run
from entropy_dynamics.cli import main
from entropy_dynamics.diagnostics.logs import read_metrics
from trainer_logs import (
    FALLING,
    STEPS,
    json_lines,
    lines,
)


def test_an_export_of_several_runs_is_one_line(tmp_path, capsys):
    pd.DataFrame({"Step": [0], "a - entropy": [1.0], "b - entropy": [1.0]}).to_csv(path := tmp_path / "e.csv")
    assert error(capsys, "entropy-watch", path) == f"{path} cannot be read: it has several runs; export one of them"


def test_a_curve_that_tensorboard_exports_is_read(tmp_path, capsys):
    rows = "".join(f"1700000000.{step},{step},{value}\n" for step, value in enumerate(FALLING))
    (path := tmp_path / "actor.csv").write_text(f"Wall time,Step,Value\n{rows}")
    assert "Entropy fell from 1.39 to 0.2 nats" in run(capsys, "entropy-watch", path, "--entropy", "Value")


def test_a_file_of_several_runs_is_one_line(tmp_path, capsys):
    keys = {"model": "toy", "method": "grpo", "seed": 0}
    rows = [{"step": step, "entropy": value} | keys for step, value in enumerate(FALLING)]
    lines(path := tmp_path / "log.jsonl", rows)
    assert "Entropy fell" in run(capsys, "entropy-watch", path)
    lines(path, rows + [row | {"seed": seed, "method": "clip_b"} for row in rows for seed in (1, 2)])
    several = "it has several runs (method grpo, clip_b, ...); save the rows of one as a file of its own"
    assert error(capsys, "entropy-watch", path) == f"{path} cannot be read: {several}"
    lines(path, [row | {"seed": row["step"]} for row in rows])  # no two of a step: those of one run
    assert "Entropy fell" in run(capsys, "entropy-watch", path)


WRONG = [
    ([{"step": 0, "entropy": 1.0}, {"step": 1, "entropy": "n/a"}], "Unable to parse string 'n/a' at position 1"),
    ([{"step": 0, "entropy": 1.0}, {"step": "s1", "entropy": 1.0}], "Unable to parse string 's1' at position 1"),
    ([{"step": "2,600", "entropy": 1.0}], "Unable to parse string '2,600' at position 0"),
    ([{"step": [0], "entropy": 1.0}], "Invalid object type at position 0"),
]


@pytest.mark.parametrize(("rows", "message"), WRONG, ids=[message for _, message in WRONG])
def test_what_is_not_a_number_is_one_line(rows, message, tmp_path, capsys):
    lines(path := tmp_path / "log.jsonl", rows)
    assert error(capsys, "entropy-watch", path).startswith(f"{path} cannot be read: {message}")


def test_numbers_that_are_text_are_numbers(tmp_path, capsys):
    """As text, step 10 comes before step 2."""
    rows = [{"step": str(step), "entropy": str(value)} for step, value in enumerate(FALLING)]
    lines(path := tmp_path / "log.jsonl", rows)
    assert "Half of it was over by step 13; it moved fastest between the steps 10 and 14" in run(
        capsys, "entropy-watch", path
    )


@pytest.mark.parametrize("text", ["Step,entropy\n0,9,95\n1,9,74\n", "Step,entropy\n10,9,95\n20,9,74\n"])
def test_a_csv_with_more_fields_than_names_is_one_line(text, tmp_path, capsys):
    (path := tmp_path / "log.csv").write_text(text)
    message = f"{path} cannot be read: its rows have more fields than its header;"
    assert error(capsys, "entropy-watch", path).startswith(message)


def test_a_line_that_is_cut_off_is_named(tmp_path, capsys):
    (path := tmp_path / "log.jsonl").write_text('{"step": 0, "entropy": 1.0}\n{"step": 1, "ent')
    assert error(capsys, "entropy-watch", path).startswith(f"{path}: line 2 is not a JSON object")


def test_files_of_two_runs_in_one_folder_are_not_averaged(tmp_path, capsys):
    for name, values in (("grpo", FALLING), ("clip_b", FALLING[::-1])):
        lines(tmp_path / f"{name}.jsonl", [{"step": step, "entropy": value} for step, value in enumerate(values)])
    message = f"{tmp_path} contains 2 runs; name one of them: {tmp_path}/clip_b.jsonl, {tmp_path}/grpo.jsonl"
    assert error(capsys, "entropy-watch", tmp_path).startswith(message)


def test_the_last_value_of_a_step_counts(tmp_path, capsys):
    """A run that was started again twice, and appended to its log."""
    rows = [{"step": step, "entropy": 2.0} for step in range(20)] * 2
    rows += [{"step": step, "entropy": value} for step, value in enumerate(FALLING)]
    lines(path := tmp_path / "log.jsonl", rows)
    assert main(["entropy-watch", str(path)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Entropy fell from 1.39 to 0.2 nats (-86%; means of the first and the last 4 of 40 steps).")
    assert err == f"{path} logs the entropy of 20 steps more than once; the last value counts\n"


@pytest.mark.parametrize(("text", "message"), [("[1, 2]", "it has no log_history"), ("{}", "it has no log_history")])
def test_a_state_without_a_history_is_one_line(text, message, tmp_path, capsys):
    (path := tmp_path / "trainer_state.json").write_text(text)
    assert error(capsys, "entropy-watch", path) == f"{path} cannot be read: {message}"


def test_entropy_watch_reads_all_checkpoints_of_a_run_and_one_run_only(tmp_path, capsys):
    for last in (5, 40):  # by name checkpoint-40 comes first
        (folder := tmp_path / f"run/checkpoint-{last}").mkdir(parents=True)
        history = [{"step": step, "entropy": value} for step, value in enumerate(FALLING[:last])]
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    text = run(capsys, "entropy-watch", tmp_path / "run")
    assert "last 4 of 40 steps" in text
    assert text.endswith(f"Read from {tmp_path}/run/checkpoint-40/trainer_state.json and 1 more.\n")
    (tmp_path / "other").mkdir()
    (tmp_path / "other/trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert error(capsys, "entropy-watch", tmp_path).startswith(f"{tmp_path} contains 2 runs; name one of them: ")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.jsonl", None, "no file {}"),
        ("notes.txt", "x", "{} has no rows with a step, in any of metrics.parquet, trainer_state.json, metrics.jsonl"),
        ("empty.jsonl", "", "{} has no rows"),
        ("stepless.jsonl", '{"step": null, "entropy": 1.0}\n', "{} has no rows with a step"),
        ("short.jsonl", '{"step": 0, "entropy": 1.0}\n', "{} has 1 step with an entropy; it takes 5"),
        ("empty.csv", "Step,entropy\n", "{} has no rows"),
        ("trainer_state.json", '{"log_history": []}', "{} has no rows"),
        ("german.csv", "Step;entropy\n1;0,5\n", "{} cannot be read: its rows have more fields than its header"),
    ],
)
def test_a_file_that_is_no_log_is_one_line(name, text, message, tmp_path, capsys):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    assert error(capsys, "entropy-watch", path).startswith(message.format(path))


def test_checkpoints_are_read_in_the_order_of_their_steps(tmp_path):
    """Checkpoint 9 comes after checkpoint 10 by name, and has an entropy of its own run before a restart."""
    for step, value in ((9, 2.0), (10, 1.0)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        history = [{"step": at, "entropy": value} for at in range(step)]
        (tmp_path / f"checkpoint-{step}/trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert set(read_metrics(tmp_path)[0]["entropy"]) == {1.0}


def test_rows_with_and_without_verls_data_are_both_read(tmp_path):
    rows = [{"step": step, "entropy": 2.0} for step in range(3)]
    rows += [{"step": step, "data": {"entropy": 1.0}} for step in range(3, 6)]
    lines(path := tmp_path / "log.jsonl", rows)
    assert read_metrics(path)[0]["entropy"].tolist() == [2.0] * 3 + [1.0] * 3


def test_steps_without_an_entropy_are_left_out(tmp_path, capsys):
    rows = [{"step": step, "entropy": value} for step, value in enumerate(FALLING)]
    lines(path := tmp_path / "log.jsonl", [*rows, *({"step": step, "loss": 1.0} for step in range(STEPS, 60))])
    assert main(["entropy-watch", str(path)]) == 0
    assert capsys.readouterr().err == ""


def test_a_signal_that_is_nan_once_is_still_read(tmp_path, capsys):
    """verl logs this one as NaN where its input is not valid."""
    key = "training/rollout_probs_diff_mean"
    rows = [{"step": step, "entropy": 1 + step / 10, key: step / 100} for step in range(STEPS)]
    rows[20][key] = math.nan
    lines(path := tmp_path / "log.jsonl", rows)
    assert f"({key}) grew from 0.015 to 0.375" in run(capsys, "entropy-watch", path)


def test_of_several_kinds_the_first_with_an_entropy_is_read_and_named(tmp_path, capsys):
    pd.DataFrame({"step": [0, 1], "loss": [1.0, 2.0]}).to_parquet(tmp_path / "metrics.parquet")
    json_lines(tmp_path, [{"step": step, "entropy": value} for step, value in enumerate(FALLING)])
    text = run(capsys, "entropy-watch", tmp_path)
    assert text.startswith("Entropy fell from 1.39 to 0.2 nats")
    assert text.endswith(f"Read from {tmp_path}/metrics.jsonl.\n")
    pd.DataFrame({"step": range(STEPS), "entropy": FALLING[::-1]}).to_parquet(tmp_path / "metrics.parquet")
    text = run(capsys, "entropy-watch", tmp_path)
    assert text.startswith("Entropy rose from 0.2 to 1.39 nats")
    assert text.endswith(f"Read from {tmp_path}/metrics.parquet.\n")


def prompts(folder):
    lines(folder / "data.jsonl", [{"prompt": "1 + 1"}])


def dataset(folder):
    pd.DataFrame({"prompt": ["1 + 1"]}).to_parquet(folder / "train.parquet")


@pytest.mark.parametrize("unrelated", [prompts, dataset])
def test_an_unrelated_file_does_not_hide_what_the_log_lacks(unrelated, tmp_path, capsys):
    unrelated(tmp_path)
    assert "logs no entropy" not in error(capsys, "entropy-watch", tmp_path)  # alone, its own error is the answer
    log = tmp_path / "metrics.parquet"
    pd.DataFrame({"step": range(STEPS), "loss": 1.0}).to_parquet(log)
    message = error(capsys, "entropy-watch", tmp_path)
    assert message.startswith(f"{log} logs no entropy (")
    assert message.endswith("; it logs loss")
    pd.DataFrame({"step": range(STEPS), "entropy": FALLING}).to_parquet(log)
    message = error(capsys, "entropy-watch", tmp_path, "--entropy", "entropi")
    assert message.startswith(f"{log} logs no entropi; did you mean 'entropy'?")
