"""The outcomes of docs/reference/smollm2-words/protocol.md, from runs whose kept entropy is known."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from tables import effects, smollm2, words

SEEDS = range(280, 285)
STEPS = np.arange(50)
NOISE = np.array([-0.02, 0.01, 0.0, 0.02, -0.01])  # sums up to 0


@pytest.fixture
def published(tmp_path, monkeypatch):
    """`published(kept)`: log entropy falls by 2 per accuracy; Clip_B's is `kept` higher at its own accuracy, of 0.4."""
    for module in (effects, smollm2):
        monkeypatch.setattr(module, "REFERENCE", tmp_path)

    def write(kept: float) -> None:
        runs, counts = [], []
        for seed, noise in zip(SEEDS, NOISE, strict=True):
            accuracy = np.clip(0.1 + 0.01 * STEPS, None, 0.5)
            for method in ("grpo", words.CLIP_B):
                own = np.minimum(accuracy, 0.5 if method == "grpo" else 0.4)
                entropy = 0.6 * np.exp(-2 * own + (kept + noise) * (method != "grpo"))
                run = {"model": smollm2.MODEL, "method": method, "seed": seed, "step": STEPS, "entropy": entropy}
                runs.append(pd.DataFrame(run | {"accuracy": own, "clip_fraction": 0.05 * (method != "grpo")}))
                solved = [8, 4, 0, 0] if method == "grpo" else [4, 4, 4, 0]
                count = {"model": smollm2.MODEL, "method": method, "seed": seed, "temperature": np.float32(0.7)}
                count |= {"dataset": "words", "problem": range(4), "correct": solved, "samples": 16}
                counts.append(pd.DataFrame(count))
        folder = tmp_path / words.SEEDS
        folder.mkdir(parents=True)
        pd.concat(runs).to_parquet(folder / "metrics.parquet")
        pd.concat(counts).to_parquet(folder / "counts.parquet")
        forget()

    def forget() -> None:
        effects.samples_of.cache_clear()
        effects.counts_of.cache_clear()

    yield write
    forget()


@pytest.mark.parametrize(
    ("kept", "word"), [(0.1, "keeps a quarter"), (-0.1, "keeps entropy"), (-0.2, "undecided"), (-0.4, "undecided")]
)
def test_the_kept_entropy_and_its_verdict(published, kept, word):
    """GRPO ends with 0.1 more accuracy than Clip_B, so that its log entropy is lower by another 0.2."""
    published(kept)
    of, values = words.primary_interval(), kept + 0.2 + NOISE
    half = stats.t(4).ppf(0.975) * stats.sem(values)
    assert (of.value, of.low, of.high) == pytest.approx((kept + 0.2, kept + 0.2 - half, kept + 0.2 + half))
    assert words.verdict(of.low) == word
    assert words.p_values()["kept"] == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=1e-9)
    *_, row = words.primary({"kept": 0.02}, 8).splitlines()
    assert row.endswith(f"| 0.020 | {word} |")
    assert row.split(" | ")[2].lstrip("+\N{MINUS SIGN}").startswith(f"{abs(100 * (np.exp(kept + 0.2) - 1)):.0f} [")


def test_at_equal_accuracy_the_line_of_grpo_is_taken_off(published):
    """By hand: entropies at the end differ by kept + 2 (0.5 - 0.4); at equal accuracy by kept alone."""
    published(0.1)
    assert words.log_ratios(words.SEEDS) == pytest.approx(0.3 + NOISE, abs=1e-6)
    assert words.at_equal_accuracy(words.SEEDS) == pytest.approx(0.1 + NOISE, abs=0.001)
    *_, row = words.beside_primary().splitlines()
    assert row.startswith("| new seeds | 5.0 | +0.10 [")
    cells = [cell.split(" [")[0].strip() for cell in row.split("|")[4:-1]]
    assert cells == ["+0.20", "+25.0", "0.0", "\N{MINUS SIGN}10.0"]  # 3 of 4 problems, not 2; 12 of 64 answers each
