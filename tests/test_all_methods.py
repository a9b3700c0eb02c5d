"""What every registered method keeps to, whatever its formula."""

import math

import pytest
import torch

from batches import random_batch, seeded
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import load_method, method_types

# Values that act on a batch of a few hundred tokens.
PARAMS = {"clip_cov": {"ratio": 0.02, "lb": 0.2}, "kl_cov": {"frac": 0.1}, "clip_v": {"mu": 1.0, "max_frac": 0.05}}
PARAMS |= {name: {"mu": 1.0} for name in ("clip_b", "clip_b_paper", "clip_v_paper")}
METHODS = sorted(method_types())


def outputs(name, logp, entropy, advantages, mask) -> list[torch.Tensor]:
    """Token weights, and loss coefficients if there are any."""
    method = load_method(name, **PARAMS.get(name, {}))
    stats = TokenStats(logp, entropy, logp.exp() * (logp + entropy), entropy / 10)
    weights = method.token_weights(stats, advantages, mask, seeded())
    coefficients = method.loss_coefficients(stats, advantages, mask)
    return [weights] if coefficients is None else [weights, coefficients]


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_without_response_tokens_has_no_weight(name):
    logp, entropy, advantages, mask = random_batch(seed=1)
    assert not any(one.any() for one in outputs(name, logp, entropy, advantages, torch.zeros_like(mask)))


@pytest.mark.parametrize("garbage", [-1e20, 1e20, math.nan, math.inf])
@pytest.mark.parametrize("name", METHODS)
def test_padding_may_hold_anything(name, garbage):
    *values, mask = random_batch(seed=8)
    clean = outputs(name, *(torch.where(mask, x, 0.0) for x in values), mask)
    assert clean[0][mask].any()
    assert name not in PARAMS or (clean[0][mask] != 1).any() or (clean[-1][mask].any() and len(clean) > 1)
    for got, expected in zip(outputs(name, *(torch.where(mask, x, garbage) for x in values), mask), clean, strict=True):
        assert torch.equal(got, expected)
        assert not got[~mask].any()


@pytest.mark.parametrize("name", METHODS)
def test_inputs_stay_as_they_were_and_nothing_carries_a_gradient(name):
    batch = random_batch(seed=9)
    batch = [*batch[:3], batch[3].float()]
    given = [x.clone() for x in batch]
    given[0].requires_grad_()
    given[1].requires_grad_()
    assert not any(output.requires_grad for output in outputs(name, *given))
    for before, after in zip(batch, given, strict=True):
        assert torch.equal(before, after)


@pytest.mark.parametrize("name", METHODS)
def test_only_the_published_clipping_and_rejecting_methods_shrink_the_denominator(name):
    kept = {"clip_b", "clip_v", "entrocraft", "w_reinforce", "nsr", "psr"}
    assert load_method(name).denominator == ("kept" if name in kept else "all")
