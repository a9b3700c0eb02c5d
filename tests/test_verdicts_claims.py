"""Verdicts on single claims, from synthetic runs."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from entropy_dynamics.analysis.claims import load_claims
from entropy_dynamics.analysis.experiments import Run
from entropy_dynamics.analysis.problem_scores import mean_along
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.analysis.statistics import score_interval
from entropy_dynamics.analysis.verdicts import judge
from entropy_dynamics.results.files import write_parquet
from synthetic_results import MODEL, ROOT, SCALE, SEEDS, STEPS

OTHER = "qwen3-4b-base"


def finding(claim_id: str, results: Path, seeds: dict[str, int] = SEEDS):
    (claim,) = [one for one in load_claims(SCALE, seeds, ROOT / "experiments") if one.spec.id == claim_id]
    return judge(claim, Results(results, SCALE, seeds, ROOT / "configs", ROOT / "experiments"))


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


# Verdicts


EXTRAS = {"tables": 3, "extras": 3}


@pytest.mark.parametrize(
    ("entropy", "verdict"), [(0.2, "holds"), (0.4, "does not hold"), (0.3005, "inconclusive"), (0.28, "inconclusive")]
)
def test_directions_of_figure1_by_the_spread_of_both_methods(tmp_path, entropy, verdict):
    first_half = np.arange(STEPS) < STEPS // 2  # does not count
    for seed, level in enumerate([0.29, 0.30, 0.31]):
        write_curve(tmp_path, "grpo", seed, entropy=np.where(first_half, 9.0, level))
        write_curve(tmp_path, "s_star_keep_pos_gt", seed, entropy=np.where(first_half, 5.0, entropy + level - 0.3))
    found = finding("figure1_keep_pos_gt", tmp_path, EXTRAS)
    assert found.verdict == verdict
    assert found.interval.value == pytest.approx(entropy - 0.3)
    assert found.interval.high - found.interval.value == pytest.approx(2.776 * 0.01 * (2 / 3) ** 0.5, rel=1e-3)
    assert found.seeds == {"s_star_keep_pos_gt": 3, "grpo": 3}


def test_an_ablation_that_explodes_has_its_own_spread(tmp_path):
    """GRPO's seeds agree, the ablation's do not: t of the ablation's own two degrees of freedom."""
    for seed in range(3):
        write_curve(tmp_path, "grpo", seed, entropy=0.3 + 1e-4 * seed)
        write_curve(tmp_path, "s_star_keep_neg_gt", seed, entropy=[0.9, 1.5, 1.2][seed])
    found = finding("figure1_keep_neg_gt", tmp_path, EXTRAS)
    assert found.verdict == "holds"
    assert found.interval.high - found.interval.value == pytest.approx(4.303 * 0.3 / 3**0.5, rel=1e-3)


@pytest.mark.parametrize(("single", "seeds"), [("grpo", {"tables": 1, "extras": 3}), ("s_star_keep_pos_gt", SEEDS)])
def test_one_seed_of_a_method_is_inconclusive(tmp_path, single, seeds):
    for seed in range(3):
        write_curve(tmp_path, "grpo", seed, entropy=0.3 + 0.001 * seed)
        write_curve(tmp_path, "s_star_keep_pos_gt", seed, entropy=0.01 + 0.001 * seed)
    found = finding("figure1_keep_pos_gt", tmp_path, seeds)
    assert no_interval(found)
    assert found.interval.value == pytest.approx(-0.29, abs=2e-3)
    assert found.reason == f"one seed of {single}"


@pytest.mark.parametrize(("distance", "needs"), [(0.01, "about 23 seeds"), (0.004, "more than 100 seeds")])
def test_an_inconclusive_claim_says_how_many_seeds_it_needs(tmp_path, distance, needs):
    for seed, level in enumerate([0.29, 0.30, 0.31]):  # standard deviation 0.01; 23: tests/test_statistics.py
        write_curve(tmp_path, "grpo", seed, entropy=level)
        write_curve(tmp_path, "clip_b", seed, entropy=level + distance)
    found = finding("entropy_held_clip_b_qwen2.5", tmp_path)
    assert found.verdict == "inconclusive"
    assert found.reason == f"the interval includes the threshold; needs {needs}"


