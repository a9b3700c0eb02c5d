"""Claims about curves of single runs and about differences between methods, by hand."""

import numpy as np
import pytest

from single_claims import CLIP, ENTROPY, GRPO, finding, no_interval, write_curve
from synthetic_results import MODEL, STEPS


@pytest.mark.parametrize(("entropy", "verdict"), [(0.2, "does not hold"), (0.3005, "inconclusive"), (0.32, "holds")])
def test_differences_are_those_of_each_seed(tmp_path, entropy, verdict):
    """What the methods of a seed share does not count, however far seeds are apart; nor does the first half."""
    first_half = np.arange(STEPS) < STEPS // 2
    shared, noise = [0.2, 0.9, 0.3, 0.5, 0.1], np.array([0.0, 0.01, -0.004, -0.01, 0.005])
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed, entropy=np.where(first_half, 9.0, shared[seed]))
        level = shared[seed] + entropy - 0.3 + noise[seed]
        write_curve(tmp_path, "clip_b", seed, entropy=np.where(first_half, 5.0, level))
    found = finding(ENTROPY | {"window": "second_half"}, tmp_path)
    assert found.verdict == verdict
    ends = (found.interval.value, found.interval.low, found.interval.high)
    assert ends == pytest.approx((entropy - 0.3, entropy - 0.31, entropy - 0.29))
    assert found.seeds == 5


def test_a_ratio_of_entropies_by_hand(tmp_path):
    """exp of the mean of the log: an arm that explodes is 2, 3, 4 or 40 times as high."""
    for seed, ratio in enumerate([2.0, 40.0, 3.0, 4.0, 2.5]):
        write_curve(tmp_path, "grpo", seed, entropy=0.1 * (seed + 1))
        write_curve(tmp_path, "clip_b", seed, entropy=0.1 * (seed + 1) * ratio)
    found = finding(ENTROPY | {"statistic": "log_mean"}, tmp_path)
    assert found.verdict == "holds"
    ends = (found.interval.value, found.interval.low, found.interval.high)
    assert np.exp(ends) == pytest.approx((3, 2, 40))


@pytest.mark.parametrize(
    ("seeds", "shared"),
    [({"tables": 1, "extras": 5}, 1), ({"tables": 5, "extras": 4}, 4), ({"tables": 5, "extras": 5}, 5)],
)
def test_fewer_than_five_seeds_of_a_method_allow_no_verdict(tmp_path, seeds, shared):
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed, entropy=0.3 + 0.002 * seed**2)
        write_curve(tmp_path, "s_star_keep_pos_gt", seed, entropy=0.01 + 0.001 * seed)
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
    steps = np.array([1, -1, 2**0.5, -(2**0.5), 0]) / 1.5**0.5  # standard deviation 1
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed, entropy=0.1 * (seed + 3))
        write_curve(tmp_path, "clip_b", seed, entropy=0.1 * (seed + 3) * np.exp(spread * steps[seed]))
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
    for seed in range(5):
        norm = np.where(np.arange(STEPS) % 2, 0.2 + 0.1 * seed, 1.0)
        write_curve(tmp_path, "grpo", seed, grad_norm=norm)
        write_curve(tmp_path, "clip_b", seed, grad_norm=norm / 4)
    for statistic, effect in (("log_sd", np.log(1 / 4)), ("log_relative_sd", 0)):
        found = finding(ENTROPY | {"statistic": statistic, "columns": ["grad_norm"]}, tmp_path)
        assert found.by_seed == pytest.approx([effect] * 5, abs=1e-6)


def test_steps_and_seconds_to_a_target_by_hand(tmp_path):
    """40 steps, so means over four; accuracy rises from 0 to 1 at a step, so the mean is 0.5 two steps later."""
    for seed, (grpo, clip_b) in enumerate([(10, 12), (11, 12), (8, 12), (10, 20), (10, 9)]):
        for method, rise in (("grpo", grpo), ("clip_b", clip_b)):
            seconds = 2.0 if method == "grpo" else 1.0
            write_curve(tmp_path, method, seed, accuracy=np.arange(STEPS) >= rise, seconds_training=seconds)
    steps = CLIP | {"test": "curve_difference", "model": MODEL, "statistic": "steps_to", "columns": ["accuracy"]}
    steps |= {"target": 0.5}
    found = finding(steps, tmp_path)
    assert list(found.by_seed) == [2, 1, 4, 10, -1]
    seconds = steps | {"statistic": "sum_to", "columns": ["accuracy", "seconds_training"]}
    assert list(finding(seconds, tmp_path).by_seed) == [14 - 24, 14 - 26, 14 - 20, 22 - 24, 11 - 24]
    write_curve(tmp_path, "clip_b", 1, accuracy=0.4, seconds_training=1.0)
    never = finding(steps, tmp_path)
    assert no_interval(never)
    assert never.reason == "the steps_to of clip_b is undefined on these steps"


