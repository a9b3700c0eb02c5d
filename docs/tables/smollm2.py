"""What docs/smollm2.md shows of the pretrained model, from its published runs: tables of `lists.py`."""

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.statistics import mean_interval, score_interval
from tables.effects import (
    REFERENCE,
    at_the_end,
    counts_of,
    differences,
    dropped_in,
    left_rows,
    metrics_of,
    shown,
    shown_interval,
    table,
)

MODEL = "smollm2-135m-instruct"
FOLDER, WORDS = "smollm2/seeds-0-7", "smollm2-words/seeds-0-2"
ARMS = {
    "after the cold start": "base",
    "GRPO": "grpo",
    "random mask": "random_mask",
    "Clip_B": "clip_b",
    "Clip_V": "clip_v",
    "Clip_B as released": "clip_b@mu=2.5",
    "Clip_V as released": "clip_v@mu=8.5,max_frac=0.0001",
    "GRPO, half the rate": "grpo_half_rate",
    "Clip_V, half the rate": "clip_v_half_rate",
    "GRPO, step 10": "grpo@training.steps=10",
    "GRPO, step 20": "grpo@training.steps=20",
}
"""In the order of the table; those of a folder are shown."""
CLAIMS = {
    "GRPO loses entropy, %": "entropy_falls_grpo",
    "Clip_B keeps entropy, log ratio to GRPO": "entropy_held_clip_b",
    "Clip_V keeps entropy, log ratio to GRPO": "entropy_held_clip_v",
    "Clip_B gains Pass@16 over GRPO, points": "pass_gain_clip_b",
    "Clip_V gains Pass@16 over GRPO, points": "pass_gain_clip_v",
    "Clip_B gains Avg@16 over GRPO, points": "avg_gain_clip_b",
    "Clip_V gains Avg@16 over GRPO, points": "avg_gain_clip_v",
    "Clip_B gains greedy accuracy over GRPO, points": "greedy_clip_b",
    "Clip_V gains greedy accuracy over GRPO, points": "greedy_clip_v",
    "P1: Clip_B keeps entropy, log ratio to the random mask": "entropy_over_random_clip_b",
    "P2: Clip_B gains Pass@16 over GRPO's best point, points": "path_pass_clip_b",
    "P3: Clip_B as released keeps entropy, log ratio to GRPO": "released_entropy_clip_b",
}
HALVED = {label: ARMS[label] for label in ("GRPO, half the rate", "Clip_B", "Clip_V", "Clip_V, half the rate")}


def means(folder: str) -> str:
    """Entropy, dropped tokens and scores of each arm; arms with fewer seeds than GRPO say so, and stand beside its."""
    metrics, dropped = metrics_of(folder), dropped_in(folder, "method")
    counts = pd.concat(counts_of(folder).values())
    scores = counts.assign(avg=counts["correct"] / counts["samples"], passed=counts["correct"] > 0)
    scores = 100 * scores.groupby(["method", "seed", "dataset"], observed=True)[["avg", "passed"]].mean()
    scores = scores.groupby(["method", "seed"]).mean()
    ends = at_the_end(folder, ["entropy"]).droplevel("model")["entropy"]
    start = metrics[(metrics["step"] == 0) & (metrics["method"] == "grpo")]["entropy"].mean()
    last = metrics["seed"].max()

    def row(label: str, method: str, until: int) -> list[str]:
        told = f"{label} (seeds 0 to {until})" if until < last else label
        avg, passed = scores.loc[method].loc[:until].mean()
        cells = ["", "", f"{avg:.1f}", f"{passed:.0f}"]
        if method == "base":
            cells[0] = f"{start:.3f} (step 0)"
        elif method in ends.index:
            cells[0] = f"{ends[method].loc[:until].mean():.3f}"
            share = dropped[method]
            cells[1] = f"{share:.1g}" if 0 < share < 0.1 else f"{share:.1f}" if share else ""
        return [told, *cells]

    rows, fewer = [], []
    for label, method in ARMS.items():
        if method in scores.index:
            of = row(label, method, int(scores.loc[method].index.max()))
            (fewer if "(seeds" in of[0] else rows).append(of)
    beside = [row("GRPO", "grpo", 4)] if fewer else []
    heads = ["entropy in the last tenth, nats", "dropped, %", "Avg@16", "Pass@16"]
    return table([f"means over seeds 0 to {last}, temperature 0.7", *heads], rows + beside + fewer)


def verdicts() -> str:
    """The claims of the study, P1 to P3 with p values of their own correction."""
    of, rows = verdicts_of(REFERENCE / FOLDER), []
    for label, claim in CLAIMS.items():
        entry = of[claim]
        factor, decimals = {"share": (100, 0), "points": (1, 1)}.get(entry["unit"], (1, 2))
        effect = shown(*(factor * entry[name] for name in ("effect", "low", "high")), decimals, sign=False)
        corrected = [part.partition(" over ")[0] for part in entry["reason"].split("; ") if part.startswith("p = ")]
        rows.append([label, effect, ": ".join([entry["verdict"], *corrected])])
    return table(["claim", "effect", "verdict"], rows)


def at_half_the_rate() -> str:
    """Arms at half the learning rate, and clipping on the same seeds, minus GRPO."""
    ends = np.log(at_the_end(FOLDER, ["entropy"])["entropy"]).unstack("method").dropna(subset="grpo_half_rate")
    of_seeds = ends.index.get_level_values("seed")
    rows = []
    for label, arm in HALVED.items():
        if arm not in ends:
            continue
        cells = [shown_interval(mean_interval((ends[arm] - ends["grpo"]).to_numpy()), 2)]
        for metric in ("pass", "avg"):
            seeds, columns = differences([FOLDER], metric, arm, "grpo", (MODEL,))
            same = [column[np.isin(seeds, of_seeds)] for column in columns]
            cells.append(shown_interval(score_interval(same, mean_interval).times(100)))
        rows.append([label, *cells])
    return table(["minus GRPO, seeds 0 to 4", "entropy, log ratio", "Pass@16, points", "Avg@16, points"], rows)


def left() -> str:
    """What is left of the gains over GRPO's envelope, with half the learning rate, on its seeds."""
    frame = left_rows(f"{FOLDER}/figures/left_rates.csv", "smollm2")
    grids, columns = ("temperatures", "half the rate", "checkpoints"), ["left", "left_low", "left_high"]
    rows = [
        [label, *(shown(*frame.loc[(method, MODEL, grid), columns], sign=False) for grid in grids)]
        for label, method in HALVED.items()
        if method in frame.index.unique("method")
    ]
    heads = ["Pass@16 left, points", "GRPO's temperatures", "+ half the rate, at most", "+ checkpoints, at most"]
    return table(heads, rows)
