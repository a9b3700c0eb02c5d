"""What is left of the gain, from the counts in docs/reference, as another program computed it."""

from functools import cache
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from matplotlib import rc_context
from matplotlib.backends.backend_agg import FigureCanvasAgg

from conftest import ROOT
from entropy_dynamics.analysis.envelope import Left, left, pooled
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.figures.envelope import draw_left
from entropy_dynamics.figures.style import STYLE
from synthetic_results import SCALE, write_models

NOISE = 0.4  # 2,000 resamples: a bound of an interval varies by 0.1 to 0.3 between two draws
TOYS, SETS = ("qwen2.5-7b-instruct", "qwen3-4b-base"), ("aime24", "aime25", "dapo500")
FOLDERS = {
    "0.1 M": ("laptop/controls/seeds-0-4", "laptop/controls/seeds-50-54-path"),
    "1 M": ("desk/controls/seeds-0-7", "desk/controls/seeds-50-57"),
    "SmolLM2": ("smollm2/seeds-0-7",),
    "SmolLM2, seeds 0 to 4": ("smollm2/seeds-0-7",),
}
LESS, UNSURE = "less than 3 points left", "undecided"
PATH = ("grpo", *(f"grpo@training.steps={step}" for step in (10, 20, 30, 40)))
GRIDS = {"temperatures": PATH[:1], "checkpoints": PATH, "half the rate": (*PATH, "grpo_half_rate")}
GRIDS["temperatures, half"] = ("grpo", "grpo_half_rate")


@cache
def scores(size: str) -> dict[tuple, np.ndarray]:
    """Model, data set, method and temperature -> Avg@K and Pass@K in points, [metric, seed, problem]."""
    frame = pd.concat([pd.read_parquet(ROOT / "docs/reference" / name / "counts.parquet") for name in FOLDERS[size]])
    frame = frame[
        (frame["temperature"] > 0)
        & frame["method"].isin([*GRIDS["half the rate"], "clip_b", "clip_v", "clip_v_half_rate"])
    ]
    if "seeds" in size:
        frame = frame[frame["seed"] <= 4]
    frame = frame.sort_values(["seed", "problem"])
    found = {}
    for key, rows in frame.groupby(["model", "dataset", "method", "temperature"]):
        correct = rows["correct"].to_numpy(float).reshape(rows["seed"].nunique(), -1)
        both = np.stack([100 * correct / rows["samples"].iloc[0], 100.0 * (correct > 0)])
        found[*key[:-1], round(float(key[-1]), 3)] = both
    return found


def of(size: str, method: str, grid: str, models=TOYS, weights=()) -> Left:
    of_size, sets = scores(size), ("countdown3", "countdown4") if size.startswith("SmolLM2") else SETS
    columns = []
    for model in models:
        warm = sorted({at for key in of_size if key[:3] == (model, sets[0], "grpo") for at in key[3:]})
        known = {key[2] for key in of_size if key[0] == model}
        points = [(method, 0.7), *((name, at) for name in GRIDS[grid] if name in known for at in warm)]
        columns.append([np.stack([of_size[model, name, *at] for at in points], axis=1) / len(sets) for name in sets])
    return left(columns, weights)


def assert_is(found: Left, expected: tuple, noise: float = NOISE) -> None:
    assert (found.value, found.low, found.high) == pytest.approx(expected, abs=noise)


@pytest.mark.parametrize(
    ("method", "grid", "small", "large", "both", "verdict"),
    [
        ("clip_b", "temperatures", (6.6, 2.3, 10.9), (6.1, 3.8, 8.5), (6.2, 4.3, 8.2), "left"),
        ("clip_b", "checkpoints", (1.4, -2.3, 5.2), (3.5, 0.7, 6.2), (2.7, 0.6, 4.8), "left"),
        ("clip_b", "half the rate", (-2.4, -5.5, 0.8), (-0.6, -2.6, 1.3), (-1.1, -2.7, 0.4), LESS),
        ("clip_v", "temperatures", (12.4, 5.8, 19.1), (9.4, 3.7, 15.1), (10.8, 6.7, 14.9), "left"),
        ("clip_v", "checkpoints", (10.7, 4.3, 17.2), (7.8, 2.2, 13.3), (9.1, 5.2, 13.1), "left"),
        ("clip_v", "half the rate", (3.5, -3.1, 10.1), (0.7, -2.6, 3.9), (1.3, -1.5, 4.1), UNSURE),
    ],
)
def test_mean_of_both_toy_models(method, grid, small, large, both, verdict):
    """At 0.1 M, at 1 M, and of both sizes."""
    sizes = [of(size, method, grid) for size in ("0.1 M", "1 M")]
    found = pooled(sizes)
    for one, expected in zip((*sizes, found), (small, large, both), strict=True):
        assert_is(one, expected)
    assert [one.seeds for one in sizes] == [10, 16]
    assert found.verdict() == verdict


