"""Simulated seeds and scores with known effects, and how often the project's intervals cover these.

`python tests/simulated_seeds.py` prints the table of docs/results.md.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from scipy.special import expit, logit

from entropy_dynamics.analysis.statistics import Interval, score_interval, seed_interval

REPETITIONS = 4000  # the standard error of a coverage of 95 % is then 0.34 %
SEEDS = (3, 5, 8, 10, 16)  # the last two: both laptop runs, and both desk runs
PROBLEMS, SAMPLES = 250, 16  # as in a data set of the laptop scale
DIFFICULTY = (0.6, 1.2)  # Beta distribution of the problems' rates: 33 % on average
Draw = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape)


def two_state(share: float, distance: float) -> Draw:
    """Normal seeds, of which some are elsewhere, so many standard deviations away."""
    return lambda rng, shape: rng.standard_normal(shape) + distance * (rng.random(shape) < share)


def exploding(share: float) -> Draw:
    """Log ratio of the entropies of an arm that explodes by chance, such as 0.93, 0.97 and 2.24 nats, and of GRPO."""

    def draw(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        arm = np.log(0.95) + 0.05 * rng.standard_normal(shape) + np.log(2.24 / 0.95) * (rng.random(shape) < share)
        return arm - (np.log(0.2) + 0.1 * rng.standard_normal(shape))

    return draw


DIFFERENCES: dict[str, Draw] = {
    "normal": normal,
    "one in five collapses": two_state(0.2, -6),
    "one in three explodes": exploding(1 / 3),
    "one in two explodes": exploding(1 / 2),
    "one in three explodes, in nats": lambda rng, shape: np.exp(exploding(1 / 3)(rng, shape)),
    "heavy tails (t, two degrees of freedom)": lambda rng, shape: rng.standard_t(2, shape),
}
"""What two methods of one seed differ by."""

# Shifts of all logits of a run. At these difficulties 0.1 is 1.4 points of Avg@16 and 1.0 of Pass@16, so that runs vary
# by 1.2 points, and the effect of a method between untrained models by 1.2 points of Avg@16 or 4.4 of Pass@16.
RUN = 0.085
UNTRAINED = {"avg": 0.085, "pass": 0.44}
SCORES: dict[str, tuple[Draw, float]] = {
    "normal": (normal, 1),
    "one method varies three times as much": (normal, 3),
    "one in five collapses": (two_state(0.2, -0.8 / RUN), 1),
    "one in five collapses to nothing": (two_state(0.2, -4 / RUN), 1),
}
"""How one run of a method varies, in units of RUN, and how much more than the other method's."""


def coverage(found: Interval, truth: float) -> float:
    return float(np.mean((found.low <= truth) & (truth <= found.high)))


def covered_differences(name: str, seeds: int, interval: Callable[[np.ndarray], Interval] = seed_interval) -> float:
    """Coverage of the median by the interval of so many seeds."""
    rng, draw = np.random.default_rng(0), DIFFERENCES[name]
    return coverage(interval(draw(rng, (5 * REPETITIONS, seeds))), float(np.median(draw(rng, (2_000_000,)))))


def covered_scores(name: str, metric: str, seeds: int, models: int = 1) -> float:
    """The same of the difference of two methods' scores, the mean over models."""
    differences, truth = _scores(name, metric, models)
    return coverage(score_interval([differences[:, :seeds]]), truth)


@cache
def _scores(name: str, metric: str, models: int) -> tuple[np.ndarray, float]:
    """Differences [repetition, seed, problem], and the median over seeds for all problems there could be.

    Each method adds an effect to the logit of each problem; each run one to all problems and one to each; and all
    runs of a seed share that of their untrained model.
    """
    rng = np.random.default_rng(0)
    rates = np.clip(rng.beta(*DIFFICULTY, (REPETITIONS, 1, PROBLEMS)), 1e-6, 1 - 1e-6)
    easy = logit(rates).astype(np.float32)
    parts = [_difference(rng, easy, name, metric) for _ in range(models)]
    reach = np.linspace(-6, 3, 100)
    problems = logit(np.clip(rng.beta(*DIFFICULTY, 20_000), 1e-6, 1 - 1e-6)) + 0.5 * rng.standard_normal(20_000)
    heights = [_score(expit(problems + shift), metric).mean() for shift in reach]
    shifts = [_shifts(rng, (200_000, 1), name, metric) for _ in range(models)]
    seeds = sum(np.interp(first, reach, heights) - np.interp(second, reach, heights) for first, second in shifts)
    return sum(parts) / models, float(np.median(seeds)) / models


def _difference(rng: np.random.Generator, logits: np.ndarray, name: str, metric: str) -> np.ndarray:
    shape = (REPETITIONS, max(SEEDS), PROBLEMS)
    scores = []
    for shift in _shifts(rng, shape[:2], name, metric):
        of_method = logits + 0.3 * rng.standard_normal(logits.shape, np.float32) + shift[..., None].astype(np.float32)
        correct = rng.binomial(SAMPLES, expit(of_method + 0.4 * rng.standard_normal(shape, np.float32)))
        scores.append((correct / SAMPLES if metric == "avg" else correct > 0).astype(np.float32))
    return scores[0] - scores[1]


def _shifts(rng: np.random.Generator, shape: tuple[int, ...], name: str, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """The runs of both methods."""
    draw, factor = SCORES[name]
    untrained, effect = 0.2 * rng.standard_normal(shape), UNTRAINED[metric] * rng.standard_normal(shape)
    first = untrained + effect + factor * RUN * draw(rng, shape)
    return first, untrained + RUN * rng.standard_normal(shape)


def _score(rates: np.ndarray, metric: str) -> np.ndarray:
    return rates if metric == "avg" else 1 - (1 - rates) ** SAMPLES


def main() -> None:
    print(f"| seeds | {' | '.join(map(str, SEEDS))} |\n|---|{'---|' * len(SEEDS)}")
    for name in DIFFERENCES:
        _row(name, [covered_differences(name, seeds) for seeds in SEEDS])
    for metric, written in {"avg": "Avg@16", "pass": "Pass@16"}.items():
        for name in SCORES:
            for models in (1, 2):
                label = f"{written}, {models} model{'s' * (models > 1)}: {name}"
                _row(label, [covered_scores(name, metric, seeds, models) for seeds in SEEDS])


def _row(label: str, shares: list[float]) -> None:
    print(f"| {label} | {' | '.join(f'{100 * share:.1f}' for share in shares)} |", flush=True)


if __name__ == "__main__":
    main()
