"""Columns derived from those of metrics.parquet."""

import math
from collections.abc import Callable

import numpy as np
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
