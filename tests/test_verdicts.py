"""Verdicts on single claims, from synthetic runs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.special import stdtrit

from entropy_dynamics.analysis.claims import load_claims
from entropy_dynamics.analysis.experiments import Run
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.analysis.statistics import student_interval
from entropy_dynamics.analysis.verdicts import judge
from entropy_dynamics.results.files import write_parquet
from entropy_dynamics.results.layout import Layout
from synthetic_results import MODEL, ROOT, SCALE, SEEDS, STEPS

OTHER = "qwen3-4b-base"


def finding(claim_id: str, results: Path, seeds: dict[str, int] = SEEDS):
    (claim,) = [one for one in load_claims(SCALE, seeds, ROOT / "experiments") if one.spec.id == claim_id]
    return judge(claim, Results(results, SCALE, ROOT / "configs", ROOT / "experiments"))


def no_interval(found) -> bool:
    return found.verdict == "inconclusive" and np.isnan(found.interval.low) and np.isnan(found.interval.high)


def write_curve(results: Path, method: str, seed: int, model: str = MODEL, steps: int = STEPS, **columns) -> None:
    """Columns are constants or one value per step."""
    frame = pd.DataFrame({"step": np.arange(steps), "entropy": 0.3} | columns)
    write_parquet(Run(model, method, seed).metrics_file(results), frame)


def write_samples(results: Path, method: str, seed: int, dataset: str, correct: np.ndarray, model: str = MODEL) -> None:
    problems, k = correct.shape
    columns = {
        "problem_id": np.repeat([f"p{i:03d}" for i in range(problems)], k),
        "sample": np.tile(range(k), problems),
    }
    frame = pd.DataFrame(columns | {"correct": correct.ravel(), "answer": "7", "finish_reason": "stop"})
    write_parquet(Run(model, method, seed).evaluation_file(results, dataset), frame)


def write_scores(results: Path, method: str, levels: list[float], model: str = MODEL) -> None:
    """For each seed a level of the share of correct samples; problems and samples random around it."""
    for seed, level in enumerate(levels):
        for dataset, (problems, k) in {"aime24": (30, 32), "aime25": (30, 32), "dapo500": (80, 8)}.items():
            rng = np.random.default_rng([seed, *method.encode(), *dataset.encode()])
            correct = rng.random((problems, k)) < level
            write_samples(results, method, seed, dataset, correct, model)


# Intervals


def test_student_interval_is_the_textbook_two_sample_interval():
    # Two samples of three with pooled variance 1: 1.5 ± t(4) * sqrt(1/3 + 1/3); t(4) = 2.776, and 1.533 one-sided 90 %.
    groups = [(1.0, np.array([1.5, 2.5, 3.5])), (-1.0, np.array([0.0, 1.0, 2.0]))]
    found = student_interval(groups)
    assert found.value == pytest.approx(1.5)
    assert found.high - found.value == pytest.approx(2.776 * (2 / 3) ** 0.5, abs=1e-3)
    assert found.value - found.low == pytest.approx(found.high - found.value)
    assert found.detectable == pytest.approx((2.776 + 1.533) * (2 / 3) ** 0.5, abs=1e-3)
    # One run against three: its noise floor is theirs, t(2) = 4.303, variance 1 + 1/3.
    found = student_interval([(1.0, np.array([5.0])), groups[1]])
    half = 4.303 * (4 / 3) ** 0.5
    assert (found.value, found.high - found.value) == (pytest.approx(4.0), pytest.approx(half, abs=1e-3))
    # One against one: nothing to judge by, unless a third method lends its seeds.
    single = [(1.0, np.array([5.0])), (-1.0, np.array([1.0]))]
    assert np.isnan(student_interval(single).low)
    found = student_interval(single, spread=[np.array([0.0, 1.0, 2.0])])
    assert found.low == pytest.approx(4 - 4.303 * 2**0.5, abs=1e-3)
    # A second variance with many degrees of freedom: Satterthwaite by hand, 1² / (0.25²/2 + 0.75²/1000) = 31.4.
    found = student_interval([(1.0, np.array([-0.866025, 0, 0.866025]))], more=[(0.75, 1000)])
    assert found.low == pytest.approx(-2.042, abs=1e-3)  # t(30)


def test_a_detectable_effect_is_found_nine_times_in_ten():
    """Two methods with three seeds each, whose spread is known to be 1 to the author of the test only."""
    rng = np.random.default_rng(0)
    error = (2 / 3) ** 0.5
    effect = (2.776 + 1.533) * error
    found = [student_interval([(1.0, rng.normal(effect, 1, 3)), (-1.0, rng.normal(0, 1, 3))]) for _ in range(3000)]
    assert np.mean([one.low > 0 for one in found]) == pytest.approx(0.9, abs=0.03)


@pytest.mark.parametrize("seeds", [(3, 3), (1, 3), (2, 5)])
def test_intervals_cover_the_truth_as_often_as_they_say(seeds):
    """Runs that differ by seed, scored on problems that differ: the true difference is 1."""
    rng = np.random.default_rng(0)
    covered, trials = 0, 3000
    for _ in range(trials):
        problems = rng.normal(1, 2, 50)  # each problem's difference; the variance of their mean is 0.08
        a, b = rng.normal(problems.mean(), 0.3, seeds[0]), rng.normal(0, 0.3, seeds[1])
        found = student_interval([(1.0, a), (-1.0, b)], more=[(problems.var(ddof=1) / 50, 49)])
        covered += found.low <= 1 <= found.high
    assert covered / trials == pytest.approx(0.955, abs=0.02)


# Verdicts


@pytest.mark.parametrize(
    ("entropy", "verdict"), [(0.2, "holds"), (0.4, "does not hold"), (0.3005, "inconclusive"), (0.28, "inconclusive")]
)
def test_directions_of_figure1_against_the_noise_floor_of_grpo(tmp_path, entropy, verdict):
    for seed, level in enumerate([0.29, 0.30, 0.31]):
        write_curve(tmp_path, "grpo", seed, entropy=np.where(np.arange(STEPS) < STEPS // 2, 9.0, level))
    write_curve(tmp_path, "s_star_keep_pos_gt", 0, entropy=np.where(np.arange(STEPS) < STEPS // 2, 5.0, entropy))
    found = finding("figure1_keep_pos_gt", tmp_path)
    assert found.verdict == verdict
    assert found.interval.value == pytest.approx(entropy - 0.3)  # the first half does not count
    assert found.interval.high - found.interval.value == pytest.approx(4.303 * 0.01 * (4 / 3) ** 0.5, rel=1e-3)
    assert found.seeds == {"s_star_keep_pos_gt": 1, "grpo": 3}
    assert "one seed of s_star_keep_pos_gt" in found.reason


def test_one_seed_of_each_is_inconclusive(tmp_path):
    write_curve(tmp_path, "grpo", 0, entropy=0.3)
    write_curve(tmp_path, "s_star_keep_pos_gt", 0, entropy=0.01)
    found = finding("figure1_keep_pos_gt", tmp_path, {"tables": 1, "extras": 1})
    assert no_interval(found)
    assert found.interval.value == pytest.approx(-0.29)
    assert "one seed of each method" in found.reason


def test_collapse_by_hand(tmp_path):
    for seed, end in enumerate([0.14, 0.15, 0.16]):
        entropy = np.r_[np.full(4, 0.3), np.full(32, 7.0), np.full(4, end)]  # first and last tenth of 40 steps
        write_curve(tmp_path, "grpo", seed, entropy=entropy)
    found = finding("entropy_collapse_qwen2.5", tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(0.5))
    drops = 1 - np.array([0.14, 0.15, 0.16]) / 0.3
    assert found.interval.low == pytest.approx(0.5 - 4.303 * drops.std(ddof=1) / 3**0.5, rel=1e-3)
    one = finding("entropy_collapse_qwen2.5", tmp_path, {"tables": 1, "extras": 1})
    assert no_interval(one)
    assert "one seed" in one.reason


@pytest.mark.parametrize(("level", "verdict"), [(-1.0, "holds"), (1.0, "does not hold"), (0.0, "inconclusive")])
def test_claims_within_a_run_need_only_one_seed(tmp_path, level, verdict):
    noise = np.random.default_rng(1).standard_normal(STEPS)
    write_curve(tmp_path, "grpo", 0, neg_cov=1e-3 * (level + 0.5 * (noise - noise.mean())))
    found = finding("figure5_sign", tmp_path, {"tables": 1, "extras": 1})
    assert found.verdict == verdict
    assert "one seed: the interval is over the steps of this run" in found.reason
    assert found.interval.value == pytest.approx(1e-3 * level, abs=1e-8)


def test_blocks_widen_the_interval_of_a_run_with_correlated_steps(tmp_path):
    """A slow wave: neighbouring steps are alike, so the interval is wider than that of as many independent steps."""
    wave = np.sin(np.linspace(0, 4 * np.pi, 100, endpoint=False))
    widths = []
    for values in (wave, np.random.default_rng(0).permutation(wave)):
        write_curve(tmp_path, "grpo", 0, steps=100, neg_cov=values)
        found = finding("figure5_sign", tmp_path, {"tables": 1, "extras": 1})
        widths.append(found.interval.high - found.interval.low)
    assert widths[1] == pytest.approx(2 * 1.96 * wave.std() / 10, rel=0.35)
    assert widths[0] > 2 * widths[1]


def test_corollary4_correlates_only_the_measured_steps(tmp_path):
    rng = np.random.default_rng(0)
    for seed in range(3):
        predicted = rng.standard_normal(STEPS) * 1e-4
        measured = np.where(np.arange(STEPS) % 2 == 0, 3 * predicted + 1e-4 * rng.standard_normal(STEPS), np.nan)
        write_curve(tmp_path, "grpo", seed, predicted_entropy_change=predicted, entropy_change=measured)
    found = finding("corollary4", tmp_path)
    assert found.verdict == "holds"
    assert 0.8 < found.interval.value < 1  # the truth is 3 / sqrt(10) = 0.95
    assert -1 <= found.interval.low < found.interval.value < found.interval.high <= 1
    write_curve(tmp_path, "grpo", 1, steps=6, predicted_entropy_change=predicted[:6], entropy_change=measured[:6])
    few = finding("corollary4", tmp_path)
    assert no_interval(few)
    assert "undefined on these steps" in few.reason


def test_corollaries_1_and_2_by_hand(tmp_path):
    sign = np.tile([1.0, -1.0], STEPS // 2)
    for seed in range(3):
        write_curve(
            tmp_path, "grpo", seed, s_centered_mean=(0.004 + seed * 1e-4) * sign + 1e-5 * seed, s_star_mean=0.08
        )
    average, batch, orders = (finding(one, tmp_path) for one in ("corollary1", "corollary2", "three_orders"))
    assert (average.verdict, average.interval.value) == (
        "holds",
        pytest.approx(1e-5 / 0.08, rel=1e-4),
    )  # signs cancel over a run
    assert (batch.verdict, batch.interval.value) == (
        "holds",
        pytest.approx(0.0041 / 0.08, rel=1e-3),
    )  # but not within a batch
    assert orders.verdict == "does not hold"


def test_clip_fraction_of_the_extreme_mu_of_the_sweep(tmp_path):
    (claim,) = [one for one in load_claims(SCALE, SEEDS, ROOT / "experiments") if one.spec.id == "mu_clip_b"]
    (largest,), (smallest,) = claim.runs, claim.against
    values = [float(name.partition("mu=")[2]) for name in (smallest, largest)]
    assert values[0] < values[1]
    write_curve(tmp_path, smallest, 0, clip_fraction=0.03)
    write_curve(tmp_path, largest, 0, clip_fraction=0.01)
    assert no_interval(finding("mu_clip_b", tmp_path))
    for seed, share in enumerate([0.019, 0.020, 0.021]):
        write_curve(tmp_path, "clip_b", seed, clip_fraction=share)
    found = finding("mu_clip_b", tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(-0.02))
    assert found.interval.high == pytest.approx(-0.02 + 4.303 * 0.001 * 2**0.5, rel=1e-3)


@pytest.mark.parametrize(("slope", "verdict"), [(1.01, "holds"), (2.0, "does not hold"), (1.05, "inconclusive")])
def test_theorems_from_logit_steps(tmp_path, slope, verdict):
    rng = np.random.default_rng(0)
    predicted = rng.standard_normal(300) * 1e-3
    realised = slope * predicted + 1e-5 * rng.standard_normal(300)
    frame = pd.DataFrame({"theorem": np.repeat([1, 2], 300), "step_size": 1e-3, "predicted": np.tile(predicted, 2)})
    write_parquet(Layout(tmp_path).logit_steps, frame.assign(realised=np.r_[realised, 0 * realised]))
    found = finding("theorem1_slope", tmp_path)
    assert found.verdict == verdict
    assert found.interval.value == pytest.approx(slope, abs=2e-3)
    assert finding("theorem1_correlation", tmp_path).verdict == "holds"
    assert finding("theorem2_slope", tmp_path).verdict == "does not hold"  # nothing moved
    assert finding("theorem2_correlation", tmp_path).verdict == "inconclusive"  # so there is no correlation


def test_theorems_are_judged_at_the_smallest_step(tmp_path):
    size = np.repeat([1e-3, 1e-1], 50)
    predicted = size * np.random.default_rng(0).standard_normal(100)
    frame = pd.DataFrame({"theorem": 1, "step_size": size, "predicted": predicted})
    write_parquet(Layout(tmp_path).logit_steps, frame.assign(realised=predicted * (1 + 3 * size)))
    assert finding("theorem1_slope", tmp_path).interval.value == pytest.approx(1.003)


@pytest.mark.parametrize(
    ("levels", "verdict"),
    [([0.6, 0.61, 0.62], "holds"), ([0.2, 0.21, 0.22], "does not hold"), ([0.2, 0.4, 0.6], "inconclusive")],
)
def test_gains_in_scores(tmp_path, levels, verdict):
    for model in (MODEL, OTHER):
        write_scores(tmp_path, "clip_b", levels, model)
        write_scores(tmp_path, "grpo", [0.4, 0.41, 0.42], model)
    found = finding("avg_gain_clip_b", tmp_path)
    assert found.verdict == verdict
    assert found.interval.value == pytest.approx(100 * (np.mean(levels) - 0.41), abs=2)
    one = finding("avg_gain_clip_b", tmp_path, {"tables": 1, "extras": 1})
    assert no_interval(one)


def test_metrics_of_scores_by_hand(tmp_path):
    """GRPO solves 3 of 4 problems always, 1 never; Clip_B half of each, but one seed nothing of the last."""
    half, never = [1, 0], [0, 0]
    for seed in range(3):
        for dataset in ("aime24", "aime25", "dapo500"):
            for model in (MODEL, OTHER):
                write_samples(tmp_path, "grpo", seed, dataset, np.array([[1, 1]] * 3 + [never], bool), model)
                rows = [half] * 3 + [never if seed == 2 else half]
                write_samples(tmp_path, "clip_b", seed, dataset, np.array(rows, bool), model)
    avg_clip, pass_clip = np.mean([0.5, 0.5, 0.375]), np.mean([1, 1, 0.75])
    assert finding("avg_gain_clip_b", tmp_path).interval.value == pytest.approx(100 * (avg_clip - 0.75), abs=1e-3)
    assert finding("pass_gain_clip_b", tmp_path).interval.value == pytest.approx(100 * (pass_clip - 0.75), abs=1e-3)
    both = finding("pass_over_avg_clip_b", tmp_path)
    assert both.interval.value == pytest.approx(100 * (pass_clip - avg_clip - 0.0), abs=1e-3)
    assert finding("figure4_middle", tmp_path).interval.value == pytest.approx(100 * (0.25 / 3 - 1), abs=1e-3)
    # The variances by hand, one of the two models: seeds 50, 50, 37.5 against none; problems as below.
    seeds = (np.var([50, 50, 37.5], ddof=1) * 2 / 4) * (1 / 3 + 1 / 3)
    difference = 100 * np.array([0.5 - 1, 0.5 - 1, 0.5 - 1, 1 / 3])
    variance = seeds / 2 + 3 * (difference.var(ddof=1) / 4) / 9  # two models halve the first; data sets alike
    df = variance**2 / ((seeds / 2) ** 2 / 8 + 3 * (difference.var(ddof=1) / 4 / 9) ** 2 / 3)
    found = finding("avg_gain_clip_b", tmp_path)
    assert found.interval.high - found.interval.value == pytest.approx(
        stdtrit(int(df), 0.975) * variance**0.5, rel=1e-4
    )


def test_competitive_is_against_the_mean_of_the_four(tmp_path):
    write_scores(tmp_path, "clip_b", [0.5, 0.5, 0.5])
    for method, level in {"clip_cov": 0.3, "kl_cov": 0.4, "unlikeliness": 0.5, "forking_tokens": 0.6}.items():
        write_scores(tmp_path, method, [level] * 3)
    found = finding("competitive_clip_b", tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(5, abs=1.5))


# Missing and damaged files


def test_a_diverged_seed_is_named_and_allows_no_verdict(tmp_path):
    for seed, level in enumerate([0.29, 0.30, 0.31]):
        write_curve(tmp_path, "grpo", seed, entropy=level)
        write_curve(tmp_path, "clip_b", seed, entropy=level + 0.3)
    assert finding("entropy_held_clip_b_qwen2.5", tmp_path).verdict == "holds"
    write_curve(tmp_path, "grpo", 1, entropy=np.where(np.arange(STEPS) < 17, 0.3, np.nan))
    found = finding("entropy_held_clip_b_qwen2.5", tmp_path)
    assert found.verdict == "inconclusive"
    assert found.reason.startswith("grpo seed 1 diverged: entropy is not finite from step 17 on")
    assert found.seeds == {"clip_b": 3, "grpo": 2}
    Run(MODEL, "grpo", 2).metrics_file(tmp_path).unlink()
    found = finding("entropy_held_clip_b_qwen2.5", tmp_path)
    assert found.reason.startswith(f"runs/{MODEL}/grpo/seed2/metrics.parquet is missing; grpo seed 1 diverged")


def test_a_run_that_ended_early_is_compared_on_shared_steps(tmp_path):
    for seed in range(3):
        write_curve(tmp_path, "grpo", seed, entropy=0.3 + 0.01 * seed)
        late = np.where(np.arange(STEPS) < 20, 0.5, 0.0)
        write_curve(tmp_path, "clip_b", seed, steps=20 if seed else STEPS, entropy=0.5 if seed else late)
    found = finding("entropy_held_clip_b_qwen2.5", tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(0.19))
    assert "compared on the first 20 steps" in found.reason


def test_identical_runs_are_inconclusive(tmp_path):
    for seed in range(3):
        write_curve(tmp_path, "grpo", seed, entropy=0.3)
        write_curve(tmp_path, "clip_b", seed, entropy=0.4)
    found = finding("entropy_held_clip_b_qwen2.5", tmp_path)
    assert no_interval(found)
    assert "do not differ at all" in found.reason


def test_evaluations_on_other_problems_are_inconclusive(tmp_path):
    write_scores(tmp_path, "forking_tokens", [0.2, 0.21, 0.22])
    write_scores(tmp_path, "grpo", [0.4, 0.41, 0.42])
    write_samples(tmp_path, "grpo", 1, "aime25", np.ones((29, 32), bool))
    found = finding("forking_below_grpo", tmp_path)
    assert found.verdict == "inconclusive"
    assert "seed1/aime25.parquet has other problems" in found.reason


def test_damaged_files_make_a_claim_inconclusive(tmp_path):
    for seed in range(3):
        write_curve(tmp_path, "grpo", seed)  # no neg_cov
    assert "has no column 'neg_cov'" in finding("figure5_sign", tmp_path).reason
    path = Run(MODEL, "grpo", 0).metrics_file(tmp_path)
    path.write_text("no")
    assert "not a readable parquet file" in finding("figure5_sign", tmp_path).reason
    Layout(tmp_path).logit_steps.parent.mkdir()
    Layout(tmp_path).logit_steps.write_text("no")
    assert "not a readable parquet file" in finding("theorem1_slope", tmp_path).reason
