"""When and why the entropy of a training run fell or rose, from the metrics that it logged."""

from functools import cache

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.optimize import isotonic_regression
from scipy.stats import norm, spearmanr

from entropy_dynamics.analysis.columns import PARTS
from entropy_dynamics.diagnostics.logs import ENTROPY, NAMES, NATS_ROUNDING, first_logged
from entropy_dynamics.errors import UserError, nearest

REWARD, SIGNALS = tuple(NAMES["reward"]), NAMES["signals"]
SUSPECTS = {  # possible causes of rising entropy -> the smallest increase to report
    "the share of truncated responses": 0.01,  # one in a hundred; fewer cannot move the mean
    "the mismatch of engine and trainer": 0.001,  # nats; NeMo RL accepts a KL below 1e-3
}
GREW = 1.5  # the smallest factor of increase to report
SOURCES = {"lens_pos_gt": "likely tokens of positive samples", "lens_neg_lt": "unlikely tokens of negative samples"}
CLIP_RATIO, LONGEST = "response_length/clip_ratio", "response_length/max"
WITHOUT_VARIANCE = ("zero_variance_groups", "frac_reward_zero_std")  # shares of groups: ours, TRL
SPREADS = ("reward_std", "rewards/std")  # TRL: standard deviation of the rewards in a group
RANGE = ("critic/score/min", "critic/score/max")  # verl: smallest and largest reward of a step
MOST = 13.0  # nats per token; the largest vocabularies have some 262,144 items, ln 262,144 = 12.5
TREND = 0.02  # p value below which a change is more than noise; one in twenty noisy runs at most has it (tested)
FEWEST = 5  # minimum number of steps
TESTABLE = 9  # steps; of fewer, even a straight line may be autocorrelated noise
CHANCE = norm.isf(0.025 / len(SIGNALS))  # standard errors exceeded by one in twenty unrelated runs
ROUNDING = 1e-9  # relative; rounding of the steps of a linear learning rate
BLOCKS = 60  # a longer series is averaged over as many blocks
SIMULATED, NEAREST = 2000, 200
STRONGEST = 0.95  # lag-1 autocorrelation of the noise; stronger noise would pass for a trend


