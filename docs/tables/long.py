"""The outcomes of docs/reference/long/protocol.md, from its published counts and metrics: tables of `lists.py`."""

import numpy as np

from entropy_dynamics.analysis.statistics import Interval, mean_interval, score_interval
from tables.effects import (
    CLIPPING,
    NAMES,
    TOYS,
    differences,
    entropy_ratios,
    gain,
    left_cells,
    metrics_of,
    p_shown,
    p_value,
    shown_interval,
    table,
)

FOLDER = "long/seeds-240-255"
STEPS = (30, 50, 70, 90, 110, 130, 140, 150)
LATE = STEPS[-3:]
MARGIN = 2.0  # points of Avg@K
ARMS = {label: method for method, label in CLIPPING.items()} | {"GRPO, half the rate": "grpo_half_rate"}
GRIDS = ("the full rate", "half")
KINDS = {"Avg@K": "avg", "Pass@K": "pass"}
MODELS = {name: (model,) for model, name in NAMES.items()} | {"mean": TOYS}


def at_steps(method: str, steps: tuple[int, ...] = LATE) -> tuple[str, ...]:
    """The names under which the policies of a method at these steps are published."""
    return tuple(method if step == STEPS[-1] else f"{method}@training.steps={step}" for step in steps)


def over_grpo(method: str, metric: str, models: tuple[str, ...], steps: tuple[int, ...] = LATE) -> Interval:
    """The difference from GRPO in a score, points: the mean over steps, evaluation sets and models of each seed."""
    return gain([FOLDER], metric, at_steps(method, steps), at_steps("grpo", steps), models, mean_interval)


def verdict(of: Interval) -> str:
    """The verdict on the difference between Clip_V's and GRPO's Avg@K, given in points."""
    if of.low > 0:
        return "overtakes"
    if of.high < 0:
        return "behind"
    return "alike" if of.low >= -MARGIN and of.high <= MARGIN else "undecided"


def p_values() -> dict[str, float]:
    """P values of the difference between Clip_V's and GRPO's Avg@K, by model."""
    found = {name: over_grpo("clip_v", "avg", (model,)) for model, name in NAMES.items()}
    return {name: p_value(of.value, of.low, of.high, of.df) for name, of in found.items()}


def primary(corrected: dict[str, float], compared: int) -> str:
    """Avg@K of Clip_V minus GRPO's at the end, with p values of `corrected_p`."""
    arms, rows = (at_steps("clip_v"), at_steps("grpo")), []
    for name, models in MODELS.items():
        of = over_grpo("clip_v", "avg", models)
        rows.append(
            [name, shown_interval(of), *([p_shown(corrected[name]), verdict(of)] if name in corrected else ["", ""])]
        )
    one, other = (differences([FOLDER], "avg", *arms, (model,))[1] for model in TOYS)
    difference = score_interval([first - second for first, second in zip(one, other, strict=True)], mean_interval)
    rows.append(["difference", shown_interval(difference.times(100)), "", ""])
    return table(["Clip_V minus GRPO", "Avg@K", f"Holm's p over {compared}", "verdict"], rows)


def what_is_left() -> str:
    """Pass@K left at equal Avg@K over GRPO's envelope, at the full rate and with half the rate."""
    rows = [*left_cells(f"{FOLDER}/late.csv", [("long", grid) for grid in GRIDS]).values()]
    return table(["points of Pass@K", "GRPO at the full rate", "+ half the rate"], rows)


def late_scores() -> str:
    """The other arms at the end, and what 100 more steps change in GRPO."""
    heads = [(kind, metric, name, of) for kind, metric in KINDS.items() for name, of in MODELS.items()]
    rows = [
        [f"{label} minus GRPO", *(shown_interval(over_grpo(arm, metric, models)) for _, metric, _, models in heads)]
        for label, arm in ARMS.items()
    ]
    ends = ("grpo", *at_steps("grpo", (50,)))
    own = [shown_interval(gain([FOLDER], metric, *ends, models, mean_interval)) for _, metric, _, models in heads]
    rows.append(["GRPO, step 150 minus step 50", *own])
    return table(["difference", *(f"{kind}, {name}" for kind, _, name, _ in heads)], rows)


def over_steps() -> str:
    """The difference from GRPO in Avg@K at each checkpoint."""
    columns = [(label, arm, name, models) for label, arm in ARMS.items() for name, models in MODELS.items()]
    rows = [
        [str(step), *(shown_interval(over_grpo(arm, "avg", models, (step,))) for _, arm, _, models in columns)]
        for step in STEPS
    ]
    return table(["step, Avg@K minus GRPO's", *(f"{label}, {name}" for label, _, name, _ in columns)], rows)


def memory() -> str:
    """Accuracy on the problems of training over the last tenth of the steps, and on held-out ones at step 140."""
    columns = {"accuracy": "training", "validation_accuracy": "held out"}
    metrics = metrics_of(FOLDER)
    last = metrics[metrics["step"] >= 0.9 * STEPS[-1]]  # validation runs before steps 0, 10, ... 140
    of_arm = 100 * last.groupby(["model", "method", "seed"])[[*columns]].mean().groupby(["model", "method"]).mean()
    rows = [
        [label, *(f"{of_arm.loc[(model, arm), column]:.1f}" for model in TOYS for column in columns)]
        for label, arm in {"GRPO": "grpo", **ARMS}.items()
    ]
    return table(["accuracy, %", *(f"{what}, {name}" for name in NAMES.values() for what in columns.values())], rows)


def entropies() -> str:
    """Log ratios of entropies to GRPO over the last tenth of the steps, and the dropped shares over all steps."""
    return entropy_ratios(FOLDER, {"GRPO": "grpo", **ARMS}, "entropy over GRPO's")


def further_fall() -> str:
    """The change in GRPO's log entropy from the last tenth of the first 50 steps to that of all."""
    metrics = metrics_of(FOLDER).query("method == 'grpo'")
    curves = metrics.pivot_table(index=["model", "seed"], columns="step", values="entropy")
    change = np.log(curves.loc[:, 0.9 * STEPS[-1] :].mean(axis=1) / curves.loc[:, 45:49].mean(axis=1))
    of_model = [change[model].to_numpy() for model in TOYS]
    cells = [shown_interval(mean_interval(of), 2) for of in (*of_model, np.mean(of_model, axis=0))]
    return table(["log entropy of GRPO", *MODELS], [["step 150 minus step 50, last tenths", *cells]])
