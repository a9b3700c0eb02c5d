"""Placebos: as many tokens as the reference drops, but others."""

from functools import partial

import pytest
import torch

from batches import random_batch, seeded
from entropy_dynamics.config import load_config
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import load_method

PARAMS = {"clip_b": {"mu": 1.0}, "clip_v": {"mu": 0.5, "max_frac": 0.1}}
BOUNDS = [{}, {"apply_to": "positive"}, {"apply_to": "both"}, {"share": 0.05}]
REFERENCES = {"random_mask": "clip_b", "low_p_mask": "clip_b", "random_mask_v": "clip_v", "low_p_mask_v": "clip_v"}


def batch(seed, **given):
    logp, entropy, advantages, mask = random_batch(seed, **given)
    return TokenStats.from_logged(logp, entropy, entropy / 10), advantages, mask


def dropped_by(name, reference, given, seed=0, **params):
    params = params if "share" in params else PARAMS[reference] | params
    weights = load_method(name, **params).token_weights(*given, generator=seeded(seed))
    return given[2] & (weights == 0)


@pytest.mark.parametrize("params", BOUNDS)
@pytest.mark.parametrize(("name", "reference"), REFERENCES.items())
def test_a_placebo_drops_as_many_tokens_of_each_sign_as_its_reference(name, reference, params):
    for seed in range(5):
        given = batch(seed, rows=30)
        drops = (dropped_by(who, reference, given, **params) for who in (name, reference))
        placebo, expected = drops
        assert expected.any()
        assert not torch.equal(placebo, expected)
        for sign in (-1, 0, 1):
            of_sign = given[1].sign() == sign
            assert int((placebo & of_sign).sum()) == int((expected & of_sign).sum())


@pytest.mark.parametrize("name", ["random_mask", "random_mask_v"])
def test_a_draw_depends_on_the_generator_and_on_neither_padding_nor_size_of_scores(name):
    stats, advantages, mask = batch(3)
    drops = partial(dropped_by, name, REFERENCES[name])
    wider = partial(torch.nn.functional.pad, pad=(0, 7))
    drawn = drops((stats, advantages, mask))
    assert not torch.equal(drawn, drops((stats, advantages, mask), seed=1))
    assert torch.equal(wider(drawn), drops((stats.map(wider), wider(advantages), wider(mask))))
    halved = stats.map(lambda values: values / 2)  # the same number of outliers, as sigma is halved too
    assert torch.equal(drawn, drops((halved, advantages, mask)))


@pytest.mark.parametrize(("name", "reference"), REFERENCES.items())
def test_a_mask_of_any_type_gives_the_same_weights(name, reference):
    stats, advantages, mask = batch(6)
    method = load_method(name, **PARAMS[reference])
    weights = [method.token_weights(stats, advantages, of, generator=seeded()) for of in (mask, mask.double())]
    torch.testing.assert_close(*weights, rtol=0, atol=0)  # in fp32 both


def test_a_random_mask_prefers_no_token():
    """Over 2,000 draws each negative token is dropped equally often, within five standard errors."""
    given = batch(4)
    negative = given[2] & (given[1] < 0)
    counts = sum(dropped_by("random_mask", "clip_b", given, seed).double() for seed in range(2000))[negative] / 2000
    share = counts.mean()
    assert 0 < share < 1
    assert (counts - share).abs().max() < 5 * (share * (1 - share) / 2000).sqrt()


@pytest.mark.parametrize("name", ["low_p_mask", "low_p_mask_v"])
def test_low_p_masks_drop_the_least_likely_tokens(name):
    stats, advantages, mask = batch(5)
    dropped, negative = dropped_by(name, REFERENCES[name], (stats, advantages, mask)), mask & (advantages < 0)
    assert dropped[negative].any()
    assert stats.logp[dropped & negative].max() < stats.logp[negative & ~dropped].min()


@pytest.mark.parametrize(("name", "reference"), REFERENCES.items())
@pytest.mark.parametrize("scale", ["laptop", "paper"])
def test_a_placebo_has_the_parameters_of_its_reference_at_every_scale(name, reference, scale):
    placebo, expected = (load_config(scale, "qwen3-4b-base", who).method for who in (name, reference))
    assert placebo.params.model_dump() == expected.params.model_dump()
    assert placebo.name == name


@pytest.mark.parametrize(
    ("ratio", "lb", "expected"),
    [(0.34, 0.0, 2), (0.67, 0.0, 3), (1.0, 0.0, 3), (1.0, -1.5, 3), (1.0, 0.9, 1), (1.0, 1.5, 0)],
)
def test_random_positive_drops_as_many_as_clip_cov_and_of_correct_answers_alone(ratio, lb, expected):
    """Two answers of three tokens; means are A = 0 and log p = -2, so A (log p + 2) is 1, -1, 0 and -1, 1/2, 1/2."""
    logp = torch.tensor([[-1.0, -3.0, -2.0, 9.0], [-1.0, -2.5, -2.5, 9.0]])
    advantages = torch.tensor([[1.0], [-1.0]]).expand(2, 4)
    mask = torch.tensor([[1, 1, 1, 0]] * 2).bool()
    given = TokenStats(logp, -logp, logp, logp), advantages, mask
    params, seen = {"ratio": ratio, "lb": lb}, set()
    for seed in range(30):
        kept, reference = (
            load_method(name, **params).token_weights(*given, generator=seeded(seed)) != 0
            for name in ("random_positive", "clip_cov")
        )
        dropped = mask & ~kept
        assert int(dropped.sum()) == min(3, int((mask & ~reference).sum())) == expected
        assert not (dropped & (advantages < 0)).any()
        seen.add(tuple(dropped[0].tolist()))
    assert len(seen) == {0: 1, 1: 3, 2: 3, 3: 1}[expected]  # every choice of that many among three
