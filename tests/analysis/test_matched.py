"""Methods at matched entropy, tables with the entropy, and the experiments of the target `methods`."""

import shutil

import numpy as np
import pandas as pd
import pytest

from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.scores import scores_frame
from entropy_dynamics.config import BASE, load_config
from entropy_dynamics.experiments.claims import load_claims
from entropy_dynamics.experiments.load import experiment_files, load_experiment
from entropy_dynamics.figures.sweeps import draw_matched
from entropy_dynamics.planning.plan import make_plan
from entropy_dynamics.report import render
from entropy_dynamics.results.layout import Layout
from synthetic_results import (
    DATASETS,
    MODEL,
    ROOT,
    SCALE,
    draw,
    results_in,
    write_all,
    write_evaluation,
    write_metrics,
    write_models,
)

SEEDS = {"tables": 3, "extras": 3, "pilot": 1}
ENTROPY = {"grpo": 0.1, "clip_b": 0.3, "steer@w_min=0.2": 0.5, "steer": 0.2, "steer@w_min=0.5": 0.4, "qae": 0.2}
ENTROPY["clip_b@apply_to=both"] = 0.3
CORRECT = {"grpo": 3, "clip_b": 2, "steer@w_min=0.2": 0, "steer": 2, "steer@w_min=0.5": 4, "qae": 1}  # of 4 samples
CORRECT["clip_b@apply_to=both"] = 3
MATCHED = f"""
kind: matched
title: A title
shows: What to look for.
seeds: extras
runs:
  - {{models: [{MODEL}], methods: [grpo, clip_b, steer, qae]}}
sweeps:
  - {{models: [{MODEL}], method: steer, parameter: w_min, values: {{default: [0.2, 0.5]}}}}
evaluations: [dapo500]
"""


def frame_of(text: str, tmp_path, slope: float = 0.0):
    """The frame of runs of three seeds. As many of 40 problems as a seed's number are always solved.

    STEER's entropies change by `slope` from seed to seed.
    """
    results, experiments = tmp_path / SCALE, tmp_path / "experiments"
    shutil.copytree(ROOT / "experiments", experiments)
    (experiments / "matched.yaml").write_text(text)
    experiment = load_experiment("matched", SCALE, SEEDS, experiments, ROOT / "configs")
    write_models(results)
    for run in experiment.runs:
        shift = slope * (run.seed - 1) * run.method.startswith("steer")
        write_metrics(results, run, entropy=ENTROPY[run.method] + shift)
        correct = np.arange(4) < np.full((40, 1), CORRECT[run.method])
        correct[: run.seed] = True
        write_evaluation(results, run, "dapo500", correct)
    render("matched", Results(results, SCALE, SEEDS, ROOT / "configs", experiments))
    return pd.read_csv(Layout(results).figure("matched", "csv")).set_index("run")


@pytest.fixture
def matched(tmp_path):
    return frame_of(MATCHED, tmp_path)


def score(correct: float) -> float:
    """Avg@4 in percent, with one problem of 40 that is always solved, on average over the seeds."""
    return 100 * (39 * correct / 4 + 1) / 40


def test_scores_at_the_entropy_of_the_reference(matched):
    """0.3 lies halfway between STEER's 0.2 and 0.4; QAE has one strength only."""
    assert matched["avg"].to_dict() == pytest.approx({run: score(CORRECT[run]) for run in matched.index})
    expected = (score(2) + score(4)) / 2 - score(2)
    for run in ("steer", "steer@w_min=0.2", "steer@w_min=0.5"):
        row = matched.loc[run]
        assert row["avg_matched"] == pytest.approx(expected)
        assert row["avg_matched_low"] < expected < row["avg_matched_high"]
        assert row["pass_matched"] == pytest.approx(0)  # all three solve every problem of these
    assert matched.loc[["clip_b", "grpo", "qae"], ["avg_matched", "pass_matched"]].isna().all(axis=None)


def test_the_frame_has_whole_intervals(tmp_path):
    matched = frame_of(MATCHED, tmp_path, slope=0.04)
    results = Results(tmp_path / SCALE, SCALE, SEEDS, ROOT / "configs", tmp_path / "experiments")
    figure, *_ = draw_matched(results.experiment("matched"), results)
    left, right = figure.axes[2].get_xlim()  # below the panel of Avg@K
    assert left < min(0, matched.loc["steer", "avg_matched_low"])
    assert right > matched.loc["steer", "avg_matched_high"]


