"""The KL term to the policy before training: by hand, against torch's own in float64, and in the trainer."""

import copy
import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import Categorical, kl_divergence

from entropy_dynamics.core.objective import effective_advantages
from entropy_dynamics.core.token_stats import token_stats
from entropy_dynamics.methods import load_method
from mistakes import mistake
from reference import assert_close, gradients, log_probabilities, rollouts_of, slow_advantages

VOCABULARY, TEMPERATURE, BETA = 11, 0.7, 0.3


def test_a_case_by_hand():
    """p = 1/2, 1/4, 1/4 and q = 1/4, 1/4, 1/2: (1/2 - 1/4) ln 2; the other token has p = q."""
    other = [0.25, 0.25, 0.5]
    p, q = (torch.tensor([[first, other]]).log() for first in ([0.5, 0.25, 0.25], other))
    given = p[..., 0], p[..., 0], torch.zeros(1, 2), torch.ones(1, 2)
    loss = load_method("reference_kl", beta=2.0).token_loss(*given, top_logp=p, top_logq=q)
    torch.testing.assert_close(loss, torch.tensor([[0.5 * math.log(2), 0.0]]))


def test_its_gradient_is_that_of_the_divergence_in_float64():
    """Through the fused path, beside GRPO's own loss at r = 1."""
    draw = torch.Generator().manual_seed(0)
    hidden, head = (torch.randn(*size, generator=draw, dtype=torch.float64) for size in ((6, 4), (VOCABULARY, 4)))
    log_q = torch.randn(6, VOCABULARY, generator=draw, dtype=torch.float64).log_softmax(-1)
    tokens, advantages = torch.tensor([0, 3, 5, 7, 9, 10]), torch.tensor([1.0, -2.0, 0.5, 0.0, -1.0, 3.0]).double()
    method, found = load_method("reference_kl", beta=BETA), []
    for dtype in (torch.float32, torch.float64):
        states, weight = (values.to(dtype).requires_grad_() for values in (hidden, head))
        if dtype == torch.float32:
            every = torch.arange(VOCABULARY).expand(1, 6, -1)
            stats = token_stats(states[None], tokens[None], weight=weight, temperature=TEMPERATURE, among=every)
            given = stats.logp.detach(), advantages[None].float(), torch.ones(1, 6)
            losses = method.token_loss(stats.logp, *given, top_logp=stats.top_logp, top_logq=log_q[None].float())
        else:
            p = Categorical(logits=states @ weight.T / TEMPERATURE)
            losses = -advantages * p.log_prob(tokens) + BETA * kl_divergence(p, Categorical(logits=log_q))
        losses.sum().backward()
        found.append((states.grad.double(), weight.grad.double()))
    for got, expected in zip(*found, strict=True):
        assert_close(got, expected, relative=1e-5)


def test_its_effective_advantages_have_the_gradient_in_expectation_with_ties():
    """Over tokens drawn from p, the mean of the effective advantage times grad log p is minus the loss's gradient."""
    p, q = (torch.tensor(values, dtype=torch.float64) for values in ([0.3, 0.3, 0.3, 0.1], [0.1, 0.2, 0.3, 0.4]))
    logits, method, whole = p.log().requires_grad_(), load_method("reference_kl", beta=BETA), torch.zeros_like(p)
    kl_divergence(Categorical(logits=logits), Categorical(probs=q)).backward()

    def loss_of(logp, entropy, top_logp):
        return method.token_loss(
            logp, logp.detach(), 0 * logp, torch.ones(1, 1), top_logp=top_logp, top_logq=q.log()
        ).sum()

    for token, own in enumerate(torch.eye(len(p), dtype=torch.float64)):
        logp = p.log()[None, None]
        given = logp[..., token], torch.zeros(1, 1, dtype=torch.float64), logp, own.bool()[None, None]
        whole -= p[token] * effective_advantages(loss_of, *given).item() * (own - p)
    torch.testing.assert_close(whole, BETA * logits.grad)


def test_a_step_is_tied_to_the_policy_before_training(make_trainer, model):
    """Copies and shared prefixes included, by one sequence at a time in float64."""
    trainer = make_trainer(model, "reference_kl", params={"beta": BETA}, steps=2, learning_rate=3e-2)
    start = copy.deepcopy(model)
    assert trainer.step(0)["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    now, (prompts, rollouts) = copy.deepcopy(model), rollouts_of(trainer, 1)
    row = trainer.step(1)
    loss, distances = 0.0, []
    both = (log_probabilities(each, prompts, rollouts) for each in (now, start))
    for rollout, advantage, log_p, log_q in zip(rollouts, slow_advantages(rollouts, 6), *both, strict=True):
        p, tokens = Categorical(logits=log_p), torch.tensor(rollout.token_ids)
        distances.append(kl_divergence(p, Categorical(logits=log_q.detach())))
        loss = loss + (-advantage * p.log_prob(tokens) + BETA * distances[-1]).sum()
    distances = torch.cat(distances)
    assert distances.mean() > 0.01
    assert row["reference_kl"] == pytest.approx(distances.mean().item(), rel=1e-4)
    now.zero_grad()
    (loss / len(distances)).backward()
    assert_close(gradients(trainer.policy.model), gradients(now), relative=1e-4)


def test_sharded_policies_are_refused(make_trainer, model):
    trainer = make_trainer(model, "reference_kl")
    trainer.ranks = replace(trainer.ranks, mesh=object())
    with mistake("method ReferenceKL should have hardware.ranks null"):
        trainer.__post_init__()