def test_the_fall_of_the_entropy_by_hand(tmp_path):
    for seed, end in enumerate([0.14, 0.15, 0.16]):
        entropy = np.r_[np.full(4, 0.3), np.full(32, 7.0), np.full(4, end)]  # first and last tenth of 40 steps
        write_curve(tmp_path, "grpo", seed, entropy=entropy)
    found = finding("entropy_falls_qwen2.5", tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(0.5))
    drops = 1 - np.array([0.14, 0.15, 0.16]) / 0.3
    assert found.interval.low == pytest.approx(0.5 - 4.303 * drops.std(ddof=1) / 3**0.5, rel=1e-3)
    one = finding("entropy_falls_qwen2.5", tmp_path, {"tables": 1, "extras": 1, "pilot": 1})
    assert no_interval(one)
    assert "one seed" in one.reason


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


@pytest.mark.parametrize(("size", "verdict"), [(0.8, "holds"), (4.0, "does not hold")])
def test_the_law_of_sampling_by_hand(tmp_path, size, verdict):
    """10,000 tokens with a standard deviation of 0.1: their mean is 0.001 sqrt(2 / pi) = 0.0008 in size."""
    sign = np.tile([1.0, -1.0], STEPS // 2)
    for seed in range(3):
        spread = 0.1 + 0.001 * seed
        mean = size * 0.001 * sign
        write_curve(
            tmp_path, "grpo", seed, s_centered_mean=mean, s_centered_std=spread, s_star_mean=0.08, tokens=10_000
        )
    law, paper = finding("sampling_law", tmp_path), finding("sampling_law_paper", tmp_path)
    expected = np.mean([size / (100 * spread * (2 / np.pi) ** 0.5) / 0.1 for spread in (0.1, 0.101, 0.102)])
    assert (law.verdict, law.interval.value) == (verdict, pytest.approx(expected))
    assert (paper.verdict, paper.interval.value) == ("holds", pytest.approx(0.101 * (2 / np.pi) ** 0.5 / 1000 / 0.08))


def test_the_law_of_sampling_holds_for_uncorrelated_tokens_only(tmp_path):
    """Tokens that come in sixteens of the same value are 16 times fewer."""
    for copies, verdict in ((1, "holds"), (16, "does not hold")):
        for seed in range(3):
            rng = np.random.default_rng(seed)
            tokens = rng.standard_normal((STEPS, 1600 // copies)).repeat(copies, axis=1)
            columns = {"s_centered_mean": tokens.mean(axis=1), "s_centered_std": tokens.std(axis=1)}
            write_curve(tmp_path, "grpo", seed, s_star_mean=0.5, tokens=1600, **columns)
        found = finding("sampling_law", tmp_path)
        assert found.verdict == verdict
        assert found.interval.value == pytest.approx(copies**0.5, rel=0.15)


def test_corollary_2_1_compares_the_sizes_of_two_means(tmp_path):
    measured = np.arange(STEPS) % 2 == 0
    for seed in range(3):
        after = np.where(measured, -0.02 - 0.001 * seed, np.nan)
        weighted = np.where(measured, 0.03 * np.cos(np.pi * np.arange(STEPS) / 2), np.nan)  # a mean of zero
        write_curve(tmp_path, "grpo_off_policy", seed, s_centered_after=after, s_centered_reweighted=weighted)
    found = finding("corollary2_1", tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(-0.021))


def test_which_score_predicts_better(tmp_path):
    """Corollary 4 explains half of the variance, the sum of -A S* a tenth."""
    rng = np.random.default_rng(0)
    for seed in range(3):
        right, other, rest = rng.standard_normal((3, 4000))
        change = right / 2**0.5 + other / 10**0.5 + rest * 0.4**0.5
        kept = {f"lens_{part}_kept": other / 4 for part in ("pos_gt", "pos_lt", "neg_gt", "neg_lt")}
        write_curve(tmp_path, "grpo", seed, steps=4000, entropy_change=change, predicted_entropy_change=right, **kept)
    found = finding("s_centered_over_s_star", tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(0.5**0.5 - 0.1**0.5, abs=0.03))


def test_what_a_method_keeps_of_two_quadrants(tmp_path):
    """Of 0.2 and -0.4 in positive samples the method keeps 0.3 and -0.4: 1.5 against 1."""
    for seed in range(3):
        write_curve(
            tmp_path,
            "unlikeliness",
            seed,
            lens_pos_lt=0.2,
            lens_pos_lt_kept=0.3 + 0.001 * seed,
            lens_pos_gt=-0.4,
            lens_pos_gt_kept=-0.4,
        )
    found = finding("s_star_unlikeliness", tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(0.505))


def test_the_balance_of_what_raises_and_lowers_the_entropy(tmp_path):
    """(0.1 + 0.2) against (0.2 + 0.4) is -1/3; of (0.1 + 0.2) against 0.2 is left 0.2."""
    parts = ("pos_lt", "neg_gt", "pos_gt", "neg_lt")
    for seed in range(3):
        for method, values in (("grpo", (0.1, 0.2, -0.2, -0.4)), ("forking_tokens", (0.1, 0.2, -0.2, 0.0))):
            noise = 1 + 0.01 * seed  # a factor of all is none of the balance
            kept = {f"lens_{part}_kept": noise * value for part, value in zip(parts, values, strict=True)}
            kept["lens_neg_gt_kept"] += 0.001 * seed
            write_curve(tmp_path, method, seed, **kept)
    found = finding("s_star_forking_tokens", tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(0.2 + 1 / 3, abs=2e-3))


def write_sweep(results: Path, entropies: dict[float, float], seeds: int = 3) -> None:
    """Runs of Clip_B at the values of Figure 2; those above 2.5 drop nothing."""
    for mu, entropy in entropies.items():
        for seed in range(seeds):
            dropped = np.where(np.arange(STEPS) == 3, 0.02, 0.0) if mu < 2.5 else 0.0
            write_curve(results, f"clip_b@mu={mu}", seed, entropy=entropy + 0.001 * seed, clip_fraction=dropped)


def test_the_trend_over_all_doses_of_the_sweep(tmp_path):
    [claim] = [one for one in load_claims(SCALE, SEEDS, ROOT / "experiments") if one.spec.id == "mu_entropy_clip_b"]
    assert list(claim.runs) == ["clip_b@mu=1.0", "clip_b@mu=1.5", "clip_b@mu=2.0", "clip_b@mu=3.0"]
    write_sweep(tmp_path, {1.0: 0.5, 1.5: 0.45, 2.0: 0.3, 3.0: 7.0})
    found = finding("mu_entropy_clip_b", tmp_path, EXTRAS)
    slope = np.polyfit(np.log([1.0, 1.5, 2.0]), [0.5, 0.45, 0.3], 1)[0]  # without the last, which is the baseline
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(slope))
    assert "without clip_b@mu=3.0, which drops no token" in found.reason
    write_sweep(tmp_path, {1.0: 0.1, 1.5: 0.2, 2.0: 0.3, 3.0: 7.0})
    assert finding("mu_entropy_clip_b", tmp_path, EXTRAS).verdict == "does not hold"
    for seed in range(3):
        write_curve(tmp_path, "clip_b@mu=2.0", seed, clip_fraction=0.0)
    found = finding("mu_entropy_clip_b", tmp_path, EXTRAS)
    assert no_interval(found)
    assert found.reason.startswith("2 values that drop tokens make no trend")


@pytest.mark.parametrize(("factor", "verdict"), [(1.02, "holds"), (1.3, "does not hold"), (1.09, "inconclusive")])
def test_the_cost_of_a_step_is_a_ratio(tmp_path, factor, verdict):
    phases = {f"seconds_{phase}": 0.1 for phase in ("push", "sample", "grade", "score", "update")}
    for seed in range(3):
        slow = 1 + 0.02 * seed
        write_curve(tmp_path, "grpo", seed, **{name: slow * value for name, value in phases.items()})
        kept = {name: value * factor * slow * (1 + 0.01 * (seed - 1)) for name, value in phases.items()}
        write_curve(tmp_path, "clip_b", seed, seconds_measure=9.0, **kept)
    found = finding("cost_clip_b", tmp_path)
    assert (found.verdict, found.interval.value) == (verdict, pytest.approx(np.log(factor), abs=1e-3))


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
    one = finding("avg_gain_clip_b", tmp_path, {"tables": 1, "extras": 1, "pilot": 1})
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
    assert finding("figure4_solved", tmp_path).interval.value == pytest.approx(-75)
    assert finding("aime_over_dapo_clip_b", tmp_path).interval.value == pytest.approx(0, abs=1e-9)
    # Both models have the same scores: that much for each, in points, the data sets averaged.
    clip = 100 * np.array([[0.5] * 4, [0.5] * 4, [0.5, 0.5, 0.5, 0.0]])
    grpo = 100 * np.tile([1.0, 1.0, 1.0, 0.0], (3, 1))
    groups = [[sign * scores / 2 / 3] * 3 for scores, sign in ((clip, 1), (grpo, -1)) for _ in range(2)]
    found, expected = finding("avg_gain_clip_b", tmp_path).interval, score_interval(groups)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_gains_on_some_data_sets_minus_those_on_another(tmp_path):
    """Clip_B gains half of AIME25's samples on one of two models, and loses all of DAPO500's on both."""
    always, half, never = np.ones((4, 2), bool), np.tile([True, False], (4, 1)), np.zeros((4, 2), bool)
    for seed, model in ((seed, model) for seed in range(3) for model in (MODEL, OTHER)):
        for dataset in ("aime24", "aime25", "dapo500"):
            write_samples(tmp_path, "grpo", seed, dataset, half, model)
        write_samples(tmp_path, "clip_b", seed, "aime24", half, model)
        write_samples(tmp_path, "clip_b", seed, "aime25", always if model == MODEL else half, model)
        write_samples(tmp_path, "clip_b", seed, "dapo500", never, model)
    found = finding("aime_over_dapo_clip_b", tmp_path)
    assert found.interval.value == pytest.approx(100 * (0.5 / 2 / 2 + 0.5))
    everywhere = finding("pass_over_avg_everywhere_clip_b", tmp_path)  # pass - avg: 50 before, 0 where all is solved
    assert everywhere.interval.value == pytest.approx(-50)
    assert "the estimates of 0 of 6 are as claimed" in everywhere.reason


@pytest.mark.parametrize(("exceptions", "verdict"), [(0, "holds"), (1, "does not hold")])
def test_everywhere_is_decided_by_the_worst_data_set(tmp_path, exceptions, verdict):
    """Clip_B solves every problem now and then, GRPO a third of them often; on one data set the other way round."""
    for seed, model in ((seed, model) for seed in range(3) for model in (MODEL, OTHER)):
        rng = np.random.default_rng([seed, len(model)])
        for dataset in ("aime24", "aime25", "dapo500"):
            often, now_and_then = (np.where(rng.random((90, 1)) < 1 / 3, 0.9, 0.02), np.full((90, 1), 0.1))
            shares = [now_and_then, often]
            if exceptions and (model, dataset) == (OTHER, "aime25"):
                shares.reverse()
            for method, share in zip(("clip_b", "grpo"), shares, strict=True):
                write_samples(tmp_path, method, seed, dataset, rng.random((90, 32)) < share, model)
    found = finding("pass_over_avg_everywhere_clip_b", tmp_path)
    assert found.verdict == verdict
    assert f"the estimates of {6 - exceptions} of 6 are as claimed" in found.reason


def test_all_k_and_thirds_of_difficulty(tmp_path):
    """A claim with other keys: Clip_B solves the hard third, GRPO the easy one, as often per sample elsewhere."""
    text = (ROOT / "experiments" / "claims.yaml").read_text()
    entry = text[text.index("  - id: figure4_solved") : text.index("  # On the way")]
    base = np.repeat([[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]], 2, axis=0).astype(bool)
    mixed = np.array([[1, 0, 0, 0]] * 6, bool)
    hard, easy = mixed.copy(), mixed.copy()
    hard[:2], easy[4:] = 1, 1
    order = np.array([4, 0, 2, 1, 5, 3])  # hard and easy problems in between one another
    write_samples(tmp_path, "base", 0, "dapo500", base[order])
    for seed in range(3):
        write_samples(tmp_path, "clip_b", seed, "dapo500", hard[order])
        write_samples(tmp_path, "grpo", seed, "dapo500", easy[order])

    def effect(metric: str, problems: str) -> float:
        claims = tmp_path / "experiments" / "claims.yaml"
        claims.parent.mkdir(exist_ok=True)
        changed = entry.replace("metric: all_correct", f"metric: {metric}\n    problems: {problems}")
        claims.write_text(text[: text.index("claims:\n")] + "claims:\n" + changed + text[text.index("\npaper:\n") :])
        (claim,) = load_claims(SCALE, SEEDS, claims.parent)
        return judge(claim, Results(tmp_path, SCALE, SEEDS, ROOT / "configs", claims.parent)).interval.value

    assert effect("avg", "all") == pytest.approx(0)
    assert effect("avg", "hard") == pytest.approx(75)
    assert effect("avg", "easy") == pytest.approx(-75)
    assert effect("all_correct", "easy") == pytest.approx(-100)
    # Pass@k of one correct sample of four is k / 4; over log k by the trapezoidal rule.
    log, rest = np.log([1, 2, 3, 4]), 1 - np.array([0.25, 0.5, 0.75, 1])
    area = ((rest[1:] + rest[:-1]) / 2 * np.diff(log)).sum() / log[-1]
    assert effect("pass_area", "hard") == pytest.approx(100 * area)


def test_competitive_is_against_the_mean_of_the_four(tmp_path):
    write_scores(tmp_path, "clip_b", [0.5, 0.5, 0.5])
    for method, level in {"clip_cov": 0.3, "kl_cov": 0.4, "unlikeliness": 0.5, "forking_tokens": 0.6}.items():
        write_scores(tmp_path, method, [level] * 3)
    found = finding("competitive_clip_b", tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(5, abs=1.5))


def test_scores_along_training():
    """Two problems at steps 0, 50 and 200, by hand."""
    scores = np.array([[0.0, 0.0], [1.0, 0.5], [1.0, 1.0]])
    assert mean_along(scores, np.array([0, 50, 200])) == pytest.approx([0.875, 0.625])


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
    write_scores(tmp_path, "ppo_clip_b", [0.4, 0.41, 0.42])
    write_scores(tmp_path, "ppo", [0.2, 0.21, 0.22])
    assert finding("ppo_gain_clip_b", tmp_path).verdict == "holds"
    write_samples(tmp_path, "ppo", 1, "aime25", np.ones((29, 32), bool))
    found = finding("ppo_gain_clip_b", tmp_path)
    assert found.verdict == "inconclusive"
    assert "seed1/aime25.parquet has other problems" in found.reason


def test_damaged_files_make_a_claim_inconclusive(tmp_path):
    for seed in range(3):
        write_curve(tmp_path, "grpo", seed)  # no neg_cov
    assert "has no column 'neg_cov'" in finding("figure5_sign", tmp_path).reason
    path = Run(MODEL, "grpo", 0).metrics_file(tmp_path)
    path.write_text("no")
    assert "metrics.parquet is damaged (" in finding("figure5_sign", tmp_path).reason
