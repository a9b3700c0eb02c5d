"""Claims about curves of single runs and about differences between methods, by hand."""

import numpy as np
import pytest

from single_claims import ENTROPY, GRPO, SEED, finding, no_interval, write_curve
from synthetic_results import STEPS

STEP = np.arange(STEPS)
CHANGES = ["predicted_entropy_change", "entropy_change"]


@pytest.mark.parametrize(("entropy", "verdict"), [(0.2, "does not hold"), (0.3005, "inconclusive"), (0.32, "holds")])
def test_differences_are_those_of_each_seed(tmp_path, entropy, verdict):
    """What the methods of a seed share does not count, however far seeds are apart; nor does the first half."""
    shared = np.array([[0.2], [0.9], [0.3], [0.5], [0.1]])
    noise = np.array([[0.0], [0.01], [-0.004], [-0.01], [0.005]])
    levels = {"grpo": (9.0, shared), "clip_b": (5.0, shared + entropy - 0.3 + noise)}
    for method, halves in levels.items():
        write_curve(tmp_path, method, entropy=np.where(STEP < STEPS // 2, *halves))
    found = finding(ENTROPY | {"window": "second_half"}, tmp_path)
    assert found.verdict == verdict
    ends = (found.interval.value, found.interval.low, found.interval.high)
    assert ends == pytest.approx((entropy - 0.3, entropy - 0.31, entropy - 0.29))
    assert found.seeds == 5


def test_a_ratio_of_entropies_by_hand(tmp_path):
    """exp of the mean of the log: an arm that explodes is 2, 3, 4 or 40 times as high."""
    ratio = np.array([[2.0], [40.0], [3.0], [4.0], [2.5]])
    write_curve(tmp_path, "grpo", entropy=0.1 * (SEED + 1))
    write_curve(tmp_path, "clip_b", entropy=0.1 * (SEED + 1) * ratio)
    found = finding(ENTROPY | {"statistic": "log_mean"}, tmp_path)
    assert found.verdict == "holds"
    ends = (found.interval.value, found.interval.low, found.interval.high)
    assert np.exp(ends) == pytest.approx((3, 2, 40))


@pytest.mark.parametrize(
    ("seeds", "shared"),
    [({"tables": 1, "extras": 5}, 1), ({"tables": 5, "extras": 4}, 4), ({"tables": 5, "extras": 5}, 5)],
)
def test_fewer_than_five_seeds_of_a_method_allow_no_verdict(tmp_path, seeds, shared):
    write_curve(tmp_path, "grpo", entropy=0.3 + 0.002 * SEED**2)
    write_curve(tmp_path, "s_star_keep_pos_gt", entropy=0.01 + 0.001 * SEED)
    ablation = {"runs": {"s_star_keep_pos_gt": "extras"}, "above": None, "below": 0}
    found = finding(ENTROPY | ablation, tmp_path, seeds)
    assert found.interval.value == pytest.approx(-0.29, abs=0.01)
    assert (found.seeds, found.verdict) == (shared, "holds" if shared == 5 else "inconclusive")
    if shared < 5:
        assert found.reason == f"{shared} seed{'s' * (shared > 1)}; a verdict needs 5"
    assert np.isnan(found.interval.low) == (shared < 3)


@pytest.mark.parametrize(("spread", "takes"), [(0.049, "5 seeds"), (0.056, "6 seeds"), (1.0, "more than 100 seeds")])
def test_an_inconclusive_claim_says_how_many_seeds_it_needs(tmp_path, spread, takes):
    """Seeds that find the smallest effect of interest, whatever the estimated effect is."""
    steps = np.array([[1], [-1], [2**0.5], [-(2**0.5)], [0]]) / 1.5**0.5  # standard deviation 1
    write_curve(tmp_path, "grpo", entropy=0.1 * (SEED + 3))
    write_curve(tmp_path, "clip_b", entropy=0.1 * (SEED + 3) * np.exp(spread * steps))
    found = finding(ENTROPY | {"statistic": "log_mean"}, tmp_path)
    assert found.verdict == "inconclusive"
    assert found.reason == f"the interval includes the threshold; an effect of 0.1 takes {takes}"
    assert finding(ENTROPY, tmp_path).reason == "the interval includes the threshold"


def test_collapse_by_hand(tmp_path):
    for seed, end in enumerate([0.14, 0.15, 0.16, 0.05, 0.155]):
        entropy = np.r_[0.1, 0.3, 0.3, 0.5, np.full(32, 7.0), np.full(4, end)]  # first and last tenth of 40 steps
        write_curve(tmp_path, "grpo", seed, entropy=entropy)
    found = finding(GRPO | {"statistic": "drop", "columns": ["entropy"], "above": 1 / 3}, tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(0.5))
    assert (found.interval.low, found.interval.high) == pytest.approx((1 - 0.16 / 0.3, 1 - 0.05 / 0.3))


def test_a_scaled_curve_fluctuates_less_but_not_relative_to_its_size(tmp_path):
    norm = np.where(STEP % 2, 0.2 + 0.1 * SEED, 1.0)
    write_curve(tmp_path, "grpo", grad_norm=norm)
    write_curve(tmp_path, "clip_b", grad_norm=norm / 4)
    for statistic, effect in (("log_sd", np.log(1 / 4)), ("log_relative_sd", 0)):
        found = finding(ENTROPY | {"statistic": statistic, "columns": ["grad_norm"]}, tmp_path)
        assert found.by_seed == pytest.approx([effect] * 5, abs=1e-6)


STEPS_TO = ENTROPY | {"statistic": "steps_to", "columns": ["accuracy"], "target": 0.5}


def test_steps_and_seconds_to_a_target_by_hand(tmp_path):
    """40 steps, so means over four; accuracy rises from 0 to 1 at a step, so the mean is 0.5 two steps later."""
    grpo, clip_b = np.array([(10, 12), (11, 12), (8, 12), (10, 20), (10, 9)]).T[..., None]
    write_curve(tmp_path, "grpo", accuracy=grpo <= STEP, seconds_training=2.0)
    write_curve(tmp_path, "clip_b", accuracy=clip_b <= STEP, seconds_training=1.0)
    assert list(finding(STEPS_TO, tmp_path).by_seed) == [2, 1, 4, 10, -1]
    seconds = STEPS_TO | {"statistic": "sum_to", "columns": ["accuracy", "seconds_training"]}
    assert list(finding(seconds, tmp_path).by_seed) == [14 - 24, 14 - 26, 14 - 20, 22 - 24, 11 - 24]
    write_curve(tmp_path, "clip_b", 1, accuracy=0.4, seconds_training=1.0)
    never = finding(STEPS_TO, tmp_path)
    assert no_interval(never)
    assert never.reason == "the steps_to of clip_b is undefined on these steps"


def test_a_mean_that_is_the_target_but_for_rounding_has_reached_it(tmp_path):
    """0.2, 0.5, 0.2 and 0.7 have the mean 0.4, but a quarter of each sums up to less, from whichever one it begins."""
    for method, values in (("grpo", [0.4]), ("clip_b", [0.2, 0.5, 0.2, 0.7])):
        write_curve(tmp_path, method, accuracy=np.where(STEP < 8, 0, np.resize(values, STEPS)))
    assert list(finding(STEPS_TO | {"target": 0.4}, tmp_path).by_seed) == [0] * 5
    assert no_interval(finding(STEPS_TO | {"target": 0.400001}, tmp_path))


def test_a_correlation_over_the_measured_steps(tmp_path):
    predicted, noise = 1e-4 * np.random.default_rng(0).standard_normal((2, 5, STEPS))
    measured = np.where(STEP % 2 == 0, 3 * predicted + noise, np.nan)
    write_curve(tmp_path, "grpo", predicted_entropy_change=predicted, entropy_change=measured)
    claim = GRPO | {"statistic": "correlation", "columns": CHANGES, "above": 0.3}
    found = finding(claim, tmp_path)
    assert found.verdict == "holds"
    assert 0.8 < found.interval.value < 1  # the truth is 3 / sqrt(10) = 0.95
    assert -1 <= found.interval.low < found.interval.value < found.interval.high <= 1
    short = dict(zip(CHANGES, (predicted[1, :6], measured[1, :6]), strict=True))
    write_curve(tmp_path, "grpo", 1, steps=6, **short)
    few = finding(claim, tmp_path)
    assert no_interval(few)
    assert "undefined on these steps: it needs 8 and has 3" in few.reason
    rising = np.arange(8.0)
    eight = {"steps": 8, "predicted_entropy_change": rising, "entropy_change": 2 * rising}
    write_curve(tmp_path, "grpo", **eight)
    assert finding(claim, tmp_path).interval.value == pytest.approx(1)
    write_curve(tmp_path, "grpo", 1, **eight | {"predicted_entropy_change": 0.0})
    assert finding(claim, tmp_path).reason == "the correlation of grpo is undefined on these steps"
    write_curve(tmp_path, "grpo", 1, **eight | {"entropy_change": np.r_[rising[:7], np.nan]})
    for statistic in ("correlation", "same_sign"):
        few = finding(claim | {"statistic": statistic}, tmp_path)
        assert few.reason == f"the {statistic} of grpo is undefined on these steps: it needs 8 and has 7"


@pytest.mark.filterwarnings("error")
def test_statistics_that_zeros_leave_undefined(tmp_path):
    write_curve(tmp_path, "grpo", grad_norm=0.0, s_star_mean=0.0)
    for statistic, columns in (
        ("log_sd", ["grad_norm"]),
        ("log_mean", ["grad_norm"]),
        ("ratio", ["entropy", "s_star_mean"]),
        ("ratio", ["grad_norm", "s_star_mean"]),
    ):
        found = finding(GRPO | {"statistic": statistic, "columns": columns, "above": 0}, tmp_path)
        assert found.reason == f"the {statistic} of grpo is undefined on these steps"


def test_one_step_has_a_mean_and_no_spread(tmp_path):
    write_curve(tmp_path, "grpo", steps=1)
    of_entropy = GRPO | {"columns": ["entropy"], "above": 0}
    spread = finding(of_entropy | {"statistic": "log_sd"}, tmp_path)
    assert spread.reason == "the log_sd of grpo is undefined on these steps: it needs 2 and has 1"
    last = finding(of_entropy | {"statistic": "mean", "window": "last_tenth"}, tmp_path)
    assert list(last.by_seed) == pytest.approx([0.3] * 5)


OF_40 = np.r_[np.full(36, 0.9), 0.7, 0.6, 0.8, 0.3]
OF_15 = np.r_[0.4, np.full(13, 9.0), 0.1]  # a tenth of 15 steps is 1.5, rounded down


@pytest.mark.parametrize(
    ("changes", "columns", "effect"),
    [
        # The mean of 0, 0 and 3 is 1, and their sample variance (1 + 1 + 4) / 2 = 3.
        ({"statistic": "log_sd"}, {"grad_norm": [0.0, 0.0, 3.0]}, np.log(3) / 2),
        ({"statistic": "drop"}, {"entropy": OF_15}, 0.75),
        ({"statistic": "mean", "window": "last_tenth"}, {"entropy": OF_15}, 0.1),
        ({"statistic": "mean", "window": "last_tenth"}, {"entropy": OF_40}, 0.6),
        # Off by 0.1 of 1 and by 0.5 of -2.
        ({"statistic": "relative_error"}, {"a": [1.1, -2.5], "b": [1.0, -2.0]}, 0.3 / 1.5),
        ({"statistic": "ratio_difference"}, {"a": [0.3], "b": 0.6, "c": 0.1, "d": 0.4}, 0.25),
    ],
)
def test_statistics_of_one_run_by_hand(tmp_path, changes, columns, effect):
    write_curve(tmp_path, "grpo", steps=len(next(iter(columns.values()))), **columns)
    found = finding(GRPO | {"columns": [*columns], "above": 0} | changes, tmp_path)
    assert list(found.by_seed) == pytest.approx([effect] * 5)


def test_signs_agree_beyond_chance(tmp_path):
    """Signs agree at 4 of 5 steps; independent ones, of which 4/5 and 3/5 fall, would at 4/5 3/5 + 1/5 2/5 = 14/25."""
    predicted, realized = np.tile([-1e-4, -1e-4, -1e-4, -1e-4, 1e-4], 8), np.tile([-2e-4, -2e-4, -2e-4, 3e-4, 4e-4], 8)
    changes = {"predicted_entropy_change": predicted, "entropy_change": realized * (1 + SEED)}
    write_curve(tmp_path, "grpo", **changes)
    assert finding("corollary4_sign", tmp_path).interval.value == pytest.approx(4 / 5 - 14 / 25)
    zeros = {name: np.where(of > 0, 0, of) for name, of in changes.items()}
    write_curve(tmp_path, "grpo", **zeros)  # zero is no fall
    assert finding("corollary4_sign", tmp_path).interval.value == pytest.approx(4 / 5 - 14 / 25)
    write_curve(tmp_path, "grpo", **changes)
    mean = finding("corollary4_mean", tmp_path).interval.value
    assert mean == pytest.approx(np.median([0.2e-4 * factor / -0.6e-4 for factor in (1, 2, 3, 4, 5)]))


def test_means_ratios_and_absolute_ratios_by_hand(tmp_path):
    sign = np.tile([1.0, -1.0], STEPS // 2)
    centered = (0.004 + SEED * 1e-4) * sign + 1e-5 * SEED
    write_curve(tmp_path, "grpo", s_centered_mean=centered, s_star_mean=0.08)
    of_run = GRPO | {"statistic": "ratio", "columns": ["s_centered_mean", "s_star_mean"], "within": [-0.1, 0.1]}
    of_batch = GRPO | {"statistic": "mean", "columns": ["s_centered_ratio"], "below": 0.1}
    average, batch = finding(of_run, tmp_path), finding(of_batch, tmp_path)
    assert (average.verdict, average.interval.value) == ("holds", pytest.approx(2e-5 / 0.08))  # signs cancel over a run
    assert (batch.verdict, batch.interval.value) == ("holds", pytest.approx(0.0042 / 0.08))  # but not within a batch
    assert finding(of_batch | {"below": 3.16e-3}, tmp_path).verdict == "does not hold"
