"""Losses and advantages against those that verl publishes, on random batches: `make test-integrations`."""

import math

import numpy as np
import pytest
import torch

pytest.importorskip("verl", reason="verl is not installed here: `make test-integrations` runs these tests")

from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage, get_policy_loss_fn
from verl.workers.config import ActorConfig, PolicyLossConfig

from entropy_dynamics.core.objective import weighted_sum
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import load_method

ROWS, TOKENS = 16, 25
UNCLIPPED = {"clip_low": 1.0, "clip_high": 1e6, "dual_clip": math.inf}
CASES = {
    "PPO": ("grpo", {}, "vanilla", {}),
    "clip-higher, dual clip": ("grpo", {"clip_high": 0.28, "dual_clip": 1.5}, "vanilla", {"clip_ratio_c": 1.5}),
    "CISPO": ("cispo", {"clip_low": 0.5, "clip_high": 0.28}, "cispo", {}),
    "DPPO": ("dppo", {"truncation": 1.4}, "dppo_tv", {"clip_ratio_c": 1.4}),
    "GSPO": ("gspo", {"clip_low": 0.03, "clip_high": 0.04}, "gspo", {}),
    "KL-Cov": ("kl_cov", {"frac": 0.1, "beta": 0.7, **UNCLIPPED}, "kl_cov", {"kl_cov_ratio": 0.1, "ppo_kl_coef": 0.7}),
    # All candidates: which ones are drawn is up to the random numbers of either.
    "Clip-Cov": (
        "clip_cov",
        {"ratio": 1.0, "lb": 0.5, "ub": 3.0, **UNCLIPPED},
        "clip_cov",
        {"clip_cov_ratio": 1.0, "clip_cov_lb": 0.5, "clip_cov_ub": 3.0},
    ),
}


@pytest.fixture
def batch() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    old = -(torch.randn(ROWS, TOKENS, generator=generator) ** 2)
    new = (old + 0.3 * torch.randn(ROWS, TOKENS, generator=generator)).clamp_max(-1e-3)
    lengths = torch.randint(1, TOKENS + 1, (ROWS, 1), generator=generator)
    mask = (torch.arange(TOKENS) < lengths).float()
    return {"old": old, "new": new, "mask": mask, "advantages": torch.randn(ROWS, 1, generator=generator) * mask}


@pytest.mark.parametrize("case", CASES)
def test_the_gradient_of_every_token_is_verls(batch, case):
    name, params, theirs, settings = CASES[case]
    method, (old, new, mask, advantages) = load_method(name, **params), batch.values()
    logp = new.clone().requires_grad_()
    stats = TokenStats(new, *[torch.zeros_like(new)] * 3)
    weights = method.token_weights(stats, advantages, mask, generator=torch.Generator().manual_seed(0))
    coefficients = method.loss_coefficients(stats, advantages, mask)
    loss = method.token_loss(logp, old, advantages, mask, coefficients=coefficients)
    divisors = method.divisors(weights, mask, torch.arange(ROWS) // 4)
    (own,) = torch.autograd.grad(weighted_sum(loss, weights / divisors), logp)
    bounds = {"clip_ratio_low": method.clip_low, "clip_ratio_high": method.clip_high}
    of_policy = {key: value for key, value in settings.items() if key != "clip_ratio_c"}
    bounds |= {key: value for key, value in settings.items() if key == "clip_ratio_c"}
    policy_loss = PolicyLossConfig(**of_policy)
    config = ActorConfig(strategy="fsdp", rollout_n=1, use_dynamic_bsz=True, policy_loss=policy_loss, **bounds)
    mode = "seq-mean-token-mean" if method.loss_scope == "per_sequence" else "token-mean"
    logp = new.clone().requires_grad_()
    loss, _ = get_policy_loss_fn(theirs)(old, logp, advantages, mask, mode, config)
    (expected,) = torch.autograd.grad(loss, logp)
    torch.testing.assert_close(own, expected, rtol=1e-4, atol=1e-9)
    plain = (-advantages * (new - old).exp() / mask.sum())[mask > 0]
    assert ((expected[mask > 0] - plain).abs() > 1e-6).any()  # the method acts on this batch


@pytest.mark.parametrize(("name", "scaled"), [("grpo", True), ("dr_grpo", False)])
def test_advantages_are_verls(name, scaled):
    rewards = torch.randint(0, 3, (24,), generator=torch.Generator().manual_seed(1)).float()
    groups = torch.arange(24) // 6
    expected, _ = compute_grpo_outcome_advantage(
        rewards[:, None], torch.ones(24, 1), groups.numpy(), norm_adv_by_std_in_grpo=scaled
    )
    own = load_method(name).advantages(rewards, groups)
    np.testing.assert_allclose(own.numpy(), expected[:, 0].numpy(), rtol=1e-5, atol=1e-6)
