"""entropy-watch: a change or noise, rewards without variance, and logs that are not what their names say."""

import numpy as np
import pytest

from command_line import error, output, run, write_lines
from entropy_dynamics.diagnostics.entropy_watch import TESTABLE, TREND
from entropy_dynamics.diagnostics.trend import trend_p
from trainer_logs import FALLING, STEPS


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
