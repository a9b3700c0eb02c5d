"""Figures beyond the paper: Pass@k over k, gains by difficulty, trajectories and sparse curves."""

from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection

from entropy_dynamics.analysis.statistics import score_interval, share_interval
from entropy_dynamics.analysis.sweeps import strength_frame
from entropy_dynamics.cli import main
from entropy_dynamics.experiments.load import Run
from entropy_dynamics.figures.curves import draw_curves
from entropy_dynamics.figures.distributions import draw_pass_curves
from entropy_dynamics.figures.gains import draw_difficulty, draw_gains
from single_claims import OTHER
from synthetic_results import DATASETS, MODEL, SCALE, STEPS, results_in, write_evaluation, write_metrics, write_models


@pytest.fixture
def folder(tmp_path) -> Path:
    write_models(tmp_path / SCALE)
    return tmp_path / SCALE


def report(name: str, folder: Path, seeds: int = 3) -> pd.DataFrame:
    """The CSV that `draw` writes."""
    command = ["draw", name, "--scale", SCALE, "--results", str(folder.parent)]
    assert main([*command, "--set", f"seeds.tables={seeds}"]) == 0
    return pd.read_csv(next(folder.glob(f"*/{name}.csv")))


def drawn(draw, name: str, folder: Path, seeds: int = 3):
    """The figure and its footer."""
    results = results_in(folder, {"tables": seeds, "extras": 1, "pilot": 1})
    figure, _, notes = draw(results.experiment(name), results)
    return figure, " ".join(notes)


def write_counts(folder: Path, run: Run, dataset: str, counts: list[int], k: int) -> None:
    write_evaluation(folder, run, dataset, np.arange(k) < np.array(counts)[:, None])


def runs_of_table1(seeds: int = 3) -> list[Run]:
    methods = ("base", "grpo", "clip_b", "clip_v")
    return [Run(*run) for run in product((MODEL, OTHER), methods, range(seeds))]


# Pass@k
@pytest.fixture
def solved(folder) -> Path:
    """Four problems, six samples each: the untrained model has one correct, the others six, three, one and none."""
    for run in runs_of_table1():
        for dataset in DATASETS:
            write_counts(folder, run, dataset, [1, 1, 1, 1] if run.method == "base" else [6, 3, 1, 0], 6)
    write_counts(folder, Run(MODEL, "clip_b", 1), "aime24", [6, 3, 3, 0], 6)
    return folder


def test_pass_at_k_by_hand(solved):
    frame = report("pass_at_k", solved).set_index(["model", "dataset", "method", "k"]).sort_index()
    assert len(frame) == 2 * 3 * 4 * 4
    base, grpo = (frame.loc[MODEL, "aime24", method] for method in ("base", "grpo"))
    assert list(grpo.index) == [1, 2, 4, 6]  # powers of two, and K
    # Half of six: 1 - C(3, 2) / C(6, 2) = 0.8 at k = 2; one of six: k / 6.
    shares = np.array([[1, 1 / 2, 1 / 6], [1, 0.8, 1 / 3], [1, 1, 2 / 3], [1, 1, 1]])
    assert grpo["value"].tolist() == pytest.approx(25 * shares.sum(axis=1), abs=1e-3)
    assert base["value"].tolist() == pytest.approx([100 * k / 6 for k in (1, 2, 4, 6)], abs=1e-3)  # the curves cross
    assert base["low"][6] == pytest.approx(100 * 0.025**0.25, abs=1e-3)  # four of four problems: Clopper-Pearson
    interval = share_interval(np.array([[1, 0.8, 1 / 3, 0], [1, 0.8, 0.8, 0], [1, 0.8, 1 / 3, 0]]))
    row = frame.loc[MODEL, "aime24", "clip_b", 2]
    by_hand = 100 * np.array([interval.value, interval.low, interval.high])
    assert row[["value", "low", "high"]].tolist() == pytest.approx(by_hand, abs=1e-3)
    assert (row["seeds"], frame.loc[MODEL, "aime24", "base", 2]["seeds"]) == (3, 3)


