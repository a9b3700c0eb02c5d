"""The ladder of sizes: its curves by hand, its effects on evaluations that follow a known law, and its files."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from conftest import ROOT
from entropy_dynamics.analysis.ladder import PER_DECADE, entropy_law, ladder_frame, saturating
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.load import Run, load_experiment
from entropy_dynamics.figures.draw import DRAW
from entropy_dynamics.results.files import write_json, write_parquet
from synthetic_results import DATASETS, RUNGS, SCALE, model_facts, write_evaluation, write_metrics, write_models

SEEDS = {"tables": 3, "extras": 5, "pilot": 1}
SIZES = np.array(list(RUNGS.values()))


def results_in(folder) -> Results:
    return Results(folder / SCALE, SCALE, SEEDS, ROOT / "configs", ROOT / "experiments")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """All methods but GRPO solve 10 % more of the problems per decade of parameters, each with half of the samples."""
    folder = tmp_path_factory.mktemp("ladder")
    write_models(folder / SCALE)
    for (model, size), seed in product(RUNGS.items(), range(SEEDS["extras"])):
        for method in ("grpo", "clip_b", "clip_v", "entropy_bonus"):
            run = Run(model, method, seed)
            entropy = 0.4 - 0.05 * np.arange(5) + 0.002 * seed
            law = 0.9 + 0.02 * np.log(size) - (0.3 + 0.01 * np.log(size)) * np.exp(entropy)
            write_metrics(folder / SCALE, run, steps=5, entropy=entropy, validation_accuracy=law)
            for dataset in DATASETS:
                solved = 40 + (2 * seed if method == "grpo" else 20 * np.log10(size / SIZES[0]) + 3 * seed)
                for temperature in (None, 0, 0.4, 1, 1.3):
                    correct = (np.arange(200) < solved)[:, None] & (np.arange(1 if temperature == 0 else 4) < 2)
                    write_evaluation(folder / SCALE, run, dataset, correct, temperature)
    return folder


@pytest.fixture(scope="module")
def frame(folder) -> pd.DataFrame:
    return framed(results_in(folder))


def framed(results) -> pd.DataFrame:
    return ladder_frame(results.experiment("ladder"), results).set_index(["model", "method"])


def test_a_saturating_curve_by_hand():
    """12 N / (N + 3) at N = 1 and 3 is 3 and 6; at 9 it is 9."""
    assert saturating(np.array([1.0, 3.0]), np.array([3.0, 6.0]))(np.array([9.0])) == pytest.approx([9.0])


def test_the_entropy_law_by_hand():
    """R = b - a e^H with a = 1 + ln N and b = 2 + 3 ln N."""

    def points(size: int) -> np.ndarray:
        entropy = np.array([[0.1, 0.2], [0.3, 0.5]])
        return np.stack([entropy, 2 + 3 * np.log(size) - (1 + np.log(size)) * np.exp(entropy)], axis=-1)

    predicted = entropy_law({size: points(size) for size in (1, 2, 4)})(8, np.array([0.7, 0.9]))
    expected = 2 + 3 * np.log(8) - (1 + np.log(8)) * (np.exp(0.7) + np.exp(0.9)) / 2
    assert predicted == pytest.approx(expected)


def test_gains_their_slope_over_size_and_the_law(frame):
    rise = np.log10(SIZES / SIZES[0])
    for place, model in enumerate(RUNGS):
        row = frame.loc[model, "clip_b"]
        solved = np.median([np.ceil(40 + 20 * rise[place] + 3 * seed) - 40 - 2 * seed for seed in range(5)]) / 2
        assert row["pass_gain"] == row["greedy_gain"] == pytest.approx(solved)
        assert row["avg_gain"] == pytest.approx(solved / 2)
        assert row["pass_gain_low"] <= row["pass_gain"] <= row["pass_gain_high"]
        assert row["accuracy_predicted"] == pytest.approx(row["accuracy"])
        assert row["parameters"] == RUNGS[model]
    slope = frame.loc[PER_DECADE, "clip_b"]
    assert slope["pass_gain"] == pytest.approx(10, abs=0.5)
    assert slope["avg_gain"] == pytest.approx(5, abs=0.25)
    assert np.isnan(slope["parameters"])
    assert frame.loc["toy-32", "grpo"].filter(like="gain").isna().all()
    assert frame.loc[PER_DECADE].index.tolist() == ["clip_b", "clip_v", "entropy_bonus"]


def test_a_run_that_ended_early_leaves_the_steps_that_all_seeds_have(folder, frame):
    """The law still holds at each of them."""
    results, run = results_in(folder), Run("toy-64", "clip_b", 1)
    kept = (file := run.metrics_file(results.root)).read_bytes()
    write_parquet(file, pd.read_parquet(file)[:3])
    row = framed(results).loc["toy-64", "clip_b"]
    file.write_bytes(kept)
    assert row["accuracy_predicted"] == pytest.approx(row["accuracy"])
    assert row["accuracy"] != pytest.approx(frame.loc[("toy-64", "clip_b"), "accuracy"])


def test_a_policy_beyond_the_baselines_frontier_has_no_matched_gain(frame):
    """Clip_B solves more problems at 0.7 than GRPO at any temperature."""
    assert np.isnan(frame.loc[("toy-256", "clip_b"), "matched_gain"])


def test_the_figure_has_a_dashed_prediction_per_method_from_the_fitted_models_alone(folder, frame):
    results = results_in(folder)
    for seed in range(SEEDS["extras"]):
        run = Run("toy-256", "grpo", seed)
        write_evaluation(results.root, run, "aime24", np.zeros((200, 4), bool))
    figure, drawn, notes = DRAW["ladder"](results.experiment("ladder"), results)
    after = drawn.set_index(["model", "method"])
    of = ("toy-256", "grpo")
    assert after.loc[of, "avg"] < frame.loc[of, "avg"]
    predictions = [name for name in frame if name.endswith("_predicted")]
    pd.testing.assert_frame_equal(after[predictions], frame[predictions])
    left = figure.axes[0]
    predicted = [line for line in left.get_lines() if len(line.get_xdata()) == len(RUNGS) and line.get_marker() == ""]
    rows = drawn[drawn["model"] != PER_DECADE]
    assert len(predicted) == len(rows["method"].unique())
    assert len(figure.axes) == 2 * 4  # no model has a gain at equal Pass@K
    assert "dashed: fit left of the gray line" in notes
    for line, (_, of_method) in zip(predicted, rows.groupby("method", sort=False), strict=True):
        np.testing.assert_allclose(line.get_ydata(), of_method["avg_predicted"])


def test_the_right_end_is_the_ladder_of_another_scale_once_its_results_are_complete(folder, frame):
    """Clip_B solves 12 more of the 40 problems than GRPO at every temperature; the rungs stay as they are."""
    experiments, seeds = ROOT / "experiments" / "smollm2", load_config("smollm2", configs=ROOT / "configs").seeds
    others = Results(folder / "smollm2", "smollm2", dict(seeds), ROOT / "configs", experiments)
    larger = others.experiment("ladder")
    facts = {"toy": False, "parameters": 134_515_008}
    for model in larger.models:
        write_json(others.layout.model(model, 0) / "model.json", model_facts("toy-32") | facts)
    for run in larger.runs:
        write_metrics(others.root, run)
        solved = np.arange(40)[:, None] < 20 + 12 * (run.path[1] == "clip_b")
        for dataset, temperature in product(larger.evaluations, [None, *larger.temperatures]):
            write_evaluation(others.root, run, dataset, solved & np.full((40, 4), True), temperature)
    results = results_in(folder)
    figure, drawn, notes = DRAW["ladder"](results.experiment("ladder"), results)
    drawn = drawn.set_index(["scale", "model", "method"])
    clip_b = drawn.loc["smollm2", larger.models[0], "clip_b"]
    assert (clip_b["avg_gain"], clip_b["pass_gain"], clip_b["parameters"]) == (30, 30, 134_515_008)
    assert drawn.loc[SCALE, "toy-64", "clip_b"]["avg_gain"] == frame.loc[("toy-64", "clip_b"), "avg_gain"]
    assert "hollow: smollm2, other problems" in notes
    gains = figure.axes[1]
    assert gains.get_xlim()[1] > 134e6 > figure.axes[0].get_xlim()[1]
    copy = replace(results, root=folder / "copy" / SCALE, origin=results.root)  # as `verify` redraws
    copy.root.parent.mkdir()
    copy.root.symlink_to(results.root)
    assert len(framed(copy)) == len(drawn)
    alone, *_ = DRAW["ladder"](larger, others)
    assert [tick.get_text() for tick in alone.axes[-1].get_xticklabels()] == ["135 M"]
    larger.input_files(others.root)[-1].unlink()
    assert set(framed(results)["scale"]) == {SCALE}


def test_an_unknown_scale_beyond_is_refused_before_anything_runs(tmp_path):
    text = (ROOT / "experiments/ladder/ladder.yaml").read_text().replace("scale: smollm2", "scale: smolm2")
    (tmp_path / "ladder.yaml").write_text(text)
    with pytest.raises(UserError, match="unknown scale in beyond 'smolm2'; did you mean 'smollm2'"):
        load_experiment("ladder", SCALE, SEEDS, tmp_path, ROOT / "configs")
