"""entropy-watch: what it says of the logs of other trainers."""

import json
import math

import numpy as np
import pandas as pd
import pytest

from command_line import error, output, run, write_lines
from entropy_dynamics.analysis.columns import PARTS
from entropy_dynamics.diagnostics.entropy_watch import TESTABLE, TREND, trend_p
from trainer_logs import FALLING, STEPS, TRAINERS, export, json_lines, of_trainer, ours, parquet, trainer_state


@pytest.mark.parametrize("write", [ours, *map(of_trainer, TRAINERS)], ids=["with the lens", *TRAINERS])
def test_entropy_watch_says_when_entropy_fell(write, tmp_path, capsys):
    write(tmp_path)
    text = run(capsys, "entropy-watch", tmp_path)
    assert text.startswith("Entropy fell from 1.39 to 0.2 nats (-86%; means of the first and the last 4 of 40 steps).")
    assert "Half of it was over by step 13; it moved fastest between the steps 10 and 14" in text
    if write is ours:
        assert "75% from likely tokens of positive samples and 25% from unlikely tokens of negative samples" in text
        assert "correlates with the predicted change (Corollary 4) (+" in text


CASES = [(name, key) for name, (*_, keys) in TRAINERS.items() for key in keys]


@pytest.mark.parametrize(("name", "key"), CASES)
def test_what_entropy_may_rise_with_is_known_in_every_trainer(name, key, tmp_path, capsys):
    write, entropy, reward, keys = TRAINERS[name]
    rows = [
        {"step": step, entropy: 0.2 + step / 20, reward: step / STEPS, key: 0.01 + step / 100} for step in range(STEPS)
    ]
    write(tmp_path, rows)
    text = run(capsys, "entropy-watch", tmp_path)
    assert f"Over these steps {reward} went from " in text
    assert f"Over the run {keys[key]} ({key}) grew from 0.025 to 0.385: such tokens may be where entropy rises." in text


def watch(capsys, tmp_path, **columns) -> str:
    pd.DataFrame({"step": range(len(columns["entropy"]))} | columns).to_parquet(tmp_path / "metrics.parquet")
    return run(capsys, "entropy-watch", tmp_path)


ROWS = [{"step": step, "entropy": value} for step, value in enumerate(FALLING)]


def test_entropy_watch_says_when_entropy_rose(tmp_path, capsys):
    """It falls first, and farther at step 14 than it rises in the end."""
    text = watch(capsys, tmp_path, entropy=[1.0] * 12 + [0.5, 0.2, 0.1, 0.2, 0.5] + [1.0] * 37 + [1.5] * 46)
    assert text.startswith("Entropy rose from 1 to 1.5 nats (+50%;")
    assert "Half of it was over by step 54;" in text


def test_the_speed_is_per_step_not_per_logged_row(tmp_path, capsys):
    entropy = np.r_[np.full(15, 2.0), np.linspace(2, 1, 11)[1:], np.full(15, 1.0)]
    for every, speed in ((1, "-0.1 nats"), (10, "-0.01 nats")):
        text = watch(capsys, tmp_path, entropy=entropy, step=every * np.arange(len(entropy)))
        assert f"by {speed} per step" in text


RISING = np.linspace(0.2, 2, STEPS)


@pytest.mark.parametrize(
    ("key", "start", "end", "entropy", "named"),
    [
        ("completions/clipped_ratio", 0.0, 0.02, RISING, True),
        ("completions/clipped_ratio", 0.0, 0.02, RISING[::-1], False),  # entropy fell
        ("completions/clipped_ratio", 0.0, 0.005, RISING, False),  # by less than one response in a hundred
        ("completions/clipped_ratio", 0.4, 0.5, RISING, False),  # by less than a half
        ("mismatch_kl/all/mean", 1e-4, 1e-2, RISING, True),
        ("mismatch_kl/all/mean", 1e-6, 1e-4, RISING, False),  # below what a sound run has
        ("vllm_kl", -1e-3, -1e-2, RISING, True),  # an estimate of either sign
    ],
)
def test_entropy_watch_names_only_what_grew_and_only_if_entropy_rose(key, start, end, entropy, named, tmp_path, capsys):
    text = watch(capsys, tmp_path, entropy=entropy, **{key: np.linspace(start, end, STEPS)})
    assert text.startswith("Entropy rose" if entropy is RISING else "Entropy fell")
    assert ("such tokens may be where entropy rises" in text) is named
    assert (f"({key}) grew from " in text) is named