def test_pass_at_k_says_from_which_k_a_method_loses(folder):
    """Clip_B always solves half of the problems, but for one a seed; GRPO solves nearly all in one sample of four."""
    for run in runs_of_table1(seeds=5):
        counts = [4 * (problem % 2) for problem in range(60)] if run.method == "clip_b" else [1] * 60
        counts[run.seed] = 2 if run.method == "clip_b" else 0
        for dataset in DATASETS:
            write_counts(folder, run, dataset, counts, 4)
    frame = report("pass_at_k", folder, seeds=5).set_index(["model", "dataset", "method", "k"]).sort_index()
    clip_b, clip_v, grpo = (frame.loc[MODEL, "aime24", method] for method in ("clip_b", "clip_v", "grpo"))
    assert clip_b["difference"].round().tolist() == [26, 2, -47]
    assert (clip_b["difference_low"] > 0).tolist() == [True, False, False]
    assert (clip_b["difference_high"] < 0).tolist() == [False, False, True]
    assert clip_b["loses_from"].tolist() == [3, 3, 3]
    assert clip_v["loses_from"].isna().all()
    assert grpo["difference"].isna().all()


# Gains
def test_gains_are_those_of_table_1_beside_the_papers(graded):
    frame, table = report("gains", graded), report("table1", graded).set_index(["model", "method"])
    assert len(frame) == 2 * 2 * 2 * 3
    for row in frame.itertuples():
        name = f"{row.dataset}_{row.metric}_difference"
        ends = table.loc[(row.model, row.method), [name, f"{name}_low", f"{name}_high"]].astype(float)
        np.testing.assert_allclose([row.gain, row.low, row.high], ends, atol=1e-3)
    figure, footer = drawn(draw_gains, "gains", graded)
    assert [ax.get_title() for ax in figure.axes] == ["toy Qwen2: Avg@K", "toy Qwen2: Pass@K"] * 2
    assert footer.endswith("mean of 3 seeds whiskers: 95% intervals over seeds and problems")


# Difficulty
@pytest.fixture
def graded(folder) -> Path:
    """By both untrained models together, problems 0 and 1 of six are hard, 4 and 5 easy; by either alone others are.

    On AIME24 and the first model Clip_B solves the hard problems and GRPO the easy ones, but no middle one; all that is
    left is solved once in four samples.
    """
    base = {MODEL: [0, 2, 3, 0, 1, 4], OTHER: [1, 0, 0, 4, 4, 1]}
    special = {("clip_b", seed): [4 - seed, 4, 1, 1, 1, 1] for seed in range(3)}
    special |= {("grpo", seed): [1, 1, 0, 0, 4, 4] for seed in range(3)}
    for run in runs_of_table1():
        for dataset in DATASETS:
            counts = base[run.model] if run.method == "base" else [1] * 6
            if (run.model, dataset) == (MODEL, "aime24"):
                counts = special.get((run.method, run.seed), counts)
            write_counts(folder, run, dataset, counts, 4)
    return folder


def test_gains_by_difficulty_by_hand(graded):
    frame = report("difficulty", graded).set_index(["metric", "method", "third"])
    assert list(frame.loc["avg", "clip_b"].index) == ["hard", "middle", "easy"]
    share = 100 / 3 / 2  # per data set and model, in points
    expected = {("avg", "hard"): (3 / 4 + 1) / 2 - 1 / 4, ("avg", "middle"): 1 / 4, ("avg", "easy"): 1 / 4 - 1}
    expected |= {("pass", "hard"): 0, ("pass", "middle"): 1, ("pass", "easy"): 0}
    for (metric, third), gain in expected.items():
        assert frame.loc[metric, "clip_b", third]["gain"] == pytest.approx(share * gain, abs=1e-3)
    whole = frame.reset_index()
    assert set(whole[["baseline", "problems", "seeds", "models"]].itertuples(index=False, name=None)) == {
        ("grpo", 3 * 2, 3, f"{MODEL}; {OTHER}")
    }
    assert set(whole["method"]) == {"clip_b", "clip_v"}
    rest, clip = np.full((3, 2), 1 / 4), np.array([[1, 1], [3 / 4, 1], [1 / 2, 1]])
    interval = score_interval([share * (clip - rest), 0 * rest, 0 * rest])
    row = frame.loc["avg", "clip_b", "hard"]
    assert [row["low"], row["high"]] == pytest.approx([interval.low, interval.high], abs=1e-3)
    assert row["models_that_ran"].count("toy Qwen2 for") == 2


