"""The outcomes of docs/reference/smollm2-words/protocol.md, from published metrics and counts: tables of `lists.py`."""

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.statistics import Interval, mean_interval
from tables.effects import (
    MINUS,
    at_the_end,
    dropped_in,
    gain,
    metrics_of,
    p_shown,
    p_value,
    shown,
    shown_interval,
    table,
)
from tables.smollm2 import MODEL

PILOTS, SEEDS = "smollm2-words/seeds-100-101", "smollm2-words-dose/seeds-280-284"
CLIP_B = "clip_b@share=0.05"
QUARTER = np.log(1.25)
BLOCK, SETTLED = 5, 20  # steps: those of one mean, and the first one of GRPO's line of entropy over accuracy


def ends(folder: str) -> pd.DataFrame:
    """Entropy and training accuracy over the last tenth of the steps, by method (rows) and seed."""
    return at_the_end(folder, ["entropy", "accuracy"]).droplevel("model").unstack()


def log_ratios(folder: str, arm: str = CLIP_B) -> np.ndarray:
    """Log ratios of entropies to GRPO's, by seed with both."""
    entropy = ends(folder)["entropy"].loc[["grpo", arm]].dropna(axis="columns")
    return np.log(entropy.loc[arm] / entropy.loc["grpo"]).to_numpy()


def at_equal_accuracy(folder: str, arm: str = CLIP_B) -> np.ndarray:
    """Log ratios of entropies to GRPO's at the arm's training accuracy, by seed with both.

    GRPO's log entropy at this accuracy is on its line over accuracy, by least squares through means of `BLOCK` steps.
    """
    runs, of = metrics_of(folder), ends(folder).loc[arm].unstack(0).dropna()
    ratios = []
    for seed, grpo in runs[(runs["method"] == "grpo") & (runs["step"] >= SETTLED)].groupby("seed"):
        if seed in of.index:
            means = grpo.groupby(grpo["step"] // BLOCK)[["accuracy", "entropy"]].mean()
            line = np.polyfit(means["accuracy"], np.log(means["entropy"]), 1)
            ratios.append(np.log(of.loc[seed, "entropy"]) - np.polyval(line, of.loc[seed, "accuracy"]))
    return np.array(ratios)


def pilots() -> str:
    """What clipping keeps, pilot by pilot."""
    dropped = dropped_in(PILOTS, "method")

    def cell(values: np.ndarray, digits: int) -> str:
        return "; ".join(f"{value:.{digits}f}".replace("-", MINUS) for value in values)

    rows = []
    for label, arm in {"GRPO": "grpo", "Clip_B, 3 %": "clip_b@share=0.03", "Clip_B, 5 %": CLIP_B}.items():
        of, more = ends(PILOTS).loc[arm], [""] * 4
        if arm != "grpo":
            kept, equal = log_ratios(PILOTS, arm), at_equal_accuracy(PILOTS, arm)
            more = [f"{dropped[arm]:.1f}", cell(kept, 2), f"{kept.mean():.3f}", cell(equal, 2)]
        rows.append([label, *more, cell(of["entropy"], 3), cell(100 * of["accuracy"], 1)])
    heads = ["dropped, %", "entropy, log ratio to GRPO's", "mean", "at equal accuracy"]
    return table(["seeds 100; 101", *heads, "entropy, nats", "training accuracy, %"], rows)


def primary_interval() -> Interval:
    return mean_interval(log_ratios(SEEDS))


def verdict(low: float) -> str:
    return "keeps a quarter" if low > QUARTER else "keeps entropy" if low > 0 else "undecided"


def p_values() -> dict[str, float]:
    of = primary_interval()
    return {"kept": float(p_value(of.value, of.low, of.high, of.seeds - 1))}


def primary(corrected: dict[str, float], compared: int) -> str:
    """The kept entropy with its verdict and the p value of `corrected_p`."""
    of = primary_interval()
    more = shown(*(100 * float(np.expm1(bound)) for bound in (of.value, of.low, of.high)), decimals=0)
    cells = [shown_interval(of, 2), more, p_shown(corrected["kept"])]
    heads = ["entropy, log ratio", "entropy, % more", f"Holm's p over {compared}", "verdict"]
    return table(["", *heads], [["Clip_B at 5 % over GRPO", *cells, verdict(float(of.low))]])


def beside_primary() -> str:
    """Looked at: the share dropped; entropy at equal accuracy, scores and training accuracy, Clip_B's minus GRPO's."""
    learned = 100 * ends(SEEDS)["accuracy"].loc[["grpo", CLIP_B]].dropna(axis="columns")
    scores = [gain([SEEDS], metric, CLIP_B, "grpo", (MODEL,), mean_interval) for metric in ("pass", "avg")]
    equal = at_equal_accuracy(SEEDS)
    cells = [
        f"{dropped_in(SEEDS, 'method')[CLIP_B]:.1f}",
        shown_interval(mean_interval(equal), 2),
        shown_interval(mean_interval(log_ratios(SEEDS) - equal), 2),
        *(shown_interval(of) for of in scores),
        shown_interval(mean_interval((learned.loc[CLIP_B] - learned.loc["grpo"]).to_numpy())),
    ]
    heads = ["dropped, %", "entropy at equal accuracy, log ratio", "log ratio at the end minus this"]
    heads += ["Pass@16, points", "Avg@16, points", "training accuracy, points"]
    return table(["Clip_B at 5 % minus GRPO", *heads], [["new seeds", *cells]])