def test_entropy_watch_takes_the_column_that_it_is_given(tmp_path, capsys):
    pd.DataFrame({"step": range(STEPS), "my/H": FALLING, "entropy": 1.0}).to_parquet(path := tmp_path / "log.parquet")
    assert run(capsys, "entropy-watch", path).startswith("Entropy did not change")
    assert run(capsys, "entropy-watch", path, "--entropy", "my/H").startswith("Entropy fell from 1.39 to 0.2 nats")
    assert "logs no my/h; did you mean 'my/H'?" in error(capsys, "entropy-watch", path, "--entropy", "my/h")


def test_entropy_watch_of_a_constant_or_from_zero_has_no_nan(tmp_path, capsys):
    constant = watch(capsys, tmp_path, entropy=[0.0] * STEPS)
    said = "Entropy did not change: 0 nats (means of the first and the last 4 of 40 steps)."
    assert constant == f"{said} Read from {tmp_path / 'metrics.parquet'}.\n"
    for start in (0, -0.004):  # in bf16, 0 may round to below 0
        risen = watch(capsys, tmp_path, entropy=[start] * 20 + [1.0] * 20, **dict.fromkeys(PARTS, 0.0))
        said = f"Entropy rose from {start} to 1 nats (means of the first and the last 4 of 40 steps)."
        assert risen.startswith(said)
        assert "the lens" not in risen  # GRPO would have moved nothing


def test_entropy_watch_does_not_relate_unrelated_trends(tmp_path, capsys):
    """The noise of either is its own. Both flatten out, so their rank correlation over the steps is above 0.5."""
    rng, t = np.random.default_rng(0), np.arange(100)
    entropy = np.exp(-t / 30) + 0.002 * rng.standard_normal(100)
    norm = 1 - np.exp(-t / 30) + 0.02 * rng.standard_normal(100)
    assert abs(pd.Series(np.diff(entropy)).corr(pd.Series(norm[:-1]), method="spearman")) > 0.5
    text = watch(capsys, tmp_path, entropy=entropy, grad_norm=norm, lr=np.linspace(1e-6, 0, 100))
    assert "None of the logged quantities correlates with its change per step." in text


# ---------------------------------------------------------------- a change or noise
def noise(rng, steps, coefficient):
    """AR(1) with a standard deviation of 1."""
    series = rng.standard_normal(steps)
    for step in range(1, steps):
        series[step] = coefficient * series[step - 1] + (1 - coefficient**2) ** 0.5 * series[step]
    return series


@pytest.mark.parametrize(("steps", "coefficient", "most"), [(20, 0.0, 0.05), (60, 0.7, 0.05), (60, 0.8, 0.1)])
def test_noise_seldom_passes_for_a_change(steps, coefficient, most):
    rng = np.random.default_rng(1)
    found = [trend_p(noise(rng, steps, coefficient)) <= TREND for _ in range(300)]
    assert np.mean(found) <= most


@pytest.mark.parametrize(("shape", "steps"), [("line", 40), ("step", 500), ("collapse", 40)])
def test_a_change_of_ten_times_the_noise_is_found(steps, shape):
    rng, t = np.random.default_rng(2), np.linspace(0, 1, steps)
    change = {"line": t, "step": 1.0 * (t > 0.6), "collapse": np.exp(-8 * t)}[shape]
    found = [trend_p(sign * change + 0.1 * noise(rng, steps, 0.3)) <= TREND for sign in (1, -1) * 20]
    assert np.mean(found) > 0.9


