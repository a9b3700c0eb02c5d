"""What every registered method keeps to, whatever its formula."""

import math

import pytest
import torch

from batches import loss_weights, of_the_vocabulary, random_batch, second_pass, seeded
from entropy_dynamics.core.objective import weighted_sum
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import load_method, method_types

# Values that act on a batch of a few hundred tokens.
PARAMS = {"clip_cov": {"ratio": 0.02, "lb": 0.2}, "kl_cov": {"frac": 0.1}, "clip_v": {"mu": 1.0, "max_frac": 0.05}}
PARAMS |= {name: {"mu": 1.0} for name in ("clip_b", "clip_b_paper", "clip_v_paper", "random_mask", "low_p_mask")}
PARAMS |= dict.fromkeys(("random_mask_v", "low_p_mask_v"), PARAMS["clip_v"]) | {"random_positive": PARAMS["clip_cov"]}
METHODS = sorted(method_types())


def outputs(name, logp, entropy, advantages, mask) -> list[torch.Tensor]:
    """Token weights, and loss coefficients if there are any."""
    method = load_method(name, **PARAMS.get(name, {}))
    stats = TokenStats(logp, entropy, logp.exp() * (logp + entropy), entropy / 10, **second_pass(logp))
    weights = method.token_weights(stats, advantages, mask, generator=seeded())
    coefficients = method.loss_coefficients(stats, advantages, mask)
    return [weights] if coefficients is None else [weights, coefficients]


@pytest.mark.parametrize("name", METHODS)
def test_a_batch_without_response_tokens_has_no_weight(name):
    logp, entropy, advantages, mask = random_batch(seed=1)
    assert not any(one.any() for one in outputs(name, logp, entropy, advantages, torch.zeros_like(mask)))


@pytest.mark.parametrize("garbage", [1e20, math.nan])
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
    given = [x.clone().requires_grad_(number < 2) for number, x in enumerate(batch)]
    assert not any(output.requires_grad for output in outputs(name, *given))
    assert all(map(torch.equal, batch, given))


@pytest.mark.parametrize("garbage", [3e38, math.nan])
@pytest.mark.parametrize("name", METHODS)
def test_padding_changes_neither_the_loss_of_a_token_nor_its_gradient(name, garbage):
    logp, entropy, advantages, mask = random_batch(seed=4)
    found = []
    for filler in (0.0, garbage):
        old, entropies, own = (torch.where(mask, x, filler) for x in (logp - 0.1, entropy, advantages))
        now = torch.where(mask, logp, filler).requires_grad_()
        method, given = load_method(name), {"entropy": entropies, "coefficients": mask.float()}
        loss = method.token_loss(now, old, own, mask, **given, **of_the_vocabulary(method, now))
        weighted_sum(loss, mask.float()).backward()
        found.append((loss.detach()[mask], now.grad[mask]))
    assert all(x.isfinite().all() and x.any() for x in found[0])
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


@pytest.mark.parametrize("name", METHODS)
def test_only_the_published_clipping_and_rejecting_methods_take_dropped_tokens_out_of_the_average(name):
    kept = {"clip_b", "clip_v", "entrocraft", "w_reinforce", "nsr", "psr"}
    kept |= {"w_reinforce_authors", "nsr_authors", "psr_authors", "score_centering_clip_b"}
    kept |= {"grpo_dropout", "rft", "random_mask", "random_mask_v", "low_p_mask", "low_p_mask_v"}
    method, ones = load_method(name), torch.ones(1, 4)
    how = {"denominator": method.denominator}
    share = loss_weights(torch.tensor([[0.0, 1.0, 1.0, 1.0]]), ones, torch.tensor([0]), **how)[0, 1].item()
    assert share == pytest.approx(1 / 3 if name in kept else 1 / 4)
