"""Holm's correction over the primary outcomes of all studies of one series, as their protocols say."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from entropy_dynamics.analysis.statistics import holm
from tables import length, long, rates, words

# Those that have run.
STUDIES: dict[str, Callable[[], Mapping[Any, float]]] = {
    "rates": rates.p_values,
    "long": long.p_values,
    "length": length.p_values,
    "words": words.p_values,
}


def corrected_p(study: str) -> tuple[dict[Any, float], int]:
    """The p values of a study after the correction, by outcome, and over how many values of the series it is."""
    raw = {(name, outcome): p for name, p_values in STUDIES.items() for outcome, p in p_values().items()}
    adjusted = holm(np.array([*raw.values()]))
    of_study = {outcome: float(p) for (name, outcome), p in zip(raw, adjusted, strict=True) if name == study}
    return of_study, int(np.isfinite(adjusted).sum())
