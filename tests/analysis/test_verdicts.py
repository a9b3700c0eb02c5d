"""Verdicts on single claims, from synthetic runs."""

from itertools import product

import numpy as np
import pytest

from entropy_dynamics.analysis.finding import VERDICTS, Finding
from entropy_dynamics.analysis.statistics import Interval, score_interval
from entropy_dynamics.analysis.verdicts import correct_primary
from entropy_dynamics.experiments.claims import load_claims
from entropy_dynamics.experiments.load import Run
from entropy_dynamics.results.files import write_json
from single_claims import OTHER, finding, no_interval, write_curve, write_samples, write_scores
from synthetic_results import DATASETS, MODEL, ROOT, STEPS

THREE = {"tables": 3, "extras": 3, "pilot": 1}
CLIP = {"runs": {"clip_b": "tables"}, "against": {"grpo": "tables"}, "above": 0}
ENTROPY = {"test": "curve_difference", "model": MODEL, "statistic": "mean", "columns": ["entropy"]} | CLIP
GRPO = {"test": "over_seeds", "model": MODEL, "runs": {"grpo": "tables"}}
AVG = {"test": "score_difference", "models": [MODEL, OTHER], "metric": "avg", "evaluations": DATASETS} | CLIP


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
    """Of 0, 0 and 3, with a mean of 1, the variance is 6 / 2."""
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed, steps=3, grad_norm=np.array([0.0, 0.0, 3.0]))
    found = finding(GRPO | {"statistic": "log_sd", "columns": ["grad_norm"], "above": 0}, tmp_path)
    assert list(found.by_seed) == pytest.approx([np.log(3) / 2] * 5)


def test_tenths_of_a_short_run_are_single_steps(tmp_path):
    """Of 15 steps."""
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


@pytest.mark.parametrize(("level", "verdict"), [(0.6, "holds"), (0.41, "inconclusive")])
def test_gains_in_scores(tmp_path, level, verdict):
    steps = np.array([-0.01, 0, 0.01, 0.02, -0.02])
    for model in (MODEL, OTHER):
        write_scores(tmp_path, "clip_b", level + steps, model)
        write_scores(tmp_path, "grpo", 0.41 + steps, model)
    found = finding(AVG, tmp_path)
    assert (found.verdict, found.seeds) == (verdict, 5)
    assert found.interval.value == pytest.approx(100 * (level - 0.41), abs=2)
    two = finding(AVG, tmp_path, {"tables": 2, "extras": 1, "pilot": 1})
    assert no_interval(two)


def test_a_data_set_of_one_problem_has_no_interval_and_says_so(tmp_path):
    for model, (seed, method) in product((MODEL, OTHER), product(range(5), ("grpo", "clip_b"))):
        for dataset, problems in (("aime24", 1), ("aime25", 3), ("dapo500", 3)):
            correct = np.arange(8) < np.arange(1, problems + 1)[:, None] + (seed if method == "clip_b" else 0)
            write_samples(tmp_path, method, seed, dataset, correct, model)
    found = finding(AVG, tmp_path)
    assert no_interval(found)
    assert found.reason == "a data set has one problem, so the spread of problems is unknown"


def test_metrics_of_scores_by_hand(tmp_path):
    """GRPO solves 3 of 4 problems always, 1 never; Clip_B half of each, but one seed nothing of the last."""
    half, never = [1, 0], [0, 0]
    for seed in range(3):
        for dataset in DATASETS:
            for model in (MODEL, OTHER):
                write_samples(tmp_path, "grpo", seed, dataset, np.array([[1, 1]] * 3 + [never], bool), model)
                rows = [half] * 3 + [never if seed == 2 else half]
                write_samples(tmp_path, "clip_b", seed, dataset, np.array(rows, bool), model)
    avg_clip, pass_clip = np.mean([0.5, 0.5, 0.375]), np.mean([1, 1, 0.75])
    found = {
        metric: finding(AVG | {"metric": metric}, tmp_path, THREE).interval
        for metric in ("avg", "pass", "pass_minus_avg", "all_correct")
    }
    assert found["avg"].value == pytest.approx(100 * (avg_clip - 0.75))
    assert found["pass"].value == pytest.approx(100 * (pass_clip - 0.75))
    assert found["pass_minus_avg"].value == pytest.approx(100 * (pass_clip - avg_clip))
    assert found["all_correct"].value == pytest.approx(-75)
    # Both models have the same scores on all data sets.
    clip = np.array([[0.5] * 4, [0.5] * 4, [0.5, 0.5, 0.5, 0.0]])
    by_hand = score_interval([100 / 3 * (clip - np.array([1.0, 1.0, 1.0, 0.0]))] * 3)
    assert (found["avg"].low, found["avg"].high) == pytest.approx((by_hand.low, by_hand.high))


