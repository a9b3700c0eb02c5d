"""Columns derived from those of metrics.parquet."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # Snakemake imports this module at its start
    import pandas as pd

PAPER_TOKENS = 1_000_000  # per step: 64 prompts with 16 responses each (Appendix B), of about 1,000 tokens
PARTS = ("lens_pos_gt", "lens_pos_lt", "lens_neg_gt", "lens_neg_lt")  # the quadrants of sign(A) and sign(S*)
KEPT = [f"{part}_kept" for part in PARTS]


def _noise(frame: pd.DataFrame, tokens: pd.Series | int) -> pd.Series:
    """E|mean S_c| / mean S* if the mean of S_c is normal with the standard error of that many uncorrelated tokens.

    Strictly on-policy, the conditional mean of S_c is 0 (Corollary 1), so the tokens of a response are uncorrelated.
    """
    return math.sqrt(2 / math.pi) * frame["s_centered_std"] / tokens**0.5 / frame["s_star_mean"]


DERIVED: dict[str, tuple[list[str], Callable[[pd.DataFrame], pd.Series]]] = {
    "s_centered_ratio": (
        ["s_centered_mean", "s_star_mean"],
        lambda frame: frame["s_centered_mean"].abs() / frame["s_star_mean"],
    ),
    "s_centered_noise": (["s_centered_std", "s_star_mean", "tokens"], lambda frame: _noise(frame, frame["tokens"])),
    "s_centered_noise_paper": (["s_centered_std", "s_star_mean"], lambda frame: _noise(frame, PAPER_TOKENS)),
    "s_star_push": (KEPT, lambda frame: frame[KEPT].sum(axis=1)),
    "push_balance": (KEPT, lambda frame: frame[KEPT].sum(axis=1) / frame[KEPT].abs().sum(axis=1)),
    "exp_entropy": (["entropy"], lambda frame: np.exp(frame["entropy"])),
}
"""Name -> (input columns, function of them).

`s_centered_ratio` is |mean S_c| / mean S* of a batch, `s_centered_noise` its expectation from sampling alone, and
`s_centered_noise_paper` that for a batch of the paper's size. `s_star_push` is the mean of -A S* with the effective
advantages of the lens, i.e. the entropy change that S* predicts. `push_balance` is the push that raises the entropy
minus the push that lowers it, divided by their sum, and is independent of the step size. `exp_entropy` is exp(H).
"""

METRICS = {
    *("accuracy", "clip_fraction", "clip_fraction_neg", "engine_logp_difference", "entropy", "entropy_change"),
    *("entropy_change_adam_no_momentum", "entropy_change_first_order", "entropy_change_sgd", "grad_norm"),
    *PARTS,
    *KEPT,
    *("neg_cov", "neg_cov_negative", "neg_cov_positive", "predicted_entropy_change", "response_length", "reward_mean"),
    *("s_centered_after", "s_centered_mean", "s_centered_positive_top", "s_centered_reweighted", "s_centered_std"),
    *("s_star_mean", "s_star_std", "sampled_entropy", "step", "tokens", "truncated", "zero_variance_groups"),
    *("validation_accuracy", "validation_pass", "value_explained_variance", "value_loss"),
    *("seconds_grade", "seconds_measure", "seconds_push", "seconds_sample", "seconds_score", "seconds_training"),
    *("seconds_update", "seconds_validate"),
}
"""Columns that the trainer writes. A method may have more of its own."""