def test_noise_is_said_to_be_noise(tmp_path, capsys):
    values = 0.3 + 0.04 * noise(np.random.default_rng(0), 40, 0.3)
    text = watch(capsys, tmp_path, entropy=values)
    start, end = values[:4].mean(), values[-4:].mean()
    assert text.startswith(
        "Entropy shows no rise or fall over the run beyond the noise of steps: "
        f"{start:.3g} and {end:.3g} nats (means of"
    )
    assert f"between {values.min():.3g} and {values.max():.3g} at all steps." in text


def test_a_fall_over_fewer_steps_than_the_test_needs_is_no_noise(tmp_path, capsys):
    line = np.linspace(1, 0.3, TESTABLE)
    assert trend_p(line) <= TREND < trend_p(line[1:])
    for steps, told in ((TESTABLE - 1, "8 steps are too few to tell; 9 are needed."), (TESTABLE, "Entropy fell from")):
        assert told in watch(capsys, tmp_path, entropy=line[:steps])


FIRST = [
    ({"frac_reward_zero_std": 0.9}, "In 90% of the groups all rewards are equal (frac_reward_zero_std), so"),
    ({"reward_std": 0.0, "reward": 1.0}, "The rewards of a group do not differ at any step (reward_std is 0)"),
    ({"critic/score/min": -1.0, "critic/score/max": -1.0}, "The rewards of a step do not differ at any step ("),
    ({"critic/score/mean": 0.0}, "The reward never varies: critic/score/mean is 0 at all 40 steps. "),
    ({"frac_reward_zero_std": 0.3, "reward_std": 0.2}, "Entropy fell from 1.39 to 0.2 nats"),
]


@pytest.mark.parametrize(("columns", "first"), FIRST)
def test_rewards_without_variance_come_first(columns, first, tmp_path, capsys):
    text = watch(capsys, tmp_path, entropy=FALLING, **columns)
    assert text.startswith(first)
    assert "Entropy fell from 1.39 to 0.2 nats" in text


def test_a_null_of_verls_logger_is_nan(tmp_path, capsys):
    rows = [{"actor/entropy": value if step < 30 else None} for step, value in enumerate(FALLING)]
    nested = ({"step": step, "data": row if step % 2 == 0 else {}} for step, row in enumerate(rows))
    path = write_lines(tmp_path / "log.jsonl", nested)
    _, err = output(capsys, "entropy-watch", path)
    assert err == f"{path}: actor/entropy is NaN at 5 of 20 steps, first at step 30\n"


@pytest.mark.parametrize(("longest", "named"), [(lambda step: 2000 - step, False), (lambda step: 2048, True)])
def test_verls_clip_ratio_is_truncation_only_at_one_longest_length(longest, named, tmp_path, capsys):
    """verl's V1 trainer counts responses as long as the longest of the step."""
    lengths = [1, *map(longest, range(1, STEPS))]  # nothing is truncated at step 0
    columns = {"response_length/clip_ratio": np.arange(STEPS) / 100, "response_length/max": lengths}
    frame = pd.DataFrame({"step": range(STEPS), "actor/entropy": RISING} | columns)
    frame.to_parquet(path := tmp_path / "log.parquet")
    text = run(capsys, "entropy-watch", path)
    assert ("the share of truncated responses (response_length/clip_ratio) grew" in text) is named
    assert "verl aggregates actor/entropy by actor.loss_agg_mode: nats per token only with token-mean." in text


# ---------------------------------------------------------------- the files that it reads
def test_a_curve_that_tensorboard_exports_is_read(tmp_path, capsys):
    rows = "".join(f"1700000000.{step},{step},{value}\n" for step, value in enumerate(FALLING))
    (path := tmp_path / "actor.csv").write_text(f"Wall time,Step,Value\n{rows}")
    assert "Entropy fell from 1.39 to 0.2 nats" in run(capsys, "entropy-watch", path, "--entropy", "Value")


