"""Tables and figures from the files that runs write. No torch, and nothing heavy until something is drawn."""

from pathlib import Path
from typing import Any

from entropy_dynamics.analysis.experiments import EXPERIMENTS, load_experiment
from entropy_dynamics.config import CONFIGS


def render(
    name: str,
    results: Path,
    scale: str,
    seeds: Any,
    configs: Path = CONFIGS,
    experiments: Path = EXPERIMENTS,
) -> list[Path]:
    """Write the files of one table or figure (table1, figure1, pass_rates, ...) and return their paths.

    `results` is results/<scale>, `seeds` the `seeds` section of the scale's config, `configs` and `experiments` are the
    folders of those names. Tables go to tables/ as csv, md, tex and html, figures to figures/ as png, svg and csv.
    Nothing is written until all of it is drawn.

    Raises:
        UserError: an unknown name, or a file of a run that is missing or not as it should be.
    """
    results, configs, experiments = Path(results), Path(configs), Path(experiments)
    experiment = load_experiment(name, scale, seeds, experiments)
    if experiment.kind == "scores":
        from entropy_dynamics.reporting.tables import write_table as write
    else:
        from entropy_dynamics.reporting.figures import write_figure as write
    return write(experiment, results, scale, configs, experiments)
