"""The outcomes of docs/reference/rates/protocol.md follow from its published counts, on a way of their own."""

from functools import cache
from itertools import product

import numpy as np
import pandas as pd
import pytest

from conftest import ROOT
from entropy_dynamics.analysis.envelope import left
from tables import rates, series

FOLDER = ROOT / "docs" / "reference" / rates.FOLDER
MODELS, SETS = ("qwen2.5-7b-instruct", "qwen3-4b-base"), ("aime24", "aime25", "dapo500")
WARM = (0.4, 0.7, 0.85, 1.0, 1.15, 1.3, 1.6)
LAST = {"grpo": 50, "grpo_half_rate": 100, "grpo_quarter_rate": 200, "clip_v": 50, "clip_v_half_rate": 50}
MEANS = {method: [30] for method in LAST} | {"grpo_half_rate": [30, 80], "grpo_quarter_rate": [30, 180]}  # first steps
CHECKPOINTS = {method: [10, 20, 30, 40, 50] for method in LAST}
CHECKPOINTS["grpo_half_rate"] += [80, 90, 100]
CHECKPOINTS["grpo_quarter_rate"] += [100, 150, 180, 190, 200]


@cache
def scores(model: str) -> dict[tuple, np.ndarray]:
    """(method, step, temperature, data set) -> Avg@K and Pass@K in points, [metric, seed, problem]."""
    keys = ["method", "temperature", "seed", "problem"]
    frame = pd.read_parquet(
        FOLDER / "counts.parquet",
        columns=[*keys, "dataset", "correct", "samples"],
        filters=[("model", "==", model)],
        read_dictionary=["method", "dataset"],
    )
    found = {}
    for dataset, rows in frame.groupby("dataset", observed=True):
        codes, names = zip(*(pd.factorize(rows[key], sort=True) for key in keys), strict=True)
        table = np.full([len(of) for of in names], np.nan)
        table[codes] = 100 * rows["correct"] / rows["samples"]
        rates = np.stack([table, np.where(np.isnan(table), np.nan, 100.0 * (table > 0))])
        for (place, name), (warmth, at) in product(enumerate(names[0]), enumerate(names[1])):
            method, _, step = name.partition("@training.steps=")
            found[method, int(step or LAST.get(method, 0)), round(float(at), 2), dataset] = rates[:, place, warmth]
    return found


def point(model: str, method: str, steps: list[int], at: float, name: str) -> np.ndarray:
    return np.mean([scores(model)[method, step, at, name] for step in steps], axis=0)


@pytest.mark.parametrize("model", MODELS)
def test_what_is_left_over_all_rates(model):
    published = pd.read_csv(FOLDER / "left.csv").set_index(["method", "model", "over"])
    for label, method in {"Clip_V": "clip_v", "Clip_V at half the rate": "clip_v_half_rate"}.items():
        points = [(method, [30, 40, 50], 0.7)]
        for name in ("grpo", "grpo_half_rate", "grpo_quarter_rate"):
            steps = [[step] for step in CHECKPOINTS[name]] + [[first, first + 10, first + 20] for first in MEANS[name]]
            points += [(name, of, at) for of in steps for at in WARM]
        columns = [np.stack([point(model, *of, name) for of in points], axis=1) / len(SETS) for name in SETS]
        found, row = left([columns]), published.loc[label, model, "a quarter"]
        expected = tuple(row[["left", "left_low", "left_high"]])
        assert (found.value, found.low, found.high) == pytest.approx(expected, abs=0.4)  # 2,000 resamples


def test_scores_of_a_point():
    model = MODELS[0]
    ours = rates.scores_of(model, rates.at_step("GRPO, half the rate", 50), 0.7)
    by_hand = [point(model, "grpo_half_rate", [50], 0.7, name).mean(axis=2) for name in (*SETS, "validation")]
    np.testing.assert_allclose(ours[:2], np.mean(by_hand[:3], axis=0))
    np.testing.assert_allclose(ours[2], by_hand[3][0])


def test_early_stopping_takes_the_earlier_of_two_equal_checkpoints():
    validation = np.array([[20.0, 21.0], [25.0, 24.0], [25.0, 24.5]])
    assert list(rates.chosen_by_validation(validation)) == [1, 2]


def test_holm_covers_the_values_of_all_studies(monkeypatch):
    monkeypatch.setattr(series, "STUDIES", {"one": lambda: {"a": 0.01, "b": 0.04}, "two": lambda: {"c": 0.03}})
    assert series.corrected_p("one") == ({"a": pytest.approx(0.03), "b": pytest.approx(0.06)}, 3)
    assert series.corrected_p("two") == ({"c": pytest.approx(0.06)}, 3)