def test_a_file_of_several_runs_is_one_line(tmp_path, capsys):
    rows = [row | {"model": "toy", "method": "grpo", "seed": 0} for row in ROWS]
    write_lines(path := tmp_path / "log.jsonl", rows)
    assert "Entropy fell" in run(capsys, "entropy-watch", path)
    write_lines(path, rows + [row | {"seed": seed, "method": "clip_b"} for row in rows for seed in (1, 2)])
    several = "it has several runs (method grpo, clip_b; seed 0, 1, ...); save the rows of one as a file of its own"
    assert error(capsys, "entropy-watch", path) == f"{path} cannot be read: {several}"
    write_lines(path, [row | {"seed": row["step"]} for row in rows])  # no two of a step: those of one run
    assert "Entropy fell" in run(capsys, "entropy-watch", path)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 1.0), (1, "n/a")], " cannot be read: entropy is 'n/a' at step 1; it should be a finite"),
        ([("2,600", 1.0)], " cannot be read: step is '2,600' in row 1; it should be a finite number"),
        ([(0, math.inf)], " cannot be read: entropy is inf at step 0; it should be a finite number"),
        ([(1e300, 1.0)], " cannot be read: step is 1e+300; it should be at most 2**53"),
        ([(None, 1.0)], " has no rows with a step"),
        ([(0, 1.0)], " has 1 step with an entropy; 5 are needed"),
        ([*enumerate([-1.5] * 9)], ": entropy is -1.5 at step 0; it should be 0 or more, in nats"),
        ([*enumerate([1397] * 9)], ": entropy is 1397 at step 0; the entropy of a token is at most ln(vocabulary), "),
    ],
)
def test_a_step_or_an_entropy_that_is_none_is_one_line(rows, message, tmp_path, capsys):
    path = write_lines(tmp_path / "log.jsonl", [{"step": step, "entropy": value} for step, value in rows])
    assert error(capsys, "entropy-watch", path).startswith(f"{path}{message}")


def test_numbers_that_are_text_are_numbers(tmp_path, capsys):
    """As text, step 10 comes before step 2."""
    path = write_lines(tmp_path / "log.jsonl", [{name: str(value) for name, value in row.items()} for row in ROWS])
    told = "Half of it was over by step 13; it moved fastest between the steps 10 and 14"
    assert told in run(capsys, "entropy-watch", path)


@pytest.mark.parametrize("axis", ["train/step", "trainer/step", "policy_step", "Optimizer Step", "env/global_step"])
def test_the_axis_of_a_panel_is_the_step(axis, tmp_path, capsys):
    export(tmp_path, [row | {"step": 10 * row["step"]} for row in ROWS], axis)
    assert "by step 130; it moved fastest between the steps 100 and 140" in run(capsys, "entropy-watch", tmp_path)


def test_hidden_files_and_folders_are_no_runs(tmp_path, capsys):
    for name in ("train", ".ipynb_checkpoints/train-checkpoint", ".trash/old"):
        write_lines(tmp_path / f"{name}.jsonl", ROWS)
    (tmp_path / "._train.jsonl").write_bytes(b"\x00\x05\x16\x07Mac OS X")
    assert run(capsys, "entropy-watch", tmp_path).endswith(f"Read from {tmp_path}/train.jsonl.\n")
    write_lines(hidden := tmp_path / ".runs/a.jsonl", ROWS)  # what the user names is read
    assert "Entropy fell" in run(capsys, "entropy-watch", hidden.parent)


def test_half_a_surrogate_pair_in_a_column_that_nobody_reads(tmp_path, capsys):
    trainer_state(tmp_path, [row | {"note": "\ud835"} for row in ROWS])
    assert "Entropy fell" in run(capsys, "entropy-watch", tmp_path)


