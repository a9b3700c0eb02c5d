"""Scores, gains and gains by difficulty, worked by hand: two data sets of six problems, three seeds, four samples."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.scores import gains_frame, scores_frame
from entropy_dynamics.analysis.statistics import holm, mean_interval, score_interval, share_interval
from entropy_dynamics.config import BASE
from entropy_dynamics.experiments.load import Run
from single_claims import write_curve
from synthetic_results import MODEL, ROOT, SCALE, write_evaluation, write_models

SEEDS = {"tables": 3, "extras": 3, "pilot": 1}
SETS = ("aime24", "aime25")
TABLE = {
    "kind": "scores",
    "title": "a",
    "shows": "a",
    "seeds": "tables",
    "runs": [{"models": [MODEL], "methods": [BASE, "grpo", "clip_b"]}],
    "evaluations": [*SETS],
    "metrics": ["avg", "pass"],
    "entropy": True,
    "pooled": True,
    "labels": {"clip_b": "Ours"},
}
ENDS = ("", "_low", "_high")
NOT_OF_SCORES = {"entropy": None, "pooled": None, "labels": None}
# Correct samples of four, per data set, and for the trained ones per seed.
UNTRAINED = {"aime24": [1, 0, 3, 1, 0, 3], "aime25": [3, 0, 2, 1, 4, 0]}
GRPO = {
    "aime24": [[2, 0, 4, 1, 0, 3], [3, 0, 4, 2, 0, 3], [4, 0, 3, 2, 0, 4]],
    "aime25": [[4, 0, 2, 1, 4, 0], [4, 0, 3, 1, 4, 0], [4, 0, 1, 1, 4, 0]],
}
CLIP_B = {
    "aime24": [[2, 1, 3, 2, 1, 3], [2, 2, 4, 1, 1, 2], [2, 3, 2, 1, 2, 3]],
    "aime25": [[2, 2, 2, 2, 2, 2], [2, 1, 2, 3, 2, 2], [2, 3, 2, 1, 2, 2]],
}


CURVES = np.linspace(0.5, [0.1, 0.2, 0.3], 10, axis=1)  # seed, step


def write_seed(results: Results, seed: int, *methods: str) -> None:
    for method, dataset in product(methods, SETS):
        counts = UNTRAINED[dataset] if method == BASE else {"grpo": GRPO, "clip_b": CLIP_B}[method][dataset][seed % 3]
        write_evaluation(results.root, Run(MODEL, method, seed), dataset, np.arange(4) < np.array(counts)[:, None])


@pytest.fixture
def results(tmp_path) -> Results:
    """Clip_B's curve is GRPO's, but for the last step of seed 2."""
    results = Results(tmp_path / SCALE, SCALE, SEEDS, ROOT / "configs", tmp_path)
    write_models(results.root)
    write_curve(results.root, "grpo", 0, 1, 2, steps=10, entropy=CURVES)
    higher = CURVES.copy()
    higher[2, -1] += 0.1
    write_curve(results.root, "clip_b", 0, 1, 2, steps=10, entropy=higher)
    for seed in range(3):
        write_seed(results, seed, BASE, "grpo", "clip_b")
    scores = {"grpo": {"aime24": {"avg": 20.0}, "aime25": {"avg": 30.0}}, "clip_b": {"aime24": {"avg": 21.5}}}
    paper = {"scores": {"Table 1": {MODEL: scores}}}
    (tmp_path / "paper_values.yaml").write_text(json.dumps(paper))
    return results


def of(results: Results, **changes):
    spec = {key: value for key, value in (TABLE | changes).items() if value is not None}
    (results.folder / "one.yaml").write_text(json.dumps(spec))
    return results.experiment("one")


def share(counts) -> np.ndarray:
    return np.array(counts) / 4


def solved(counts) -> np.ndarray:
    return (np.array(counts) > 0).astype(float)


def in_percent(interval) -> list[float]:
    return pytest.approx([*interval.times(100).columns("a").values()], nan_ok=True)


def test_scores_by_hand(results):
    frame = scores_frame(of(results), results).set_index("method")
    assert list(frame.index) == [BASE, "grpo", "clip_b"]
    assert set(frame["model"]) == {MODEL}
    assert list(frame["label"])[1:] == ["GRPO", "Ours"]
    assert list(frame["seeds"]) == [3, 3, 3]
    assert set(frame["difference"]) == {"mean over seeds"}
    for name, metric in (("avg", share), ("pass", solved)):
        for dataset in SETS:
            for method, counts in (("grpo", GRPO), ("clip_b", CLIP_B)):
                got = [frame.loc[method, f"{dataset}_{name}{end}"] for end in ENDS]
                assert got[0] == pytest.approx(100 * metric(counts[dataset]).mean())
                if metric is share:  # away from 0 and 1
                    assert got == in_percent(share_interval(metric(counts[dataset])))
            difference = score_interval([metric(CLIP_B[dataset]) - metric(GRPO[dataset])])
            found = [frame.loc["clip_b", f"{dataset}_{name}_difference{end}"] for end in ENDS]
            assert found == in_percent(difference)
    assert np.isnan(frame.loc["grpo", "aime24_avg_difference"])
    pooled = frame.loc["clip_b", "mean_avg"]
    assert pooled == pytest.approx((frame.loc["clip_b", "aime24_avg"] + frame.loc["clip_b", "aime25_avg"]) / 2)
    untrained = [frame.loc[BASE, f"{dataset}_avg"] for dataset in SETS]
    assert untrained == pytest.approx([100 * 8 / 24, 100 * 10 / 24])
    assert frame.loc["clip_b", "aime24_avg_paper"] == 21.5
    assert frame["aime25_pass_paper"].isna().all()
    # The frame of an evaluation has an answer in three of four samples, and one of four cut off.
    assert (frame["aime24_unreadable"] == 25).all()
    assert (frame["aime25_truncated"] == 25).all()
    assert [frame.loc["grpo", f"{dataset}_problems"] for dataset in SETS] == [6, 6]
    assert (frame["aime24_samples"] == 4).all()


def test_p_values_are_corrected_over_the_table(results):
    frame = scores_frame(of(results), results).set_index("method")
    names = [name for name in frame if name.endswith("_difference_p")]
    alone = []
    for counts in (UNTRAINED, CLIP_B):
        for shares in ({"aime24": 1}, {"aime25": 1}, {"aime24": 0.5, "aime25": 0.5}):
            for metric in (share, solved):
                columns = [weight * (metric(counts[name]) - metric(GRPO[name])) for name, weight in shares.items()]
                alone.append(score_interval(columns).p)
    corrected = holm(np.array(alone))
    assert list(frame.loc["base", names]) == pytest.approx(corrected[:6], nan_ok=True)
    assert list(frame.loc["clip_b", names]) == pytest.approx(corrected[6:], nan_ok=True)


def test_differences_from_a_single_untrained_model_are_medians_of_five_seeds(results):
    for seed in (3, 4):
        write_seed(results, seed, "grpo", "clip_b")
    five = replace(results, seeds=SEEDS | {"tables": 5})
    experiment = of(five, entropy=None)
    single = replace(experiment, runs=tuple(run for run in experiment.runs if run.method != BASE or run.seed == 0))
    frame = scores_frame(single, five).set_index("method")
    assert frame["seeds"].tolist() == [1, 5, 5]
    assert set(frame["difference"]) == {"median over seeds"}
    differences = [np.mean(share(UNTRAINED["aime24"]) - share(counts)) for counts in GRPO["aime24"] * 2][:5]
    assert frame.loc[BASE, "aime24_avg_difference"] == pytest.approx(100 * np.median(differences))


def test_entropies_at_the_end(results):
    frame = scores_frame(of(results), results).set_index("method")
    assert frame.loc["grpo", "entropy"] == pytest.approx(0.2)
    assert frame.loc["clip_b", "entropy"] == pytest.approx(0.7 / 3)
    interval = mean_interval(np.array([0.1, 0.2, 0.4]))
    assert frame.loc["clip_b", "entropy_low"] == pytest.approx(interval.low)
    assert np.isnan(frame.loc[BASE, "entropy"])
    assert not frame["equals_baseline"].any()  # also not of the baseline
    write_curve(results.root, "clip_b", 0, 1, 2, steps=10, entropy=CURVES)
    again = scores_frame(of(results), results).set_index("method")
    assert list(again["equals_baseline"]) == [False, False, True]
    assert "entropy" not in scores_frame(of(results, entropy=False), results)


def test_gains_by_hand(results):
    runs = [{"models": [MODEL], "methods": ["grpo", "clip_b"]}]
    frame = gains_frame(of(results, kind="gains", runs=runs, **NOT_OF_SCORES), results)
    assert list(frame["method"]) == ["clip_b"] * 4
    assert list(frame["metric"]) == ["avg", "avg", "pass", "pass"]
    assert list(frame["dataset"]) == [*SETS] * 2
    assert list(frame["gain"]) == pytest.approx([100 * (37 - 35) / 72, 100 * (36 - 33) / 72, 100 / 3, 100 / 3])
    assert frame.loc[0, "paper"] == pytest.approx(1.5)
    assert frame["paper"][1:].isna().all()
    by_hand = score_interval([share(CLIP_B["aime25"]) - share(GRPO["aime25"])])
    assert list(frame.loc[1, ["gain", "low", "high"]]) == in_percent(by_hand)
