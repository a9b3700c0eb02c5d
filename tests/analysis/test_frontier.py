"""Avg@K against Pass@K over the temperature of the evaluation."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from entropy_dynamics.analysis.sweeps import frontier_gain
from entropy_dynamics.experiments.load import Run
from entropy_dynamics.figures import sweeps
from entropy_dynamics.report import render
from single_claims import OTHER
from synthetic_results import MODEL, PROBLEMS, SEEDS, results_in, write_all, write_evaluation


def write(results, seed, *shares):
    """`shares`: method, temperature, how many fifths of the problems are solved, and in what share of the samples."""
    for dataset, (problems, k) in PROBLEMS.items():
        fifths = np.arange(problems) // (problems // 5)
        for method, temperature, solved, right in shares:
            correct = (fifths < solved)[:, None] & (np.arange(k) < right * k)
            write_evaluation(results, Run(MODEL, method, seed), dataset, correct, temperature)


# GRPO's frontier goes from Avg@K 2/5 at Pass@K 2/5 to 1/5 at 4/5, so it has 3/10 at 3/5.
GRPO = [("grpo", 0.4, 2, 1.0), ("grpo", 1.0, 4, 0.25), ("grpo", None, 0, 0.0), ("grpo", 1.3, 0, 0.0)]


@pytest.fixture
def results(tmp_path):
    write_all(tmp_path, SEEDS, names=["frontier"])
    return results_in(tmp_path)


def drawn(results) -> pd.DataFrame:
    keys = ["model", "method", "temperature"]
    return pd.read_csv(render("frontier", results)[2]).set_index(keys)


def test_the_means_over_the_sets_at_each_temperature(results):
    for seed in range(SEEDS["tables"]):
        write(results.root, seed, ("clip_b", 0.4, 1 + seed % 2, 0.5))
    frame = drawn(results)
    row = frame.loc[MODEL, "clip_b", 0.4]
    shares = [(1 + seed % 2) / 5 for seed in range(SEEDS["tables"])]
    assert row["avg"] == pytest.approx(100 * np.mean(shares) / 2, abs=1e-3)
    assert row["pass"] == pytest.approx(100 * np.mean(shares), abs=1e-3)
    assert sorted(set(frame.index.get_level_values("temperature"))) == [0, 0.4, 0.7, 1, 1.3]
    assert frame["pass"].isna().tolist() == [temperature == 0 for *_, temperature in frame.index]


def test_a_frontier_of_models_that_solve_nothing_is_drawn(results):
    """As after a first try of two steps."""
    for file in (results.root / "evaluations").rglob("*.parquet"):
        pd.read_parquet(file).assign(correct=False).to_parquet(file)
    assert (drawn(results)["avg"] == 0).all()


@pytest.mark.parametrize(
    ("further", "temperatures", "shown", "panels"),
    [
        (["grpo@training.steps=2"], (0, 0.7), ["with checkpoints"], 2),
        ([], (0.7, 1.0), [], 1),
    ],
)
def test_checkpoints_are_a_band_and_a_greedy_accuracy_is_a_panel(
    results, monkeypatch, further, temperatures, shown, panels
):
    scores = {score + end: 50.0 for score in ("avg", "pass") for end in ("", "_low", "_high")}
    methods = ("grpo", "grpo@training.staleness=3", *further)
    every = product((MODEL, OTHER), methods, temperatures)
    frame = pd.DataFrame(every, columns=["model", "method", "temperature"]).assign(**scores)
    monkeypatch.setattr(sweeps, "frontier_frame", lambda *_: frame)
    figure, *_ = sweeps.draw_frontier(results.experiment("frontier"), results)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["GRPO", "GRPO (staleness 3)", *shown]
    assert [len(row.axes) for row in figure.subfigs] == [panels] * 2


def test_avg_over_the_baselines_frontier_at_equal_pass(results):
    """Clip_V's Pass@K is 3/5."""
    for seed in range(SEEDS["tables"]):
        write(results.root, seed, *GRPO, ("clip_v", None, 3, 0.75), ("clip_b", None, 5, 1.0))
    frame = drawn(results)
    assert frame.loc[MODEL, "clip_v", 0.7]["matched"] == pytest.approx(100 * (3 / 5 * 3 / 4 - 3 / 10), abs=1e-3)
    assert np.isnan(frame.loc[MODEL, "clip_b", 0.7]["matched"])  # GRPO solves no more than 4/5 at any temperature
    assert frame["matched"].isna()[[temperature != 0.7 for *_, temperature in frame.index]].all()


def test_gains_are_paired_by_seed(tmp_path):
    """Clip_V lacks the second of three seeds; its others solve a quarter and three quarters of the samples."""
    results = results_in(tmp_path)
    experiment = results.experiment("frontier")
    for seed in range(3):
        others = [("clip_v", *of_grpo) for _, *of_grpo in GRPO]
        write(results.root, seed, *GRPO, *others, ("clip_v", None, 3, (1 + seed) / 4))
    runs = tuple(Run(MODEL, *run) for run in (("grpo", 0), ("grpo", 1), ("grpo", 2), ("clip_v", 0), ("clip_v", 2)))
    columns = frontier_gain(MODEL, "clip_v", replace(experiment, runs=runs), results)
    gains = sum(column.mean(axis=1) for column in columns)
    assert gains == pytest.approx([3 / 5 * right - 3 / 10 for right in (1 / 4, 3 / 4)])
