"""Differences in scores over the published runs, from their counts and verdicts, in the tables of `lists.py`."""

from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import stdtr

from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.problem_scores import score_columns, shared_seeds
from entropy_dynamics.analysis.published_runs import read_run
from entropy_dynamics.analysis.run_data import Samples, final_means
from entropy_dynamics.analysis.statistics import (
    Interval,
    Scores,
    holm,
    mean_interval,
    score_interval,
    seed_interval,
    t_quantile,
)

REFERENCE = Path("docs/reference")
TOYS = "qwen2.5-7b-instruct", "qwen3-4b-base"
NAMES = dict(zip(TOYS, ("toy Qwen2", "toy Qwen3"), strict=True))
MINUS = "\N{MINUS SIGN}"
Arms = str | tuple[str, ...]
"""A published method, or several whose scores are averaged."""
CLIPPING = {"clip_b": "Clip_B", "clip_v": "Clip_V"}


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|  |", "| |") for cells in (heads, *rows)]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])


def shown(value: float, low: float, high: float, decimals: int = 1, sign: bool = True) -> str:
    """'+17.0 [11.0, 23.8]'; halves are rounded away from zero."""
    places = Decimal(1).scaleb(-decimals)
    texts = []
    for number in (value, low, high):
        text = str(Decimal(f"{number:.6g}").quantize(places, ROUND_HALF_UP))
        texts.append(text.removeprefix("-") if float(text) == 0 else text.replace("-", MINUS))
    plus = "+" if sign and texts[0][0] != MINUS and float(texts[0]) else ""
    return f"{plus}{texts[0]} [{texts[1]}, {texts[2]}]"


def shown_interval(of: Interval, decimals: int = 1) -> str:
    return shown(of.value, of.low, of.high, decimals)


def p_value(value: Any, low: Any, high: Any, df: float) -> Any:
    """Two-sided p value for a true value of zero: below 0.05 if and only if the symmetric interval excludes zero."""
    return 2 * stdtr(df, -np.abs(value) / ((high - low) / 2 / t_quantile(df)))


def left_rows(file: str, scale: str) -> pd.DataFrame:
    """What is left in Pass@K, in a published file, by method, model and grid."""
    frame = pd.read_csv(REFERENCE / file).query("scale == @scale")
    return frame.set_index(["method", "model", "over"]).sort_index()