def test_files_in_utf_16_are_refused_as_such(tmp_path, capsys):
    json_line, text = '{"step": 0, "entropy": 1.0}\n', "Step,run - entropy\n0,1.0\n"
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        (lines := tmp_path / "a.jsonl").write_bytes(json_line.encode(encoding))
        (panel := tmp_path / "a.csv").write_bytes(text.encode(encoding))
        for path in (lines, panel):
            assert "the file is in UTF-16; save it as UTF-8" in error(capsys, "entropy-watch", path)
    panel.write_bytes("Step,run à - entropy\n0,1.0\n".encode("latin-1"))
    assert error(capsys, "entropy-watch", panel) == f"{panel} cannot be read: the file is not in UTF-8; save it so"
    (binary := tmp_path / "b.jsonl").write_bytes(b"\0\5\x16\7\0\2\0\0Mac OS X\n")  # what macOS writes beside a file
    assert error(capsys, "entropy-watch", binary) == f"{binary}: line 1 is not a JSON object (the file is binary)"


def test_files_of_two_runs_in_one_folder_are_not_averaged(tmp_path, capsys):
    for name, values in (("grpo", FALLING), ("clip_b", FALLING[::-1])):
        write_lines(tmp_path / f"{name}.jsonl", [{"step": step, "entropy": value} for step, value in enumerate(values)])
    message = f"{tmp_path} contains 2 runs; name one of them: {tmp_path}/clip_b.jsonl, {tmp_path}/grpo.jsonl"
    assert error(capsys, "entropy-watch", tmp_path).startswith(message)


def test_the_last_value_of_a_step_counts(tmp_path, capsys):
    """A run that was started again twice, and appended to its log."""
    path = write_lines(tmp_path / "log.jsonl", [row | {"entropy": 2.0} for row in ROWS[:20]] * 2 + ROWS)
    out, err = output(capsys, "entropy-watch", path)
    assert out.startswith("Entropy fell from 1.39 to 0.2 nats (-86%; means of the first and the last 4 of 40 steps).")
    assert err == f"{path} logs the entropy of 20 steps more than once; the last value counts\n"


def test_entropy_watch_reads_all_checkpoints_of_a_run_and_one_run_only(tmp_path, capsys):
    for last in (5, 40):  # by name checkpoint-40 comes first
        (folder := tmp_path / f"run/checkpoint-{last}").mkdir(parents=True)
        (folder / "trainer_state.json").write_text(json.dumps({"log_history": ROWS[:last]}))
    text = run(capsys, "entropy-watch", tmp_path / "run")
    assert "last 4 of 40 steps" in text
    assert text.endswith(f"Read from {tmp_path}/run/checkpoint-40/trainer_state.json and 1 more.\n")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("missing.jsonl", None, "no file {}"),
        ("", None, "{}: no metrics.parquet, trainer_state.json"),
        ("loss.jsonl", '{"step": 0, "loss": 1.0}', "{} logs no entropy (entropy, actor/entropy"),
        ("notes.txt", "x", "{} should be one of metrics.parquet, trainer_state.json, metrics.jsonl"),
        ("trainer_state.json", "[1, 2]", "{} cannot be read: it has no log_history"),
        ("german.csv", "Step;entropy\n1;0,5\n", "{} cannot be read: its columns are separated by ;, not by commas"),
        ("tabs.csv", "Step\tentropy\n1\t0.5\n", "{} cannot be read: its columns are separated by tabs, not by commas"),
        ("wide.csv", "step,entropy\n1,0,5\n", "{} cannot be read: Length of header or names does not match"),
        ("runs.csv", "Step,a - S,b - S\n0,1,1\n", "{} cannot be read: it has several runs; export one of them"),
        ("stray.csv", "time,entropy\n1,0.5\n", "{} cannot be read: it logs no step (step, train/global_step"),
    ],
)
def test_a_file_that_is_no_log_is_one_line(name, text, message, tmp_path, capsys):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    assert error(capsys, "entropy-watch", path).startswith(message.format(path))


