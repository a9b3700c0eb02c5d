"""Claims about scores, by hand."""

from itertools import product

import numpy as np
import pytest

from entropy_dynamics.analysis.statistics import score_interval
from entropy_dynamics.experiments.load import Run
from single_claims import AVG, OTHER, THREE, finding, no_interval, write_samples, write_scores
from synthetic_results import DATASETS, MODEL


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


def test_metrics_of_scores_by_hand(tmp_path):
    """GRPO solves 3 of 4 problems always, 1 never; Clip_B half of each, but one seed nothing of the last."""
    half, never = [1, 0], [0, 0]
    for seed, dataset, model in product(range(3), DATASETS, (MODEL, OTHER)):
        clip_b = [half] * 3 + [never if seed == 2 else half]
        for method, rows in (("grpo", [[1, 1]] * 3 + [never]), ("clip_b", clip_b)):
            write_samples(tmp_path, method, seed, dataset, np.array(rows, bool), model)
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
    counts = {"base": [1, 1, 2, 2, 3, 3], "clip_b": [4, 4, 1, 1, 1, 1], "grpo": [1, 1, 1, 1, 4, 4]}
    order = np.array([4, 0, 2, 1, 5, 3])  # hard and easy problems in between one another
    for (method, correct), seed in product(counts.items(), range(3)):
        samples = np.arange(4) < np.array(correct)[order, None]
        write_samples(tmp_path, method, seed, "dapo500", samples)

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
