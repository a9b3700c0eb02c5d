"""Score centering: against the whole sum by autograd, in expectation over the sampler, and in the trainer."""

import copy

import pytest
import torch

from entropy_dynamics.core.token_stats import token_stats
from entropy_dynamics.methods import load_method
from entropy_dynamics.training.batch import RolloutBatch
from mistakes import mistake
from reference import assert_close, batch_of, gradients, log_probabilities, slow_advantages

VOCABULARY, TEMPERATURE = 11, 0.7
TOKENS = torch.tensor([0, 3, 5, 7, 9, 10])
ADVANTAGES = torch.tensor([1.0, -2.0, 0.5, 0.0, -1.0, 3.0]).double()
RATIOS = ("none", "truncated", "masked")
WEIGHTS = {
    "none": torch.ones_like,
    "truncated": lambda r: r.clamp_max(1.3),
    "masked": lambda r: r * (r <= 1.3),
}


def policies(seed=0):
    """Hidden states and a head of p, and log q of another policy, float64."""
    draw = torch.Generator().manual_seed(seed)
    hidden, head = (torch.randn(*size, generator=draw, dtype=torch.float64) for size in ((6, 4), (VOCABULARY, 4)))
    q = (hidden @ head.T / TEMPERATURE + 0.5 * torch.randn(6, VOCABULARY, generator=draw)).log_softmax(-1)
    return hidden, head, q


def centered(log_p, q, tokens, advantages, ratios):
    """-A (w_y log p_y - sum over the whole vocabulary of q_v w_v log p_v), weights detached."""
    weight = WEIGHTS[ratios]((log_p.exp() / q).detach())
    of_token = (weight * log_p).gather(-1, tokens[:, None])[:, 0]
    return -advantages * (of_token - (q * weight * log_p).sum(-1))


def of_the_method(method, hidden, head, tokens, advantages, among, q):
    """The method's losses through the fused path, fp32, a row of tokens."""
    hidden, head = hidden.float(), head.float()
    stats = token_stats(hidden[None], tokens[None], weight=head, temperature=TEMPERATURE, among=among[None])
    log_q = q.log().float()
    given = {"top_logp": stats.top_logp, "top_logq": log_q.gather(-1, among)[None]}
    logp_old, mask = log_q.gather(-1, tokens[:, None]).T, torch.ones(1, len(tokens))
    return method.token_loss(stats.logp, logp_old, advantages[None].float(), mask, **given)[0]


@pytest.mark.parametrize("ratios", RATIOS)
@pytest.mark.parametrize("top", [None, 3])
def test_its_gradient_is_that_of_the_whole_sum(top, ratios):
    """With a top, of the sampler that has this top and a tail in proportion to p."""
    method = load_method("score_centering", ratios=ratios, bound=1.3)
    hidden, head, log_q = policies()
    q = log_q.exp()
    among = torch.arange(VOCABULARY).expand(6, -1) if top is None else q.topk(top).indices
    if top is not None:
        p = (hidden @ head.T / TEMPERATURE).softmax(-1)
        inside = torch.zeros_like(p).scatter(-1, among, 1.0)
        q = torch.where(inside > 0, q, p * ((1 - (q * inside).sum(-1)) / (1 - (p * inside).sum(-1)))[:, None])
    ratio = (hidden @ head.T / TEMPERATURE).softmax(-1) / q
    assert 0 < int((WEIGHTS["masked"](ratio) == 0).sum()) < q.numel()  # some ratios are cut
    found = []
    for mine in (True, False):
        states, weight = hidden.clone().requires_grad_(), head.clone().requires_grad_()
        if mine:
            losses = of_the_method(method, states, weight, TOKENS, ADVANTAGES, among, q)
        else:
            log_p = (states @ weight.T / TEMPERATURE).log_softmax(-1)
            losses = centered(log_p, q, TOKENS, ADVANTAGES, ratios)
        losses.sum().backward()
        found.append((states.grad, weight.grad))
    for got, expected in zip(*found, strict=True):
        assert_close(got, expected, relative=1e-5)


@pytest.mark.parametrize("ratios", RATIOS)
def test_a_constant_advantage_moves_nothing_in_expectation(ratios):
    """The sampler's pull, which the loss without correction has. Advantages of 1, weighted by q."""
    method = load_method("score_centering", ratios=ratios, bound=1.3)
    hidden, head, log_q = policies(seed=1)
    pull, without = [], []
    for row in range(len(hidden)):
        every, q = torch.arange(VOCABULARY), log_q[row].exp()
        states = hidden[row : row + 1].expand(VOCABULARY, -1).clone().requires_grad_()
        among, of_each = every.expand(VOCABULARY, -1), q.expand(VOCABULARY, -1)
        of_the_method(method, states, head, every, q, among, of_each).sum().backward()
        pull.append(states.grad.sum(0))
        plain = hidden[row].clone().requires_grad_()
        log_p = (plain @ head.T / TEMPERATURE).log_softmax(-1)
        weight = WEIGHTS[ratios]((log_p.exp() / q).detach())
        (q * weight * log_p).sum().backward()
        without.append(plain.grad)
    assert torch.stack(without).abs().max() > 0.05
    assert torch.stack(pull).abs().max() < 1e-5


