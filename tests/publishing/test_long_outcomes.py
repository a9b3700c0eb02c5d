"""The outcomes of docs/protocol-long.md, from counts whose differences are known."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

import effects
import long
from entropy_dynamics.analysis.statistics import Interval

SETS, SEEDS, PROBLEMS, K = ("aime24", "aime25", "dapo500"), range(240, 246), 20, 20
GAIN = {"qwen2.5-7b-instruct": 3, "qwen3-4b-base": -1}  # of Clip_V late, correct answers of 20


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Counts of four arms. GRPO has 8 correct answers of 20 to each problem, Clip_V `GAIN` more, from step 130 on."""
    random, frames = np.random.default_rng(0), []
    for model, seed, dataset, step in product(GAIN, SEEDS, SETS, long.STEPS):
        noise = random.integers(-1, 2, PROBLEMS)
        late = (step >= 130) * GAIN[model]
        for method, more in {"grpo": 0, "grpo_half_rate": 1, "clip_b": -2, "clip_v": late}.items():
            [name] = long.at_steps(method, (step,))
            correct = 8 + more + noise * (method == "clip_v")
            of = {"model": model, "seed": seed, "dataset": dataset, "method": name, "temperature": 0.7, "samples": K}
            frames.append(pd.DataFrame({"problem": range(PROBLEMS), "correct": correct, **of}))
    rows, arms = [], {"grpo": 0.1, "grpo_half_rate": 0.1, "clip_b": 0.2, "clip_v": 0.4}
    for model, seed, (method, nats), step in product(GAIN, SEEDS, arms.items(), range(150)):
        of = {"model": model, "seed": seed, "method": method, "step": step, "accuracy": (step + 1) / 150}
        validation = {"validation_accuracy": 0.25 if step % 10 == 9 else np.nan}
        entropy = {"entropy": nats * 1.001 ** (nats * seed), "clip_fraction": 0.02 * (nats > 0.1)}
        rows.append(of | validation | entropy)
    folder = tmp_path / "long" / "seeds-240-245"
    folder.mkdir(parents=True)
    pd.concat(frames).to_parquet(folder / "counts.parquet")
    pd.DataFrame(rows).to_parquet(folder / "metrics.parquet")
    for module in (effects, long):
        monkeypatch.setattr(module, "REFERENCE", tmp_path)
    for cached in (effects.counts_of, effects.samples_of):
        cached.cache_clear()
    yield pd.concat(frames)
    for cached in (effects.counts_of, effects.samples_of):
        cached.cache_clear()


def cells(table: str) -> dict[str, list[str]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {name: row for name, *row in rows}


def test_the_primary_values_and_their_verdicts(published):
    for model in GAIN:
        of = published[(published["model"] == model) & published["method"].isin(long.at_steps("clip_v"))]
        expected = 100 * (of["correct"] / K).mean() - 40
        assert long.over_grpo("clip_v", "avg", (model,)).value == pytest.approx(expected)
    rows = cells(long.primary())
    assert [rows[name][2] for name in ("toy Qwen2", "toy Qwen3")] == ["overtakes", "behind"]
    first, second, difference = (
        float(rows[name][0].split(" ")[0].replace("\N{MINUS SIGN}", "-"))
        for name in ("toy Qwen2", "toy Qwen3", "difference")
    )
    assert difference == pytest.approx(first - second, abs=0.11)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(0.1, 5, "overtakes"), (-5, -0.1, "behind"), (-2, 2, "alike"), (-2.1, 1, "undecided"), (-1, 2.1, "undecided")],
)
def test_a_verdict(low, high, word):
    assert long.verdict(Interval((low + high) / 2, low, high)) == word


def test_other_arms(published):
    late, steps = cells(long.late_scores()), cells(long.over_steps())
    assert all(late["Clip_B"][place].startswith("\N{MINUS SIGN}10.0") for place in range(3))  # 2 of 20
    assert all(late["GRPO, half the rate"][place].startswith("+5.0") for place in range(3))
    assert late["GRPO, step 150 minus step 50"][0].startswith("0.0")
    assert [*steps][2:] == [str(step) for step in long.STEPS]
    assert steps["30"][0].startswith("\N{MINUS SIGN}10.0")


def test_memory_and_entropies(published):
    assert cells(long.memory())["Clip_V"] == ["95.3", "25.0"] * 2  # steps 136 to 150
    assert cells(long.entropies())["Clip_V"] == ["+1.46 [1.46, 1.46]"] * 2 + ["2.0"] * 2