def test_one_seed_has_no_interval(graded):
    difficulty, curves = report("difficulty", graded, seeds=1), report("pass_at_k", graded, seeds=1)
    trained = curves["method"] != "base"
    assert difficulty[["low", "high"]].isna().all(axis=None)
    assert curves.loc[trained, ["low", "high"]].isna().all(axis=None)
    assert curves.loc[~trained & (curves["model"] == MODEL) & (curves["k"] == 1), "low"].notna().all()
    assert drawn(draw_difficulty, "difficulty", graded, seeds=1)[1].endswith("one seed")
    assert "none for a trained method" in drawn(draw_pass_curves, "pass_at_k", graded, seeds=1)[1]


# Trajectories, and columns that are measured at some steps only


@pytest.fixture
def measured(folder) -> Path:
    """Forty steps, validated at every tenth; the second seed of GRPO's entropy is unknown at step 20."""
    step = np.arange(40)
    slopes = {"grpo": -0.01, "clip_b": 0.0, "clip_v": 0.01}
    for model, method, seed in product((MODEL, OTHER), slopes, range(2)):
        entropy = 0.5 + slopes[method] * step + 0.1 * seed
        if (method, seed) == ("grpo", 1):
            entropy[20] = np.nan
        rising = np.where(step % 10 == 0, 0.2 + 0.01 * step + 0.02 * seed, np.nan)
        columns = {"validation_accuracy": rising, "validation_pass": rising + 0.3}
        write_metrics(folder, Run(model, method, seed), entropy=entropy, **columns)
    return folder


def test_a_trajectory_is_the_mean_of_both_columns_where_both_are_known(measured):
    frame = report("entropy_accuracy", measured, seeds=2)
    grpo = frame[(frame["model"] == OTHER) & (frame["method"] == "grpo")]
    assert grpo["step"].tolist() == [0, 10, 30]
    np.testing.assert_allclose(grpo["x"], [0.55, 0.45, 0.25], rtol=1e-5)
    np.testing.assert_allclose(grpo["value"], [21, 31, 51], rtol=1e-5)
    assert set(zip(frame["x_column"], frame["x_unit"], strict=True)) == {("entropy", "nats")}
    figure, footer = drawn(draw_curves, "entropy_accuracy", measured, seeds=2)
    for ax in figure.axes:
        assert ax.get_xlabel() == "token entropy (nats)"
        assert ax.get_ylabel() in ("Avg@8, validation (%)", "")
        np.testing.assert_allclose(ax.lines[0].get_xydata(), grpo[["x", "value"]], rtol=1e-5)
        assert not ax.findobj(PolyCollection)  # no band
        assert all(line.get_marker() and line.get_markevery() == slice(1) for line in ax.lines)
        ends = [(tuple(arrow.xyann), arrow.xy) for arrow in ax.texts if arrow.arrow_patch]
        assert ends == [tuple(map(tuple, line.get_xydata()[-2:])) for line in ax.lines]
    assert footer.endswith("mean of 2 seeds whiskers: lowest to highest seed")


# Strength
def test_a_row_of_a_sweep_is_the_mean_over_its_seeds(folder):
    results = results_in(folder, {"tables": 1, "extras": 1, "pilot": 2})
    experiment = results.experiment("dose")
    assert {run.seed for run in experiment.runs} == {100, 101}
    for run in experiment.runs:
        counts = {"clip_b@mu=1.5": [2, 2], "clip_b@mu=2.0": [4, 0]}.get(run.method, [1, 0])
        write_counts(folder, run, "validation", counts, 4)
        write_metrics(folder, run, clip_fraction=0.01 * (run.seed - 99))
    frame = strength_frame(experiment, results)
    rows = frame[frame["model"] == MODEL].set_index("run")
    scores = rows.loc[["clip_b@mu=1.5", "clip_b@mu=2.0"], ["avg", "pass"]]
    assert scores.to_numpy().tolist() == [[50, 100], [50, 50]]
    np.testing.assert_allclose(rows["clip_fraction"], 1.5)
    files = [run.metrics_file(folder) for run in experiment.of(MODEL, "grpo")]
    ends = [pd.read_parquet(file)["entropy"].tail(STEPS // 10).mean() for file in files]
    assert rows.loc["grpo", "entropy"] == pytest.approx(np.mean(ends))
