"""The paper's own gains against the noise of sampling the answers, from its printed scores alone."""

from math import exp, lgamma
from typing import Any

import numpy as np

from entropy_dynamics.analysis.verdicts import verdict_of
from entropy_dynamics.errors import UserError, nearest

NORMAL_95 = 1.96


def judge_paper(section: dict[str, Any], scores: dict[str, Any], test: str) -> list[dict]:
    """An entry of claims.json for each gain over `against` in Avg@K and Pass@K; `scores` as in paper_values.yaml."""
    entries = []
    for model in section["models"]:
        for method in section["methods"]:
            for dataset, size in section["evaluations"].items():
                pair = [_printed(scores, model, one, dataset) for one in (method, section["against"])]
                errors = [sampling_errors(one["avg"], one["pass"], **size) for one in pair]
                for i, metric in enumerate(("avg", "pass")):
                    gain = pair[0][metric] - pair[1][metric]
                    half = NORMAL_95 * (errors[0][i] ** 2 + errors[1][i] ** 2) ** 0.5
                    low, high = gain - half, gain + half
                    verdict, reason = verdict_of(low, high, 0, None)
                    entries.append(
                        {
                            "id": f"paper_{model}_{method}_{dataset}_{metric}",
                            "subject": "paper",
                            "statement": f"{method} on {model} gains {gain:+.2f} points over {section['against']} in "
                            f"{metric.capitalize()}@{size['samples']} on {dataset.upper()}, more than sampling noise.",
                            "place": section["place"],
                            "verdict": verdict,
                            "effect": round(gain, 4),
                            "low": round(low, 4),
                            "high": round(high, 4),
                            "unit": "points",
                            "claimed": "above 0",
                            "test": test,
                            "seeds": {method: 1, section["against"]: 1},
                            "reason": reason,
                        }
                    )
    return entries


def _printed(scores: dict[str, Any], *names: str) -> dict[str, float]:
    """The scores of a model, a method and a data set."""
    for name in names:
        if name not in scores:
            raise UserError(
                f"claims.yaml: paper: paper_values.yaml has no {name!r} in {'.'.join(names)}{nearest(name, scores)}"
            )
        scores = scores[name]
    if not {"avg", "pass"} <= set(scores):
        raise UserError(f"claims.yaml: paper: paper_values.yaml does not have both avg and pass of {'.'.join(names)}")
    return scores


def sampling_errors(avg: float, passed: float, problems: int, samples: int) -> tuple[float, float]:
    """Standard errors of Avg@K and Pass@K, in points, when K answers to each of the same problems are sampled again.

    `avg` and `passed` in per cent. A problem's chance p of a right answer is Beta(a, b) over the problems, with the two
    parameters that give both scores; then Var(Avg@K) = E[p (1 - p)] / (K problems), and with f = (1 - p)^K the chance
    that all fail, Var(Pass@K) = E[f (1 - f)] / problems.
    """
    mean, missed = avg / 100, 1 - passed / 100
    # The more alike the problems (large a + b), the fewer of them are missed by all K samples: bisection.
    low, high = 1e-6, 1e6
    for _ in range(200):
        total = (low * high) ** 0.5
        low, high = (total, high) if _all_fail(mean, total, samples) > missed else (low, total)
    within = mean * (1 - mean) * total / (total + 1)  # E[p (1 - p)]
    fails = _all_fail(mean, total, samples) - _all_fail(mean, total, 2 * samples)  # E[f] - E[f^2]
    return 100 * float(np.sqrt(within / (problems * samples))), 100 * float(np.sqrt(fails / problems))


def _all_fail(mean: float, total: float, samples: int) -> float:
    """E[(1 - p)^samples] for p ~ Beta(mean * total, (1 - mean) * total)."""
    if not 0 < mean < 1:
        return 1 - mean
    b = (1 - mean) * total
    return exp(lgamma(b + samples) - lgamma(b) + lgamma(total) - lgamma(total + samples))
