"""Draws what is left of each method's Pass@K at equal Avg@K while the baseline's envelope is widened."""

from entropy_dynamics.analysis.envelope import DIFFERENCE, MEAN, label_of, left_frame
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.statistics import LEVEL
from entropy_dynamics.experiments.load import Experiment
from entropy_dynamics.experiments.specs import LeftSpec
from entropy_dynamics.figures import style


def draw_left(experiment: Experiment[LeftSpec], results: Results) -> style.Drawn:
    """A panel per step of widening, a row per scale and model, and a point with whiskers per method."""
    frame, spec = left_frame(experiment, results), experiment.spec
    drawn = frame[frame["model"] != DIFFERENCE]
    rows = list(drawn.groupby(["scale", "model"], sort=False).groups)
    labels = {MEAN: "mean"} | {model: results.model(model).name for model in experiment.models}
    steps, looks = list(drawn["over"].unique()), style.looks([spec.baseline, *spec.compared], spec.baseline)
    figure, [axes] = style.sheet(1.2 + 0.22 * len(rows), 1, len(steps), sharex=True, sharey=True)
    for step, ax in zip(steps, axes, strict=True):
        ax.axvline(0, color="0.5", linewidth=0.7, zorder=0.5)
        ax.axvline(spec.margin, color="0.5", linewidth=0.7, linestyle=(0, (3, 2)), zorder=0.5)
        for place, method in enumerate(spec.compared):
            of = drawn[(drawn["over"] == step) & (drawn["method"] == method)]
            shift = 0.34 * (place - (len(spec.compared) - 1) / 2)
            y = [rows.index(key) + shift for key in zip(of["scale"], of["model"], strict=True)]
            look = looks[method] | {"linestyle": "", "label": style.pretty(label_of(experiment, results, method))}
            ax.errorbar(of["left"], y, xerr=style.error_bars(of, "left", "left_"), elinewidth=0.8, capsize=1.5, **look)
        ax.set_title(("" if step == steps[0] else "+ ") + step, fontsize=style.SMALL)
        ax.grid(axis="y", visible=False)
        ax.locator_params("x", nbins=10 // len(steps), steps=style.ROUND)
        ax.set_xlabel("Pass@K left")
    named = rows if len(rows) > 1 else []  # the notes name a single one
    names = [f"{labels.get(model, model)}, {scale}" for scale, model in named]  # the other scale may have other models
    axes[0].set_yticks(range(len(named)), names, fontsize=style.SMALL)
    axes[0].set_ylim(len(rows) - 0.5, -0.5)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(spec.compared))
    seeds = frame[frame["scale"] != results.scale].groupby("scale", sort=False)["seeds"].first()
    notes = [f"seeds of {scale}: {count}" for scale, count in seeds.items()]
    notes += [f"whiskers: {LEVEL:.0%} intervals, choice of points included", f"dashed: {spec.margin:g} points"]
    return figure, frame, [*style.what_ran(experiment, results), *notes]
