"""Claims about scores: differences between methods on the same problems, also at temperatures chosen for each."""

import math
from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from entropy_dynamics.analysis.envelope import left, mixed, point_columns
from entropy_dynamics.analysis.finding import Finding
from entropy_dynamics.analysis.problem_scores import score_columns, shared_seeds
from entropy_dynamics.analysis.run_data import Evaluated, Results
from entropy_dynamics.analysis.temperatures import best_point, matched_pass, mean_score, reached
from entropy_dynamics.config import BASE
from entropy_dynamics.experiments.claim_specs import ScoreDifference
from entropy_dynamics.experiments.claims import Claim

Counts = Mapping[float, Evaluated]
"""By temperature."""


def find_in_scores(claim: Claim, spec: ScoreDifference, results: Results, finding: Finding) -> None:
    """Set the effect of a claim about scores, or what prevents it."""
    temperatures, chosen = claim.temperatures, spec.temperature not in (None, "greedy")
    if not temperatures:
        finding.obstacles.append("this scale has no evaluations at temperature 0")
    elif chosen and len(temperatures) < 2:
        finding.obstacles.append(f"this scale has evaluations at temperature {temperatures[0]:g} alone")
    if finding.obstacles:
        return
    counts = {at: _samples(claim, at, results, finding) for at in temperatures}
    if chosen and (finding.obstacles or finding.missing):
        return
    match spec.temperature:
        case "matched_pass":
            _matched_pass(claim, spec, counts, finding)
        case "matched_avg" | "best_point":
            _best_points(claim, spec, counts, finding)
        case "envelope":
            _left(claim, spec, counts, finding)
        case "best":
            _score_difference(claim, spec, _at_best(claim, spec, counts, finding), finding)
        case _:
            _score_difference(claim, spec, counts[temperatures[0]], finding)


def _samples(claim: Claim, temperature: float, results: Results, finding: Finding) -> Evaluated:
    """The counts at a temperature; those of the untrained models are at the temperature of the tables."""
    usable: Evaluated = {}
    expected: dict[Any, Any] = {}
    for run in claim.all_runs():
        at = results.config.evaluation.temperature if run.method == BASE else temperature
        if at not in claim.temperatures_of(run):
            continue
        seeds = usable.setdefault((run.model, run.method), {})
        values = {}
        for dataset in claim.evaluations:
            path = results.evaluation_file(run, dataset, at)
            samples = finding.read(results, path, partial(results.samples, run, dataset, at))
            if samples is None:
                break
            facts = {dataset: samples.ids, (dataset, at): samples.k}
            if any(expected.setdefault(what, fact) != fact for what, fact in facts.items()):
                name = path.relative_to(results.root)
                finding.obstacles.append(f"{name} has other problems or another K than the rest")
                break
            values[dataset] = samples
        else:
            seeds[run.seed] = values
    return usable


def _score_difference(claim: Claim, spec: ScoreDifference, samples: Evaluated, finding: Finding) -> None:
    finding.usable = shared_seeds({arm: samples[arm] for arm in product(spec.models, claim.seeds_by_method)})
    if not finding.seeds or not all(samples.values()):
        return
    parts = [(spec.models, spec.datasets)]
    if spec.everywhere:
        parts = [([model], {dataset: 1.0}) for model, dataset in product(spec.models, spec.datasets)]
    cells = []
    for models, datasets in parts:
        arms = {(model, method): weight / len(models) for model in models for method, weight in claim.weights.items()}
        finding.measure(score_columns(samples, arms, spec.metric, datasets, spec.problems))
        cells.append((finding.interval, finding.by_seed))
    if spec.everywhere:
        _, finding.by_seed = min(cells, key=lambda cell: cell[0].value)
        finding.measure_all([interval for interval, _ in cells], *spec.bounds)


def _at_best(claim: Claim, spec: ScoreDifference, counts: Counts, finding: Finding) -> Evaluated:
    """The counts of each arm at its best temperature on the validation set."""
    held_out, best = claim.config.training.validation_set, {}
    for arm in product(spec.models, claim.seeds_by_method):
        validation = {at: [seed[held_out] for seed in samples[arm].values()] for at, samples in counts.items()}
        best[arm] = best_point(spec.metric, validation)
    finding.notes += [f"{method} at {at:g}" for (_, method), at in best.items()]
    if not any(best.values()):
        finding.notes.append("greedy decoding, about which there is a claim of its own")
    usual = counts[claim.config.evaluation.temperature]  # also holds the untrained models
    return usual | {arm: counts[at][arm] for arm, at in best.items()}


