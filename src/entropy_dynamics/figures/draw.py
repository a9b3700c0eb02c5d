"""Figures, each as png, svg, pdf and a csv of its numbers; matplotlib without pyplot, i.e. without global state."""

from collections.abc import Callable
from pathlib import Path

import matplotlib

from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import Spec
from entropy_dynamics.figures.curves import draw_curves
from entropy_dynamics.figures.distributions import draw_data_filter, draw_distribution, draw_pass_curves
from entropy_dynamics.figures.envelope import draw_left
from entropy_dynamics.figures.gains import draw_difficulty, draw_gains
from entropy_dynamics.figures.ladder import draw_ladder
from entropy_dynamics.figures.lens import draw_lens
from entropy_dynamics.figures.style import STYLE, Drawn, add_footer, save
from entropy_dynamics.figures.sweeps import draw_frontier, draw_matched, draw_strength
from entropy_dynamics.figures.theory import draw_links, draw_theory
from entropy_dynamics.results.files import write_text

DRAW: dict[str, Callable[..., Drawn]] = {  # by kind
    "curves": draw_curves,
    "gains": draw_gains,
    "pass_at_k": draw_pass_curves,
    "frontier": draw_frontier,
    "left": draw_left,
    "ladder": draw_ladder,
    "difficulty": draw_difficulty,
    "pass_rate_distribution": draw_distribution,
    "data_filter": draw_data_filter,
    "theory": draw_theory,
    "links": draw_links,
    "lens": draw_lens,
    "strength": draw_strength,
    "matched": draw_matched,
}


def write_figure(experiment: Experiment[Spec], results: Results) -> list[Path]:
    """Write figures/<name>.png, .svg, .csv and .pdf."""
    png, svg, csv, pdf = (results.layout.figure(experiment.name, suffix) for suffix in ("png", "svg", "csv", "pdf"))
    with matplotlib.rc_context(fname=STYLE):
        figure, frame, notes = DRAW[experiment.spec.kind](experiment, results)
        add_footer(figure, notes)
        save(figure, experiment.spec.title, png, svg, pdf)
    write_text(csv, frame.to_csv(index=False, float_format="%.6g"))
    return [png, svg, csv, pdf]