def left_cells(file: str, columns: list[tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    """By method and model, its label and what is left at each scale over each grid."""
    scales = {scale: left_rows(file, scale) for scale, _ in columns}
    models, of = NAMES | {"mean": "mean", "difference": "difference"}, ["left", "left_low", "left_high"]
    return {
        (method, model): [
            f"{method}, {name}",
            *(shown(*scales[scale].loc[(method, model, grid), of], sign=False) for scale, grid in columns),
        ]
        for method, (model, name) in product(scales[columns[0][0]].index.unique("method"), models.items())
    }


def p_shown(p: float) -> str:
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def of_claim(name: str, claim: str, decimals: int = 1) -> str:
    entry = verdicts_of(REFERENCE / name)[claim]
    return shown(entry["effect"], entry["low"], entry["high"], decimals)


def gains() -> str:
    """The main comparison: the paper's gains over GRPO and ours."""
    pooled = ["laptop/paper/pooled", "desk/paper/pooled", "smollm2/seeds-0-7"]
    rows = []
    for metric, name in (("pass", "Pass@K"), ("avg", "Avg@K")):
        for method, label in CLIPPING.items():
            claim = f"{metric}_gain_{method}"
            paper = verdicts_of(REFERENCE / pooled[0])[claim]["paper"]
            cells = [shown(paper["effect"], paper["low"], paper["high"])]
            rows.append([f"{name}, {label}", *cells, *(of_claim(run, claim) for run in pooled)])
    heads = ["points above GRPO [95 %]", "paper, 4 and 7 B", "toy, 0.1 M", "toy, 1 M", "SmolLM2, 135 M"]
    return table(heads, rows)


def metrics_of(folder: str) -> pd.DataFrame:
    """The metrics of a published folder: a row per model, method, seed and step."""
    return pd.read_parquet(REFERENCE / folder / "metrics.parquet")


def dropped_in(folder: str, *by: str) -> pd.Series:
    """Per cent of the tokens that were dropped, mean over the steps and seeds of each group."""
    return 100 * metrics_of(folder).groupby([*by])["clip_fraction"].mean()


@cache
def counts_of(folder: str, at: float = 0.7) -> dict[str, pd.DataFrame]:
    """The counts of each method at a temperature on the evaluation sets."""
    wanted = [("dataset", "!=", "validation"), ("temperature", ">", at - 0.01), ("temperature", "<", at + 0.01)]
    frame = pd.read_parquet(REFERENCE / folder / "counts.parquet", filters=wanted)
    return dict(iter(frame.groupby("method", observed=True)))


@cache
def samples_of(folder: str, method: str, model: str, at: float) -> dict[int, dict[str, Samples]]:
    """By seed and data set."""
    samples: dict[int, dict[str, Samples]] = {}
    frame = counts_of(folder, at).get(method, pd.DataFrame(columns=["model", "seed", "dataset"]))
    for (seed, dataset), rows in frame[frame["model"] == model].groupby(["seed", "dataset"], observed=True):
        of = Samples("", rows["correct"].to_numpy(), int(rows["samples"].iloc[0]), *[np.nan] * 5)
        samples.setdefault(seed, {})[dataset] = of
    return samples


def differences(
    folders: list[str], metric: str, plus: Arms, minus: Arms, models: tuple[str, ...], at: float = 0.7
) -> tuple[list[int], list[Scores]]:
    """The seeds of all folders, and the columns of a difference in a score over the evaluation sets and models."""
    sides = [(sign, (of,) if isinstance(of, str) else of) for sign, of in ((1, plus), (-1, minus))]
    every = [(sign / len(side), method) for sign, side in sides for method in side]
    weights = {(model, method): share / len(models) for model in models for share, method in every}
    samples: dict[tuple[str, str], dict[int, dict[str, Samples]]] = {arm: {} for arm in weights}
    for (model, method), folder in product(weights, folders):
        samples[model, method] |= samples_of(folder, method, model, at)
    if not (seeds := shared_seeds(samples)):
        return [], []
    sets = next(iter(samples.values()))[seeds[0]]
    return seeds, score_columns(samples, weights, metric, dict.fromkeys(sets, 1 / len(sets)))


def gain(
    folders: list[str], metric: str, plus: Arms, minus: Arms, models: tuple[str, ...], over_seeds: Any = seed_interval
) -> Interval:
    """The difference in a score, points, over the evaluation sets and models, of the seeds of all folders."""
    return score_interval(differences(folders, metric, plus, minus, models)[1], over_seeds).times(100)


def gain_shown(*arguments: Any) -> str:
    return shown_interval(gain(*arguments))


def evidence() -> str:
    """Differences from GRPO over the published runs of the scales below, with an interval over clusters.

    A cluster is a seed at one size. Its value is the mean over all runs that have both methods, on whatever processor,
    then over models and data sets. Clusters weigh the same; the interval is Student's.
    """
    kinds = {"Pass@K": ("pass", 0.7), "Avg@K": ("avg", 0.7), "greedy accuracy": ("avg", 0.0)}
    of_size: dict[str, pd.DataFrame] = {}
    for size, scales in {"0.1 M": ("laptop", "share"), "1 M": ("desk",)}.items():
        runs = []
        files = [file for scale in scales for file in sorted((REFERENCE / scale).rglob("counts.parquet"))]
        for file, model, method in product(files, TOYS, CLIPPING):
            by_seed = {}
            for kind, (metric, at) in kinds.items():
                folder = str(file.parent.relative_to(REFERENCE))
                seeds, columns = differences([folder], metric, method, "grpo", (model,), at)
                means = sum((column.mean(-1) for column in columns), np.zeros(len(seeds)))
                by_seed[kind] = pd.Series(means, seeds)
            runs.append(pd.DataFrame(by_seed).rename_axis("seed").reset_index().assign(model=model, method=method))
        once = pd.concat(runs).dropna(subset="Avg@K").drop_duplicates()  # some folders repeat the runs of another
        of_size[size] = 100 * once.groupby(["model", "method", "seed"]).mean().unstack("method")
    rows = []
    for method, label in CLIPPING.items():
        for kind, (_, temperature) in kinds.items():
            clusters = {}
            for size, scores in of_size.items():
                clusters[size] = scores[kind, method].unstack("model").dropna().mean(axis=1)
            every = pd.concat(clusters)
            intervals = [mean_interval(values.to_numpy()) for values in (every, *clusters.values())]
            texts = [f"{of.value:+.1f} [{of.low:.1f}, {of.high:.1f}]".replace("-", MINUS) for of in intervals]
            name = kind if not temperature else f"{kind}, temperature {temperature}"
            rows.append([f"{label}: {name}", *texts, f"{(every < 0).sum()} of {len(every)}"])
    return table(["points over GRPO", "all", *of_size, "clusters below GRPO"], rows)


def controls(scale: str) -> str:
    """Placebos and half the learning rate: a scale's verdicts on entropy, and differences in scores from its counts."""
    folder = REFERENCE / f"{scale}/controls/pooled"
    parts = [f"{scale}/controls/{part}" for part in read_run(folder).of]
    judged = verdicts_of(folder / "controls.json")

    def row(label: str, claims: str, plus: str, minus: str) -> list[str]:
        cells = [label]
        for model in ("qwen2.5", "qwen3"):
            entry = judged.get(claims.format("entropy") + f"_{model}")
            cells.append(shown(entry["effect"], entry["low"], entry["high"], 2) if entry else "")
        return [*cells, *(gain_shown(parts, metric, plus, minus, TOYS) for metric in ("pass", "avg"))]

    rows = []
    for method, mask, low_p in (("clip_b", "random_mask", "low_p_mask"), ("clip_v", "random_mask_v", "low_p_mask_v")):
        label = CLIPPING[method]
        rows += [
            row(f"{label} over GRPO", "-", method, "grpo"),
            row(f"{label} over its random mask", f"placebo_{{}}_{method}", method, mask),
            row(f"{label} over the lowest *p*", f"low_p_{{}}_{method}", method, low_p),
            row(f"random mask of {label} over GRPO", f"chance_{{}}_{method}", mask, "grpo"),
            row(f"{label} over half the rate", "-", method, "grpo_half_rate"),
        ]
    rows.append(row("half the learning rate over GRPO", "half_rate_{}", "grpo_half_rate", "grpo"))
    if scale == "laptop":
        rows.append(row("rejection sampling over GRPO", "-", "rft", "grpo"))
    heads = ["", "entropy, log ratio, toy Qwen2", "toy Qwen3", "Pass@K, both models", "Avg@K"]
    return table(heads, rows)


def what_is_left() -> str:
    frame = pd.read_csv(REFERENCE / "laptop/controls/pooled-path/left.csv")
    frame = frame[frame["scale"] == "laptop and desk"].set_index(["method", "model", "over"]).sort_index()
    rows = []
    for method, label in CLIPPING.items():
        for model, name in (NAMES | {"mean": "mean"}).items():
            of = frame.loc[method, model]
            grids = ("temperatures", "checkpoints", "half the rate")
            cells = [shown(*of.loc[grid, ["left", "left_low", "left_high"]], sign=False) for grid in grids]
            rows.append([f"{label}, {name}", *cells, of.loc[grids[-1], "verdict"]])
    return table(["points of Pass@K", "GRPO's temperatures", "+ checkpoints", "+ half the learning rate", "then"], rows)


def methods_on_policy() -> str:
    """All methods: entropy at the end, of the run with metrics, and differences from GRPO of ten seeds."""
    folders = ["laptop/methods/seeds-0-4", "laptop/methods/seeds-50-54"]
    published = pd.read_csv(REFERENCE / folders[1] / "methods_on_policy.csv")
    rows = []
    for of in published[published["method"].isin(counts_of(folders[0]))].itertuples():
        cells = ["as GRPO"] * 2 if of.equals_baseline else [""] * 2
        if of.method != "grpo" and not of.equals_baseline:
            cells = [gain_shown(folders, metric, of.method, "grpo", TOYS[:1]) for metric in ("avg", "pass")]
        rows.append([of.label.partition(" (")[0], f"{of.entropy:.2f}", *cells])
    return table(["strictly on-policy", "entropy, nats", "Avg@K over GRPO", "Pass@K over GRPO"], rows)


def lens() -> str:
    """The share of GRPO's push on the entropy in each quadrant that a method keeps."""
    frame = pd.read_csv(REFERENCE / "laptop/methods/seeds-0-4/lens.csv")
    quadrants = {"+, >0": "pos_gt", "+, <0": "pos_lt", "−, >0": "neg_gt", "−, <0": "neg_lt"}
    rows = [
        [of["label"], *(f"{of[f'lens_{name}_share']:.2f}".replace("-", MINUS) for name in quadrants.values())]
        for of in frame[~frame["method"].str.startswith("s_star")].to_dict("records")
    ]
    return table(["sign of *A*, *S\\**", *quadrants], rows)


def matched_entropy() -> str:
    """Methods at the entropy of Clip_B, interpolated over their strengths."""
    rows = []
    for file in ("seeds-0-4/matched_entropy.csv", "seeds-0-4-opefo/figures/matched_entropy_opefo.csv"):
        frame = pd.read_csv(REFERENCE / "laptop/methods" / file)
        frame = frame[frame["avg_matched"].notna() & (frame["method"] != "clip_b")].drop_duplicates("method")
        for of in frame.to_dict("records"):
            scores = ([of[f"{metric}_matched{end}"] for end in ("", "_low", "_high")] for metric in ("avg", "pass"))
            rows.append([f"`{of['method']}`", *(shown(*score) for score in scores)])
    return table(["at Clip_B's 0.30 nats, over Clip_B", "Avg@K", "Pass@K"], rows)


def paper_and_code() -> str:
    """Each switch in which the paper and its code differ: Table 6."""
    folder = "laptop/extras/seeds-50-54"
    dropped = dropped_in(folder, "method")
    pairs = {
        "Clip_B over GRPO": ("clip_b", "grpo"),
        "Clip_B of eq. 15 over Clip_B": ("clip_b_paper", "clip_b"),
        "Clip_B with both bounds (`mu_plus=null`) over Clip_B": ("clip_b@mu_plus=null", "clip_b"),
        "Clip_B with the denominator of all tokens over Clip_B": ("clip_b@denominator=all", "clip_b"),
        "Clip_V over GRPO": ("clip_v", "grpo"),
        "Clip_V of Algorithm 2 over Clip_V": ("clip_v_paper", "clip_v"),
        "Clip_V with a cap of 0.2 % over GRPO": ("clip_v@max_frac=0.002", "grpo"),
        "GRPO, binary reward, over GRPO": ("grpo_binary_reward", "grpo"),
        "GRPO, loss per group, over GRPO": ("grpo_per_group", "grpo"),
    }
    rows = [
        [
            name,
            f"{dropped[plus]:.1f}" if dropped[plus] else "",
            *(gain_shown([folder], metric, plus, minus, TOYS[:1]) for metric in ("avg", "pass")),
        ]
        for name, (plus, minus) in pairs.items()
    ]
    return table(["", "dropped, %", "Avg@K", "Pass@K"], rows)


def stale_rollouts() -> str:
    """Each arm beside GRPO at the same staleness."""
    arms = {"grpo@S,training.importance_truncation=2.0": "truncated ratios"}
    arms |= {"grpo@S,training.importance_masking=2.0": "masked ratios", "score_centering@S": "score centering"}
    arms |= {"clip_b@S": "Clip_B", "score_centering_clip_b@S": "score centering, Clip_B"}
    pairs = {}
    for steps, (arm, label) in product((1, 3, 8), arms.items()):
        of = {name: name.replace("S", f"training.staleness={steps}") for name in (arm, "grpo@S")}
        pairs[str(steps), label] = TOYS[0], of[arm], of["grpo@S"]
    return beside("stale/seeds-310-314", ["steps old", "minus GRPO"], pairs)


def kl_term() -> str:
    """The KL term to the starting policy, at each strength, beside GRPO."""
    arms = {"0.04": "reference_kl"} | {beta: f"reference_kl@beta={beta}" for beta in ("0.1", "0.3", "1.0")}
    pairs = {(beta,): (TOYS[0], arm, "grpo") for beta, arm in arms.items()}
    return beside("laptop/controls/seeds-320-324", ["beta, minus GRPO"], pairs)


def placebo_of_clip_cov() -> str:
    """Clip-Cov beside as many random tokens of correct answers, and those beside GRPO, per toy model."""
    tables = []
    for plus, minus, head in (
        ("clip_cov", "random_positive", "Clip-Cov minus random tokens"),
        ("random_positive", "grpo", "random tokens minus GRPO"),
    ):
        pairs = {(name,): (model, plus, minus) for model, name in NAMES.items()}
        tables.append(beside("laptop/controls/seeds-330-334", [head], pairs))
    return "\n\n".join(tables)


def at_the_end(folder: str, columns: list[str]) -> pd.DataFrame:
    """Means over the last tenth of the steps of each model, method and seed."""
    runs = metrics_of(folder).groupby(["model", "method", "seed"])
    return runs[columns].agg(lambda curve: final_means([curve.to_numpy()])[0])


def entropy_ratios(folder: str, arms: dict[str, str], head: str) -> str:
    """Log ratios of entropies to GRPO at the end of the runs, and the shares of dropped tokens where there are any."""
    ends = np.log(at_the_end(folder, ["entropy"])["entropy"])
    dropped = dropped_in(folder, "model", "method")
    rows = []
    for label, arm in arms.items():
        ratios, shares = [""] * 2, [""] * 2
        if arm != "grpo":
            pairs = [(ends[model, arm] - ends[model, "grpo"]).to_numpy() for model in TOYS]
            ratios = [shown_interval(mean_interval(pair), 2) for pair in pairs]
        if dropped[TOYS[0], arm] > 0:
            shares = [f"{dropped[model, arm]:.1f}" for model in TOYS]
        rows.append([label, *ratios, *shares])
    return table([head, *(f"{what}, {name}" for what in ("log ratio", "dropped, %") for name in NAMES.values())], rows)


def beside(folder: str, heads: list[str], pairs: dict[tuple[str, ...], tuple[str, str, str]]) -> str:
    """Differences of two methods of a toy model, in brackets the p values of a column after Holm's correction."""
    ends = at_the_end(folder, ["entropy", "accuracy"])
    ends = ends.assign(entropy=np.log(ends["entropy"]), accuracy=100 * ends["accuracy"])
    rows = [list(names) for names in pairs]
    for column, decimals in {"entropy": 2, "accuracy": 1, "avg": 1, "pass": 1}.items():
        intervals = []
        for model, plus, minus in pairs.values():
            if column in ends:
                intervals.append(seed_interval((ends[column][model, plus] - ends[column][model, minus]).to_numpy()))
            else:
                intervals.append(gain([folder], column, plus, minus, (model,)))
        for row, of, p in zip(rows, intervals, holm(np.array([of.p for of in intervals])), strict=True):
            row.append(f"{shown(of.value, of.low, of.high, decimals)} ({p_shown(p)})")
    return table([*heads, "log entropy", "training accuracy", "Avg@K", "Pass@K"], rows)