def _matched_pass(claim: Claim, spec: ScoreDifference, counts: Counts, finding: Finding) -> None:
    """Difference between the methods per seed, with the method of `against` interpolated to the other's Pass@K."""
    (method,), (other,), [model] = claim.runs, claim.against, spec.models
    policies = counts[claim.config.evaluation.temperature][model, method]
    frontier = [samples[model, other] for at, samples in counts.items() if at > 0]  # greedy has one sample
    finding.usable = sorted(set(policies).intersection(*frontier))
    pairs = [(policies[seed], [at[seed] for at in frontier]) for seed in finding.usable]
    seeds = [matched_pass(*pair, spec.datasets) for pair in pairs]
    above = sum(not reached(*pair, spec.datasets) for pair in pairs)
    outside = sum(bool(np.isnan(next(iter(seed.values()))).any()) for seed in seeds)
    for count, obstacle in (
        (above, f"{other} does not reach the Pass@K of {method} at any temperature"),
        (outside - above, f"the Pass@K of {method} is below the frontier of {other}"),
    ):
        finding.obstacles += [f"{obstacle} in {count} of {len(seeds)} seeds"] if count else []
    if seeds and not finding.obstacles:
        weights = spec.datasets.items()
        finding.measure([weight * np.stack([seed[dataset] for seed in seeds]) for dataset, weight in weights])


def _best_points(claim: Claim, spec: ScoreDifference, counts: Counts, finding: Finding) -> None:
    """Difference between two sides, each at a method and a temperature chosen on the validation set."""
    [model], held_out, least = spec.models, claim.config.training.validation_set, 0.0
    matched = spec.temperature == "matched_avg"
    arms: Evaluated = {}
    for side, methods in (("runs", claim.runs), ("against", claim.against)):
        read = [(method, at) for method in methods for at in counts if (model, method) in counts[at]]
        points = {(method, at): counts[at][model, method] for method, at in read}
        validation = {point: [seed[held_out] for seed in seeds.values()] for point, seeds in points.items()}
        if matched and side == "runs":
            chosen = (next(iter(methods)), claim.config.evaluation.temperature)
            least = mean_score("avg", validation[chosen])
        else:
            chosen = best_point("pass" if matched else spec.metric, validation, least)
            if mean_score("avg", validation[chosen]) < least:
                finding.notes.append("no point has that Avg@K on the validation set, the nearest is compared")
        finding.notes.append(f"{chosen[0]} at {chosen[1]:g}")
        arms[model, side] = points[chosen]
    finding.usable = shared_seeds(arms)
    if finding.seeds:
        signs = {(model, "runs"): 1.0, (model, "against"): -1.0}
        finding.measure(score_columns(arms, signs, spec.metric, spec.datasets))


def _left(claim: Claim, spec: ScoreDifference, counts: Counts, finding: Finding) -> None:
    """What is left at equal Avg@K over the envelope of the points of `against`."""
    usual = counts[claim.config.evaluation.temperature]
    own = {model: [usual[model, method] for method in claim.runs] for model in spec.models}
    named = {f"{method} at {at:g}": (at, method) for method in claim.against for at in counts}
    others = {model: [[counts[at][model, method]] for at, method in named.values()] for model in spec.models}
    every = [seeds for model in spec.models for point in (own[model], *others[model]) for seeds in point]
    finding.usable = sorted(set.intersection(*map(set, every)))
    if not finding.seeds:
        return
    models = [point_columns([own[model], *others[model]], spec.datasets, finding.usable) for model in spec.models]
    finding.interval = found = left(models)
    finding.notes += [f"over {mixed(mixture, list(named))}" for mixture in found.mixtures]
    if math.isnan(found.value):
        finding.obstacles.append("no point that it is compared with has that Avg@K")
    if found.spare:
        at_most = f"at most, as all points have more Avg@K, by {found.spare:.1f}"
        (finding.obstacles if spec.above is not None else finding.notes).append(at_most)