def test_a_mean_that_is_the_target_but_for_rounding_has_reached_it(tmp_path):
    """0.2, 0.5, 0.2 and 0.7 have the mean 0.4, but a quarter of each sums up to less, from whichever one it begins."""
    for seed in range(5):
        for method, values in (("grpo", [0.4]), ("clip_b", [0.2, 0.5, 0.2, 0.7])):
            write_curve(tmp_path, method, seed, accuracy=np.where(np.arange(STEPS) < 8, 0, np.resize(values, STEPS)))
    claim = CLIP | {"test": "curve_difference", "model": MODEL, "statistic": "steps_to", "columns": ["accuracy"]}
    assert list(finding(claim | {"target": 0.4}, tmp_path).by_seed) == [0] * 5
    assert no_interval(finding(claim | {"target": 0.400001}, tmp_path))


def test_a_correlation_over_the_measured_steps(tmp_path):
    rng = np.random.default_rng(0)
    for seed in range(5):
        predicted = rng.standard_normal(STEPS) * 1e-4
        measured = np.where(np.arange(STEPS) % 2 == 0, 3 * predicted + 1e-4 * rng.standard_normal(STEPS), np.nan)
        write_curve(tmp_path, "grpo", seed, predicted_entropy_change=predicted, entropy_change=measured)
    columns = ["predicted_entropy_change", "entropy_change"]
    claim = GRPO | {"statistic": "correlation", "columns": columns, "above": 0.3}
    found = finding(claim, tmp_path)
    assert found.verdict == "holds"
    assert 0.8 < found.interval.value < 1  # the truth is 3 / sqrt(10) = 0.95
    assert -1 <= found.interval.low < found.interval.value < found.interval.high <= 1
    write_curve(tmp_path, "grpo", 1, steps=6, predicted_entropy_change=predicted[:6], entropy_change=measured[:6])
    few = finding(claim, tmp_path)
    assert no_interval(few)
    assert "undefined on these steps: it needs 8 and has 3" in few.reason
    short = {"predicted_entropy_change": np.arange(9.0), "entropy_change": 2 * np.arange(9.0)}
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed, steps=8, **{name: of[:8] for name, of in short.items()})
    assert finding(claim, tmp_path).interval.value == pytest.approx(1)
    write_curve(tmp_path, "grpo", 1, steps=8, predicted_entropy_change=0.0, entropy_change=short["entropy_change"][:8])
    assert finding(claim, tmp_path).reason == "the correlation of grpo is undefined on these steps"
    one_less = np.r_[np.arange(7.0), np.nan]
    write_curve(tmp_path, "grpo", 1, steps=8, predicted_entropy_change=np.arange(8.0), entropy_change=one_less)
    for statistic in ("correlation", "same_sign"):
        few = finding(claim | {"statistic": statistic}, tmp_path)
        assert few.reason == f"the {statistic} of grpo is undefined on these steps: it needs 8 and has 7"


@pytest.mark.filterwarnings("error")
def test_statistics_that_zeros_leave_undefined(tmp_path):
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed, grad_norm=0.0, s_star_mean=0.0)
    for statistic, columns in (
        ("log_sd", ["grad_norm"]),
        ("log_mean", ["grad_norm"]),
        ("ratio", ["entropy", "s_star_mean"]),
        ("ratio", ["grad_norm", "s_star_mean"]),
    ):
        found = finding(GRPO | {"statistic": statistic, "columns": columns, "above": 0}, tmp_path)
        assert found.reason == f"the {statistic} of grpo is undefined on these steps"


def test_one_step_has_a_mean_and_no_spread(tmp_path):
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed, steps=1)
    of_entropy = GRPO | {"columns": ["entropy"], "above": 0}
    spread = finding(of_entropy | {"statistic": "log_sd"}, tmp_path)
    assert spread.reason == "the log_sd of grpo is undefined on these steps: it needs 2 and has 1"
    last = finding(of_entropy | {"statistic": "mean", "window": "last_tenth"}, tmp_path)
    assert list(last.by_seed) == pytest.approx([0.3] * 5)


