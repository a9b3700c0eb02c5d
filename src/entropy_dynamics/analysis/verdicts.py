"""The verdicts on claims, by their curves and scores, and their correction for several primary outcomes."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.stats import binomtest

from entropy_dynamics.analysis.curve_claims import find_in_curves
from entropy_dynamics.analysis.finding import Finding
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.score_claims import find_in_scores
from entropy_dynamics.analysis.statistics import LEVEL, MIN_SEEDS, holm
from entropy_dynamics.experiments.claim_specs import CurveClaim, ScoreDifference
from entropy_dynamics.experiments.claims import Claim


def judge(claim: Claim, results: Results) -> Finding:
    """Judge a claim by the files of one scale; a missing file makes the verdict inconclusive."""
    finding, spec = Finding(), claim.spec
    if isinstance(spec, CurveClaim):
        find_in_curves(claim, spec, results, finding)
    elif isinstance(spec, ScoreDifference):
        find_in_scores(claim, spec, results, finding)
    finding.usable = finding.usable and results.original(finding.usable)
    if finding.seeds is not None and 0 < finding.seeds < MIN_SEEDS:
        finding.obstacles.append(f"{finding.seeds} seed{'s' * (finding.seeds > 1)}; a verdict needs {MIN_SEEDS}")
    return finding.decide(*spec.bounds, spec.smallest)


def correct_primary(claims: Sequence[Claim], findings: Sequence[Finding]) -> None:
    """Holm's correction over two-sided sign tests of the primary claims: seeds above against seeds below the threshold.

    A verdict stays only if the corrected p is below 0.05. A primary claim that has no verdict yet counts, with p = 1.
    """
    primary = [finding for claim, finding in zip(claims, findings, strict=True) if claim.spec.primary]
    p = []
    for finding in primary:
        low, high = finding.claimed
        differences = np.array([*finding.by_seed]) - (low if math.isfinite(low) else high)
        differences = differences[differences != 0]
        judged = finding.verdict != "inconclusive" and len(differences)
        p.append(binomtest(int((differences > 0).sum()), len(differences)).pvalue if judged else 1.0)
    for corrected, finding in zip(holm(np.array(p)), primary, strict=True):
        if finding.verdict != "inconclusive":
            finding.reason += f"; p = {corrected:.2g} after Holm's correction over {len(primary)} primary outcomes"
            if corrected >= 1 - LEVEL:
                finding.verdict = "inconclusive"
