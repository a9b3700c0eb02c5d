"""The outcomes of docs/reference/long/protocol.md, from counts whose differences are known."""

import re
from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from conftest import ROOT
from entropy_dynamics.analysis.statistics import Interval, mean_interval
from tables import effects, long

SETS, SEEDS, PROBLEMS, K = ("aime24", "aime25", "dapo500"), range(240, 246), 20, 20
SIDES = {1: "clip_v", -1: "grpo"}
GAIN = {"qwen2.5-7b-instruct": 3, "qwen3-4b-base": -1}  # of Clip_V late, correct answers of 20


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Counts and metrics of four arms. GRPO leaves two problems unsolved at step 150; late, Clip_V has `GAIN` more."""
    random, frames = np.random.default_rng(0), []
    for model, seed, dataset, step in product(GAIN, SEEDS, SETS, long.STEPS):
        noise = random.integers(-1, 2, PROBLEMS)
        late = (step >= 130) * GAIN[model]
        for method, more in {"grpo": 0, "grpo_half_rate": 1, "clip_b": -2, "clip_v": late}.items():
            [name] = long.at_steps(method, (step,))
            correct = 8 + step // 50 + more + noise * (method != "grpo")
            correct[: 2 * (name == "grpo")] = 0
            of = {"model": model, "seed": seed, "dataset": dataset, "method": name, "temperature": 0.7, "samples": K}
            frames.append(pd.DataFrame({"problem": range(PROBLEMS), "correct": correct, **of}))
    rows, arms = [], {"grpo": 0.1, "grpo_half_rate": 0.1, "clip_b": 0.2, "clip_v": 0.4}
    for model, seed, (method, nats), step in product(GAIN, SEEDS, arms.items(), range(150)):
        of = {"model": model, "seed": seed, "method": method, "step": step, "accuracy": (step + 1) / 150}
        validation = {"validation_accuracy": step / 1000 if step % 10 == 0 else np.nan}
        level = nats * 1.001 ** (nats * seed) * (1 if step < 135 else 0.5 if method == "grpo" else 0.25)
        entropy = {"entropy": level, "clip_fraction": 0.02 * (nats > 0.1)}
        rows.append(of | validation | entropy)
    folder = tmp_path / long.FOLDER
    folder.mkdir(parents=True)
    pd.concat(frames).to_parquet(folder / "counts.parquet")
    pd.DataFrame(rows).to_parquet(folder / "metrics.parquet")
    monkeypatch.setattr(effects, "REFERENCE", tmp_path)
    for cached in (effects.counts_of, effects.samples_of):
        cached.cache_clear()
    yield pd.concat(frames)
    for cached in (effects.counts_of, effects.samples_of):
        cached.cache_clear()


def cells(table: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {name: row for name, *row in rows}


def expected(frame, metric, plus, minus, models):
    """A difference in points, by pandas alone."""
    frame = frame[frame["model"].isin(models)]
    scores = frame["correct"] / K if metric == "avg" else frame["correct"] > 0
    means = [100 * scores[frame["method"].isin(names)].mean() for names in (plus, minus)]
    return means[0] - means[1]


def value(cell):
    return float(cell.split(" ")[0].replace(effects.MINUS, "-"))


def test_the_primary_values_and_their_verdicts(published):
    rows = cells(long.primary(long.p_values(), 2))
    arms = long.at_steps("clip_v"), long.at_steps("grpo")
    of_model = {name: expected(published, "avg", *arms, [model]) for model, name in long.NAMES.items()}
    for name, difference in of_model.items():
        assert value(rows[name][0]) == pytest.approx(difference, abs=0.051)
    assert value(rows["mean"][0]) == pytest.approx(np.mean([*of_model.values()]), abs=0.051)
    assert value(rows["difference"][0]) == pytest.approx(of_model["toy Qwen2"] - of_model["toy Qwen3"], abs=0.051)
    assert [rows[name][2] for name in of_model] == ["overtakes", "behind"]


def test_p_is_below_5_percent_where_the_interval_excludes_zero():
    values = np.random.default_rng(0).normal(0.5, 1, (200, 16))
    of = mean_interval(values)
    p = effects.p_value(of.value, of.low, of.high, of.df)
    np.testing.assert_allclose(p, stats.ttest_1samp(values, 0, axis=1).pvalue)
    assert 0 < (p < 0.05).sum() < 200
    assert ((p < 0.05) == ((of.low > 0) | (of.high < 0))).all()


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(0.1, 5, "overtakes"), (-5, -0.1, "behind"), (-2, 2, "alike"), (-2.1, 1, "undecided"), (-1, 2.1, "undecided")],
)
def test_a_verdict(low, high, word):
    assert long.verdict(Interval((low + high) / 2, low, high)) == word


def test_other_arms(published):
    late, steps = cells(long.late_scores()), cells(long.over_steps())
    models = ([model] for model in GAIN)
    for place, of in enumerate((*models, [*GAIN])):
        for shift, metric in ((0, "avg"), (3, "pass")):
            for label, arm in long.ARMS.items():
                difference = expected(published, metric, long.at_steps(arm), long.at_steps("grpo"), of)
                assert value(late[f"{label} minus GRPO"][shift + place]) == pytest.approx(difference, abs=0.051)
            own = expected(published, metric, ["grpo"], long.at_steps("grpo", (50,)), of)
            assert value(late["GRPO, step 150 minus step 50"][shift + place]) == pytest.approx(own, abs=0.051)
    assert value(late["Clip_V minus GRPO"][3]) == pytest.approx(
        100 * 2 / PROBLEMS / 3, abs=0.051
    )  # GRPO's two, of one step of three
    assert [*steps][2:] == [str(step) for step in long.STEPS]
    for step in (30, 150):
        difference = expected(published, "avg", *(long.at_steps(arm, (step,)) for arm in ("clip_v", "grpo")), [*GAIN])
        assert value(steps[str(step)][5]) == pytest.approx(difference, abs=0.051)


def test_memory_and_entropies(published):
    assert cells(long.memory())["Clip_V"] == ["95.3", "14.0"] * 2  # steps 135 to 149, and step 140
    assert cells(long.entropies())["Clip_V"] == ["+0.77 [0.77, 0.77]"] * 2 + ["2.0"] * 2  # log 2, and 0.3 seeds / 1000
    assert cells(long.further_fall())["step 150 minus step 50, last tenths"][0].startswith(f"{effects.MINUS}0.69 [")


def test_the_published_difference_by_pandas_alone():
    """Clip_V's Avg@K minus GRPO's at steps 130, 140 and 150; Student's interval over seeds is the narrower one."""
    folder, page = ROOT / "docs/reference/long/seeds-240-255", (ROOT / "docs/reference/long/README.md").read_text()
    names = {
        side: [method, *(f"{method}@training.steps={step}" for step in (130, 140))] for side, method in SIDES.items()
    }
    wanted = [("method", "in", names[1] + names[-1]), ("dataset", "in", SETS), ("temperature", "<", 0.8)]
    frame = pd.read_parquet(folder / "counts.parquet", filters=wanted)
    frame["avg"] = 100 * frame["correct"] / frame["samples"]
    means = (
        frame.groupby(["model", "seed", "method", "dataset"], observed=True)["avg"]
        .mean()
        .unstack(["method", "dataset"])
    )
    differences = sum(side * means[of].mean(axis=1) for side, of in names.items())
    for model, name in long.NAMES.items():
        values = differences[model].to_numpy()
        assert len(values) == 16
        low, high = stats.t.interval(0.95, 15, values.mean(), stats.sem(values))
        cell = next(line for line in page.splitlines() if line.startswith(f"| {name} | ")).split(" | ")[1]
        shown = [float(number) for number in re.findall(r"-?[\d.]+", cell.replace(effects.MINUS, "-"))]
        assert shown[0] == pytest.approx(values.mean(), abs=0.051)
        assert shown[1] < low + 0.051
        assert shown[2] > high - 0.051
