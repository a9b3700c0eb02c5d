"""Tables, figures and the report: drawing and templates, no statistics."""

from pathlib import Path

from entropy_dynamics.analysis.experiments import EXPERIMENTS, ScoresSpec, Seeds, load_experiment
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.config import CONFIGS


def render(
    name: str,
    results: Path,
    scale: str,
    seeds: Seeds,
    configs: Path = CONFIGS,
    experiments: Path = EXPERIMENTS,
) -> list[Path]:
    """Write the files of one table (csv, md, tex) or figure (png, svg, csv) and return their paths.

    Args:
        results: results/<scale>.
        seeds: the `seeds` section of the scale's config.

    Raises:
        UserError: an unknown name, or a file of a run that is missing or damaged; then nothing is written.
    """
    experiment = load_experiment(name, scale, seeds, experiments, configs)
    if isinstance(experiment.spec, ScoresSpec):  # tables do not wait for the import of matplotlib
        from entropy_dynamics.reporting.tables import write_table as write
    else:
        from entropy_dynamics.reporting.figures import write_figure as write
    return write(experiment, Results(results, scale, configs, experiments))
