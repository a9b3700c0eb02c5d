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
from entropy_dynamics.results.layout import Layout
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


def test_collapse_by_hand(tmp_path):
    for seed, end in enumerate([0.14, 0.15, 0.16]):
        entropy = np.r_[np.full(4, 0.3), np.full(32, 7.0), np.full(4, end)]  # first and last tenth of 40 steps
        write_curve(tmp_path, "grpo", seed, entropy=entropy)
    found = finding("entropy_collapse_qwen2.5", tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(0.5))
    drops = 1 - np.array([0.14, 0.15, 0.16]) / 0.3
    assert found.interval.low == pytest.approx(0.5 - 4.303 * drops.std(ddof=1) / 3**0.5, rel=1e-3)
    one = finding("entropy_collapse_qwen2.5", tmp_path, {"tables": 1, "extras": 1, "pilot": 1})
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


def test_signs_agree_beyond_chance(tmp_path):
    """Signs agree at 3 of 4 steps; unrelated ones with these shares of falls, 3/4 and 1/2, would at half of them."""
    predicted, realized = np.tile([-1e-4, -1e-4, -1e-4, 1e-4], 10), np.tile([-2e-4, -2e-4, 3e-4, 3e-4], 10)
    for seed in range(3):
        changes = {"predicted_entropy_change": predicted, "entropy_change": np.roll(realized, 4 * seed) * (1 + seed)}
        write_curve(tmp_path, "grpo", seed, **changes)
    assert finding("corollary4_sign", tmp_path).interval.value == pytest.approx(3 / 4 - 1 / 2)
    mean = finding("corollary4_mean", tmp_path).interval.value
    assert mean == pytest.approx(np.mean([0.5e-4 * factor / -0.5e-4 for factor in (1, 2, 3)]))


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
    for seed in range(3):
        write_curve(tmp_path, smallest, seed, clip_fraction=0.03 + 0.001 * seed)
        write_curve(tmp_path, largest, seed, clip_fraction=0.01 + 0.001 * seed)
    found = finding("mu_clip_b", tmp_path, EXTRAS)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(-0.02))


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
    both = finding("pass_over_avg_clip_b", tmp_path)
    assert both.interval.value == pytest.approx(100 * (pass_clip - avg_clip - 0.0), abs=1e-3)
    assert finding("figure4_middle", tmp_path).interval.value == pytest.approx(100 * (0.25 / 3 - 1), abs=1e-3)
    # Both models have the same scores: that much for each, in points, the data sets averaged.
    clip = 100 * np.array([[0.5] * 4, [0.5] * 4, [0.5, 0.5, 0.5, 0.0]])
    grpo = 100 * np.tile([1.0, 1.0, 1.0, 0.0], (3, 1))
    groups = [[sign * scores / 2 / 3] * 3 for scores, sign in ((clip, 1), (grpo, -1)) for _ in range(2)]
    assert finding("avg_gain_clip_b", tmp_path).interval == score_interval(groups)


def test_all_k_and_thirds_of_difficulty(tmp_path):
    """A claim with other keys: Clip_B solves the hard third, GRPO the easy one, as often per sample elsewhere."""
    text = (ROOT / "experiments" / "claims.yaml").read_text()
    entry = text[text.index("  - id: figure4_middle") : text.index("  # On the way")]
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
        changed = entry.replace("metric: extremes", f"metric: {metric}\n    problems: {problems}")
        claims.write_text(text[: text.index("claims:\n")] + "claims:\n" + changed + text[text.index("\npaper:\n") :])
        (claim,) = load_claims(SCALE, SEEDS, claims.parent)
        return judge(claim, Results(tmp_path, SCALE, SEEDS, ROOT / "configs", claims.parent)).interval.value

    assert effect("avg", "all") == pytest.approx(0)
    assert effect("avg", "hard") == pytest.approx(75)
    assert effect("avg", "easy") == pytest.approx(-75)
    assert effect("avg", "hard_minus_easy") == pytest.approx(150)
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
    assert "metrics.parquet is damaged (" in finding("figure5_sign", tmp_path).reason
    Layout(tmp_path).logit_steps.parent.mkdir()
    Layout(tmp_path).logit_steps.write_text("no")
    assert "logit_steps.parquet is damaged (" in finding("theorem1_slope", tmp_path).reason
