"""What the most negative tokens carry of the fall of entropy, and what dropping them did: tables of `lists.py`."""

import numpy as np
import pandas as pd

from effects import MINUS, REFERENCE, TOYS, table

SHARES = (0.1, 0.3, 1.0, 3.0)  # per cent of the tokens
NAMES = {TOYS[0]: "toy Qwen2", TOYS[1]: "toy Qwen3", "smollm2-135m-instruct": "SmolLM2"}
SIZES = {"laptop": "0.1 M", "desk": "1 M", "smollm2": "135 M"}
SMOLLM2 = REFERENCE / "smollm2/seeds-0-7"


def carried(centered: np.ndarray, percent: float) -> float:
    """The share, per cent, of the sum of all negative S* - E[S] that the lowest `percent` of the tokens have."""
    sums = np.concatenate(([0.0], np.cumsum(np.minimum(np.sort(centered), 0.0))))
    return 100 * float(np.interp(percent / 100 * len(centered), np.arange(len(sums)), sums) / sums[-1])


def samples() -> pd.DataFrame:
    """GRPO's published token samples, a row per response."""
    smollm2 = pd.read_parquet(SMOLLM2 / "tokens.parquet").query("method == 'grpo'").assign(scale="smollm2")
    return pd.concat([pd.read_parquet(REFERENCE / "tokens.parquet"), smollm2])


def centered_of(rows: pd.DataFrame) -> np.ndarray:
    return np.concatenate(rows["s_star"].to_list()) - np.concatenate(rows["s_expected"].to_list())


def most_negative() -> str:
    """What the most negative tokens carry over a run of GRPO, by entropy."""
    rows = []
    for (scale, model, step), of in samples().groupby(["scale", "model", "step"]):
        entropy = np.concatenate(of["entropy"].to_list())
        parts = [f"{carried(centered_of(of), share):.1f}" for share in SHARES]
        name = f"{NAMES[model]}, {SIZES[scale]}, step {step + 1}"
        rows.append((-entropy.mean(), [name, f"{entropy.mean():.2f}", f"{len(entropy) / len(of):.0f}", *parts]))
    heads = ["GRPO", "entropy, nats", "tokens of an answer", *(f"lowest {share:g} %" for share in SHARES)]
    return table(heads, [row for _, row in sorted(rows)])


def dropped_and_kept() -> str:
    """What the dropped share of a run carries at the first step, beside the entropy that the run kept."""
    first = {key: centered_of(of) for key, of in samples().query("step == 0").groupby(["scale", "model"])}
    metrics = pd.read_parquet(SMOLLM2 / "metrics.parquet")
    ends = metrics[metrics["step"] >= 0.9 * (metrics["step"].max() + 1)].groupby("method")["entropy"].mean()
    shares = 100 * metrics.groupby("method")["clip_fraction"].mean()
    smollm2 = pd.DataFrame({"run": ends.index, "entropy": ends, "clip_fraction": shares[ends.index]})
    runs = [smollm2[smollm2["run"] != "random_mask"].assign(scale="smollm2", model="smollm2-135m-instruct")]
    for scale, folder in (("laptop", "laptop/paper/pooled"), ("desk", "desk/paper/seeds-0-7")):
        runs.append(pd.read_csv(REFERENCE / folder / "figures/strength.csv").assign(scale=scale))
    rows = []
    for (scale, model), of in pd.concat(runs).groupby(["scale", "model"]):
        grpo = of.loc[of["run"] == "grpo", "entropy"].item()
        for _, run in of[of["run"] != "grpo"].sort_values("clip_fraction").iterrows():
            ratio = f"{round(np.log(run['entropy'] / grpo), 2) + 0.0:.2f}".replace("-", MINUS)
            part = carried(first[scale, model], run["clip_fraction"])
            rows.append([f"`{run['run']}`, {SIZES[scale]}", f"{run['clip_fraction']:.2f}", f"{part:.1f}", ratio])
    return table(["run", "dropped, %", "carried at the first step, %", "log ratio of entropies to GRPO"], rows)