@pytest.mark.parametrize(
    ("size", "model", "expected"),
    [
        ("0.1 M", TOYS[0], (6.4, -4.4, 17.2)),
        ("1 M", TOYS[0], (5.1, -0.6, 10.8)),
        ("0.1 M", TOYS[1], (0.6, -4.2, 5.3)),
        ("1 M", TOYS[1], (-3.8, -8.0, 0.5)),
    ],
)
def test_clip_v_over_half_the_rate_per_model(size, model, expected):
    found = of(size, "clip_v", "half the rate", [model])
    assert_is(found, expected, NOISE * (1 if size == "1 M" else 2))


def test_the_models_differ_at_1_m():
    assert_is(of("1 M", "clip_v", "half the rate", weights=(1, -1)), (8.9, 1.3, 16.5))


@pytest.mark.parametrize(
    ("method", "grid", "expected", "here", "spare"),
    [
        ("clip_b", "temperatures", (8.4, 2.8, 14.0), None, 0.6),
        ("clip_b", "checkpoints", (3.4, -7.1, 13.8), (-1.0, 7.7), 0),
        ("clip_v", "temperatures", (8.8, 3.4, 14.2), None, 0.9),
        ("clip_v", "checkpoints", (2.2, -7.3, 11.7), (-3.1, 7.6), 0),
    ],
)
def test_smollm2(method, grid, expected, here, spare):
    """At the last checkpoint GRPO has more Avg@K than clipping at its warmest temperature, 1.3."""
    found = of("SmolLM2", method, grid, ["smollm2-135m-instruct"])
    assert_is(found, expected)
    assert here is None or found.on_these_problems == pytest.approx(here, abs=NOISE)
    assert found.spare == pytest.approx(spare, abs=0.06)
    assert found.verdict() == "undecided"


@pytest.mark.parametrize("method", ["clip_b", "clip_v", "clip_v_half_rate"])
def test_smollm2_over_half_the_rate_is_as_published(method):
    """In the published file each grid also has the points of those before."""
    file = ROOT / "docs/reference/smollm2/seeds-0-7/figures/left_rates.csv"
    published = pd.read_csv(file).query("method == @method").set_index("over")
    grids = {"temperatures": "temperatures", "half the rate": "temperatures, half", "checkpoints": "half the rate"}
    for over, grid in grids.items():
        found, row = of("SmolLM2, seeds 0 to 4", method, grid, ["smollm2-135m-instruct"]), published.loc[over]
        assert found.seeds == row["seeds"] == 5
        assert_is(found, tuple(row[["left", "left_low", "left_high"]]), 1e-4)


@pytest.mark.parametrize(
    ("size", "method", "gain"),
    [
        ("0.1 M", "clip_b", 15.4),
        ("1 M", "clip_b", 13.8),
        ("0.1 M", "clip_v", 17.8),
        ("1 M", "clip_v", 12.3),
        ("SmolLM2", "clip_b", 23.8),
        ("SmolLM2", "clip_v", 24.0),
    ],
)
def test_the_gain_at_the_temperature_of_the_tables(size, method, gain):
    of_size = scores(size)
    keys = [key for key in of_size if key[2:] == (method, 0.7) and key[1] != "validation"]
    gains = [of_size[key][1].mean() - of_size[*key[:2], "grpo", 0.7][1].mean() for key in keys]
    assert np.mean(gains) == pytest.approx(gain, abs=0.06)


def test_ticks_of_the_published_figure_stand_apart(tmp_path, monkeypatch):
    """Three panels in a column leave little room below each."""
    published = pd.read_csv(ROOT / "docs/reference/laptop/controls/pooled-path/left.csv")
    monkeypatch.setattr("entropy_dynamics.figures.envelope.left_frame", lambda *_: published)
    write_models(tmp_path / SCALE)
    seeds = {"tables": 10, "extras": 10, "pilot": 2}
    results = Results(tmp_path / SCALE, SCALE, seeds, ROOT / "configs", ROOT / "experiments")
    with rc_context(fname=STYLE):
        figure, *_ = draw_left(results.experiment("left"), results)
        FigureCanvasAgg(figure).draw()
    assert len(figure.axes) == 3
    for ax in figure.axes:
        low, high = ax.get_xlim()
        ticks = [tick for tick in ax.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
        boxes = [tick.label1.get_window_extent() for tick in ticks]
        assert len(boxes) > 1
        assert min(right.x0 - left.x1 for left, right in pairwise(boxes)) > 0.05 * figure.dpi  # inches
