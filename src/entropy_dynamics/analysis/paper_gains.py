"""The paper's own gains against the noise of sampling the answers, from its printed scores alone."""

from math import exp, hypot, inf
from typing import Any

from scipy.special import betaln

from entropy_dynamics.analysis.claims import EvaluationSize, PaperGains
from entropy_dynamics.analysis.experiments import METRICS
from entropy_dynamics.analysis.paper import PaperValues
from entropy_dynamics.analysis.statistics import Interval
from entropy_dynamics.analysis.verdicts import Finding, verdict_of
from entropy_dynamics.errors import UserError


def judge_gains(gains: PaperGains, paper: PaperValues, test: str) -> list[dict[str, Any]]:
    """An entry of claims.json per model, method, data set and metric.

    Raises:
        UserError: paper_values.yaml lacks a score.
    """
    return [
        entry
        for model in gains.models
        for method in gains.methods
        for dataset, size in gains.evaluations.items()
        for entry in _judge(gains, paper, test, model, method, dataset, size)
    ]


def _judge(
    gains: PaperGains, paper: PaperValues, test: str, model: str, method: str, dataset: str, size: EvaluationSize
) -> list[dict[str, Any]]:
    scores = {
        one: {metric: _printed(paper, model, one, dataset, metric) for metric in METRICS}
        for one in (method, gains.against)
    }
    errors = {
        one: dict(zip(METRICS, sampling_errors(own["avg"], own["pass"], size.problems, size.samples), strict=True))
        for one, own in scores.items()
    }
    entries = []
    for metric in METRICS:
        gain = scores[method][metric] - scores[gains.against][metric]
        interval = Interval.of_error(gain, hypot(errors[method][metric], errors[gains.against][metric]), inf)
        verdict, reason = verdict_of(interval, 0, None)
        entries.append(
            Finding(verdict, interval, reason, {method: 1, gains.against: 1}).entry(
                id=f"paper_{model}_{method}_{dataset}_{metric}",
                statement=f"{method} on {model} gains {gain:+.2f} points over {gains.against} in "
                f"{METRICS[metric]}@{size.samples} on {dataset.upper()}, more than sampling noise.",
                place=gains.place,
                subject="paper",
                unit="points",
                claimed="above 0",
                test=test,
            )
        )
    return entries


def _printed(paper: PaperValues, model: str, method: str, dataset: str, metric: str) -> float:
    score = paper.score(model, method, dataset, metric)
    if score is None:
        raise UserError(f"claims.yaml: paper: paper_values.yaml has no {metric} of {model} {method} on {dataset}")
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
    # The more alike the problems (large a + b), the fewer of them are missed by all K samples: bisection.
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
