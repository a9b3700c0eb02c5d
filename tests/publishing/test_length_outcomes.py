"""The outcomes of docs/reference/length/protocol.md, from metrics whose ratio of doses is known."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tables import effects, length

SLOPE = 0.3  # log ratio of entropies for a dose e times as high
SEEDS = range(260, 272)
TOKENS = {"length-one": 15, "length": 80}


@pytest.fixture
def published(tmp_path, monkeypatch):
    """`published(ratio)`: six problems need `ratio` times the dose of one for the same log ratio."""
    monkeypatch.setattr(effects, "REFERENCE", tmp_path)

    def write(ratio: float, noise: float = 0.02, without: tuple[str, int] | None = None) -> None:
        random = np.random.default_rng(1)
        for scale, needed in {"length-one": 1.0, "length": ratio}.items():
            runs = []
            for seed, (dose, arm) in product(SEEDS, enumerate(length.ARMS.values())):
                dropped = [0.0, 0.0008, 0.003, 0.01][dose]  # 0.1 % is rounded down to whole tokens
                log_ratio = 1 + SLOPE * np.log(dropped / needed / 0.003) + noise * random.normal() if dose else 0
                steps = np.arange(100)
                run = {"step": steps, "entropy": 0.2 * np.exp(log_ratio * (steps >= 90)), "clip_fraction": dropped}
                run |= {"response_length": float(TOKENS[scale]), "accuracy": 0.5 - 0.1 * dose - 0.1 * (needed == 1)}
                run |= {"model": "toy", "seed": seed, "method": arm}
                if (arm, seed) != without:
                    runs.append(pd.DataFrame(run))
            folder = tmp_path / scale / "seeds-260-271"
            folder.mkdir(parents=True)
            pd.concat(runs).to_parquet(folder / "metrics.parquet")

    return write


@pytest.mark.parametrize(("ratio", "word"), [(1.0, "alike"), (0.3, "falls"), (3.0, "rises")])
def test_the_ratio_of_doses(published, ratio, word):
    published(ratio)
    value, low, high, p = length.doses()
    assert low < value < high
    assert value == pytest.approx(ratio, rel=0.1)
    assert low < ratio < high
    assert (p < 0.05) == (not low <= 1 <= high)
    assert length.verdict(low, high) == word
    *_, last = length.primary({"ratio": 0.02}, 7).splitlines()
    assert last.startswith(f"| dose of six problems over that of one | {value:.2f} [")
    assert last.endswith(f"| 0.020 | {word} |")


def test_the_interval_is_that_of_independent_seeds(published):
    """A common error of all shares of a seed, whose variance is known, moves the lines and not their slope."""
    published(1.0, noise=0.0)
    one, six = (length.kept(scale) for scale in length.SCALES.values())
    errors = np.random.default_rng(2).normal(0, 0.1, (2, len(SEEDS)))
    of = {
        "length-one": one._replace(ratios=one.ratios + errors[0]),
        "length": six._replace(ratios=six.ratios + errors[1]),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(length, "kept", of.get)
        value, low, high, _ = length.doses()
    error = (errors.var(axis=1, ddof=1).sum() / len(SEEDS)) ** 0.5 / SLOPE
    half = stats.t.ppf(0.975, len(SEEDS) - 1) * error
    assert np.log(high / value) == pytest.approx(half, rel=0.05)
    assert np.log(value / low) == pytest.approx(half, rel=0.05)


@pytest.mark.parametrize(
    ("low", "high", "word"),
    [(0.6, 0.9, "alike"), (1.1, 1.9, "alike"), (0.3, 0.9, "falls"), (1.1, 2.1, "rises"), (0.4, 1.1, "undecided")],
)
def test_a_verdict(low, high, word):
    assert length.verdict(low, high) == word


def test_doses_without_an_effect_have_no_ratio(published, monkeypatch):
    monkeypatch.setattr(f"{__name__}.SLOPE", 0.0)
    published(1.0)
    assert length.doses()[1:] == (0.0, np.inf, 1.0)
    assert length.primary({"ratio": 1.0}, 1).endswith("| none, as the dose may have no effect | 1.000 | undecided |")


def test_the_lines_by_hand():
    """Lines of slopes 0.1 and 0.3 with six problems 0.4 higher at doses 0.5 lower; NumPy fits the same."""
    logs = np.log([0.001, 0.003, 0.01])
    one = length.Kept(logs, 1 + 0.1 * (logs - logs.mean()))
    six = length.Kept(logs - 0.5, 1.4 + 0.3 * (logs - logs.mean()))
    distance, slope = length.distance(one, six)
    assert slope == pytest.approx(0.2)
    assert distance == pytest.approx(-0.5 - 0.4 / 0.2)
    ratios = np.array([0.1, 0.5, 0.3])
    assert length.slope_of(logs, ratios) == pytest.approx(np.polyfit(logs, ratios, 1)[0])


def test_a_seed_without_a_run_leaves_all_arms_of_its_length(published):
    published(1.0, without=("grpo", 265))
    assert [of.ratios.shape[1] for of in map(length.kept, length.SCALES.values())] == [11, 11]
    assert np.isfinite(length.doses()).all()


def test_what_is_kept_and_the_arms(published):
    published(0.5, noise=0.0)
    *_, one, six, difference = length.what_is_kept().splitlines()
    assert one.startswith("| one problem | +0.60 [")  # 1 + 0.3 log(0.0008 / 0.003)
    assert six.startswith("| six problems | +0.81 [")  # and 0.3 log 2
    assert difference.startswith("| six minus one | +0.21 [")
    rows = length.arms().splitlines()
    assert rows[2] == "| one problem, GRPO | | 0.20 | 15 | 3.0 | 40 | |"
    assert rows[6] == "| six problems, GRPO | | 0.20 | 80 | 16.0 | 50 | |"
    assert rows[7].startswith("| six problems, Clip_B, 0.1 % | 0.08 |")
    assert f"| 40 | {effects.MINUS}10.0 [" in rows[7]
