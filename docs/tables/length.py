"""The outcomes of docs/reference/length/protocol.md, from its published metrics: tables of `lists.py`."""

from typing import NamedTuple

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.envelope import resampled_seeds
from entropy_dynamics.analysis.statistics import mean_interval, t_quantile
from tables.effects import at_the_end, metrics_of, p_shown, p_value, shown, shown_interval, table

SCALES = {"one problem": "length-one", "six problems": "length"}
SEEDS = "seeds-260-271"
SHARES = {"0.1 %": 0.001, "0.3 %": 0.003, "1 %": 0.01}
ARMS = {"GRPO": "grpo"} | {f"Clip_B, {dose}": f"clip_b@share={share}" for dose, share in SHARES.items()}
ALIKE = (0.5, 2.0)  # a ratio of doses


class Kept(NamedTuple):
    """What the shares keep at one length."""

    doses: np.ndarray
    """Logarithms of the shares that were dropped: [share]."""
    ratios: np.ndarray
    """Log ratios of entropies to GRPO: [share, seed]."""


def ends(scale: str) -> pd.DataFrame:
    """Means over the last tenth of the steps: a row per seed with all arms, columns by metric and arm."""
    return (
        at_the_end(f"{scale}/{SEEDS}", ["entropy", "response_length", "accuracy"])
        .droplevel("model")
        .unstack("method")
        .dropna()
    )


def dropped(scale: str) -> pd.Series:
    """The share of tokens that each arm dropped, mean over all steps and seeds."""
    return metrics_of(f"{scale}/{SEEDS}").groupby("method")["clip_fraction"].mean()


def kept(scale: str) -> Kept:
    entropies, (_, *clipping) = ends(scale)["entropy"], ARMS.values()
    ratios = np.stack([np.log(entropies[arm] / entropies["grpo"]) for arm in clipping])
    return Kept(np.log(dropped(scale)[clipping].to_numpy()), ratios)


def slope_of(doses: np.ndarray, ratios: np.ndarray) -> np.ndarray:
    """The slopes of least squares of log ratios [*resample, share]."""
    centered = doses - doses.mean()
    return np.asarray(ratios @ centered / (centered @ centered))


def distance(one: Kept, six: Kept) -> tuple[np.ndarray, np.ndarray]:
    """The logarithm of the dose of six problems over that of one with the same log ratio, and the mean slope.

    Both lines have the mean slope. Log ratios are means over seeds, [*resample, share].
    """
    slope = (slope_of(*one) + slope_of(*six)) / 2
    higher = six.ratios.mean(axis=-1) - one.ratios.mean(axis=-1)
    return six.doses.mean() - one.doses.mean() - higher / slope, slope


def doses() -> tuple[float, float, float, float]:
    """The ratio of doses with its 95 % interval and p value; without bounds if doses may have no effect."""
    lengths, rng = [kept(scale) for scale in SCALES.values()], np.random.default_rng(0)
    value, slope = distance(*(of._replace(ratios=of.ratios.mean(axis=1)) for of in lengths))
    seeds = [of.ratios.shape[1] for of in lengths]
    weights = [resampled_seeds(count, rng) / count for count in seeds]
    resampled = distance(
        *(of._replace(ratios=of_all @ of.ratios.T) for of, of_all in zip(lengths, weights, strict=True))
    )
    df = min(seeds) - 1
    half, of_slope = (t_quantile(df) * (np.var(of) * (df + 1) / df) ** 0.5 for of in resampled)
    if abs(slope) <= of_slope:
        return float(np.exp(value)), 0.0, np.inf, 1.0
    low, high = value - half, value + half
    return *np.exp([value, low, high]).tolist(), float(p_value(value, low, high, df))


def verdict(low: float, high: float) -> str:
    if ALIKE[0] <= low and high <= ALIKE[1]:
        return "alike"
    if high < 1:
        return "falls"
    return "rises" if low > 1 else "undecided"


def p_values() -> dict[str, float]:
    return {"ratio": doses()[-1]}


def primary(corrected: dict[str, float], compared: int) -> str:
    """The ratio of doses with its verdict and the p value of `corrected_p`."""
    value, low, high, _ = doses()
    ratio = shown(value, low, high, 2, sign=False) if np.isfinite(high) else "none, as the dose may have no effect"
    row = ["dose of six problems over that of one", ratio, p_shown(corrected["ratio"]), verdict(low, high)]
    return table(["", "ratio", f"Holm's p over {compared}", "verdict"], [row])


def what_is_kept() -> str:
    """Log ratios of entropies to GRPO, which rise by the slope if the share is e times as high."""
    found = {name: kept(scale) for name, scale in SCALES.items()}
    rows = []
    for name, of in found.items():
        slopes = slope_of(of.doses, of.ratios.T)
        rows.append([name, *(shown_interval(mean_interval(each), 2) for each in (*of.ratios, slopes))])
    one, six = found.values()
    pairs = [*(six.ratios - one.ratios), slope_of(six.doses, six.ratios.T) - slope_of(one.doses, one.ratios.T)]
    rows.append(["six minus one", *(shown_interval(mean_interval(pair), 2) for pair in pairs)])
    return table(["Clip_B over GRPO", *SHARES, "slope"], rows)


def arms() -> str:
    """Per token and per answer, means over seeds at the end of the runs; dropped shares over all steps."""
    rows = []
    for name, scale in SCALES.items():
        of, shares = ends(scale), 100 * dropped(scale)
        for label, arm in ARMS.items():
            entropy, tokens = of["entropy", arm], of["response_length", arm]
            values = [f"{entropy.mean():.2f}", f"{tokens.mean():.0f}", f"{(entropy * tokens).mean():.1f}"]
            accuracy, more = 100 * of["accuracy", arm], ""
            if arm != "grpo":
                more = shown_interval(mean_interval((accuracy - 100 * of["accuracy", "grpo"]).to_numpy()))
            share = f"{shares[arm]:.2f}" if arm != "grpo" else ""
            rows.append([f"{name}, {label}", share, *values, f"{accuracy.mean():.0f}", more])
    heads = ["last tenth", "dropped, %", "entropy per token, nats", "tokens", "entropy per answer, nats"]
    return table([*heads, "training accuracy, %", "minus GRPO's, points"], rows)
