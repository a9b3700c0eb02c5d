"""Missing and damaged files, and the correction of primary outcomes."""

import numpy as np
import pytest

from entropy_dynamics.analysis.finding import Finding
from entropy_dynamics.analysis.statistics import Interval
from entropy_dynamics.analysis.verdicts import correct_primary
from entropy_dynamics.experiments.claims import load_claims
from entropy_dynamics.experiments.load import Run
from single_claims import AVG, ENTROPY, GRPO, finding, write_curve, write_samples, write_scores
from synthetic_results import MODEL, ROOT, STEPS

SEED = np.arange(6)[:, None]


def test_without_any_run_there_is_no_verdict(tmp_path):
    assert finding(ENTROPY, tmp_path).reason.endswith("and 9 more files are missing")


def test_a_diverged_seed_is_named_and_allows_no_verdict(tmp_path):
    six = {"tables": 6, "extras": 1, "pilot": 1}
    write_curve(tmp_path, "grpo", *range(6), entropy=0.3 + 0.01 * SEED)
    write_curve(tmp_path, "clip_b", *range(6), entropy=0.6 + 0.02 * SEED)
    assert finding(ENTROPY, tmp_path, six).verdict == "holds"
    write_curve(tmp_path, "grpo", 1, entropy=np.where(np.arange(STEPS) < 17, 0.3, np.nan))
    found = finding(ENTROPY, tmp_path, six)
    assert (found.verdict, found.seeds) == ("inconclusive", 5)
    assert found.reason.startswith("grpo seed 1 diverged: entropy is not finite from step 17 on")
    Run(MODEL, "grpo", 2).metrics_file(tmp_path).unlink()
    found = finding(ENTROPY, tmp_path, six)
    assert found.reason.startswith(f"runs/{MODEL}/grpo/seed2/metrics.parquet is missing; grpo seed 1 diverged")


def test_a_run_that_ended_early_is_compared_on_shared_steps(tmp_path):
    write_curve(tmp_path, "grpo", entropy=0.3 + 0.01 * SEED[:5])
    write_curve(tmp_path, "clip_b", steps=20, entropy=0.5)
    write_curve(tmp_path, "clip_b", 0, entropy=np.where(np.arange(STEPS) < 20, 0.5, 0.0))
    found = finding(ENTROPY | {"window": "last_tenth"}, tmp_path)
    assert (found.verdict, found.interval.value) == ("holds", pytest.approx(0.18))
    assert "compared on the first 20 steps" in found.reason


def test_evaluations_on_other_problems_are_inconclusive(tmp_path):
    write_scores(tmp_path, "clip_b", [0.2] * 5)
    write_scores(tmp_path, "grpo", [0.4] * 5)
    write_samples(tmp_path, "grpo", 1, "aime25", np.ones((29, 32), bool))
    found = finding(AVG | {"models": [MODEL]}, tmp_path)
    assert found.verdict == "inconclusive"
    assert "seed1/aime25.parquet has other problems" in found.reason


def test_damaged_files_make_a_claim_inconclusive(tmp_path):
    claim = GRPO | {"statistic": "mean", "columns": ["neg_cov"], "below": 0}
    write_curve(tmp_path, "grpo")  # no neg_cov
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
