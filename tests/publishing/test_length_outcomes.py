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
                log_ratio = 0.5 + SLOPE * np.log(share / needed / 0.003) + noise * random.normal() if share else 0
                of = {"model": "toy", "seed": seed, "method": arm, "response_length": 80.0, "accuracy": 0.3}
                # Before the last tenth the entropy is another.
                rows += [
                    of | {"step": step, "entropy": 0.2 * np.exp(log_ratio * (step > 135))} for step in range(1, 151)
                ]
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
    assert last.endswith(f"| {word} |")


def test_doses_without_an_effect_have_no_ratio(published, monkeypatch):
    monkeypatch.setattr(f"{__name__}.SLOPE", 0.0)
    published(1.0)
    assert length.doses()[1:] == (0.0, np.inf)
    assert length.primary().endswith("| none, as no dose may have an effect | undecided |")


def test_the_lines_by_hand():
    """Log ratios 0.2 and 0.4 beside 0.1 and 0.3: half a step of ln(1 / 0.3) to the right."""
    value, slope = length.ratio_of_doses(np.array([0.2, 0.4]), np.array([0.1, 0.3]))
    assert slope == pytest.approx(0.2 / np.log(1 / 0.3))
    assert value == pytest.approx((1 / 0.3) ** 0.5)


def test_entropy_per_answer(published):
    published(1.0)
    assert length.lengths().splitlines()[-1] == "| six problems | 0.20 | 80 | 16.0 | 30 |"
