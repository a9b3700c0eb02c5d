"""The outcomes of docs/protocol-length.md, from its published metrics: tables of `lists.py`."""

import numpy as np
import pandas as pd

from effects import REFERENCE, at_the_end, shown, shown_interval, table
from entropy_dynamics.analysis.envelope import resampled_seeds
from entropy_dynamics.analysis.statistics import mean_interval

SCALES = {"one problem": "length-one", "six problems": "length"}
SHARES = {"0.1 %": 0.001, "0.3 %": 0.003, "1 %": 0.01}
ARMS = {"GRPO": "grpo"} | {f"Clip_B, {dose}": f"clip_b@share={share}" for dose, share in SHARES.items()}
ALIKE = (0.5, 2.0)  # a ratio of doses


def ends(scale: str) -> pd.DataFrame:
    """Means over the last tenth of the steps: a row per seed, columns by metric and arm."""
    folder = next((REFERENCE / scale).glob("seeds-260-*")).relative_to(REFERENCE)
    metrics = ["entropy", "response_length", "accuracy"]
    return at_the_end(str(folder), metrics).droplevel("model").unstack("method")


def kept(scale: str) -> np.ndarray:
    """Log ratios of entropies to GRPO: [share, seed]."""
    entropies = ends(scale)["entropy"]
    grpo, *clipped = (entropies[arm] for arm in ARMS.values())
    return np.stack([np.log(of / grpo) for of in clipped])


def ratio_of_doses(one: np.ndarray, six: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The dose of six problems over that of one problem with the same log ratio, and the slope over log doses.

    Both lines are of least squares, with the mean slope. Log ratios are means over seeds, [*resample, share].
    """
    doses = np.log([*SHARES.values()])
    centered = doses - doses.mean()
    slope = (one + six) / 2 @ centered / (centered @ centered)
    return np.exp((one.mean(axis=-1) - six.mean(axis=-1)) / slope), slope


def resampled(of: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Means over seeds that are drawn with replacement: [resample, share]."""
    seeds = of.shape[1]
    return np.asarray(resampled_seeds(seeds, rng) / seeds @ of.T)


def doses() -> tuple[float, float, float]:
    """The ratio of doses with its 95 % interval; infinite where doses may have no effect."""
    one, six = (kept(scale) for scale in SCALES.values())
    rng = np.random.default_rng(0)
    ratios, slopes = ratio_of_doses(resampled(one, rng), resampled(six, rng))
    value = float(ratio_of_doses(one.mean(axis=1), six.mean(axis=1))[0])
    if np.quantile(slopes, 0.025) <= 0:
        return value, 0.0, np.inf
    low, high = np.quantile(ratios, [0.025, 0.975])
    return value, float(low), float(high)


def verdict(low: float, high: float) -> str:
    if ALIKE[0] <= low and high <= ALIKE[1]:
        return "alike"
    if high < 1:
        return "falls"
    return "rises" if low > 1 else "undecided"


def primary() -> str:
    """What each share keeps, then the ratio of doses with its verdict."""
    rows = []
    for name, of in ((name, kept(scale)) for name, scale in SCALES.items()):
        rows.append([f"log ratio of entropies, {name}", *(shown_interval(mean_interval(share), 2) for share in of)])
    value, *bounds = doses()
    ratio = shown(value, *bounds, 2, sign=False) if np.isfinite(bounds[1]) else "none, as no dose may have an effect"
    rows.append(["dose of six problems over that of one", ratio, verdict(*bounds), ""])
    return table(["Clip_B over GRPO", *SHARES], rows)


def lengths() -> str:
    """Per token and per answer, means over seeds at the end of the runs."""
    rows = []
    for name, scale in SCALES.items():
        for label, arm in ARMS.items():
            of = ends(scale).xs(arm, axis=1, level="method")
            entropy, tokens = of["entropy"], of["response_length"]
            values = [f"{entropy.mean():.2f}", f"{tokens.mean():.0f}", f"{(entropy * tokens).mean():.1f}"]
            rows.append([f"{name}, {label}", *values, f"{100 * of['accuracy'].mean():.0f}"])
    heads = ["last tenth", "entropy per token, nats", "tokens", "entropy per answer, nats", "training accuracy, %"]
    return table(heads, rows)