@pytest.mark.filterwarnings("error")
def test_all_k_and_thirds_of_difficulty(tmp_path):
    """Clip_B solves the hard third, GRPO the easy one, as often per sample elsewhere."""
    base = np.repeat([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]], 2, axis=0).astype(bool)
    mixed = np.array([[1, 0, 0, 0]] * 6, bool)
    hard, easy = mixed.copy(), mixed.copy()
    hard[:2], easy[4:] = 1, 1
    order = np.array([4, 0, 2, 1, 5, 3])  # hard and easy problems in between one another
    for seed in range(3):
        write_samples(tmp_path, "base", seed, "dapo500", base[order])
        write_samples(tmp_path, "clip_b", seed, "dapo500", hard[order])
        write_samples(tmp_path, "grpo", seed, "dapo500", easy[order])

    def effect(metric: str, problems: str) -> float:
        claim = AVG | {"models": [MODEL], "evaluations": ["dapo500"], "metric": metric, "problems": problems}
        return finding(claim, tmp_path, THREE).interval.value

    assert effect("avg", "all") == pytest.approx(0)
    assert effect("avg", "hard") == pytest.approx(75)
    assert effect("avg", "easy") == pytest.approx(-75)
    assert effect("all_correct", "easy") == pytest.approx(-100)
    # Pass@k of one correct sample of four is k / 4; over log k by the trapezoidal rule.
    log, rest = np.log([1, 2, 3, 4]), 1 - np.array([0.25, 0.5, 0.75, 1])
    area = ((rest[1:] + rest[:-1]) / 2 * np.diff(log)).sum() / log[-1]
    assert effect("pass_area", "hard") == pytest.approx(100 * area)
    Run(MODEL, "base", 0).evaluation_file(tmp_path, "dapo500").unlink()
    assert np.isfinite(effect("avg", "easy"))  # by two untrained models
    for seed in (1, 2):
        Run(MODEL, "base", seed).evaluation_file(tmp_path, "dapo500").unlink()
    assert np.isnan(effect("avg", "easy"))


def test_several_methods_on_one_side_count_as_their_mean(tmp_path):
    write_scores(tmp_path, "clip_b", [0.5] * 5)
    others = {"clip_cov": 0.3, "kl_cov": 0.4, "unlikeliness": 0.5, "forking_tokens": 0.6}
    for method, level in others.items():
        write_scores(tmp_path, method, [level] * 5)
    found = finding(AVG | {"models": [MODEL], "against": dict.fromkeys(others, "tables"), "above": -1}, tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(5, abs=1.5))


# Deciding


@pytest.mark.parametrize(
    ("ends", "claimed", "verdict"),
    [
        ((0.1, 2), (0, np.inf), "holds"),
        ((0, 2), (0, np.inf), "inconclusive"),
        ((0, 2), (-np.inf, 0), "inconclusive"),
        ((0.1, 2), (-np.inf, 0), "does not hold"),
        ((-2, 0), (-np.inf, 0), "inconclusive"),
        ((-2, 0), (0, np.inf), "inconclusive"),
        ((-2, -0.1), (0, np.inf), "does not hold"),
        ((0.1, 2), (0, 1), "inconclusive"),
        ((-2, 0.1), (0, 1), "inconclusive"),
        ((0.1, 0.9), (0, 1), "holds"),
        ((2, 3), (0, 1), "does not hold"),
    ],
)
def test_an_interval_that_touches_the_threshold_decides_nothing(ends, claimed, verdict):
    assert Finding(Interval(sum(ends) / 2, *ends)).decide(*claimed).verdict == verdict
    assert verdict in VERDICTS


@pytest.mark.parametrize(
    ("interval", "reason"),
    [
        (Interval(0.0, seeds=5), "the runs do not differ at all, so the spread between them is unknown"),
        (Interval(0.0), "a data set has one problem, so the spread of problems is unknown"),
        (
            Interval(0.0, seeds=5, parts=(Interval(0.0), Interval(0.0, -1, 1, seeds=5))),
            "a data set has one problem, so the spread of problems is unknown",
        ),
    ],
)
def test_why_an_effect_has_no_interval(interval, reason):
    assert Finding(interval).decide(0, np.inf).reason == reason


