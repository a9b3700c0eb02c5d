"""Figures from synthetic runs: their numbers, captions and labels, and the files that they miss."""

import shutil
from itertools import pairwise, product
from pathlib import Path

import matplotlib.image
import matplotlib.style
import numpy as np
import pandas as pd
import pytest
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from PIL import Image

from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.load import Run
from entropy_dynamics.figures import style
from entropy_dynamics.figures.curves import draw_curves
from entropy_dynamics.results.files import write_parquet
from entropy_dynamics.results.layout import Layout
from synthetic_results import (
    EXPERIMENTS,
    MODEL,
    SCALE,
    SEEDS,
    STEPS,
    draw,
    results_in,
    write_all,
    write_evaluation,
    write_logit_steps,
    write_metrics,
    write_models,
)

FIGURES = [name for name, experiment in EXPERIMENTS.items() if experiment.spec.kind != "scores"]
ONE_OF_A_KIND = {EXPERIMENTS[name].spec.kind: name for name in FIGURES}.values()


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """Synthetic runs: three seeds for the tables, one for the rest. Read-only for the tests."""
    folder = tmp_path_factory.mktemp("results") / SCALE
    write_all(folder, SEEDS, names=[*FIGURES, "table1"])
    return folder


@pytest.fixture
def small(tmp_path) -> Path:
    """Only GRPO on one model, three seeds: what Figures 3 and 5 need."""
    folder = tmp_path / SCALE
    write_models(folder)
    for seed in range(3):
        write_metrics(folder, Run(MODEL, "grpo", seed))
    return folder


def test_panels_of_a_row_share_the_axis_of_one_quantity(results):
    for name, shared in (("figure2", True), ("figure3", False)):
        figure, *_ = draw_curves(EXPERIMENTS[name], results_in(results))
        left, right = (axes.get_ylim() for axes in figure.axes[:2])
        assert (left == right) is shared, name


@pytest.mark.parametrize(
    ("substitute", "parameters", "shown"),
    [
        (False, 7_615_616_512, "Qwen2.5-7B-Instruct, 7.6 B parameters"),
        (True, 494_032_768, "Qwen2.5-0.5B-Instruct for Qwen2.5-7B-Instruct, 494 M parameters"),
    ],
)
def test_a_pretrained_model_goes_under_its_own_name(small, substitute, parameters, shown):
    facts = {"pretrained": "Qwen/Qwen2.5-0.5B-Instruct", "parameters": parameters}
    write_models(small, toy=False, substitute=substitute, **facts)
    assert set(pd.read_csv(draw("figure5", small, SEEDS)[2]).model_that_ran) == {shown}


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_drawn_and_the_same_bytes_again(results, name, monkeypatch):
    drawn, save = [], style.save
    monkeypatch.setattr(
        "entropy_dynamics.figures.draw.save", lambda figure, *rest: (drawn.append(figure), save(figure, *rest))
    )
    png, svg, csv, pdf = draw(name, results, SEEDS)
    (figure,) = drawn
    assert all("\n" not in ax.get_title() for ax in figure.findobj(Axes))
    assert figure.get_supxlabel().count("\n") < 2
    assert min(text.get_fontsize() for text in figure.findobj(Text) if text.get_text().strip()) >= 6
    image = matplotlib.image.imread(png)
    assert image.shape[1] == 660  # one column at 200 dpi
    assert image[..., :3].std() > 0.05
    assert svg.read_text().startswith("<?xml")
    assert pdf.read_bytes().startswith(b"%PDF-1")
    assert b"/Type3" not in pdf.read_bytes()
    assert len(pd.read_csv(csv))
    if name in ONE_OF_A_KIND:
        first = [path.read_bytes() for path in (png, svg, csv, pdf)]
        assert [path.read_bytes() for path in draw(name, results, SEEDS)] == first


def test_the_style_can_be_used_by_its_name():
    with matplotlib.style.context("entropy_dynamics.figures.figures"):
        assert list(matplotlib.rcParams["figure.figsize"]) == [style.WIDTH, 2.2]
        assert matplotlib.rcParams["axes.prop_cycle"].by_key()["color"][0] == style.COLORS[0] == "#0072B2"


def test_a_picture_has_256_colors_and_looks_as_before(tmp_path, monkeypatch):
    with rc_context(fname=style.STYLE):
        figure = Figure(figsize=(3.5, 2))
        figure.subplots().scatter(*np.random.default_rng(0).random((2, 99)), c=np.arange(99), cmap="viridis")
        style.save(figure, "A title", small := tmp_path / "small.png")
        monkeypatch.setattr(style, "with_palette", lambda png: png)
        style.save(figure, "A title", large := tmp_path / "large.png")
    with Image.open(small) as image:
        assert (image.mode, image.info["Title"]) == ("P", "A title")
        assert image.info["dpi"] == pytest.approx((200, 200), rel=1e-3)
    before, after = (matplotlib.image.imread(path)[..., :3] for path in (large, small))
    assert np.abs(before - after).mean() < 0.005
    assert small.stat().st_size < 0.6 * large.stat().st_size


