"""Tables, verdicts and the page of a scale: templates, no statistics."""

from pathlib import Path

from entropy_dynamics.analysis.run_data import Results


def render(name: str, results: Results) -> list[Path]:
    """Write the files of a table (csv, md, tex) or figure (png, svg, pdf, csv) and return their paths.

    Seeds that lack runs are left out. Raises UserError, and writes nothing, if the name is unknown, no seed is
    complete, or a file of a run is damaged.
    """
    experiment = results.experiment(name).so_far(results.root)
    if experiment.spec.is_table:  # tables do not wait for the import of matplotlib
        from entropy_dynamics.report.tables import write_table as write
    else:
        from entropy_dynamics.figures.draw import write_figure as write
    return write(experiment, results)