def test_the_reason_names_two_obstacles_and_counts_the_rest():
    def reason(obstacles, missing):
        names = [f"{place}.parquet" for place in range(missing)]
        return Finding(obstacles=["a", "b", "c"][:obstacles], missing=names).decide(0, np.inf).reason

    assert [reason(2, 0), reason(3, 0)] == ["a; b", "a; b; and 1 more"]
    assert [reason(1, 1), reason(0, 2)] == ["0.parquet is missing; a", "0.parquet and 1 more files are missing"]


def test_an_entry_of_claims_json():
    """Six digits; null for what is unknown. Seeds that would detect an effect of 0.1 are more than a hundred."""
    unclear = Interval(1 / 3, -1.0, 2.0, spread=1.0, seeds=5, error=0.0)
    found = Finding(unclear, usable=[0, 2], by_seed=[1 / 3, 0.5]).decide(0, np.inf, 0.1)
    rest = {"detectable": 2.03647, "range": [0, None], "seeds": 2, "by_seed": {"0": 0.333333, "2": 0.5}}
    reason = "the interval includes the threshold; an effect of 0.1 takes more than 100 seeds"
    about = {"id": "a", "statement": "b", "place": "c", "verdict": "inconclusive", "unit": "nats"}
    effect = {"effect": 0.333333, "low": -1, "high": 2} | rest
    assert found.entry("a", "b", "c", unit="nats") == about | effect | {"seeds_needed": 101, "reason": reason}
    assert Finding(unclear, usable=[0]).decide(0, np.inf, 2.04).seeds_needed == 5
    without = Finding(unclear).decide(0, np.inf, 0.1).entry("a", "b", "c")
    assert (without["seeds"], without["by_seed"], without["seeds_needed"]) == (None, {}, None)
    assert Finding(usable=[0], obstacles=["a"]).decide(0, np.inf).entry("a", "b", "c")["by_seed"] == {}


def test_seeds_go_under_their_numbers_in_the_published_runs(tmp_path):
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed, entropy=0.3 + 0.01 * seed)
        write_curve(tmp_path, "clip_b", seed, entropy=0.6)
    write_json(tmp_path / "seeds.json", [0, 1, 50, 51, 2])
    assert finding(ENTROPY, tmp_path).usable == [0, 1, 50, 51, 2]


# Missing and damaged files


def test_without_any_run_there_is_no_verdict(tmp_path):
    assert finding(ENTROPY, tmp_path).reason.endswith("and 9 more files are missing")


def test_a_diverged_seed_is_named_and_allows_no_verdict(tmp_path):
    six = {"tables": 6, "extras": 1, "pilot": 1}
    for seed in range(6):
        write_curve(tmp_path, "grpo", seed, entropy=0.3 + 0.01 * seed)
        write_curve(tmp_path, "clip_b", seed, entropy=0.6 + 0.02 * seed)
    assert finding(ENTROPY, tmp_path, six).verdict == "holds"
    write_curve(tmp_path, "grpo", 1, entropy=np.where(np.arange(STEPS) < 17, 0.3, np.nan))
    found = finding(ENTROPY, tmp_path, six)
    assert (found.verdict, found.seeds) == ("inconclusive", 5)
    assert found.reason.startswith("grpo seed 1 diverged: entropy is not finite from step 17 on")
    Run(MODEL, "grpo", 2).metrics_file(tmp_path).unlink()
    found = finding(ENTROPY, tmp_path, six)
    assert found.reason.startswith(f"runs/{MODEL}/grpo/seed2/metrics.parquet is missing; grpo seed 1 diverged")


def test_a_run_that_ended_early_is_compared_on_shared_steps(tmp_path):
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed, entropy=0.3 + 0.01 * seed)
        late = np.where(np.arange(STEPS) < 20, 0.5, 0.0)
        write_curve(tmp_path, "clip_b", seed, steps=20 if seed else STEPS, entropy=0.5 if seed else late)
    found = finding(ENTROPY | {"window": "last_tenth"}, tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(0.18))
    assert "compared on the first 20 steps" in found.reason


