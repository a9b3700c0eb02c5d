"""The outcomes of docs/reference/rates/protocol.md, from its counts, metrics and left.csv: tables of `lists.py`."""

from functools import cache
from itertools import product

import numpy as np
import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq

from entropy_dynamics.analysis.envelope import envelope, resampled_seeds
from entropy_dynamics.analysis.statistics import mean_interval, t_quantile
from tables.effects import (
    CLIPPING,
    MINUS,
    NAMES,
    REFERENCE,
    TOYS,
    entropy_ratios,
    gain,
    left_cells,
    left_rows,
    p_shown,
    p_value,
    shown,
    shown_interval,
    table,
)

SETS = ("aime24", "aime25", "dapo500")
FOLDERS = {"0.1 M": "rates/seeds-200-223", "1 M": "rates-desk/seeds-200-206"}
SMALL = "0.1 M"
LEFT = f"{FOLDERS['1 M']}/left.csv"  # of both sizes, and pooled
SCALES = {"0.1 M": "rates", "1 M": "rates-desk", "both": "rates and rates-desk"}
GRIDS = ("the full rate", "half", "a quarter")
STEPS = (10, 20, 30, 40, 50)
ARMS = {  # label -> method, steps at 0.1 M; at 1 M all have 50
    "GRPO": ("grpo", 50),
    "GRPO, half the rate": ("grpo_half_rate", 100),
    "GRPO, a quarter of the rate": ("grpo_quarter_rate", 200),
    CLIPPING["clip_v"]: ("clip_v", 50),
    f"{CLIPPING['clip_v']}, half the rate": ("clip_v_half_rate", 50),
}


def at_step(arm: str, step: int, size: str) -> str:
    """The name under which the policy of an arm at a step is published."""
    method, steps = ARMS[arm]
    return method if step == (steps if size == SMALL else 50) else f"{method}@training.steps={step}"


def p_values() -> dict[tuple[str, str], float]:
    """P values of what is left over all rates, both sizes pooled, by method and model."""
    last = left_rows(LEFT, SCALES["both"]).xs(GRIDS[-1], level="over").loc[(slice(None), [*TOYS]), :]
    return dict(p_value(last["left"], last["left_low"], last["left_high"], last["seeds"].iloc[0] - len(FOLDERS)))


def between_sizes() -> pd.DataFrame:
    """What is left over all rates at 1 M minus what is left at 0.1 M, with Welch's interval, as in `left_rows`."""
    sizes = [left_rows(LEFT, SCALES[size]).xs(GRIDS[-1], level="over") for size in FOLDERS]
    dfs = [of["seeds"] - 1 for of in sizes]
    errors = [(of["left_high"] - of["left_low"]) / 2 / t_quantile(df) for of, df in zip(sizes, dfs, strict=True)]
    df = np.hypot(*errors) ** 4 / sum(error**4 / df for error, df in zip(errors, dfs, strict=True))
    half, value = t_quantile(df) * np.hypot(*errors), sizes[1]["left"] - sizes[0]["left"]
    return pd.DataFrame({"left": value, "left_low": value - half, "left_high": value + half})


def primary(corrected: dict[tuple[str, str], float], compared: int) -> str:
    """What is left of Clip_V's Pass@K over all rates, with p values of `corrected_p`."""
    frame, sizes = left_rows(LEFT, SCALES["both"]), between_sizes()
    rows = []
    for key, cells in left_cells(LEFT, [(scale, GRIDS[-1]) for scale in SCALES.values()]).items():
        judged = [p_shown(corrected[key]), frame.loc[(*key, GRIDS[-1]), "verdict"]] if key in corrected else ["", ""]
        rows.append([*cells, shown(*sizes.loc[key], sign=False), *judged])
    heads = ["points of Pass@K left", *FOLDERS, "both sizes", "1 M minus 0.1 M", f"Holm's p over {compared}", "verdict"]
    return table(heads, rows)


def grids() -> str:
    """What is left over each of the smaller grids of rates."""
    columns = [(scale, grid) for scale in SCALES.values() for grid in GRIDS[:-1]]
    heads = [f"{size}: {grid}" for size in SCALES for grid in ("GRPO at the full rate", "+ half the rate")]
    return table(["points of Pass@K left", *heads], [*left_cells(LEFT, columns).values()])


def beside_primary() -> str:
    """What the protocol prints beside the values over all rates."""
    rows = []
    for size in FOLDERS:
        frame = left_rows(LEFT, SCALES[size])
        for method, (model, short) in product(frame.index.unique("method"), NAMES.items()):
            of = frame.loc[method, model, GRIDS[-1]]
            here = shown(*of[["left", "left_low_here", "left_high_here"]], sign=False)
            others = [f"{round(of[name], 1) + 0.0:.1f}".replace("-", MINUS) for name in ("single", "halved", "spare")]
            rows.append([f"{size}: {method}, {short}", here, *others, of["points"]])
    heads = ["over all rates", "on these problems", "over one point", "seeds halved", "spare Avg@K"]
    return table([*heads, "points at the envelope"], rows)


