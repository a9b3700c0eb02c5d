"""Histograms of problems: after training (Figure 4), and of the training set before and after filtering."""

import pandas as pd
from matplotlib.figure import Figure

from entropy_dynamics.analysis.distributions import filter_frame, solved_frame
from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.specs import DataFilter, DistributionSpec
from entropy_dynamics.reporting.style import BARS, WIDTH, add_footer, intervals, pretty, what_ran


def draw_distribution(experiment: Experiment[DistributionSpec], results: Results) -> tuple[Figure, pd.DataFrame]:
    """Bars per method: the share of problems with 0, 1, ... K correct samples."""
    frame = solved_frame(experiment, results)
    (dataset,), methods = experiment.evaluations, list(frame["method"].unique())
    k, problems = (int(frame[name].max()) for name in ("samples", "problems"))
    figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
    ax = figure.subplots()
    for place, method in enumerate(methods):
        bars, width = frame[frame["method"] == method], 0.8 / len(methods)
        x, height = bars["correct"] + width * (place - (len(methods) - 1) / 2), bars["share"]
        ax.bar(x, height, width, label=pretty(results.method_label(method)), **BARS[place % len(BARS)])
        ends = [height - bars["low"], bars["high"] - height]
        ax.errorbar(x, height, ends, fmt="none", ecolor="black", elinewidth=0.6, capsize=1.2)
    ax.set_xticks(range(0, k + 1, max(1, k // 8)))
    ax.set_xlabel(f"correct samples of {k}")
    ax.set_ylabel(f"problems of {results.dataset_label(dataset)} (%)")
    ax.grid(axis="x", visible=False)
    ax.set_ylim(bottom=0)
    figure.legend(loc="outside upper center", ncols=len(methods))
    note = f"{problems} problems; whiskers: {intervals(experiment)}"
    add_footer(figure, [*what_ran(experiment, results), note])
    return figure, frame


def draw_data_filter(experiment: Experiment[DataFilter], results: Results) -> tuple[Figure, pd.DataFrame]:
    """The training problems by the base model's pass rate; dropped ones are hatched."""
    frame = filter_frame(experiment, results)
    correct, kept, dropped, samples = frame["correct"], frame["kept"], frame["dropped"], int(frame["samples"].max())
    figure = Figure(figsize=(WIDTH, 2.1), layout="constrained")
    ax = figure.subplots()
    ax.bar(correct, kept, 0.8, label=f"kept ({kept.sum()})", **BARS[0])
    some = dropped > 0  # an empty bar would still draw its edge
    ax.bar(correct[some], dropped[some], 0.8, kept[some], label=f"dropped ({dropped.sum()})", **BARS[1])
    ax.set_xticks(range(0, samples + 1, max(1, samples // 8)))
    ax.set_xlabel(f"correct samples of {samples}")
    ax.set_ylabel("training problems")
    ax.grid(axis="x", visible=False)
    figure.legend(loc="outside upper center", ncols=2)
    seed = int(frame["seed"][0])
    rates, bounds = results.pass_rates(seed)["rate"], results.config.pass_rates
    reasons = {"a prompt that is too long": rates.isna()}
    reasons |= {} if bounds.low is None else {f"rate ≤ {bounds.low:g}": rates <= bounds.low}
    reasons |= {} if bounds.high is None else {f"rate ≥ {bounds.high:g}": rates >= bounds.high}
    dropped_for = "; ".join(f"dropped for {reason}: {rows.sum()}" for reason, rows in reasons.items() if rows.any())
    add_footer(
        figure, [f"{results.scale} scale: {frame['model_that_ran'][0]}, before training, seed {seed}", dropped_for]
    )
    return figure, frame
