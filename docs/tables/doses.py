"""What the most negative tokens carry of the fall of entropy, and what dropping them did: tables of `lists.py`."""

import numpy as np
import pandas as pd

from tables import smollm2
from tables.effects import MINUS, NAMES, REFERENCE, at_the_end, dropped_in, table

SHARES = (0.1, 0.3, 1.0, 3.0)  # per cent of the tokens
MODELS = NAMES | {smollm2.MODEL: "SmolLM2"}
SIZES = {"laptop": "0.1 M", "desk": "1 M", "smollm2": "135 M"}


def carried(centered: np.ndarray, percent: float) -> float:
    """The share, per cent, of the sum of all negative S* - E[S] that the lowest `percent` of the tokens have."""
    sums = np.concatenate(([0.0], np.cumsum(np.minimum(np.sort(centered), 0.0))))
    return 100 * float(np.interp(percent / 100 * len(centered), np.arange(len(sums)), sums) / sums[-1])


def samples() -> pd.DataFrame:
    """GRPO's published token samples, a row per response."""
    pretrained = pd.read_parquet(REFERENCE / smollm2.FOLDER / "tokens.parquet").query("method == 'grpo'")
    return pd.concat([pd.read_parquet(REFERENCE / "tokens.parquet"), pretrained.assign(scale="smollm2")])


def centered_of(rows: pd.DataFrame) -> np.ndarray:
    return np.concatenate(rows["s_star"].to_list()) - np.concatenate(rows["s_expected"].to_list())


def most_negative() -> str:
    """What the most negative tokens carry over a run of GRPO, by entropy."""
    rows = []
    for (scale, model, step), of in samples().groupby(["scale", "model", "step"]):
        entropy = np.concatenate(of["entropy"].to_list())
        parts = [f"{carried(centered_of(of), share):.1f}" for share in SHARES]
        name = f"{MODELS[model]}, {SIZES[scale]}, step {step + 1}"
        rows.append((-entropy.mean(), [name, f"{entropy.mean():.2f}", f"{len(entropy):,}", *parts]))
    heads = ["GRPO", "entropy, nats", "tokens sampled", *(f"lowest {share:g} %" for share in SHARES)]
    return table(heads, [row for _, row in sorted(rows)])


def dropped_and_kept() -> str:
    """What the dropped share of a run carries at the first step, beside the entropy that the run kept."""
    first = {key: centered_of(of) for key, of in samples().query("step == 0").groupby(["scale", "model"])}
    rows = []
    for scale, runs in strengths().items():
        for _, run in runs.sort_values("clip_fraction").iterrows():
            ratio = f"{round(run['log_ratio'], 2) + 0.0:.2f}".replace("-", MINUS)
            part = carried(first[scale, run["model"]], run["clip_fraction"])
            rows.append([f"`{run['run']}`, {SIZES[scale]}", f"{run['clip_fraction']:.2f}", f"{part:.1f}", ratio])
    return table(["run", "dropped, %", "carried at the first step, %", "log ratio of entropies to GRPO"], rows)


def strengths() -> dict[str, pd.DataFrame]:
    """By scale, the published strengths: run, model, per cent dropped, log ratio of entropies to GRPO's same seeds."""
    found = {}
    for scale, folder in (("desk", "desk/paper/seeds-0-7"), ("laptop", "laptop/paper/pooled")):
        runs = pd.read_csv(REFERENCE / folder / "figures/strength.csv")  # GRPO has the seeds of all
        grpo = runs.loc[runs["run"] == "grpo", "entropy"].item()
        found[scale] = runs[runs["run"] != "grpo"].assign(log_ratio=lambda of, by=grpo: np.log(of["entropy"] / by))
    [(model, ends)] = at_the_end(smollm2.FOLDER, ["entropy"])["entropy"].groupby("model")
    dropped = dropped_in(smollm2.FOLDER, "method")
    rows = []
    for run in ("clip_v@mu=8.5,max_frac=0.0001", "clip_b@mu=2.5", "clip_b", "clip_v"):
        own = ends[model, run]
        ratio = np.log(own.mean() / ends[model, "grpo"][own.index].mean())
        rows.append({"run": run, "model": model, "clip_fraction": dropped[run], "log_ratio": ratio})
    return found | {"smollm2": pd.DataFrame(rows)}