def describe(metrics: pd.DataFrame, source: str, column: str | None = None) -> str:
    """A paragraph: how much the entropy fell or rose, when, and with which metrics its changes correlate.

    `source` is the file of the metrics, `column` the one of the entropy, by default the first of `ENTROPY` that exists.
    Raises UserError if there is none, if it has fewer than 5 values, or if one is below 0 or too large for a token.
    """
    entropy = first_logged(metrics, (column,) if column else ENTROPY)
    if entropy is None:
        names = [str(name) for name in metrics.columns]
        wanted = f"no {column}{nearest(column, names)}" if column else f"no entropy ({', '.join(ENTROPY)})"
        raise UserError(f"{source} logs {wanted}; it logs {', '.join(names)}")
    if (count := len(entropy := entropy.dropna())) < FEWEST:
        raise UserError(f"{source} has {count} step{'s' * (count != 1)} with an entropy; {FEWEST} are needed")
    if (lowest := entropy.min()) < -NATS_ROUNDING:
        raise UserError(
            f"{source}: {entropy.name} is {lowest:.4g} at step {entropy.idxmin()}; it should be 0 or more, in nats: "
            "is it a loss, which has the other sign?"
        )
    if (highest := entropy.max()) > MOST:
        raise UserError(
            f"{source}: {entropy.name} is {highest:.4g} at step {entropy.idxmax()}; the entropy of a token is at most "
            "ln(vocabulary), some 12 nats: is it a sum over sequences?"
        )
    reward = first_logged(metrics, REWARD)
    text = _constant_rewards(metrics, reward)
    of_loss = "verl aggregates actor/entropy by actor.loss_agg_mode: nats per token only with token-mean."
    about = [of_loss] * (str(entropy.name).endswith("actor/entropy")) + [f"Read from {source}."]
    tenth = max(1, len(entropy) // 10)
    start, end = entropy.iloc[:tenth].mean(), entropy.iloc[-tenth:].mean()
    means = f"means of the first and the last {tenth} of {len(entropy)} steps"
    if start == end:
        return " ".join([*text, f"Entropy did not change: {start:.3g} nats ({means}).", *about])
    if trend_p(entropy.to_numpy()) > TREND:
        text.append(
            f"Entropy shows no rise or fall over the run beyond the noise of steps: {start:.3g} and {end:.3g} nats "
            f"({means}), between {lowest:.3g} and {highest:.3g} at all steps."
        )
        text += [f"{count} steps are too few to tell; {TESTABLE} are needed."] * (count < TESTABLE)
        return " ".join([*text, _correlations(metrics, entropy), *about])
    sign = np.sign(end - start)
    fit = pd.Series(monotone_fit(entropy.to_numpy()), entropy.index)  # single steps are noisy
    halfway = (sign * (fit - start) >= abs(end - start) / 2).idxmax()
    window = fit.diff(tenth) / entropy.index.to_series().diff(tenth)
    last = (sign * window).idxmax()
    first = entropy.index[entropy.index.get_loc(last) - tenth]
    share = f"{(end - start) / start:+.0%}; " if start > 0 else ""
    text.append(
        f"Entropy {'fell' if sign < 0 else 'rose'} from {start:.3g} to {end:.3g} nats ({share}{means}). Half of it was "
        f"over by step {halfway}; it moved fastest between the steps {first} and {last}, by {window[last]:+.2g} nats "
        "per step."
    )
    if reward is not None and pd.notna(reward.get(first)) and pd.notna(reward.get(last)):
        text.append(f"Over these steps {reward.name} went from {reward[first]:.3g} to {reward[last]:.3g}.")
    if set(PARTS) <= set(metrics) and (falls := metrics[list(SOURCES)].sum().abs()).any():
        shares = [f"{falls[part] / falls.sum():.0%} from {tokens}" for part, tokens in SOURCES.items()]
        text.append(f"Of the decrease that GRPO would cause (the lens), {' and '.join(shares)}.")
    if sign > 0:
        text += _suspects(metrics, tenth)
    return " ".join([*text, _correlations(metrics, entropy), *about])


def _correlations(metrics: pd.DataFrame, entropy: pd.Series) -> str:
    """The logged quantities that correlate most with the entropy change in the next step.

    Correlations are between differences of consecutive steps, since unrelated trends correlate too. Differences of
    noise have a correlation of -1/2 between neighbors, so the correlation of two unrelated series has a variance of
    3 / (2 n) (Bartlett 1946).
    """
    change = entropy.diff().shift(-1)
    close = {}
    for name in metrics:
        signal = _signal(str(name))
        pairs = pd.DataFrame({"change": change, "signal": metrics[name]}).dropna()
        rounding, pairs = ROUNDING * pairs.abs().max(), pairs.diff().iloc[1:]
        if signal and len(pairs) >= FEWEST and (pairs.max() - pairs.min() > rounding).all():
            rank = spearmanr(pairs["change"], pairs["signal"]).statistic
            if abs(rank) > max(CHANCE * (1.5 / len(pairs)) ** 0.5, abs(close.get(signal, (0,))[0])):
                close[signal] = (rank, len(pairs))
    if not close:
        return "None of the logged quantities correlates with its change per step."
    ordered = sorted(close.items(), key=lambda item: -abs(item[1][0]))[:3]
    listed = ", ".join(f"{signal} ({rank:+.2f} over {count} steps)" for signal, (rank, count) in ordered)
    return f"Its change per step correlates with {listed} (rank correlations without trends; no proof of a cause)."


def _constant_rewards(metrics: pd.DataFrame, reward: pd.Series | None) -> list[str]:
    """What to say first: without variance of rewards, advantages are 0, and no response is preferred to another."""
    columns = {name: metrics[name].dropna() for name in map(str, metrics.columns)}
    for name, values in columns.items():
        if name.endswith(WITHOUT_VARIANCE) and len(values) and (share := values.mean()) > 0.5:
            return [f"In {share:.0%} of the groups all rewards are equal ({name}), so they teach nothing."]
        if name.endswith(SPREADS) and len(values) and not values.any():
            return [f"The rewards of a group do not differ at any step ({name} is 0), so nothing is learned."]
    low, high = (next((columns[name] for name in columns if name.endswith(end)), None) for end in RANGE)
    if low is not None and high is not None and len(low) and low.equals(high):
        return [f"The rewards of a step do not differ at any step ({' = '.join(RANGE)}), so nothing is learned."]
    if reward is not None and reward.count() >= FEWEST and reward.min() == reward.max():
        return [f"The reward never varies: {reward.name} is {reward.max():.3g} at all {reward.count()} steps."]
    return []


def _suspects(metrics: pd.DataFrame, tenth: int) -> list[str]:
    """Increases of truncation and of the mismatch of engine and trainer, with which entropy may rise."""
    increases = {}
    for name in metrics:
        values = metrics[name].dropna()
        if str(name).endswith(CLIP_RATIO):  # in verl V1 of responses as long as the step's longest, truncated or not
            longest = metrics.get(str(name).removesuffix(CLIP_RATIO) + LONGEST, pd.Series())
            if longest.reindex(values.index[values > 0]).nunique() > 1:
                continue
        if (signal := _signal(str(name))) in SUSPECTS and len(values) >= FEWEST:
            start, end = abs(values.iloc[:tenth].mean()), abs(values.iloc[-tenth:].mean())
            if end > GREW * start and end - start >= SUSPECTS[signal]:
                increases.setdefault(signal, f"{signal} ({name}) grew from {start:.3g} to {end:.3g}")
    if not increases:
        return []
    return [f"Over the run {' and '.join(increases.values())}: such tokens may be where entropy rises."]


def _signal(name: str) -> str | None:
    return next((signal for signal, ends in SIGNALS.items() for end in ends if f"/{name}".endswith(f"/{end}")), None)


def monotone_fit(series: Float[np.ndarray, " step"]) -> Float[np.ndarray, " step"]:
    """The closest series that only rises, or only falls if the last tenth of the steps is below the first."""
    tenth = max(1, len(series) // 10)
    return isotonic_regression(series, increasing=series[-tenth:].mean() > series[:tenth].mean()).x


def trend_p(values: Float[np.ndarray, " step"]) -> float:
    """P value of the hypothesis that the series is a constant plus AR(1) noise, against any rise or fall.

    The statistic is the share of variance that a monotone fit explains (order-restricted inference: Robertson, Wright
    and Dykstra 1988). Its distribution depends on the noise's autocorrelation, which the fit's residuals underestimate.
    Series of noise are therefore simulated, with coefficients from 0 to 0.95, and the value is compared with those
    whose residuals have nearly the same lag-1 autocorrelation.
    """
    blocks = np.array([block.mean() for block in np.array_split(values, min(len(values), BLOCKS))])
    shares, correlations = _fits_of_noise(len(blocks))
    share, correlation = _explained(blocks)
    near = np.abs(correlations - correlation).argsort()[:NEAREST]
    return float((shares[near] >= share).mean())


@cache
def _fits_of_noise(steps: int) -> Float[np.ndarray, "2 series"]:
    rng = np.random.default_rng(0)
    coefficient = rng.uniform(0, STRONGEST, SIMULATED)
    noise = rng.standard_normal((steps, SIMULATED))
    for step in range(1, steps):
        noise[step] = coefficient * noise[step - 1] + np.sqrt(1 - coefficient**2) * noise[step]
    return np.array([_explained(series) for series in noise.T]).T


def _explained(series: Float[np.ndarray, " step"]) -> tuple[float, float]:
    """The share of variance that a monotone fit explains, and the lag-1 autocorrelation of its residuals."""
    residuals = series - monotone_fit(series)
    left, total = np.square(residuals).sum(), np.square(series - series.mean()).sum()
    if left <= 1e-12 * total:
        return 1.0, 0.0
    return 1 - left / total, float(residuals[1:] @ residuals[:-1]) / left
