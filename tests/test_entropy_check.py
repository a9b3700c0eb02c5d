"""entropy-check: its batch against closed forms, and planted mistakes."""

import itertools
import math

import numpy as np
import pytest
import torch

from command_line import error, run
from entropy_dynamics.diagnostics.entropy_check import TOLERANCE, known_values


@pytest.fixture
def golden(tmp_path, capsys) -> dict[str, torch.Tensor]:
    run(capsys, "entropy-check", "--write", tmp_path / "golden.npz")
    return {name: torch.from_numpy(values) for name, values in np.load(tmp_path / "golden.npz").items()}


def entropy_of(golden, temperature=0.7):
    """By torch, of the token after each position but the last, as trainers slice."""
    return torch.distributions.Categorical(logits=golden["logits"] / temperature).entropy()[:, :-1]


def closed(p):
    """Entropy of one token of probability p and 63 that share the rest."""
    return -p * math.log(p) - (1 - p) * math.log((1 - p) / 63)


def check(capsys, value) -> str:
    return run(capsys, "entropy-check", float(value))


def test_the_golden_batch_has_the_entropy_of_its_closed_form(golden, capsys):
    expected = sum(count * closed(p) for count, p in ((3, 0.98), (6, 0.8), (13, 0.3))) / 22
    mask = golden["response_mask"][:, 1:]
    assert mask.sum() == 22
    assert entropy_of(golden)[mask].mean().item() == pytest.approx(expected, rel=1e-5)
    assert check(capsys, expected) == f"{expected:g} nats is right: the mean over response tokens.\n"
    rounded = golden | {"logits": golden["logits"].bfloat16().float()}
    assert "is right" in check(capsys, entropy_of(rounded)[mask].mean())


def test_shifts_of_the_golden_batch_have_their_closed_forms(capsys):
    """0.999 after the last token of a response, uniform at the prompts."""
    shifted = sum(count * closed(p) for count, p in ((2, 0.98), (5, 0.8), (12, 0.3), (3, 0.999))) / 22
    assert " is shifted by one: each token has the distribution of the token after it;" in check(capsys, shifted)
    other = sum(count * closed(p) for count, p in ((2, 0.98), (5, 0.8), (12, 0.3), (3, 1 / 64))) / 22
    assert " is shifted the other way: each token has the distribution of the token before" in check(capsys, other)


def test_planted_mistakes_are_found(golden, capsys):
    of_token, entropies, cold = golden["response_mask"], entropy_of(golden), entropy_of(golden, 1.0)
    mask, attention, after_prompt = of_token[:, 1:], golden["attention_mask"][:, 1:], of_token.cumsum(1)[:, 1:] > 0
    sampled = -(golden["logits"] / 0.7).log_softmax(-1)[:, :-1].gather(-1, golden["input_ids"][:, 1:, None])[..., 0]

    def mean_of_means(values):
        return torch.stack([of_row[row].mean() for of_row, row in zip(values, mask, strict=True)]).mean()

    planted = {
        "the mean over sequences of their means: ": mean_of_means(entropies),
        "the mean over sequences of their means, without the temperature": mean_of_means(cold),
        "the mean over sequences of their sums": (entropies * mask).sum(1).mean(),
        "the sum over all tokens": entropies[mask].sum(),
        "without the temperature": cold[mask].mean(),
        "with the temperature applied twice": entropy_of(golden, 0.49)[mask].mean(),
        "with the logits multiplied by the temperature": entropy_of(golden, 1 / 0.7)[mask].mean(),
        "shifted by one": entropies[of_token[:, :-1]].mean(),
        "shifted the other way": entropies[:, :-1][of_token[:, 2:]].mean(),
        "the mean over responses and their padding": entropies[after_prompt].mean(),
        "the padding counted in the divisor": entropies[mask].sum() / after_prompt.sum(),
        "the mean over prompts and responses": entropies[attention].mean(),
        "the mean over all positions but the last": entropies.mean(),
        "prompts and padding but the last position counted": (entropies * mask).mean(),
        "prompts and padding counted": entropies[mask].sum() / mask.numel() * 17 / 18,
        "in bits, not nats": entropies[mask].mean() / math.log(2),
        "-log p of the sampled tokens": sampled[mask].mean(),
        "with the sign of a loss": -entropies[mask].mean(),
    }
    every = torch.distributions.Categorical(logits=golden["logits"] / 0.7).entropy()
    planted["the mean over all positions, prompts and padding included"] = every.mean()
    for mistake, value in planted.items():
        assert f" is {mistake}" in check(capsys, value), mistake
    unknown = f" is none of {len(planted)} known mistakes, or several at once; the mean over response tokens is 2.462"
    assert unknown in check(capsys, 5.0)


def test_no_mistake_can_be_taken_for_another():
    values = sorted(known_values().values())
    assert len(values) == 20
    assert min(abs(b - a) / min(abs(a), abs(b)) for a, b in itertools.pairwise(values)) > 2 * TOLERANCE


def test_entropy_check_takes_one_of_two_things(capsys):
    assert error(capsys, "entropy-check").startswith("entropy-check takes --write FILE")
