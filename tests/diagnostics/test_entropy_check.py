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


def entropy_of(golden, temperature=0.5):
    """By torch, of the token after each position but the last, as trainers slice."""
    return torch.distributions.Categorical(logits=golden["logits"] / temperature).entropy()[:, :-1]


def closed(raised):
    """Entropy at temperature 0.5 of one token whose logit is raised above those of 63 others."""
    p = 1 / (1 + 63 * math.exp(-raised / 0.5))
    return -p * math.log(p) - (1 - p) * math.log((1 - p) / 63)


def check(capsys, value) -> str:
    return run(capsys, "entropy-check", float(value))


def test_the_golden_batch_has_the_entropy_of_its_closed_form(golden, capsys):
    expected = sum(count * closed(raised) for count, raised in ((4, 1.5390625), (5, 2.046875), (13, 5.28125))) / 22
    mask = golden["response_mask"][:, 1:]
    assert mask.sum() == 22
    assert entropy_of(golden)[mask].mean().item() == pytest.approx(expected, rel=1e-5)
    assert check(capsys, expected) == f"{expected:g} nats is right: the mean over response tokens.\n"
    assert torch.equal(golden["logits"].bfloat16().float(), golden["logits"])
    assert torch.equal((golden["logits"].bfloat16() / 0.5).float(), golden["logits"] / 0.5)


def test_shifts_of_the_golden_batch_have_their_closed_forms(capsys):
    """Another logit is raised after the last token of a response, and within prompts."""
    shifted = (3 * closed(1.5390625) + 4 * closed(2.046875) + 12 * closed(5.28125) + 3 * closed(10.125)) / 22
    assert " is shifted by one: each token has the distribution of the token after it;" in check(capsys, shifted)
    other = (3 * closed(1.5390625) + 4 * closed(2.046875) + 12 * closed(5.28125) + 3 * closed(0.8203125)) / 22
    assert " is shifted the other way: each token has the distribution of the token before" in check(capsys, other)


def sampled(golden, temperature=0.5):
    """-log p of the tokens but the first."""
    logp = (golden["logits"] / temperature).log_softmax(-1)[:, :-1]
    return -logp.gather(-1, golden["input_ids"][:, 1:, None])[..., 0]


def test_planted_mistakes_are_found(golden, capsys):
    of_token, entropies = golden["response_mask"], entropy_of(golden)
    mask, attention, after_prompt = of_token[:, 1:], golden["attention_mask"][:, 1:], of_token.cumsum(1)[:, 1:] > 0
    sums = (entropies * mask).sum(1)
    every = torch.distributions.Categorical(logits=golden["logits"] / 0.5).entropy()
    planted = {
        "the mean over sequences of their means": (sums / mask.sum(1)).mean(),
        "the mean over sequences of their sums;": sums.mean(),
        "the mean over sequences of their sums, divided by the longest response": sums.mean() / 13,
        "the sum over all tokens": entropies[mask].sum(),
        "without the temperature": entropy_of(golden, 1.0)[mask].mean(),
        "with the temperature applied twice": entropy_of(golden, 0.25)[mask].mean(),
        "with the logits multiplied by the temperature": entropy_of(golden, 2.0)[mask].mean(),
        "shifted by one": entropies[of_token[:, :-1]].mean(),
        "shifted the other way": entropies[:, :-1][of_token[:, 2:]].mean(),
        "the mean over responses and their padding": entropies[after_prompt].mean(),
        "the padding counted in the divisor": entropies[mask].sum() / after_prompt.sum(),
        "the mean over prompts and responses": entropies[attention].mean(),
        "the prompts counted in the divisor": entropies[mask].sum() / golden["attention_mask"].sum(),
        "the mean over all positions but the last": entropies.mean(),
        "the mean over all positions, prompts and padding included": every.mean(),
        "prompts and padding but the last position counted": (entropies * mask).mean(),
        "prompts and padding counted": entropies[mask].sum() / of_token.numel(),
        "in bits, not nats": entropies[mask].mean() / math.log(2),
        "-log p of the sampled tokens": sampled(golden)[mask].mean(),
        "with the sign of a loss": -entropies[mask].mean(),
    }
    for mistake, value in planted.items():
        assert f" is {mistake}" in check(capsys, value), mistake
    none = f" is none of {len(known_values()) - 1} known mistakes and pairs of them; the mean over response tokens is"
    assert none in check(capsys, 5.01)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_means_of_micro_batches_and_sums_over_a_limit_are_found_with_and_without_the_temperature(
    golden, capsys, temperature
):
    values, mask = entropy_of(golden, temperature), golden["response_mask"][:, 1:]
    cold = "; without the temperature" if temperature == 1 else ""
    for alone, others in ((0, [1, 2]), (1, [0, 2]), (2, [0, 1])):
        mean = (values[alone][mask[alone]].mean() + values[others][mask[others]].mean()) / 2
        of = f"of sequence {alone + 1} and of {others[0] + 1} and {others[1] + 1}{cold};"
        assert f" is the mean over micro-batches of their means, {of}" in check(capsys, mean)
    for limit in (22, 128, 1000, 1500, 8192, 20480):
        mean = (values * mask).sum(1).mean() / limit
        assert f"the mean over sequences of their sums{cold}; divided by a limit of {limit}" in check(capsys, mean)


def test_two_mistakes_are_found(golden, capsys):
    mask = golden["response_mask"][:, 1:]
    cold = sampled(golden, 1.0)[mask].mean()
    assert " is without the temperature; -log p of the sampled tokens" in check(capsys, cold)
    bits_of_means = ((entropy_of(golden) * mask).sum(1) / mask.sum(1)).mean() / math.log(2)
    found = check(capsys, bits_of_means)
    assert " is the mean over sequences of their means: long responses count too little; in bits, not nats;" in found


def test_no_mistake_and_no_pair_can_be_taken_for_another():
    values = known_values()
    assert len(values) > 150
    for side in (1, -1):
        ordered = sorted(side * value for value in values.values() if side * value > 0)
        assert min((b - a) / a for a, b in itertools.pairwise(ordered)) > 2 * TOLERANCE


def test_entropy_check_takes_one_of_two_things(capsys):
    assert error(capsys, "entropy-check").startswith("entropy-check needs --write FILE")
