"""The outcomes of docs/protocol-length.md, from metrics whose ratio of doses is known."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

import effects
import length

SLOPE = 0.3  # log ratio of entropies for a dose e times as high


@pytest.fixture
def published(tmp_path, monkeypatch):
    """`published(ratio)`: six problems need `ratio` times the dose of one for the same log ratio."""
    for module in (effects, length):
        monkeypatch.setattr(module, "REFERENCE", tmp_path)

    def write(ratio: float, noise: float = 0.02) -> None:
        random = np.random.default_rng(1)
        for scale, needed in {"length-one": 1.0, "length": ratio}.items():
            rows = []
            for seed, share in product(range(260, 272), (0.0, *length.SHARES.values())):
                arm = f"clip_b@share={share}" if share else "grpo"
                log_ratio = 0.5 + SLOPE * np.log(share / needed / 0.002) + noise * random.normal() if share else 0
                of = {"model": "toy", "seed": seed, "method": arm, "response_length": 80.0, "accuracy": 0.3}
                # Before the last tenth the entropy is another.
                rows += [of | {"step": step, "entropy": 0.2 * np.exp(log_ratio * (step >= 90))} for step in range(100)]
            folder = tmp_path / scale / "seeds-260-271"
            folder.mkdir(parents=True)
            pd.DataFrame(rows).to_parquet(folder / "metrics.parquet")

    return write


@pytest.mark.parametrize(("ratio", "word"), [(1.0, "alike"), (0.3, "falls"), (3.0, "rises")])
def test_the_ratio_of_doses(published, ratio, word):
    published(ratio)
    value, low, high = length.doses()
    assert low < value < high
    assert value == pytest.approx(ratio, rel=0.15)
    assert low < ratio < high
    assert length.verdict(low, high) == word
    *_, last = length.primary().splitlines()
    assert last.startswith(f"| dose of six problems over that of one | {value:.2f} [")
    assert last.endswith(f"| {word} | |")


def test_doses_without_an_effect_have_no_ratio(published, monkeypatch):
    monkeypatch.setattr(f"{__name__}.SLOPE", 0.0)
    published(1.0)
    assert length.doses()[1:] == (0.0, np.inf)
    assert length.primary().endswith("| none, as no dose may have an effect | undecided | |")


def test_the_lines_by_hand():
    """Slopes 0.1 and 0.3, with six problems 0.4 higher: two steps of e to the left. NumPy fits the same."""
    doses = np.log([0.001, 0.003, 0.01])
    value, slope = length.ratio_of_doses(1 + 0.1 * (doses - doses.mean()), 1.4 + 0.3 * (doses - doses.mean()))
    assert slope == pytest.approx(0.2)
    assert value == pytest.approx(np.exp(-2))
    one, six = np.array([0.1, 0.5, 0.3]), np.array([0.2, 0.1, 0.4])
    fitted = np.polyfit(doses, (one + six) / 2, 1)[0]
    assert length.ratio_of_doses(one, six)[1] == pytest.approx(fitted)


def test_entropy_per_answer(published):
    published(1.0)
    assert length.lengths().splitlines()[6] == "| six problems, GRPO | 0.20 | 80 | 16.0 | 30 |"