def test_the_last_tenth_is_a_mean_over_its_steps(tmp_path):
    """Four of 40 steps, of which the last is not typical."""
    end = np.r_[np.full(STEPS - 4, 0.9), 0.7, 0.6, 0.8, 0.3]
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed, entropy=0.3)
        write_curve(tmp_path, "clip_b", seed, entropy=end + 0.01 * seed)
    found = finding(ENTROPY | {"window": "last_tenth"}, tmp_path)
    assert [*found.by_seed] == pytest.approx([0.3 + 0.01 * seed for seed in range(5)])


def test_evaluations_on_other_problems_are_inconclusive(tmp_path):
    write_scores(tmp_path, "clip_b", [0.2] * 5)
    write_scores(tmp_path, "grpo", [0.4] * 5)
    write_samples(tmp_path, "grpo", 1, "aime25", np.ones((29, 32), bool))
    found = finding(AVG | {"models": [MODEL]}, tmp_path)
    assert found.verdict == "inconclusive"
    assert "seed1/aime25.parquet has other problems" in found.reason


def test_damaged_files_make_a_claim_inconclusive(tmp_path):
    claim = GRPO | {"statistic": "mean", "columns": ["neg_cov"], "below": 0}
    for seed in range(5):
        write_curve(tmp_path, "grpo", seed)  # no neg_cov
    files = [f"runs/{MODEL}/grpo/seed{seed}/metrics.parquet has no column 'neg_cov'" for seed in range(2)]
    assert finding(claim, tmp_path).reason == "; ".join([*files, "and 3 more"])
    path = Run(MODEL, "grpo", 0).metrics_file(tmp_path)
    path.write_text("no")
    reason = finding(claim, tmp_path).reason
    assert reason.startswith(f"runs/{MODEL}/grpo/seed0/metrics.parquet is damaged (")
    assert "make it or get it again;" in reason  # no command, as these are not in the project's folder


def test_primary_outcomes_are_corrected_for_their_number():
    """docs/reference/smollm2/protocol.md. Sign tests by hand: 2 / 2^8 with eight equal signs, 2 / 2^5 with five."""
    seeds = {"tables": 8, "extras": 5}
    claims = load_claims("smollm2", seeds, ROOT / "experiments" / "smollm2")
    primary = [claim for claim in claims if claim.spec.primary]
    assert [claim.spec.label[:2] for claim in primary] == ["P1", "P2", "P3"]

    above = Interval(0.4, 0.1, 0.9)
    open_ = Finding(Interval(0.1, -0.1, 0.9), by_seed=np.full(8, 0.1)).decide(0, np.inf)
    findings = [Finding(above, by_seed=np.full(8, 0.4)), open_, Finding(above, by_seed=[0.4] * 5)]
    for each in (findings[0], findings[2]):
        each.decide(0, np.inf)
    other = Finding(above, by_seed=[0.4] * 5).decide(0, np.inf)  # the same evidence, not primary
    findings[0].reason = "on six seeds"
    correct_primary([*primary, claims[0]], [*findings, other])
    assert [each.verdict for each in (*findings, other)] == ["holds", "inconclusive", "inconclusive", "holds"]
    by_hand = "p = 0.023 after Holm's correction over 3 primary outcomes"  # 3 x 0.0078
    assert findings[0].reason == f"on six seeds; {by_hand}"
    assert findings[2].reason.endswith("p = 0.12 after Holm's correction over 3 primary outcomes")  # 2 x 0.0625
    assert "Holm" not in findings[1].reason + other.reason


@pytest.mark.parametrize("sign", [1, -1])
def test_sign_tests_are_about_the_threshold_that_is_claimed(sign):
    """Seven of eight seeds are beyond 1: 18 / 2^8. Of six beyond and two on it: 2 / 2^6. Without any seed: p = 1."""
    claims = load_claims("smollm2", {"tables": 8, "extras": 5}, ROOT / "experiments" / "smollm2")
    first = next(claim for claim in claims if claim.spec.primary)
    bounds = sorted((sign, sign * np.inf))

    def reason(effects) -> str:
        by_seed = sign * np.array(effects)
        found = Finding(Interval(sign * 1.5, *sorted((sign * 1.1, sign * 2))), by_seed=by_seed).decide(*bounds)
        correct_primary([first], [found])
        return found.reason.split("; ")[1]

    assert reason([1.4] * 7 + [0.9]).startswith("p = 0.07 after")
    assert reason([1.4] * 6 + [1.0] * 2).startswith("p = 0.031 after")
    assert reason([]).startswith("p = 1 after")
