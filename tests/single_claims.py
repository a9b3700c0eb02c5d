"""One claim, judged by synthetic runs that its test writes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.finding import Finding
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.verdicts import judge
from entropy_dynamics.experiments.claims import Claim, load_claims
from entropy_dynamics.experiments.load import Run
from entropy_dynamics.results.files import write_parquet
from synthetic_results import DATASETS, MODEL, ROOT, SCALE, STEPS, results_in, write_evaluation

OTHER = "qwen3-4b-base"
SEED = np.arange(5)[:, None]
SEEDS = {"tables": 5, "extras": 5, "pilot": 1}
THREE = {"tables": 3, "extras": 3, "pilot": 1}
CLIP = {"runs": {"clip_b": "tables"}, "against": {"grpo": "tables"}, "above": 0}
ENTROPY = {"test": "curve_difference", "model": MODEL, "statistic": "mean", "columns": ["entropy"]} | CLIP
GRPO = {"test": "over_seeds", "model": MODEL, "runs": {"grpo": "tables"}}
AVG = {"test": "score_difference", "models": [MODEL, OTHER], "metric": "avg", "evaluations": DATASETS} | CLIP
TESTS = dict.fromkeys(["over_seeds", "curve_difference", "sweep_trend", "score_difference", "paper_gain"], "a")


def claim_of(claim_id: str, seeds: dict[str, int]) -> Claim:
    return next(claim for claim in load_claims(SCALE, seeds, ROOT / "experiments") if claim.spec.id == claim_id)


def finding(claim: dict[str, Any] | str, results: Path, seeds: dict[str, int] = SEEDS) -> Finding:
    """`claim`: the keys of a claim, or the id of one in experiments/claims.yaml."""
    if isinstance(claim, str):
        return judge(claim_of(claim, seeds), results_in(results, seeds))
    about = dict.fromkeys(["id", "label", "statement", "place", "unit"], "a")
    about |= {} if 0 in (claim.get("above"), claim.get("below")) else {"why": "a"}
    paper = {"place": "a", "models": [MODEL], "methods": ["clip_b"], "against": "grpo", "evaluations": {}}
    (experiments := results / "experiments").mkdir(exist_ok=True, parents=True)
    (experiments / "claims.yaml").write_text(json.dumps({"tests": TESTS, "claims": [about | claim], "paper": paper}))
    [loaded] = load_claims(SCALE, seeds, experiments)
    return judge(loaded, Results(results, SCALE, seeds, ROOT / "configs", experiments))


def no_interval(found) -> bool:
    return found.verdict == "inconclusive" and np.isnan(found.interval.low) and np.isnan(found.interval.high)


def write_curve(results: Path, method: str, *seeds: int, model: str = MODEL, steps: int = STEPS, **columns) -> None:
    """Columns are broadcast to [seed, step]. Without `seeds`, of five."""
    shape = (len(seeds := seeds or tuple(range(5))), steps)
    for place, seed in enumerate(seeds):
        own = {name: np.broadcast_to(of, shape)[place] for name, of in columns.items()}
        frame = pd.DataFrame({"step": np.arange(steps), "entropy": 0.3} | own)
        write_parquet(Run(model, method, seed).metrics_file(results), frame)


def write_samples(results: Path, method: str, seed: int, dataset: str, correct: np.ndarray, model: str = MODEL) -> None:
    write_evaluation(results, Run(model, method, seed), dataset, correct)


def write_scores(results: Path, method: str, levels: list[float], model: str = MODEL) -> None:
    """For each seed a level of the share of correct samples; problems and samples random around it."""
    for seed, level in enumerate(levels):
        for dataset, (problems, k) in {"aime24": (30, 32), "aime25": (30, 32), "dapo500": (80, 8)}.items():
            rng = np.random.default_rng([seed, *method.encode(), *dataset.encode()])
            correct = rng.random((problems, k)) < level
            write_samples(results, method, seed, dataset, correct, model)