def test_each_seed_is_corrected_for_its_own_entropies(matched, tmp_path):
    """A problem that is always solved is worth half as much to STEER between 2 and 4 of 4 as to Clip_B at 2 of 4.

    So the seeds differ by half of that. Along STEER's line, this is a difference in entropy; entropies that differ by
    half of it make the seeds agree better, and of the other sign worse.
    """
    apart = (score(2) - 100 * 2 / 4) / 2
    slope = apart / (score(4) - score(2)) * (0.4 - 0.2) / 2
    better = frame_of(MATCHED, tmp_path / "better", -slope)
    worse = frame_of(MATCHED, tmp_path / "worse", slope)
    width, better, worse = (
        frame.loc["steer", "avg_matched_high"] - frame.loc["steer", "avg_matched_low"]
        for frame in (matched, better, worse)
    )
    assert 0 < better < width < worse


def test_a_run_outside_the_sweeps_has_a_line_of_its_own(tmp_path):
    """With the entropy of the reference, it would count among the strengths of STEER."""
    methods = MATCHED.replace("qae]", "qae, clip_b@apply_to=both]")
    frame = frame_of(methods, tmp_path)
    assert frame.loc["clip_b@apply_to=both", "method"] == "clip_b@apply_to=both"
    assert np.isnan(frame.loc["clip_b@apply_to=both", "value"])
    assert frame.loc["steer@w_min=0.2", ["method", "parameter", "value"]].tolist() == ["steer", "w_min", 0.2]


def test_a_table_with_the_entropy_says_what_is_exactly_the_baseline(tmp_path):
    results = tmp_path / SCALE
    experiment = load_experiment("methods_on_policy", SCALE, SEEDS, ROOT / "experiments")
    write_all(results, SEEDS, names=["methods_on_policy"])
    same, nearly = "cispo@training.updates_per_batch=1", "dppo@training.updates_per_batch=1"
    entropy = np.linspace(0.5, 0.1, 40)
    for run in experiment.runs:
        if run.method in ("grpo", same, nearly):
            apart = 1e-12 * (run.method == nearly and run.seed == 1)
            write_metrics(results, run, entropy=entropy + run.seed + apart)
    kept = results_in(results, SEEDS)
    rows = scores_frame(experiment, kept).set_index("method")
    assert rows.index[rows["equals_baseline"]].tolist() == [same]
    assert rows.loc["grpo", "entropy"] == pytest.approx(entropy[-4:].mean() + 1)
    files = {path.suffix: path.read_text() for path in draw("methods_on_policy", results, SEEDS)}
    assert r"GSPO (updates\_per\_batch 1)" in files[".tex"]
    text = files[".md"]
    assert "| Entropy (nats) | Mean Avg@K | Mean Pass@K | toy AIME24 Avg@32 |" in text
    for metric in ("avg", "pass"):
        of_sets = [rows[f"{dataset}_{metric}"] for dataset in DATASETS]
        np.testing.assert_allclose(rows[f"mean_{metric}"], np.mean(of_sets, axis=0))
        assert (rows[f"mean_{metric}_low"] < rows[f"mean_{metric}"]).all()

    def avg(method: str) -> float:
        runs = experiment.of(MODEL, method)
        samples = [kept.samples(run, dataset) for run in runs for dataset in DATASETS]
        return 100 * np.mean([(of.correct / of.k).mean() for of in samples])

    difference = avg("clip_b") - avg("grpo")  # of three seeds, so the mean
    assert rows.loc["clip_b", "mean_avg_difference"] == pytest.approx(difference)
    assert text.count("exactly GRPO") == 1 + 1  # the row and the caption
    assert "CISPO (updates_per_batch 1)" in text


# ---------------------------------------------------------------- planned


def experiments_of(target: str | None) -> dict:
    names = experiment_files(ROOT / "experiments")
    every = {name: load_experiment(name, SCALE, SEEDS, ROOT / "experiments") for name in names}
    return {name: one for name, one in every.items() if (one.folder == target if target else one.by_default)}


def test_the_plan_of_a_target_has_its_runs_only():
    methods = experiments_of("methods")
    assert set(methods) >= {"lens", "matched_entropy", "methods_off_policy", "methods_on_policy", "numerics"}
    arguments = (SCALE, ["seeds.extras=3", "seeds.tables=3"])
    runs = {run.path for one in methods.values() for run in one.runs}
    assert make_plan(*arguments, target="methods").trained == len(runs)
    claims = load_claims(SCALE, SEEDS, ROOT / "experiments")
    runs = {run.path for one in experiments_of(None).values() for run in one.runs}
    runs |= {run.path for claim in claims for run in claim.all_runs()}
    runs = {path for path in runs if path[1] != BASE}
    assert make_plan(*arguments).trained == len(runs)


@pytest.mark.parametrize("name", ["methods_on_policy", "methods_off_policy"])
def test_every_run_has_as_many_updates_as_the_table_says(name):
    wanted = 1 if "_on_" in name else 4
    for method in experiments_of("methods")[name].methods(MODEL):
        config = load_config(SCALE, MODEL, method, configs=ROOT / "configs")
        assert config.training.updates_per_batch == wanted, method
