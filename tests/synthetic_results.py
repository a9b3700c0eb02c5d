"""Synthetic runs and evaluations, written where real ones are: what tables, figures and the report are tested on."""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.experiments.load import Run, experiment_files, load_experiment
from entropy_dynamics.report import render
from entropy_dynamics.results.files import write_json, write_parquet
from entropy_dynamics.results.layout import Layout

ROOT = Path(__file__).parents[1]
SCALE = "laptop"
SEEDS = {"tables": 3, "extras": 1, "pilot": 1}
EXPERIMENTS = {
    name: load_experiment(name, SCALE, SEEDS, ROOT / "experiments") for name in experiment_files(ROOT / "experiments")
}
MODEL = "qwen2.5-7b-instruct"
STEPS = 40
PROBLEMS = {"aime24": (30, 32), "aime25": (30, 32), "dapo500": (60, 8)}  # and samples of each
DATASETS = tuple(PROBLEMS)
LABELS = {
    "qwen2.5-7b-instruct": "Qwen2.5-7B-Instruct",
    "qwen3-4b-base": "Qwen3-4B-Base",
    "qwen2.5-14b-instruct": "Qwen2.5-14B-Instruct",
    "distill-llama-8b": "R1-Distill-Llama-8B",
    "internlm3-8b-instruct": "InternLM3-8B-Instruct",
}
RUNGS = {f"toy-{width}": 32 * width**2 for width in (32, 64, 96, 128, 256)}  # the ladder's, with their parameters
LABELS |= {name: name.replace("toy-", "width ") for name in RUNGS}
KEPT = {  # share of the push on the entropy: positive samples with S* > 0 and < 0, then negative ones
    "clip_b": (1, 1, 0.7, 0.4),
    "clip_v": (1, 1, 0.6, 0.5),
    "advantage_reweighting": (1.3, 0.9, 1.1, 0.8),
    "s_star_keep_pos_gt": (1, 0, 0, 0),
}


def model_facts(name: str, **changes) -> dict:
    """A toy model's model.json, without what no report reads."""
    facts = {"name": name, "label": LABELS[name], "toy": True, "substitute": True, "pretrained": None, "revision": None}
    return facts | {"architecture": "qwen2", "parameters": RUNGS.get(name, 110_000)} | changes


def write_models(results: Path, **changes) -> None:
    for name in LABELS:
        write_json(Layout(results).model(name, 0) / "model.json", model_facts(name, **changes))


def write_metrics(results: Path, run: Run, steps: int = STEPS, **columns) -> None:
    """A synthetic training curve: the entropy falls by half, or rises, depending on the method's name."""
    method = run.path[1]
    rng = np.random.default_rng([run.seed, *method.encode()])
    t = np.linspace(0, 1, steps)
    ends = {"grpo": 0.15, "clip_b": 0.24, "clip_v": 0.3}
    rising = [f"s_star_{action}_{sign}" for action, sign in (("keep", "pos_lt"), ("keep", "neg_gt"))]
    rising += ["s_star_mask_pos_gt", "s_star_mask_neg_lt"]
    end = ends.get(method.partition("@")[0], 0.7 if method in rising else 0.08)
    mu = float(method.partition("=")[2] or 1.6) if "mu=" in method else 1.6
    accuracy = 0.12 + 0.4 * t + 0.03 * rng.standard_normal(steps)
    frame = {
        "step": np.arange(steps),
        "entropy": 0.34 + (end * mu / (1 if "@" not in method else 1.6) - 0.34) * t + 0.01 * rng.standard_normal(steps),
        "accuracy": accuracy.clip(0),
        "validation_accuracy": np.where(np.arange(steps) % 10 == 0, accuracy + 0.1, np.nan),
        "validation_pass": np.where(np.arange(steps) % 10 == 0, 0.6 + 0.3 * accuracy, np.nan),
        "clip_fraction": 0.0 if method == "grpo" else 0.03 / mu**2 * (1 + 0.2 * rng.standard_normal(steps)),
        "s_star_mean": 0.09 - 0.03 * t + 0.003 * rng.standard_normal(steps),
        "s_centered_mean": 2e-4 * rng.standard_normal(steps),
        "s_centered_std": 0.12 + 0.01 * rng.standard_normal(steps),
        "tokens": 4000,
        "zero_variance_groups": 0.6 - 0.3 * t,
        "neg_cov": -0.004 + 0.002 * rng.standard_normal(steps),
        "neg_cov_positive": 0.01 + 0.002 * rng.standard_normal(steps),
        "neg_cov_negative": -0.014 + 0.002 * rng.standard_normal(steps),
        "grad_norm": rng.uniform(0.2, 1, steps),
        "predicted_entropy_change": (predicted := 1e-6 * rng.normal(-1, 0.7, steps)),
        "entropy_change_sgd": (sgd := 10 * predicted + 1e-5 * rng.standard_normal(steps)),
        "entropy_change_adam_no_momentum": 800 * sgd + 4e-3 * rng.standard_normal(steps),
        "entropy_change_first_order": 2000 * predicted + 5e-4 * rng.standard_normal(steps),
        "entropy_change": np.where(
            np.arange(steps) % 2 == 0, 2000 * predicted + 5e-4 * rng.standard_normal(steps), np.nan
        ),
    }
    sizes = zip(("pos_gt", "pos_lt", "neg_gt", "neg_lt"), (-0.02, 0.01, 0.015, -0.012), strict=True)
    for (part, size), kept in zip(sizes, KEPT.get(method, (1, 1, 1, 1)), strict=True):
        frame[f"lens_{part}"] = size * rng.uniform(0.8, 1.2, steps)
        frame[f"lens_{part}_kept"] = kept * frame[f"lens_{part}"]
    write_parquet(run.metrics_file(results), pd.DataFrame(frame | columns))