def test_a_curve_is_the_mean_of_its_seeds_with_the_lowest_and_the_highest(small):
    frame = pd.read_csv(draw("figure5", small, SEEDS)[2])
    files = [Run(MODEL, "grpo", seed).metrics_file(small) for seed in range(3)]
    runs = np.stack([pd.read_parquet(file).neg_cov_negative for file in files])
    drawn = frame[frame.column == "neg_cov_negative"]
    np.testing.assert_allclose(drawn.value, runs.mean(axis=0), rtol=1e-5)
    np.testing.assert_allclose(drawn.low, runs.min(axis=0), rtol=1e-5)
    np.testing.assert_allclose(drawn.high, runs.max(axis=0), rtol=1e-5)
    assert list(drawn.step) == list(range(STEPS))
    assert set(drawn.seeds) == {3}


def test_the_ratio_of_figure3(small):
    for seed in range(3):
        write_metrics(small, Run(MODEL, "grpo", seed), s_star_mean=0.08, s_centered_mean=-0.0004 * (seed + 1))
    frame = pd.read_csv(draw("figure3", small, SEEDS)[2])
    np.testing.assert_allclose(frame[frame.column == "s_centered_ratio"].value, 0.01)
    figure, *_ = draw_curves(EXPERIMENTS["figure3"], results_in(small))
    low, high = figure.axes[1].get_ylim()
    assert low <= 0.001 < 0.01 <= high  # the paper's level is in sight too


def test_shares_of_figure4_by_hand(tmp_path):
    """GRPO solves 3 problems always and 1 never; Clip_B solves all four in 1 of 2 samples."""
    write_models(tmp_path)
    correct = {"grpo": [[1, 1]] * 3 + [[0, 0]], "clip_b": [[1, 0]] * 4}
    for method, seed in product(correct, range(3)):
        run, samples = Run(MODEL, method, seed), np.array(correct[method], dtype=bool)
        write_evaluation(tmp_path, run, "dapo500", samples)
    frame = pd.read_csv(draw("figure4", tmp_path)[2])
    shares = frame.pivot(index="method", columns="correct", values="share")
    assert shares.loc["grpo"].tolist() == [25, 0, 75]
    assert shares.loc["clip_b"].tolist() == [0, 100, 0]
    never = frame[(frame.method == "clip_b") & (frame.correct == 0)]
    assert never.high.item() == pytest.approx(100 * (1 - 0.025 ** (1 / 4)), abs=1e-3)  # none of four is not "never"


def test_the_filter_histogram_counts_every_problem(results):
    frame = pd.read_csv(draw("data_filter", results, SEEDS)[2])
    assert (frame.kept + frame.dropped).sum() == 600
    assert frame[frame.kept > 0].correct.tolist() == list(range(2, 15))
    assert frame[frame.dropped > 0].correct.tolist() == [0, 1, 15, 16]


def test_runs_of_unequal_length_and_a_diverged_seed_are_drawn_over_the_steps_that_they_share(small):
    write_metrics(small, Run(MODEL, "grpo", 1), steps=25)
    write_metrics(small, Run(MODEL, "grpo", 2), neg_cov=np.where(np.arange(STEPS) < 10, -0.01, np.nan))
    frame = pd.read_csv(draw("figure5", small, SEEDS)[2])
    last = {"neg_cov": 9, "neg_cov_negative": 24, "neg_cov_positive": 24}
    assert frame.groupby("column").step.max().to_dict() == last


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", ["entropy_accuracy", "learning", "ladder"])
def test_runs_without_a_validation_are_drawn(tmp_path, name):
    """As with `training.validation_every: 0`."""
    write_all(tmp_path / SCALE, SEEDS, names=[name])
    for run in EXPERIMENTS[name].runs:
        write_metrics(tmp_path / SCALE, run, validation_accuracy=np.nan, validation_pass=np.nan)
    frame = pd.read_csv(draw(name, tmp_path / SCALE, SEEDS)[2])
    assert frame.filter(regex="^(value|accuracy)$").isna().all(axis=None) or name == "learning"


@pytest.mark.parametrize(
    "change", [lambda steps: steps.query("theorem == 1"), lambda steps: steps.assign(realised=np.inf)]
)
def test_a_theory_check_without_a_theorem_or_with_infinite_changes(small, change):
    write_logit_steps(small)
    path = Layout(small).logit_steps
    write_parquet(path, change(pd.read_parquet(path)))
    with pytest.raises(UserError, match=f"{path}: Theorem [12] has no rows, or changes that are not finite"):
        draw("theory_check", small, SEEDS)


def test_the_theory_check_by_hand(small):
    predicted = np.array([-0.1, -0.3, 0.2, 0.05])
    frames = [
        pd.DataFrame({"theorem": theorem, "step_size": size, "predicted": size * predicted, "realised": realised})
        for theorem in (1, 2)
        for size, realised in ((0.01, 0.01 * predicted), (0.1, 0.2 * predicted))  # exact; twice what was predicted
    ]
    write_parquet(Layout(small).logit_steps, pd.concat(frames))
    theorems = pd.read_csv(draw("theory_check", small, SEEDS)[2])
    assert theorems.panel.tolist() == ["theorem 1"] * 2 + ["theorem 2"] * 2
    assert set(theorems.tokens) == {len(predicted)}
    np.testing.assert_allclose(theorems[theorems.step_size == 0.01][["slope", "correlation"]], 1, atol=1e-6)
    np.testing.assert_allclose(theorems[theorems.step_size == 0.1].slope, 2)


