"""Avg@K against Pass@K over the temperature of the evaluation."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from conftest import ROOT
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.sweeps import frontier_gain
from entropy_dynamics.experiments.load import Run
from entropy_dynamics.figures import sweeps
from synthetic_results import MODEL, PROBLEMS, SCALE, SEEDS, draw, write_all, write_evaluation


def write(results, seed, *shares):
    """`shares`: method, temperature, how many fifths of the problems are solved, and in what share of the samples."""
    for dataset, (problems, k) in PROBLEMS.items():
        fifths = np.arange(problems) // (problems // 5)
        for method, temperature, solved, right in shares:
            correct = (fifths < solved)[:, None] & (np.arange(k) < right * k)
            write_evaluation(results, Run(MODEL, method, seed), dataset, correct, temperature)


# GRPO's frontier goes from Avg@K 2/5 at Pass@K 2/5 to 1/5 at 4/5, so it has 3/10 at 3/5.
GRPO = [("grpo", 0.4, 2, 1.0), ("grpo", 1.0, 4, 0.25), ("grpo", None, 0, 0.0), ("grpo", 1.3, 0, 0.0)]


def test_the_means_over_the_sets_at_each_temperature(tmp_path):
    results = tmp_path / SCALE
    write_all(results, SEEDS, names=["frontier"])
    for seed in range(SEEDS["tables"]):
        write(results, seed, ("clip_b", 0.4, 1 + seed % 2, 0.5))
    frame = pd.read_csv(draw("frontier", results, SEEDS)[2]).set_index(["model", "method", "temperature"])
    row = frame.loc[MODEL, "clip_b", 0.4]
    shares = [(1 + seed % 2) / 5 for seed in range(SEEDS["tables"])]
    assert row["avg"] == pytest.approx(100 * np.mean(shares) / 2, abs=1e-3)
    assert row["pass"] == pytest.approx(100 * np.mean(shares), abs=1e-3)
    assert sorted(set(frame.index.get_level_values("temperature"))) == [0, 0.4, 0.7, 1, 1.3]
    assert frame["pass"].isna().tolist() == [temperature == 0 for *_, temperature in frame.index]


def test_a_frontier_of_models_that_solve_nothing_is_drawn(tmp_path):
    """As after a first try of two steps."""
    results = tmp_path / SCALE
    write_all(results, SEEDS, names=["frontier"])
    for file in (results / "evaluations").rglob("*.parquet"):
        pd.read_parquet(file).assign(correct=False).to_parquet(file)
    frame = pd.read_csv(draw("frontier", results, SEEDS)[2])
    assert (frame["avg"] == 0).all()


def test_a_checkpoint_is_in_the_band_and_another_setting_has_a_line(tmp_path, monkeypatch):
    results = Results(tmp_path / SCALE, SCALE, SEEDS, ROOT / "configs", ROOT / "experiments")
    write_all(results.root, SEEDS, names=["frontier"])
    experiment = results.experiment("frontier")
    scores = [(score + end, 50.0) for score in ("avg", "pass") for end in ("", "_low", "_high")]
    frame = pd.DataFrame(
        {"model": model, "method": method, "temperature": at, **dict(scores)}
        for model in experiment.models
        for method in ("grpo", "grpo@training.steps=2", "grpo@training.staleness=3")
        for at in (0, 0.7)
    )

    def legend(shown: pd.DataFrame) -> list[str]:
        monkeypatch.setattr(sweeps, "frontier_frame", lambda *_: shown)
        return [text.get_text() for text in sweeps.draw_frontier(experiment, results)[0].legends[0].get_texts()]

    assert legend(frame) == ["GRPO", "GRPO (staleness 3)", "with checkpoints"]
    assert legend(frame[~frame["method"].str.contains("steps")]) == ["GRPO", "GRPO (staleness 3)"]


def test_avg_over_the_baselines_frontier_at_equal_pass(tmp_path):
    """Clip_V's Pass@K is 3/5."""
    results = tmp_path / SCALE
    write_all(results, SEEDS, names=["frontier"])
    for seed in range(SEEDS["tables"]):
        write(results, seed, *GRPO, ("clip_v", None, 3, 0.75), ("clip_b", None, 5, 1.0))
    frame = pd.read_csv(draw("frontier", results, SEEDS)[2]).set_index(["model", "method", "temperature"])
    assert frame.loc[MODEL, "clip_v", 0.7]["matched"] == pytest.approx(100 * (3 / 5 * 3 / 4 - 3 / 10), abs=1e-3)
    assert np.isnan(frame.loc[MODEL, "clip_b", 0.7]["matched"])  # GRPO solves no more than 4/5 at any temperature
    assert frame["matched"].isna()[[temperature != 0.7 for *_, temperature in frame.index]].all()


def test_gains_are_paired_by_seed(tmp_path):
    """Clip_V lacks the second of three seeds; its others solve a quarter and three quarters of the samples."""
    results = Results(tmp_path / SCALE, SCALE, SEEDS, ROOT / "configs", ROOT / "experiments")
    experiment = results.experiment("frontier")
    for seed in range(3):
        others = [("clip_v", *of_grpo) for _, *of_grpo in GRPO]
        write(results.root, seed, *GRPO, *others, ("clip_v", None, 3, (1 + seed) / 4))
    runs = tuple(Run(MODEL, *run) for run in (("grpo", 0), ("grpo", 1), ("grpo", 2), ("clip_v", 0), ("clip_v", 2)))
    columns = frontier_gain(MODEL, "clip_v", replace(experiment, runs=runs), results)
    gains = sum(column.mean(axis=1) for column in columns)
    assert gains == pytest.approx([3 / 5 * right - 3 / 10 for right in (1 / 4, 3 / 4)])