def evaluation_frame(correct: np.ndarray) -> pd.DataFrame:
    problems, k = correct.shape
    return pd.DataFrame(
        {
            "problem_id": np.repeat([f"p{i:04d}" for i in range(problems)], k),
            "sample": np.tile(np.arange(k), problems),
            "correct": correct.ravel(),
            "formatted": True,
            "answer": pd.array(np.tile(["7"] * (k - 1) + [None], problems), dtype="str"),
            "finish_reason": np.tile(["length"] + ["stop"] * (k - 1), problems),
            "tokens": 30,
        }
    )


def write_evaluation(
    results: Path, run: Run, dataset: str, correct: np.ndarray | None = None, temperature: float | None = None
) -> None:
    if correct is None:
        problems, k = PROBLEMS.get(dataset, (30, 32))
        rate = {"base": 0.2, "grpo": 0.45, "clip_b": 0.6}.get(run.path[1], 0.46)
        rng = np.random.default_rng([run.seed, *run.path[1].encode(), *dataset.encode()])
        correct = rng.random((problems, 1 if temperature == 0 else k)) < rng.beta(4 * rate, 4 - 4 * rate, (problems, 1))
    write_parquet(run.evaluation_file(results, dataset, temperature), evaluation_frame(correct))


def write_logit_steps(results: Path, tokens: int = 500) -> None:
    """Steps that follow the theorems, but for a term of second order."""
    rng, frames = np.random.default_rng(5), []
    for theorem, size in ((theorem, size) for theorem in (1, 2) for size in (1e-3, 1e-2, 1e-1)):
        rate = rng.normal(-0.1, 0.15, tokens)
        steps = {"predicted": size * rate, "realised": size * rate + size**2 * rng.normal(0, 0.1, tokens)}
        frames.append(pd.DataFrame({"theorem": theorem, "step_size": size} | steps))
    write_parquet(Layout(results).logit_steps, pd.concat(frames))


def write_pass_rates(results: Path) -> None:
    correct = np.random.default_rng(0).binomial(16, np.random.default_rng(1).beta(0.6, 1.2, 600))
    columns = {"problem_id": [f"p{i}" for i in range(600)], "correct": correct, "samples": 16, "rate": correct / 16}
    write_parquet(Layout(results).pass_rates(0), pd.DataFrame(columns))


def write_all(results: Path, seeds: dict[str, int], scale: str = SCALE, names: list[str] | None = None) -> None:
    """All that the tables and figures `names` (default: every one) read."""
    write_models(results)
    write_pass_rates(results)
    write_logit_steps(results)
    for name in names or experiment_files(ROOT / "experiments"):
        experiment = load_experiment(name, scale, seeds, ROOT / "experiments")
        read = set(experiment.input_files(results))
        for run in experiment.runs:
            if (metrics := run.metrics_file(results)) in read and not metrics.exists():
                write_metrics(results, run)
            for dataset, temperature in product(experiment.evaluations, [None, *experiment.temperatures]):
                if not run.evaluation_file(results, dataset, temperature).exists():  # other experiments share the run
                    write_evaluation(results, run, dataset, temperature=temperature)


def results_in(folder: Path, seeds: dict[str, int] = SEEDS) -> Results:
    """Those of `SCALE`, by this project's configs and experiments."""
    return Results(folder, SCALE, seeds, ROOT / "configs", ROOT / "experiments")


def draw(name: str, results: Path, seeds: dict[str, int] = SEEDS) -> list[Path]:
    """The files of a table or figure."""
    return render(name, results_in(results, seeds))
