"""The figure and the claims about what is left at equal Avg@K, on evaluations with known points."""

from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import pytest

from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.load import Run
from entropy_dynamics.figures import envelope
from entropy_dynamics.figures.envelope import draw_left
from single_claims import OTHER, finding
from synthetic_results import EXPERIMENTS, MODEL, SEEDS, results_in, write_evaluation, write_models

LEFT = EXPERIMENTS["left"]
WARM = (None, 0.4, 1.0, 1.15, 1.3, 1.6)
NOTHING = (0, 0.0)
# How many fifths of the problems are solved, and in what share of the samples. GRPO's envelope goes from Avg@K 2/5 at
# Pass@K 2/5 to 1/5 at 4/5, so it has 3/5 at 3/10, the Avg@K of Clip_B. Half the rate has 4/5 there.
LEVELS = {
    ("grpo", 0.4): (2, 1.0),
    ("grpo", 1.0): (4, 0.25),
    ("grpo_half_rate", None): (4, 0.5),
    ("clip_b", None): (4, 0.375),
}


def correct(level, problems):
    solved, right = level
    return (np.arange(problems) * 5 // problems < solved)[:, None] & (np.arange(32) < right * 32)


def frame_of(folder, levels, runs, **changes) -> pd.DataFrame:
    """The frame of the figure of these runs on one data set, each at the temperatures at which it is read."""
    write_models(folder)
    spec = LEFT.spec.model_copy(update={"evaluations": ["aime24"], "beyond": None} | changes)
    experiment = replace(LEFT, spec=spec, runs=tuple(runs))
    for run in runs:
        for at in (None, *experiment.temperatures_of(run.method)):
            level = levels.get((run.method, at), levels.get(run.method, NOTHING))
            write_evaluation(folder, run, "aime24", correct(level, 30), at)
    return draw_left(experiment, results_in(folder))[1]


def test_each_step_widens_the_envelope(tmp_path):
    frame = frame_of(tmp_path, LEVELS, LEFT.runs)
    rows = frame[frame["method"] == "clip_b"].set_index(["model", "over"])
    for over, points in {"temperatures": 20, "checkpoints": 20, "half the rate": 0}.items():
        of_models = rows.loc[[(name, over) for name in (MODEL, OTHER, "mean")], "left"]
        assert of_models.tolist() == pytest.approx([points] * 3)
        assert rows.loc[("difference", over), "left"] == pytest.approx(0)
    assert rows.loc[(MODEL, "temperatures"), "points"] == "50% GRPO at 1, 50% GRPO at 0.4"
    assert rows.loc[(MODEL, "half the rate"), "points"] == "GRPO (half the rate) at 0.7"
    assert set(rows["seeds"]) == {SEEDS["tables"]}


def test_models_that_only_the_scale_beyond_has_go_under_their_own_names(tmp_path, monkeypatch):
    frame = frame_of(tmp_path, LEVELS, [run for run in LEFT.runs if run.seed == 0])
    beyond = frame[frame["model"] == MODEL].assign(model="own", scale="other")
    monkeypatch.setattr(envelope, "left_frame", lambda *_: pd.concat([frame, beyond]))
    figure, _, notes = draw_left(LEFT, results_in(tmp_path))
    assert figure.axes[0].get_yticklabels()[-1].get_text() == "own, other"
    assert f"seeds of other: {beyond['seeds'].iloc[0]}" in notes


def test_what_is_read():
    """The compared methods are not sampled at other temperatures for this figure."""
    assert LEFT.temperatures_of("clip_v") == ()
    assert set(LEFT.temperatures_of("grpo@training.steps=20")) == {0.4, 1.0, 1.15, 1.3, 1.6}


def test_the_mean_of_the_last_checkpoints_as_a_point(tmp_path):
    """Avg@K and Pass@K are 35 and 70 at Clip_B's end. GRPO has 40 and 40, and at its end 40 and 60."""
    levels = {"clip_b": (4, 0.5), "clip_b@training.steps=40": (3, 0.5)}
    levels |= {"grpo": (2, 1.0), "grpo@training.steps=40": (4, 0.5)}
    names = list(levels)
    changes = {"averages": {"Clip_B's end": names[:2], "GRPO's end": names[2:]}, "edge": ["GRPO*"]}
    changes |= {"compared": ["Clip_B's end"], "grids": {"last": ["grpo"], "mean": ["GRPO's end"]}}
    runs = [Run(MODEL, method, seed) for method in names for seed in range(3)]
    frame = frame_of(tmp_path, levels, runs, **changes)
    assert frame["left"].tolist() == pytest.approx([30, 10])
    assert frame["points"].tolist() == ["GRPO at 0.4", "GRPO's end at 0.4"]
    assert [verdict.endswith(", at most") for verdict in frame["verdict"]] == [False, True]


CLAIM = {"test": "score_difference", "models": [MODEL], "runs": {"clip_b": "tables"}, "metric": "pass", "above": 0}
CLAIM |= {"evaluations": ["aime24"], "temperature": "envelope", "against": dict.fromkeys(["grpo"], "tables")}


def judged(results, levels=LEVELS, **changes):
    for method, at, seed in product(("grpo", "grpo_half_rate", "clip_b"), WARM, range(5)):
        if at is None or method != "clip_b":
            shown = correct(levels.get((method, at), NOTHING), 300)
            wrong = np.random.default_rng(seed).random((300, 32)) < 0.02  # seeds and problems vary
            write_evaluation(results, Run(MODEL, method, seed), "aime24", shown & ~wrong, at)
    return finding(CLAIM | changes, results)


def test_claims_about_what_is_left(tmp_path):
    found = judged(tmp_path)
    assert (found.verdict, found.interval.value, found.seeds) == ("holds", pytest.approx(20, abs=2), 5)
    assert "over 5" in found.reason
    assert "% grpo at 1, " in found.reason
    both = judged(tmp_path, against={"grpo": "tables", "grpo_half_rate": "tables"}, above=None, below=3)
    assert (both.verdict, both.interval.value) == ("holds", pytest.approx(0, abs=1))
    assert "over grpo_half_rate at 0.7" in both.reason


def test_without_a_point_at_that_avg_there_is_no_verdict(tmp_path):
    found = judged(tmp_path, LEVELS | {("clip_b", None): (4, 1.0)})
    assert found.verdict == "inconclusive"
    assert "no point that it is compared with has that Avg@K" in found.reason


def test_with_more_avg_everywhere_what_is_left_is_an_upper_bound(tmp_path):
    high = {("grpo", at): (2, 1.0) for at in WARM} | {("clip_b", None): (4, 0.25)}
    found = judged(tmp_path, high)
    assert found.verdict == "inconclusive"
    assert "at most, as all points have more Avg@K, by 19" in found.reason
    below = judged(tmp_path, high | {("clip_b", None): (2, 0.25)}, above=None, below=3)
    assert below.verdict == "holds"


@pytest.mark.parametrize("changes", [{"metric": "avg"}, {"problems": "easy"}, {"everywhere": True}])
def test_other_metrics_and_problems_are_refused(tmp_path, changes):
    with pytest.raises(UserError, match="temperature envelope takes the metric pass and all problems"):
        finding(CLAIM | changes, tmp_path)
