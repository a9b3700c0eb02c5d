"""The outcomes of docs/reference/rates/protocol.md follow from its published counts, on a way of their own."""

from functools import cache
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from conftest import ROOT
from entropy_dynamics.analysis.envelope import left
from tables import rates, series

MODELS, SETS = ("qwen2.5-7b-instruct", "qwen3-4b-base"), ("aime24", "aime25", "dapo500")
WARM = (0.4, 0.7, 0.85, 1.0, 1.15, 1.3, 1.6)
METHODS = ("grpo", "grpo_half_rate", "grpo_quarter_rate", "clip_v", "clip_v_half_rate")
LONGER = {"grpo_half_rate": [80, 90, 100], "grpo_quarter_rate": [100, 150, 180, 190, 200]}  # at 0.1 M


def checkpoints(size: str, method: str) -> list[int]:
    return [10, 20, 30, 40, 50, *(LONGER.get(method, []) if size == "0.1 M" else [])]


@cache
def scores(size: str, model: str) -> dict[tuple, np.ndarray]:
    """(method, step, temperature, data set) -> Avg@K and Pass@K in points, [metric, seed, problem]."""
    keys = ["method", "temperature", "seed", "problem"]
    frame = pd.read_parquet(
        ROOT / "docs" / "reference" / rates.FOLDERS[size] / "counts.parquet",
        columns=[*keys, "dataset", "correct", "samples"],
        filters=[("model", "==", model)],
        read_dictionary=["method", "dataset"],
    )
    found = {}
    for dataset, rows in frame.groupby("dataset", observed=True):
        codes, names = zip(*(pd.factorize(rows[key], sort=True) for key in keys), strict=True)
        table = np.full([len(of) for of in names], np.nan)
        table[codes] = 100 * rows["correct"] / rows["samples"]
        both = np.stack([table, np.where(np.isnan(table), np.nan, 100.0 * (table > 0))])
        for (place, name), (warmth, at) in product(enumerate(names[0]), enumerate(names[1])):
            method, _, step = name.partition("@training.steps=")
            step = int(step or checkpoints(size, method)[-1])
            found[method, step, round(float(at), 2), dataset] = both[:, place, warmth]
    return found


def point(size: str, model: str, method: str, steps: list[int], at: float, name: str) -> np.ndarray:
    return np.mean([scores(size, model)[method, step, at, name] for step in steps], axis=0)


def published(size: str) -> pd.DataFrame:
    """What is left over all rates: a row per method and model."""
    frame = pd.read_csv(ROOT / "docs" / "reference" / rates.LEFT).set_index(["scale", "over", "method", "model"])
    return frame.sort_index().loc[rates.SCALES[size], "a quarter"]


@pytest.mark.parametrize(("size", "model"), [*product(("0.1 M", "1 M"), MODELS)])
def test_what_is_left_over_all_rates(size, model):
    for label, method in {"Clip_V": "clip_v", "Clip_V at half the rate": "clip_v_half_rate"}.items():
        points = [(method, [30, 40, 50], 0.7)]
        for name in METHODS[:3]:
            known = checkpoints(size, name)
            steps = [*([step] for step in known), [30, 40, 50], *([known[-3:]] if len(known) > 5 else [])]
            points += [(name, of, at) for of in steps for at in WARM]
        columns = [np.stack([point(size, model, *of, name) for of in points], axis=1) / len(SETS) for name in SETS]
        found, row = left([columns]), published(size).loc[label, model]
        expected = tuple(row[["left", "left_low", "left_high"]])
        assert (found.value, found.low, found.high) == pytest.approx(expected, abs=0.4)  # 2,000 resamples
        assert found.seeds == row["seeds"]


def test_sizes_are_pooled_by_inverse_variance():
    small, large, both = (published(size) for size in rates.SCALES)
    assert rates.p_values().keys() == {key for key in both.index if key[1] in MODELS}
    for key, p in rates.p_values().items():
        of = [frame.loc[key] for frame in (small, large)]
        errors = [(row["left_high"] - row["left"]) / stats.t.ppf(0.975, row["seeds"] - 1) for row in of]
        df = sum(row["seeds"] - 1 for row in of)
        value = np.average([row["left"] for row in of], weights=1 / np.square(errors))
        error = 1 / np.sqrt(np.sum(1 / np.square(errors)))
        low, high = value - stats.t.ppf(0.975, df) * error, value + stats.t.ppf(0.975, df) * error
        assert tuple(both.loc[key, ["left", "left_low", "left_high"]]) == pytest.approx((value, low, high), abs=1e-3)
        assert p == pytest.approx(2 * stats.t.sf(abs(value) / error, df), rel=1e-2)
        verdict = "left" if low > 0 else "less than 3 points left" if high < 3 else "undecided"
        assert both.loc[key, "verdict"] == verdict + ", at most"


def test_the_difference_of_sizes_is_welchs():
    """At each bound Welch's test has p = 0.05."""
    samples = []
    for frame in (published("1 M"), published("0.1 M")):
        errors = (frame["left_high"] - frame["left"]) / stats.t.ppf(0.975, frame["seeds"] - 1)
        columns = (frame["left"], errors * np.sqrt(frame["seeds"]), frame["seeds"])
        samples.append([column.to_numpy(float) for column in columns])
    (value, *large), small = samples
    for bound in ("left_low", "left_high"):
        at = value - rates.between_sizes().loc[published("1 M").index, bound].to_numpy()
        found = stats.ttest_ind_from_stats(at, *large, *small, equal_var=False)
        np.testing.assert_allclose(found.pvalue, 0.05, atol=1e-4)


@pytest.mark.parametrize("size", ["0.1 M", "1 M"])
def test_scores_of_a_point(size):
    ours = rates.scores_of(size, MODELS[0], "GRPO, half the rate", 50, 0.7)
    sets = (*SETS, "validation")
    by_hand = [point(size, MODELS[0], "grpo_half_rate", [50], 0.7, name).mean(axis=2) for name in sets]
    np.testing.assert_allclose(ours[:2], np.mean(by_hand[:3], axis=0))
    np.testing.assert_allclose(ours[2], by_hand[3][0])


def test_early_stopping_takes_the_earlier_of_two_equal_checkpoints():
    validation = np.array([[20.0, 21.0], [25.0, 24.0], [25.0, 24.5]])
    assert list(rates.chosen_by_validation(validation)) == [1, 2]


def test_holm_covers_the_values_of_all_studies(monkeypatch):
    monkeypatch.setattr(series, "STUDIES", {"one": lambda: {"a": 0.01, "b": 0.04}, "two": lambda: {"c": 0.03}})
    assert series.corrected_p("one") == ({"a": pytest.approx(0.03), "b": pytest.approx(0.06)}, 3)
    assert series.corrected_p("two") == ({"c": pytest.approx(0.06)}, 3)
