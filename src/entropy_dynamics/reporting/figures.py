"""Figures, each as png, svg and a csv of the numbers in it. Matplotlib without pyplot: no global state."""

from collections.abc import Callable
from pathlib import Path

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from entropy_dynamics.analysis.experiments import (
    CurvesSpec,
    DataFilter,
    DifficultySpec,
    DistributionSpec,
    Experiment,
    GainsSpec,
    LensSpec,
    MatchedSpec,
    PassSpec,
    Spec,
    StrengthSpec,
    TheorySpec,
)
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.reporting.curves import draw_curves
from entropy_dynamics.reporting.difficulty import draw_difficulty
from entropy_dynamics.reporting.gains import draw_gains
from entropy_dynamics.reporting.histograms import draw_data_filter, draw_distribution
from entropy_dynamics.reporting.lens import draw_lens
from entropy_dynamics.reporting.matched import draw_matched
from entropy_dynamics.reporting.pass_at_k import draw_pass_curves
from entropy_dynamics.reporting.strength import draw_strength
from entropy_dynamics.reporting.style import RC, save
from entropy_dynamics.reporting.theory import draw_theory
from entropy_dynamics.results.files import write_text

DRAW: dict[type[Spec], Callable[..., tuple[Figure, pd.DataFrame]]] = {
    CurvesSpec: draw_curves,
    GainsSpec: draw_gains,
    PassSpec: draw_pass_curves,
    DifficultySpec: draw_difficulty,
    DistributionSpec: draw_distribution,
    DataFilter: draw_data_filter,
    TheorySpec: draw_theory,
    LensSpec: draw_lens,
    StrengthSpec: draw_strength,
    MatchedSpec: draw_matched,
}


def write_figure(experiment: Experiment[Spec], results: Results) -> list[Path]:
    """Write figures/<name>.png, .svg and .csv."""
    png, svg, csv = (results.layout.figure(experiment.name, suffix) for suffix in ("png", "svg", "csv"))
    with matplotlib.rc_context(RC):
        figure, frame = DRAW[type(experiment.spec)](experiment, results)
        save(figure, experiment.spec.title, png, svg)
    write_text(csv, frame.to_csv(index=False, float_format="%.6g"))
    return [png, svg, csv]
