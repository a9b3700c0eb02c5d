"""entropy-watch: what it says of the logs of other trainers."""

import numpy as np
import pandas as pd
import pytest

from command_line import error, output, run, write_lines
from entropy_dynamics.diagnostics.entropy_watch import TESTABLE, TREND
from entropy_dynamics.diagnostics.trend import trend_p
from trainer_logs import FALLING, STEPS, TRAINERS, of_trainer, ours


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


def test_an_entropy_below_zero_is_one_line(tmp_path, capsys):
    path = write_lines(tmp_path / "log.jsonl", [{"step": n, "entropy": -value} for n, value in enumerate(FALLING)])
    assert error(capsys, "entropy-watch", path).startswith(
        f"{path}: entropy is -1.397 at step 0; it should be 0 or more, in nats"
    )


def test_entropy_watch_of_a_constant_or_from_zero_has_no_nan(tmp_path, capsys):
    constant = watch(capsys, tmp_path, entropy=[0.0] * STEPS)
    said = "Entropy did not change: 0 nats (means of the first and the last 4 of 40 steps)."
    assert constant == f"{said} Read from {tmp_path / 'metrics.parquet'}.\n"
    risen = watch(capsys, tmp_path, entropy=[0.0] * 20 + [1.0] * 20)
    assert risen.startswith("Entropy rose from 0 to 1 nats (means of the first and the last 4 of 40 steps).")


def test_entropy_watch_does_not_relate_unrelated_trends(tmp_path, capsys):
    """The noise of either is its own. Both flatten out, so their rank correlation over the steps is above 0.5."""
    rng, t = np.random.default_rng(0), np.arange(100)
    entropy = np.exp(-t / 30) + 0.002 * rng.standard_normal(100)
    norm = 1 - np.exp(-t / 30) + 0.02 * rng.standard_normal(100)
    assert abs(pd.Series(np.diff(entropy)).corr(pd.Series(norm[:-1]), method="spearman")) > 0.5
    text = watch(capsys, tmp_path, entropy=entropy, grad_norm=norm, lr=np.linspace(1e-6, 0, 100))
    assert "None of the logged quantities correlates with its change per step." in text


def test_a_run_without_entropy_is_one_line(tmp_path, capsys):
    assert error(capsys, "entropy-watch", tmp_path).startswith(f"{tmp_path}: no metrics.parquet, trainer_state.json")
    pd.DataFrame({"step": [0, 1], "loss": [1.0, 2.0]}).to_parquet(tmp_path / "metrics.parquet")
    message = f"{tmp_path}/metrics.parquet logs no entropy (entropy, actor/entropy"
    assert error(capsys, "entropy-watch", tmp_path).startswith(message)


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


def log(path, rows):
    """As verl's file logger writes."""
    return write_lines(path, ({"step": step, "data": row} for step, row in enumerate(rows)))


def test_noise_is_said_to_be_noise(tmp_path, capsys):
    values = 0.3 + 0.04 * noise(np.random.default_rng(0), 40, 0.3)
    text = run(capsys, "entropy-watch", log(tmp_path / "log.jsonl", [{"entropy": value} for value in values]))
    start, end = values[:4].mean(), values[-4:].mean()
    assert text.startswith(
        "Entropy shows no rise or fall over the run beyond the noise of steps: "
        f"{start:.3g} and {end:.3g} nats (means of"
    )
    assert f"between {values.min():.3g} and {values.max():.3g} at all steps." in text


def test_a_fall_over_fewer_steps_than_the_test_needs_is_no_noise(tmp_path, capsys):
    line = np.linspace(1, 0.3, TESTABLE)
    assert trend_p(line) <= TREND < trend_p(line[1:])
    for steps, told in ((TESTABLE - 1, "8 steps are too few to tell; it takes 9."), (TESTABLE, "Entropy fell from")):
        rows = [{"entropy": value} for value in line[:steps]]
        assert told in run(capsys, "entropy-watch", log(tmp_path / "log.jsonl", rows))


FIRST = [
    ({"frac_reward_zero_std": 0.9}, "In 90% of the groups all rewards are equal (frac_reward_zero_std), so"),
    ({"reward_std": 0.0, "reward": 1.0}, "The rewards of a group do not differ at any step (reward_std is 0)"),
    ({"critic/score/min": -1.0, "critic/score/max": -1.0}, "The rewards of a step do not differ at any step ("),
    ({"critic/score/mean": 0.0}, "The reward never varies: critic/score/mean is 0 at all 40 steps. "),
    ({"frac_reward_zero_std": 0.3, "reward_std": 0.2}, "Entropy fell from 1.39 to 0.2 nats"),
]


@pytest.mark.parametrize(("columns", "first"), FIRST)
def test_rewards_without_variance_come_first(columns, first, tmp_path, capsys):
    path = log(tmp_path / "log.jsonl", [{"entropy": value} | columns for value in FALLING])
    text = run(capsys, "entropy-watch", path)
    assert text.startswith(first)
    assert "Entropy fell from 1.39 to 0.2 nats" in text


def test_a_null_of_verls_logger_is_nan(tmp_path, capsys):
    rows = [{"actor/entropy": value if step < 30 else None} for step, value in enumerate(FALLING)]
    path = log(tmp_path / "log.jsonl", [row if step % 2 == 0 else {} for step, row in enumerate(rows)])
    _, err = output(capsys, "entropy-watch", path)
    assert err == f"{path}: actor/entropy is NaN at 5 of 20 steps, first at step 30\n"


@pytest.mark.parametrize(("longest", "named"), [(lambda step: 2000 - step, False), (lambda step: 2048, True)])
def test_verls_clip_ratio_is_truncation_only_at_one_longest_length(longest, named, tmp_path, capsys):
    """verl's V1 trainer counts responses as long as the longest of the step."""
    rows = [
        {
            "actor/entropy": 0.2 + step / 20,
            "response_length/clip_ratio": step / 100,
            "response_length/max": longest(step) if step else 1,  # nothing is truncated at step 0
        }
        for step in range(STEPS)
    ]
    text = run(capsys, "entropy-watch", log(tmp_path / "log.jsonl", rows))
    assert ("the share of truncated responses (response_length/clip_ratio) grew" in text) is named
    assert "verl aggregates actor/entropy by actor.loss_agg_mode: nats per token only with token-mean." in text


def test_a_sum_over_sequences_is_one_line(tmp_path, capsys):
    path = log(tmp_path / "log.jsonl", [{"actor/entropy": 1000 * value} for value in FALLING])
    message = f"{path}: actor/entropy is 1397 at step 0; the entropy of a token is at most ln(vocabulary), some 12 nats"
    assert error(capsys, "entropy-watch", path).startswith(message)