def progress() -> str:
    """Each rate beside GRPO's end, after equal steps and, at 0.1 M, after equal progress."""
    halves, quarters = ("GRPO, half the rate", (50, 100)), ("GRPO, a quarter of the rate", (50, 100, 200))
    points = [(SMALL, arm, step) for arm, steps in (halves, quarters) for step in steps]
    points += [(SMALL, arm, 50) for arm in list(ARMS)[3:]] + [("1 M", arm, 50) for arm in list(ARMS)[1:]]
    rows = []
    for size, arm, step in points:
        scores = [
            shown_interval(gain([FOLDERS[size]], metric, at_step(arm, step, size), "grpo", models, mean_interval))
            for metric in ("pass", "avg")
            for models in ((TOYS[0],), (TOYS[1],), TOYS)
        ]
        rows.append([f"{size}: {arm}, step {step}", *scores])
    heads = [f"{metric}, {of}" for metric in ("Pass@K", "Avg@K") for of in (*NAMES.values(), "mean")]
    return table(["minus GRPO at step 50", *heads], rows)


@cache
def mean_scores(size: str) -> pd.DataFrame:
    """Avg@K and Pass@K in points: a row per model, method, temperature and seed, a column per score and data set."""
    names, keys = ["model", "method", "dataset"], ["model", "method", "temperature", "seed", "dataset"]
    counts = pq.read_table(REFERENCE / FOLDERS[size] / "counts.parquet", read_dictionary=names).unify_dictionaries()
    rates = pc.divide(pc.multiply(counts["correct"].cast("double"), 100), counts["samples"])
    solved = pc.multiply(pc.greater(counts["correct"], 0).cast("double"), 100)
    rows = counts.select(keys).append_column("avg", rates).append_column("passed", solved).group_by(keys)
    means = rows.aggregate([("avg", "mean"), ("passed", "mean")]).to_pandas()
    means = means.astype(dict.fromkeys(names, str))
    means["temperature"] = means["temperature"].round(2)
    return means.set_index(keys).unstack("dataset").sort_index()


def scores_of(size: str, model: str, arm: str, step: int, at: float) -> np.ndarray:
    """Avg@K and Pass@K over the evaluation sets, and the Avg@8 of validation: [score, seed]."""
    means = mean_scores(size).loc[model, at_step(arm, step, size), at]
    tests = [means[f"{metric}_mean"][list(SETS)].mean(axis=1) for metric in ("avg", "passed")]
    return np.stack([*tests, means["avg_mean", "validation"]])


def chosen_by_validation(validation: np.ndarray) -> np.ndarray:
    """The place of each seed's highest score in [checkpoint, seed]; of equal ones the earlier."""
    return validation.argmax(axis=0)


def early_stopping() -> str:
    """Each arm at the checkpoint that validation chooses, beside GRPO at its own."""
    found: dict[tuple[str, str], list[tuple[np.ndarray, np.ndarray]]] = {}
    for size, arm, model in product(FOLDERS, ARMS, TOYS):
        scores = np.stack([scores_of(size, model, arm, step, 0.7) for step in STEPS])  # [checkpoint, score, seed]
        chosen = chosen_by_validation(scores[:, 2])
        own = np.take_along_axis(scores, chosen[None, None], axis=0)[0, :2]
        found.setdefault((size, arm), []).append((np.array(STEPS)[chosen], own))
    rows = []
    for (size, arm), models in found.items():
        steps = [f"{chosen.mean():.0f}" for chosen, _ in models]
        cells = [""] * 2
        if arm != "GRPO":
            pairs = [own - grpo for (_, own), (_, grpo) in zip(models, found[size, "GRPO"], strict=True)]
            cells = [shown_interval(mean_interval(np.mean(pairs, axis=0)[metric])) for metric in (1, 0)]
        rows.append([f"{size}: {arm}", *steps, *cells])
    return table(["", *(f"mean step, {name}" for name in NAMES.values()), "Pass@K over GRPO", "Avg@K"], rows)


def symmetric() -> str:
    """Clip_V's envelope minus GRPO's, both over two rates, five checkpoints and all temperatures."""
    warm, rows = (0.4, 0.7, 0.85, 1.0, 1.15, 1.3, 1.6), []
    sides = list(ARMS)[3:], list(ARMS)[:2]
    for size, (model, name) in product(FOLDERS, NAMES.items()):
        level = scores_of(size, model, "GRPO, half the rate", 50, 0.7)[2]
        seeds = len(level)
        drawn = resampled_seeds(seeds, np.random.default_rng(0))
        shares = np.vstack([np.ones(seeds), drawn]).T / seeds  # all seeds, then the resamples
        front = []
        for arms in sides:
            points = [scores_of(size, model, *of) for of in product(arms, STEPS, warm)]
            avg, passed = (np.stack([point[score] for point in points]) @ shares for score in (0, 1))
            front.append(envelope(level @ shares, avg.T, passed.T).passed)
        theta = front[0] - front[1]
        resampled = theta[1:]
        half = t_quantile(seeds - 1) * (seeds / (seeds - 1) * np.nanvar(resampled)) ** 0.5
        value = 2 * theta[0] - np.nanmean(resampled)
        rows.append([f"{size}: {name}", f"{level.mean():.1f}", shown(value, value - half, value + half)])
    return table(["", "at an Avg@K of", "Pass@K, Clip_V's envelope minus GRPO's"], rows)


def entropies(size: str) -> str:
    """Log ratios of entropies to GRPO over the last tenth of 50 steps, and the shares of dropped tokens."""
    return entropy_ratios(FOLDERS[size], {arm: at_step(arm, 50, size) for arm in ARMS}, f"{size}: entropy over GRPO's")
