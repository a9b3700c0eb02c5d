"""Lp-Reg and SimKO: worked values, and the second pass over the logits that they need."""

import math
from dataclasses import replace

import pytest
import torch

from batches import random_batch, stats_of
from entropy_dynamics.core.objective import effective_advantages
from entropy_dynamics.core.token_stats import token_stats
from entropy_dynamics.methods import load_method


# ---------------------------------------------------------------- Lp-Reg
def test_lp_reg_by_hand():
    """M = 0.99 where p = 0.01 is dropped: the derivative of the loss falls by 1 / M - 1 at a token that is kept."""
    method = load_method("lp_reg", min_p=0.02, share=1.0)
    logits = torch.tensor([0.6, 0.39, 0.01]).log().expand(4, 1, 3)
    tokens, advantages = torch.tensor([[1], [2], [1], [1]]), torch.tensor([[-1.0], [-1.0], [1.0], [0.0]])
    stats, mask = token_stats(logits, tokens, **method.second_pass()), torch.ones(4, 1)
    coefficients = method.loss_coefficients(stats, advantages, mask)
    assert coefficients.exp().flatten().tolist() == pytest.approx([0.39 / 0.99, 0, 0, 0])
    logp = stats.logp.clone().requires_grad_()
    loss = method.token_loss(logp, stats.logp, advantages, mask, coefficients=coefficients)
    loss.sum().backward()
    assert logp.grad.flatten().tolist() == pytest.approx([1 - (1 / 0.99 - 1), 1, -1, 0])
    assert loss[0].item() == pytest.approx(1 + 1 / 0.99 - math.log(1 / 0.99) - 1)
    assert method.metrics(stats, advantages, mask, mask) == {"lp_reg_tied": 0.25}


def test_lp_reg_with_nothing_to_tie_is_grpo():
    logp, entropy, advantages, mask = random_batch(seed=3)
    old = logp - 0.3 * torch.randn(logp.shape, generator=torch.Generator().manual_seed(0))
    method, stats = load_method("lp_reg", share=1.0), stats_of(logp, entropy)
    stats = replace(stats, proxy_logp=torch.full_like(logp, -torch.inf))
    coefficients = method.loss_coefficients(stats, advantages, mask)
    loss = method.token_loss(logp, old, advantages, mask, coefficients=coefficients)
    torch.testing.assert_close(loss, load_method("grpo").token_loss(logp, old, advantages, mask))


# ---------------------------------------------------------------- SimKO
def test_simko_weighs_the_most_likely_tokens_of_uncertain_wrong_answers():
    method, draw = load_method("simko", top1_weight=1.5, quantile=0.5), torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(6, 9, 20, generator=draw)
    likely = torch.rand(6, 9, generator=draw) < 0.5
    tokens = torch.where(likely, logits.argmax(-1), logits.argmin(-1))
    stats, advantages = token_stats(logits, tokens, **method.second_pass()), torch.ones(6, 9)
    advantages[3:] = -1
    weights = method.token_weights(stats, advantages, torch.ones(6, 9))
    uncertain = stats.entropy > stats.entropy.quantile(0.5, dim=-1, keepdim=True)
    assert torch.equal(weights, torch.where(uncertain & likely & (advantages < 0), 1.5, 1.0))
    acting = (uncertain & (likely | (advantages > 0))).float().mean().item()
    assert method.metrics(stats, advantages, weights, torch.ones(6, 9)) == {"simko_acting": pytest.approx(acting)}


def test_the_lens_of_simko_has_the_gradient_in_expectation():
    """The mean of the effective advantage times grad log p, over tokens drawn from p, is minus the loss's gradient.

    So it is where all tokens have the same advantage.
    """
    method = load_method("simko", alpha=0.4, top=2, quantile=0.0)
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    rows = torch.stack([p, torch.tensor([0.97, 0.01, 0.01, 0.01])]).log()
    whole, through_lens = torch.zeros(4), torch.zeros(4)
    for token in range(4):
        logits = rows[None].clone().requires_grad_()
        tokens = torch.tensor([[token, 0]])
        stats, ones = token_stats(logits, tokens, top=2), torch.ones(1, 2)
        coefficients = method.loss_coefficients(stats, ones, ones)

        def loss_of(logp, entropy, top_logp, stats=stats, ones=ones, coefficients=coefficients):
            loss = method.token_loss(
                logp, stats.logp.detach(), ones, ones, coefficients=coefficients, top_logp=top_logp
            )
            return loss[0, 0]

        effective = effective_advantages(loss_of, stats.logp, stats.entropy, stats.top_logp)
        loss_of(stats.logp, stats.entropy, stats.top_logp).backward()
        whole += p[token] * logits.grad[0, 0]
        through_lens -= p[token] * effective[0, 0] * (torch.eye(4)[token] - p)
    assert whole.abs().max() > 0.01
    torch.testing.assert_close(through_lens, whole)
