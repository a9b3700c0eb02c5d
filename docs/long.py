"""The outcomes of docs/protocol-long.md, from its published counts and metrics: tables of `lists.py`."""

import numpy as np
import pandas as pd

from effects import CLIPPING, NAMES, REFERENCE, TOYS, differences, entropy_ratios, gain, p_shown, shown_interval, table
from entropy_dynamics.analysis.statistics import Interval, holm, mean_interval, score_interval

STEPS = (30, 50, 70, 90, 110, 130, 140, 150)
LATE = STEPS[-3:]
MARGIN = 2.0  # points of Avg@K
ARMS = {label: method for method, label in CLIPPING.items()} | {"GRPO, half the rate": "grpo_half_rate"}
KINDS = {"Avg@K": "avg", "Pass@K": "pass"}
MODELS = {name: (model,) for model, name in NAMES.items()} | {"mean": TOYS}


def folder() -> str:
    """The published seeds, below docs/reference."""
    return str(next((REFERENCE / "long").glob("seeds-240-*")).relative_to(REFERENCE))


def at_steps(method: str, steps: tuple[int, ...] = LATE) -> tuple[str, ...]:
    """The names under which the policies of a method at these steps are published."""
    return tuple(method if step == STEPS[-1] else f"{method}@training.steps={step}" for step in steps)


def over_grpo(method: str, metric: str, models: tuple[str, ...], steps: tuple[int, ...] = LATE) -> Interval:
    """The difference from GRPO in a score, points: the mean over steps, evaluation sets and models of each seed."""
    return gain([folder()], metric, at_steps(method, steps), at_steps("grpo", steps), models, mean_interval)


def verdict(of: Interval) -> str:
    """The verdict on the difference between Clip_V's and GRPO's Avg@K, given in points."""
    if of.low > 0:
        return "overtakes"
    if of.high < 0:
        return "behind"
    return "alike" if of.low >= -MARGIN and of.high <= MARGIN else "undecided"


def primary() -> str:
    """Avg@K of Clip_V minus GRPO's at the end; Holm's correction covers the two models."""
    arms = at_steps("clip_v"), at_steps("grpo")
    of_model = {name: over_grpo("clip_v", "avg", models) for name, models in MODELS.items()}
    p_values = holm(np.array([of_model[name].p for name in NAMES.values()]))
    rows = [
        [name, shown_interval(of_model[name]), p_shown(p), verdict(of_model[name])]
        for name, p in zip(NAMES.values(), p_values, strict=True)
    ]
    one, other = (differences([folder()], "avg", *arms, (model,))[1] for model in TOYS)
    difference = score_interval([first - second for first, second in zip(one, other, strict=True)], mean_interval)
    for name, of in {"mean": of_model["mean"], "difference": difference.times(100)}.items():
        rows.append([name, shown_interval(of), "", ""])
    return table(["Clip_V minus GRPO", "Avg@K", "Holm's p", "verdict"], rows)


def late_scores() -> str:
    """The other arms at the end, and what 100 more steps change in GRPO."""
    heads = [(kind, metric, name, of) for kind, metric in KINDS.items() for name, of in MODELS.items()]
    rows = [
        [label, *(shown_interval(over_grpo(arm, metric, models)) for _, metric, _, models in heads)]
        for label, arm in ARMS.items()
    ]
    ends = ("grpo", *at_steps("grpo", (50,)))
    own = [shown_interval(gain([folder()], metric, *ends, models, mean_interval)) for _, metric, _, models in heads]
    rows.append(["GRPO, step 150 minus step 50", *own])
    return table(["minus GRPO", *(f"{kind}, {name}" for kind, _, name, _ in heads)], rows)


def over_steps() -> str:
    """The difference from GRPO in Avg@K at each checkpoint, mean of the toy models."""
    rows = [
        [str(step), *(shown_interval(over_grpo(arm, "avg", TOYS, (step,))) for arm in ARMS.values())] for step in STEPS
    ]
    return table(["step, Avg@K minus GRPO's", *ARMS], rows)


def memory() -> str:
    """Accuracy on the problems of training and on held-out ones over the last tenth of the steps, means over seeds."""
    columns = {"accuracy": "training", "validation_accuracy": "held out"}
    metrics = pd.read_parquet(REFERENCE / folder() / "metrics.parquet")
    last = metrics[metrics["step"] >= 0.9 * STEPS[-1]]  # steps count from 0; validation runs every tenth step
    of_arm = 100 * last.groupby(["model", "method", "seed"])[[*columns]].mean().groupby(["model", "method"]).mean()
    rows = [
        [label, *(f"{of_arm.loc[(model, arm), column]:.1f}" for model in TOYS for column in columns)]
        for label, arm in {"GRPO": "grpo", **ARMS}.items()
    ]
    return table(["accuracy, %", *(f"{what}, {name}" for name in NAMES.values() for what in columns.values())], rows)


def entropies() -> str:
    """Log ratios of entropies to GRPO over the last tenth of 150 steps, and the shares of dropped tokens."""
    return entropy_ratios(folder(), {"GRPO": "grpo", **ARMS}, "entropy at step 150 over GRPO's")
