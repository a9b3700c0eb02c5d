"""The paper's own scores compared with their sampling noise: its printed gains, and the claims about scores."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import product
from math import exp, hypot, inf, isnan, nan
from typing import Any

from scipy.special import betaln

from entropy_dynamics.analysis.finding import Finding
from entropy_dynamics.analysis.statistics import Interval
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.claim_specs import EvaluationSize, PaperGains, ScoreDifference
from entropy_dynamics.experiments.claims import Claim
from entropy_dynamics.experiments.specs import METRICS, PaperValues


def judge_paper(claim: Claim, sizes: Mapping[str, EvaluationSize], paper: PaperValues) -> Finding | None:
    """Judge a claim about scores by the paper's own numbers; None if the paper does not print them.

    Data sets are weighted as for our runs, and `sizes` are those of the paper's evaluations. Without Pass@K the
    sampling error is unknown, so there is no interval.
    """
    spec = claim.spec
    if not isinstance(spec, ScoreDifference) or spec.temperature is not None or spec.problems != "all":
        return None
    cells = {}
    for model, dataset in product(spec.models, spec.datasets):
        scores = [_score(paper, model, method, dataset, spec.metric, sizes) for method in claim.weights]
        known = [score for score in scores if score is not None]
        if len(known) < len(scores):
            return None
        cells[model, dataset] = _weighted_sum(known, claim.weights.values())
    finding = Finding()
    if spec.everywhere:
        finding.measure_all(list(cells.values()), *spec.bounds)
    else:
        shares = [spec.datasets[dataset] / len(spec.models) for _, dataset in cells]
        finding.interval = _weighted_sum(cells.values(), shares)
    if isnan(finding.interval.low):
        finding.obstacles.append("no sampling error without Pass@K, which the paper does not print for all of them")
    return finding.decide(*spec.bounds)


def _score(
    paper: PaperValues, model: str, method: str, dataset: str, metric: str, sizes: Mapping[str, EvaluationSize]
) -> Interval | None:
    """A printed score, points; with NaN bounds if its sampling error needs a score that is not printed."""
    printed: dict[str, float | None] = {name: paper.score(model, method, dataset, name) for name in METRICS}
    avg, passed, size = printed["avg"], printed["pass"], sizes.get(dataset)
    printed["pass_minus_avg"] = None if avg is None or passed is None else passed - avg
    value = printed.get(metric)
    if value is None:
        return None
    if avg is None or passed is None or size is None:
        return Interval.normal(value, nan)
    return Interval.normal(value, sampling_errors(avg, passed, size.problems, size.samples)[metric])


def _weighted_sum(estimates: Iterable[Interval], weights: Iterable[float]) -> Interval:
    terms = list(zip(estimates, weights, strict=True))
    value = sum(weight * estimate.value for estimate, weight in terms)
    return Interval.normal(value, hypot(*(weight * estimate.error for estimate, weight in terms)))


def judge_gains(gains: PaperGains, paper: PaperValues, test: str) -> Iterator[dict[str, Any]]:
    """Yield an entry of claims.json per model, method, data set and metric.

    Raises UserError if paper_values.yaml lacks a score.
    """
    for model, method, dataset, metric in product(gains.models, gains.methods, gains.evaluations, METRICS):
        sides = (method, gains.against)
        scores = [_score(paper, model, side, dataset, metric, gains.evaluations) for side in sides]
        if missing := [side for side, score in zip(sides, scores, strict=True) if score is None]:
            of = f"{model} {missing[0]} on {dataset}"
            raise UserError(f"claims.yaml: paper: paper_values.yaml has no {metric} of {of}")
        finding = Finding(_weighted_sum(filter(None, scores), (1, -1)))
        score = f"{METRICS[metric]}@{gains.evaluations[dataset].samples}"
        yield finding.decide(0, inf).entry(
            id=f"paper_{model}_{method}_{dataset}_{metric}",
            statement=f"{method} on {model} gains {finding.interval.value:+.2f} points over {gains.against} in "
            f"{score} on {dataset.upper()}, more than sampling noise.",
            place=gains.place,
            subject="paper",
            unit="points",
            claimed="above 0",
            test=test,
        )


def sampling_errors(avg: float, passed: float, problems: int, samples: int) -> dict[str, float]:
    """Standard errors of avg, pass and pass_minus_avg, in points, from resampling K answers to each problem.

    The probability p of a correct answer is modeled as Beta(a, b) over the problems, with the parameters that reproduce
    both scores. Let f = (1 - p)^K be the probability that all K answers are incorrect. Then
    Var(Avg@K) = E[p (1 - p)] / (K problems), Var(Pass@K) = E[f (1 - f)] / problems and
    Cov(Avg@K, Pass@K) = E[p f] / problems, as both scores of a problem are 0 without a correct answer.

    Args:
        avg, passed: Avg@K and Pass@K, percent.
        samples: K.
    """
    mean, missed = avg / 100, 1 - passed / 100
    # Bisection over a + b. The larger it is, the more similar the problems, and the fewer are missed by all K samples.
    low, high = 1e-6, 1e6
    for _ in range(200):
        total = (low * high) ** 0.5
        low, high = (total, high) if _all_incorrect(mean, total, samples) > missed else (low, total)
    within = mean * (1 - mean) * total / (total + 1) / samples  # E[p (1 - p)] / K
    missing = _all_incorrect(mean, total, samples) - _all_incorrect(mean, total, 2 * samples)  # E[f] - E[f^2]
    both = mean * _all_incorrect(mean, total, samples, correct=1)  # E[p f]
    variances = {"avg": within, "pass": missing, "pass_minus_avg": within + missing - 2 * both}
    return {metric: 100 * (variance / problems) ** 0.5 for metric, variance in variances.items()}


def _all_incorrect(mean: float, total: float, samples: int, correct: int = 0) -> float:
    """E[(1 - p)^samples] for p ~ Beta(mean * total + correct, (1 - mean) * total), 0 < mean < 1."""
    a, b = mean * total + correct, (1 - mean) * total
    return exp(betaln(a, b + samples) - betaln(a, b))