def panel(folder, rows):
    """A CSV export with two metrics, each in its own rows."""
    text = "".join("{step},{entropy},\n{step},,{step}\n".format(**row) for row in rows).replace("nan", "NaN")
    (folder / "log.csv").write_text(f"Step,run - entropy,run - reward\n{text}")


@pytest.mark.parametrize("write", [json_lines, trainer_state, panel, parquet])
def test_an_entropy_that_is_nan_is_counted(write, tmp_path, capsys):
    """Not the steps that log no entropy: those of other rows, or after the last."""
    rows = [row | {"entropy": row["entropy"] if row["step"] < 20 else math.nan} for row in ROWS]
    if write in (json_lines, trainer_state):
        rows = [row for one in rows for row in (one, {"step": one["step"], "reward": one["step"], "loss": math.nan})]
    write(tmp_path, rows)
    out, err = output(capsys, "entropy-watch", tmp_path)
    assert out.startswith("Entropy fell from 1.4 to ")
    assert err.endswith("entropy is NaN at 20 of 40 steps, first at step 20\n")
    assert err.startswith(f"{tmp_path}/")
    assert len(err.splitlines()) == 1
    assert out.endswith(f"Read from {err.partition(': ')[0]}.\n")


@pytest.mark.parametrize(
    ("name", "entropy"), [("log.parquet", "entropy"), ("metrics.parquet", "actor/entropy")], ids=["name", "column"]
)
@pytest.mark.parametrize("sparse", ["a row for the reward", "every second step"])
def test_a_null_of_others_parquet_is_no_nan(sparse, name, entropy, tmp_path, capsys):
    """Only our metrics.parquet has an entropy in every row."""
    rows = [{"step": 2 * place, entropy: value} for place, value in enumerate(FALLING)]
    other = int(sparse == "every second step")
    rows = [both for row in rows for both in (row, {"step": row["step"] + other, "reward": row["step"] / 100})]
    pd.DataFrame(rows).to_parquet(path := tmp_path / name)
    out, err = output(capsys, "entropy-watch", path)
    assert out.startswith("Entropy fell from 1.39 to 0.2 nats (-86%; means of the first and the last 4 of 40 steps).")
    assert err == ""


def test_what_stands_for_a_missing_value_in_a_csv_file_is_one(tmp_path, capsys):
    text = "".join(f"{step},{value},NA\n{step},NA,1\n" for step, value in enumerate(FALLING))
    (path := tmp_path / "log.csv").write_text(f"step,entropy,reward\n{text}50,NaN,1\n")
    out, err = output(capsys, "entropy-watch", path)
    assert "means of the first and the last 4 of 40 steps" in out
    assert "reward went from 1 to 1." in out
    assert err == f"{path}: entropy is NaN at 1 of 41 steps, first at step 50\n"


def test_of_several_kinds_the_first_with_an_entropy_is_read_and_named(tmp_path, capsys):
    pd.DataFrame({"step": [0, 1], "loss": [1.0, 2.0]}).to_parquet(tmp_path / "metrics.parquet")
    json_lines(tmp_path, ROWS)
    text = run(capsys, "entropy-watch", tmp_path)
    assert text.startswith("Entropy fell from 1.39 to 0.2 nats")
    assert text.endswith(f"Read from {tmp_path}/metrics.jsonl.\n")
    pd.DataFrame({"step": range(STEPS), "entropy": FALLING[::-1]}).to_parquet(tmp_path / "metrics.parquet")
    text = run(capsys, "entropy-watch", tmp_path)
    assert text.startswith("Entropy rose from 0.2 to 1.39 nats")
    assert text.endswith(f"Read from {tmp_path}/metrics.parquet.\n")