def test_the_links_of_corollary_4_by_hand(small):
    """Seed 2 has a perfect first link, a reversed second one, and is measured at every fourth step."""
    columns = EXPERIMENTS["corollary4"].spec.columns
    measured = np.where(np.arange(STEPS) % 4 == 0, 1.0, np.nan)
    predicted = np.linspace(-2e-6, 1e-6, STEPS)
    factors = dict(zip(columns[1:], (30, -500, 20, 1), strict=True))
    changes = {name: factor * predicted * measured for name, factor in factors.items()}
    write_metrics(small, Run(MODEL, "grpo", 2), predicted_entropy_change=predicted, **changes)
    frame = pd.read_csv(draw("corollary4", small, SEEDS)[2])
    pairs = list(frame[["x_column", "y_column"]].drop_duplicates().itertuples(index=False, name=None))
    assert pairs == [*pairwise(columns), (columns[0], columns[-1])]
    for (x, y), sign in zip(pairs, (1, -1, -1, 1, 1), strict=True):
        link = frame[(frame.x_column == x) & (frame.y_column == y)]
        seed = link[link.seed == 2]
        assert seed.step.tolist() == list(range(0, STEPS, 4))
        np.testing.assert_allclose(seed.correlation, sign)
        np.testing.assert_allclose(seed.y, factors[y] * predicted[::4], rtol=1e-4)
        per_seed = link.groupby("seed").correlation.first()
        np.testing.assert_allclose(link.correlation_over_seeds, per_seed.mean(), rtol=1e-4)
        half = 4.303 * per_seed.std() / 3**0.5  # Student's t with two degrees of freedom
        np.testing.assert_allclose(link.correlation_over_seeds_high, per_seed.mean() + half, rtol=1e-3)


def test_the_lens_sums_over_steps_and_not_shares(results, tmp_path):
    shutil.copytree(results, tmp_path / SCALE)
    uneven = {"lens_neg_lt": np.r_[-9.0, -np.ones(STEPS - 1)], "lens_neg_lt_kept": np.r_[0.0, -np.ones(STEPS - 1)]}
    uneven |= {"entropy": np.linspace(0.4, 0.01, STEPS), "lens_pos_lt": 0.0, "lens_pos_lt_kept": 0.0}
    write_metrics(tmp_path / SCALE, Run(MODEL, "entropy_bonus", 0), **uneven)
    frame = pd.read_csv(draw("lens", tmp_path / SCALE, SEEDS)[2]).set_index("method")
    bonus, grpo = frame.loc["entropy_bonus"], frame.loc["grpo"]
    assert bonus.lens_neg_lt_share == pytest.approx((STEPS - 1) / (STEPS + 8), abs=1e-4)
    assert np.isnan(bonus.lens_pos_lt_share)  # none of nothing is no share
    assert bonus.final_entropy == pytest.approx(uneven["entropy"][-4:].mean(), abs=1e-5)
    shares = [f"lens_{part}_share" for part in ("pos_gt", "pos_lt", "neg_gt", "neg_lt")]
    np.testing.assert_allclose(grpo[shares].astype(float), 1)
    np.testing.assert_allclose(frame.loc["clip_b", shares].astype(float), [1, 1, 0.7, 0.4], atol=1e-5)
    assert grpo.seeds == 3
    assert grpo.final_entropy_low < grpo.final_entropy < grpo.final_entropy_high
    assert np.isnan(bonus.final_entropy_low)  # one seed has no spread
    write_metrics(tmp_path / SCALE, Run(MODEL, "clip_v", 1), entropy=np.nan)  # diverged, and drawn all the same
    assert np.isnan(pd.read_csv(draw("lens", tmp_path / SCALE, SEEDS)[2]).set_index("method").final_entropy["clip_v"])


def test_a_missing_run_names_the_file_and_how_to_make_it_and_writes_nothing(small):
    missing = Run(MODEL, "grpo", 0).metrics_file(small)
    shutil.rmtree(missing.parents[1])
    with pytest.raises(UserError, match=f"^{missing} is missing; make it or get it again$"):
        draw("figure5", small, SEEDS)
    assert not (small / "figures").exists()


def test_a_failed_drawing_leaves_the_old_figure(small):
    paths = draw("figure5", small, SEEDS)
    before = [path.read_bytes() for path in paths]
    write_metrics(small, Run(MODEL, "grpo", 0))
    Run(MODEL, "grpo", 2).metrics_file(small).write_bytes(b"damaged")
    with pytest.raises(UserError):
        draw("figure5", small, SEEDS)
    assert [path.read_bytes() for path in paths] == before
    assert sorted(p.name for p in (small / "figures").iterdir()) == sorted(p.name for p in paths)