def test_spread_of_one_method_by_hand(tmp_path):
    """The mean of 0, 0 and 3 is 1, and their sample variance (1 + 1 + 4) / 2 = 3."""
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed, steps=3, grad_norm=np.array([0.0, 0.0, 3.0]))
    found = finding(GRPO | {"statistic": "log_sd", "columns": ["grad_norm"], "above": 0}, tmp_path)
    assert list(found.by_seed) == pytest.approx([np.log(3) / 2] * 5)


def test_tenths_of_a_short_run_are_single_steps(tmp_path):
    """A run of 15 steps: a tenth is 1.5 steps, rounded down."""
    entropy = np.r_[0.4, np.full(13, 9.0), 0.1]
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed, steps=15, entropy=entropy)
    drop = finding(GRPO | {"statistic": "drop", "columns": ["entropy"], "above": 0}, tmp_path)
    assert list(drop.by_seed) == pytest.approx([0.75] * 5)
    last = {"statistic": "mean", "columns": ["entropy"], "above": 0, "window": "last_tenth"}
    assert list(finding(GRPO | last, tmp_path).by_seed) == pytest.approx([0.1] * 5)


def test_signs_agree_beyond_chance(tmp_path):
    """Signs agree at 4 of 5 steps; independent ones, of which 4/5 and 3/5 fall, would at 4/5 3/5 + 1/5 2/5 = 14/25."""
    predicted, realized = np.tile([-1e-4, -1e-4, -1e-4, -1e-4, 1e-4], 8), np.tile([-2e-4, -2e-4, -2e-4, 3e-4, 4e-4], 8)
    for seed in range(5):
        changes = {"predicted_entropy_change": predicted, "entropy_change": realized * (1 + seed)}
        write_curve(tmp_path, "grpo", seed, **changes)
    assert finding("corollary4_sign", tmp_path).interval.value == pytest.approx(4 / 5 - 14 / 25)
    for seed in range(5):  # zero is no fall
        zeros = {name: np.where(of > 0, 0, of) for name, of in changes.items()}
        write_curve(tmp_path, "grpo", seed, **zeros)
    assert finding("corollary4_sign", tmp_path).interval.value == pytest.approx(4 / 5 - 14 / 25)
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed, **{**changes, "entropy_change": realized * (1 + seed)})
    mean = finding("corollary4_mean", tmp_path).interval.value
    assert mean == pytest.approx(np.median([0.2e-4 * factor / -0.6e-4 for factor in (1, 2, 3, 4, 5)]))


def test_means_ratios_and_absolute_ratios_by_hand(tmp_path):
    sign = np.tile([1.0, -1.0], STEPS // 2)
    for seed in range(5):
        write_curve(
            tmp_path, "grpo", seed, s_centered_mean=(0.004 + seed * 1e-4) * sign + 1e-5 * seed, s_star_mean=0.08
        )
    of_run = GRPO | {"statistic": "ratio", "columns": ["s_centered_mean", "s_star_mean"], "within": [-0.1, 0.1]}
    of_batch = GRPO | {"statistic": "mean", "columns": ["s_centered_ratio"], "below": 0.1}
    average, batch = finding(of_run, tmp_path), finding(of_batch, tmp_path)
    assert (average.verdict, average.interval.value) == ("holds", pytest.approx(2e-5 / 0.08))  # signs cancel over a run
    assert (batch.verdict, batch.interval.value) == ("holds", pytest.approx(0.0042 / 0.08))  # but not within a batch
    assert finding(of_batch | {"below": 3.16e-3}, tmp_path).verdict == "does not hold"


def test_a_difference_of_ratios_by_hand(tmp_path):
    """0.3 / 0.6 - 0.1 / 0.4."""
    columns = {"cov_all": 0.3, "cov_pos": 0.6, "s_star_mean": 0.1, "s_centered_mean": 0.4}
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed, **columns)
    found = finding(GRPO | {"statistic": "ratio_difference", "columns": [*columns], "above": 0}, tmp_path)
    assert list(found.by_seed) == pytest.approx([0.25] * 5)


def test_a_relative_error_by_hand(tmp_path):
    """Off by 0.1 of 1 and by 0.5 of -2."""
    for seed in range(5):
        write_curve(
            tmp_path, "grpo", seed, cov_all=np.tile([1.1, -2.5], STEPS // 2), cov_pos=np.tile([1.0, -2.0], STEPS // 2)
        )
    found = finding(GRPO | {"statistic": "relative_error", "columns": ["cov_all", "cov_pos"], "above": 0}, tmp_path)
    assert list(found.by_seed) == pytest.approx([0.3 / 1.5] * 5)
