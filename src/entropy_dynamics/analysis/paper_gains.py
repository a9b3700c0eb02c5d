"""The gains that the paper reports against their sampling noise, from its printed scores alone."""

from collections.abc import Iterator
from itertools import product
from math import exp, hypot, inf
from typing import Any

from scipy.special import betaln

from entropy_dynamics.analysis.claims import PaperGains
from entropy_dynamics.analysis.experiments import METRICS
from entropy_dynamics.analysis.paper import PaperValues
from entropy_dynamics.analysis.statistics import Interval
from entropy_dynamics.analysis.verdicts import Finding
from entropy_dynamics.errors import UserError


def judge_gains(gains: PaperGains, paper: PaperValues, test: str) -> Iterator[dict[str, Any]]:
    """An entry of claims.json per model, method, data set and metric.

    Raises UserError if paper_values.yaml lacks a score, or has 0 or 100, which leaves the spread of the problems open.
    """
    for model, method, (dataset, size) in product(gains.models, gains.methods, gains.evaluations.items()):
        sides = (method, gains.against)
        scores = [[_printed(paper, model, side, dataset, metric) for metric in METRICS] for side in sides]
        errors = [sampling_errors(avg, passed, size.problems, size.samples) for avg, passed in scores]
        for i, (metric, written) in enumerate(METRICS.items()):
            gain, error = scores[0][i] - scores[1][i], hypot(errors[0][i], errors[1][i])
            finding = Finding(Interval.normal(gain, error), seeds=1)
            yield finding.decide(0, inf).entry(
                id=f"paper_{model}_{method}_{dataset}_{metric}",
                statement=f"{method} on {model} gains {gain:+.2f} points over {gains.against} in "
                f"{written}@{size.samples} on {dataset.upper()}, more than sampling noise.",
                place=gains.place,
                subject="paper",
                unit="points",
                claimed="above 0",
                test=test,
            )


def _printed(paper: PaperValues, model: str, method: str, dataset: str, metric: str) -> float:
    score = paper.score(model, method, dataset, metric)
    if score is None:
        raise UserError(f"claims.yaml: paper: paper_values.yaml has no {metric} of {model} {method} on {dataset}")
    if not 0 < score < 100:
        raise UserError(f"paper_values.yaml: {metric} of {model} {method} on {dataset} is {score:g}: no sampling error")
    return score


def sampling_errors(avg: float, passed: float, problems: int, samples: int) -> tuple[float, float]:
    """Standard errors of Avg@K and Pass@K, in points, if K answers to each of the same problems are sampled again.

    The probability p of a correct answer is Beta(a, b) over the problems, with the parameters that give both scores;
    then Var(Avg@K) = E[p (1 - p)] / (K problems), and with f = (1 - p)^K, the probability that all K are incorrect,
    Var(Pass@K) = E[f (1 - f)] / problems.

    Args:
        avg, passed: Avg@K and Pass@K, per cent.
        samples: K.
    """
    mean, missed = avg / 100, 1 - passed / 100
    # Bisection over a + b: the larger, the more alike the problems, and the fewer are missed by all K samples.
    low, high = 1e-6, 1e6
    for _ in range(200):
        total = (low * high) ** 0.5
        low, high = (total, high) if _all_incorrect(mean, total, samples) > missed else (low, total)
    within = mean * (1 - mean) * total / (total + 1)  # E[p (1 - p)]
    missing = _all_incorrect(mean, total, samples) - _all_incorrect(mean, total, 2 * samples)  # E[f] - E[f^2]
    return 100 * (within / (problems * samples)) ** 0.5, 100 * (missing / problems) ** 0.5


def _all_incorrect(mean: float, total: float, samples: int) -> float:
    """E[(1 - p)^samples] for p ~ Beta(mean * total, (1 - mean) * total), 0 < mean < 1."""
    a, b = mean * total, (1 - mean) * total
    return exp(betaln(a, b + samples) - betaln(a, b))
