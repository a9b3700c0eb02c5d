"""Figures, each as png, svg and a csv of the numbers it draws. Matplotlib without pyplot: nothing global is held."""

from pathlib import Path

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from entropy_dynamics.analysis.experiments import Experiment
from entropy_dynamics.analysis.results import Results
from entropy_dynamics.analysis.statistics import LEVEL, bootstrap_interval
from entropy_dynamics.reporting.curves import draw_curves
from entropy_dynamics.reporting.lens import draw_lens
from entropy_dynamics.reporting.style import BARS, DPI, RC, WIDTH, add_footer, pretty
from entropy_dynamics.reporting.theory import draw_theory
from entropy_dynamics.results.files import write_text, written_whole


def write_figure(experiment: Experiment, results: Path, scale: str, configs: Path, experiments: Path) -> list[Path]:
    """Write figures/<name>.png, .svg and .csv."""
    source = Results(results, scale, configs, experiments)
    draw = {
        "curves": draw_curves,
        "pass_rate_distribution": draw_pass_rates,
        "data_filter": draw_data_filter,
        "theory": draw_theory,
        "lens": draw_lens,
    }
    png, svg, csv = (results / "figures" / f"{experiment.name}.{ending}" for ending in ("png", "svg", "csv"))
    with matplotlib.rc_context(RC):
        figure, frame = draw[experiment.kind](experiment, source)
        with written_whole(png) as whole_png, written_whole(svg) as whole_svg:
            # No dates and versions inside: the same numbers give the same bytes.
            figure.savefig(whole_png, format="png", dpi=DPI, metadata={"Title": experiment.title, "Software": None})
            figure.savefig(whole_svg, format="svg", metadata={"Title": experiment.title, "Date": None})
    write_text(csv, frame.to_csv(index=False, float_format="%.6g"))
    return [png, svg, csv]


def draw_pass_rates(experiment: Experiment, source: Results) -> tuple[Figure, pd.DataFrame]:
    """For each method, the share of problems that 0, 1, ... K of the K samples solved, with bootstrap intervals."""
    (model,), (dataset,) = experiment.models, experiment.evaluations
    samples = source.paired_samples(experiment, model, dataset)
    figure = Figure(figsize=(WIDTH, 2.3), layout="constrained")
    ax = figure.subplots()
    records = []
    for place, (method, seeds) in enumerate(samples.items()):
        k = seeds[0].k
        solved = np.stack([s.right for s in seeds])  # [seeds, problems]
        shares = [bootstrap_interval(solved == correct) for correct in range(k + 1)]
        height, low, high = (100 * np.array([getattr(s, end) for s in shares]) for end in ("value", "low", "high"))
        width = 0.8 / len(samples)
        x = np.arange(k + 1) + width * (place - (len(samples) - 1) / 2)
        label = pretty(source.method_label(method))
        ax.bar(x, height, width, label=label, **BARS[place % len(BARS)])
        ax.errorbar(x, height, [height - low, high - height], fmt="none", ecolor="black", elinewidth=0.6, capsize=1.2)
        columns = {"method": method, "correct": np.arange(k + 1), "samples": k, "rate": np.arange(k + 1) / k}
        numbers = {"share": height, "low": low, "high": high, "problems": solved.shape[1], "seeds": len(seeds)}
        records.append(pd.DataFrame(columns | numbers))
    ax.set_xticks(range(0, k + 1, max(1, k // 8)))
    ax.set_xlabel(f"right samples of {k}")
    ax.set_ylabel(f"problems of {dataset.upper()} (%)")
    ax.grid(axis="x", visible=False)
    ax.set_ylim(bottom=0)
    figure.legend(loc="outside upper center", ncols=len(samples))
    kind = "stand-in problems" if source.stand_in_problems(dataset) else "problems"
    drawn = "problems and seeds" if len(solved) > 1 else "problems"
    note = f"{solved.shape[1]} {kind}; whiskers: {LEVEL:.0%} intervals, bootstrap over {drawn}"
    add_footer(figure, [*source.provenance(experiment), note])
    frame = pd.concat(records, ignore_index=True)
    frame.insert(0, "model", model)
    frame.insert(1, "model_that_ran", source.model(model).ran_with_size)
    return figure, frame


def draw_data_filter(experiment: Experiment, source: Results) -> tuple[Figure, pd.DataFrame]:
    """The training problems by the base model's pass rate, those that were dropped hatched."""
    rates = source.pass_rates()
    samples = int(rates["samples"].max())
    sampled = rates[rates["samples"] > 0]  # those with too long a prompt were not; they are among the reasons below
    counts = sampled.groupby(["correct", "kept"]).size().unstack(fill_value=0)
    counts = counts.reindex(index=range(samples + 1), columns=[True, False], fill_value=0)
    figure = Figure(figsize=(WIDTH, 2.1), layout="constrained")
    ax = figure.subplots()
    kept, dropped = (counts[flag].to_numpy() for flag in (True, False))
    ax.bar(counts.index, kept, 0.8, label=f"kept ({kept.sum()})", **BARS[0])
    some = dropped > 0  # an empty bar would still draw its edge
    ax.bar(counts.index[some], dropped[some], 0.8, kept[some], label=f"dropped ({dropped.sum()})", **BARS[1])
    ax.set_xticks(range(0, samples + 1, max(1, samples // 8)))
    ax.set_xlabel(f"right samples of {samples}")
    ax.set_ylabel("training problems")
    ax.grid(axis="x", visible=False)
    figure.legend(loc="outside upper center", ncols=2)
    reasons = rates.loc[~rates["kept"], "reason"].value_counts().sort_index()
    model = source.model(source.config.pass_rates.model)
    add_footer(
        figure,
        [
            f"{source.scale} scale: {model.ran_with_size}, before training",
            "; ".join(f"dropped for {reason}: {count}" for reason, count in reasons.items()),
        ],
    )
    frame = counts.rename(columns={True: "kept", False: "dropped"}).rename_axis("correct").reset_index()
    frame.insert(1, "samples", samples)
    frame.insert(2, "rate", frame["correct"] / samples)
    frame.insert(0, "model_that_ran", model.ran_with_size)
    return figure, frame