def test_where_the_sampler_is_the_policy_it_is_the_policy_gradient():
    hidden, head, _ = policies()
    states = hidden.clone().requires_grad_()
    q = (hidden @ head.T / TEMPERATURE).softmax(-1)
    method = load_method("score_centering")
    of_the_method(method, states, head, TOKENS, ADVANTAGES, q.topk(4).indices, q).sum().backward()
    plain = hidden.clone().requires_grad_()
    log_p = (plain @ head.T / TEMPERATURE).log_softmax(-1)
    (-ADVANTAGES * log_p.gather(-1, TOKENS[:, None])[:, 0]).sum().backward()
    assert_close(states.grad, plain.grad, relative=1e-5)


# ---------------------------------------------------------------- in the trainer
@pytest.mark.parametrize("name", ["score_centering", "score_centering_clip_b"])
def test_a_stale_step_has_the_gradient_of_the_sum_over_the_older_policy(make_trainer, model, name):
    """Copies and shared prefixes included, by one sequence at a time in float64."""
    params = {"bound": 1.3} | ({"share": 0.2} if name.endswith("b") else {})
    trainer = make_trainer(model, name, params=params, steps=2, staleness=1, learning_rate=3e-2)
    seen = []
    trainer.keep = lambda step, rollouts, grades, batch, stats, advantages, weights: seen.append((rollouts, weights))
    older = copy.deepcopy(model)
    trainer.step(0)
    now = copy.deepcopy(model)
    trainer.step(1)
    (rollouts, weights), prompts = seen[1], trainer.prompts_of_step(1)
    assert (weights[RolloutBatch.collate(prompts, rollouts).mask] == 0).any() == name.endswith("b")
    loss, kept = 0.0, 0
    both = (log_probabilities(each, prompts, rollouts) for each in (now, older))
    for rollout, advantage, log_p, log_q, of_row in zip(
        rollouts, slow_advantages(rollouts, 6), *both, weights, strict=True
    ):
        q, tokens = log_q.detach().exp(), torch.tensor(rollout.token_ids)
        by_rank = torch.tensor(rollout.top), torch.tensor(rollout.top_logp).double()
        assert_close(by_rank[1], q.log().gather(-1, by_rank[0]), relative=1e-5)
        assert all(sorted(row) == list(range(q.shape[-1])) for row in rollout.top)
        losses = centered(log_p, q, tokens, torch.full((len(tokens),), advantage), "truncated")
        loss = loss + (losses * of_row[: len(tokens)]).sum()
        kept += int((of_row[: len(tokens)] > 0).sum())
    now.zero_grad()
    (loss / kept).backward()
    assert_close(gradients(trainer.policy.model), gradients(now), relative=1e-4)


def test_log_q_is_that_of_the_noisy_logits_of_each_sample(make_trainer, model):
    """Rollouts with equal tokens have logits of their own."""
    trainer = make_trainer(model, "score_centering", params={"top": 3}, staleness=1)
    trainer.sampler.logit_noise = 0.5
    rollouts = trainer.sample(0)
    heads = {}
    for rollout in rollouts:
        for token, logp, top, of_top in zip(
            rollout.token_ids, rollout.logp, rollout.top, rollout.top_logp, strict=True
        ):
            assert len(top) == 3
            assert of_top == sorted(of_top, reverse=True)
            assert logp == (of_top[top.index(token)] if token in top else logp)
            assert token in top or logp <= of_top[-1]
        heads.setdefault(rollout.problem_id, set()).add(tuple(rollout.top_logp[0]))
    assert all(len(of_problem) > 1 for of_problem in heads.values())
    batch = RolloutBatch.collate(trainer.prompts_of_step(0), rollouts)
    stats = trainer.policy.stats(batch, torch.arange(len(batch)), 1.0)
    for row, log_p in enumerate(log_probabilities(model, trainer.prompts_of_step(0), rollouts)):
        expected = log_p.gather(-1, torch.tensor(rollouts[row].top))
        assert_close(stats.top_logp[row, : len(expected)].double(), expected, relative=1e-5)


def test_a_policy_is_asked_without_its_engine(make_trainer, model):
    """As the page does, which needs the weights alone."""
    trainer = make_trainer(model, "score_centering_clip_b", params={"share": 0.2})
    stats = trainer.policy.stats(batch_of(trainer), torch.arange(24), 1.0, **trainer.method.second_pass())
    assert stats.top_logp is None


def test_an_engine_without_its_most_likely_tokens_is_refused(make_trainer, model):
    trainer = make_trainer(model, "score_centering")
    trainer.sampler.returns_top = False
    with mistake("method ScoreCentering needs the engine's most likely tokens; it should have engine.name native"):
        trainer.__post_init__()
