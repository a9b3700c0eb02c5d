"""Every hook of a method reaches the loss of the optimizer step; the lens by its definition; engine disagreement."""

import copy
from dataclasses import replace

import pytest
import torch

from entropy_dynamics.errors import UserError
from entropy_dynamics.methods import load_method
from entropy_dynamics.training.policy import Policy
from reference import batch_of, grade_alternately, gradients


def gradient_after(trainer) -> torch.Tensor:
    """The gradient of the last optimizer step of one training step."""
    trainer.step(0)
    return gradients(trainer.policy.model)


@pytest.mark.parametrize("method", ["kl_cov", "cispo", "dppo", "ce_gppo"])
def test_it_is_grpo_to_the_bit_when_strictly_on_policy(make_trainer, model, method):
    """KL-Cov is scored and GRPO is not: their gradients may differ in fp32's last bits. One group is constant."""
    found = []
    for name in ("grpo", method):
        trainer = make_trainer(copy.deepcopy(model), name, tokens_per_micro_batch=40)
        grade_alternately(trainer, 1)
        found.append(gradient_after(trainer))
    assert found[0].norm() > 0
    bound = 1e-6 * found[0].abs().max() if method == "kl_cov" else 0
    assert (found[0] - found[1]).abs().max() <= bound


def test_the_bonus_adds_the_gradient_of_the_mean_entropy(make_trainer, model):
    coefficient = 0.3
    plain, with_bonus = (
        make_trainer(copy.deepcopy(model), method, params=params)
        for method, params in (("grpo", {}), ("entropy_bonus", {"coefficient": coefficient}))
    )
    difference = gradient_after(with_bonus) - gradient_after(plain)
    reference = copy.deepcopy(model)
    batch = batch_of(make_trainer(reference))
    stats = Policy(reference).stats(batch, torch.arange(len(batch)), 1.0, entropy_gradient=True)
    (-coefficient * stats.entropy[batch.mask].mean()).backward()
    expected = gradients(reference)
    assert torch.allclose(difference, expected, atol=1e-6 + 1e-4 * expected.abs().max().item())


def test_ppo_clips_by_the_sign_of_the_whitened_advantage(make_trainer, model):
    trainer = make_trainer(copy.deepcopy(model), "clip_b", params={"mu": 0.3}, advantage="gae")
    kept = []
    trainer.keep = lambda *given: kept.extend(given[3:])
    metrics = trainer.step(0)
    batch, _, advantages, weights = kept
    assert advantages[batch.mask].mean().abs() < 1e-5  # whitened
    dropped = batch.mask & (weights == 0)
    assert dropped.any()
    assert (advantages[dropped] < 0).all()
    assert metrics["value_loss"] > 0


def test_the_lens_of_clip_b_by_its_definition(make_trainer, model):
    """On-policy the effective advantage is the advantage times the token's weight over the mean weight."""
    trainer = make_trainer(copy.deepcopy(model), "clip_b", params={"mu": 0.3})
    kept = []
    trainer.keep = lambda *given: kept.extend(given[3:])
    metrics = trainer.step(0)
    batch, stats, advantages, weights = kept
    mask = batch.mask
    mean = weights[mask].mean().item()
    assert mean < 1
    totals = dict.fromkeys([name for name in metrics if name.startswith("lens_")], 0.0)
    for a, s, w in torch.stack([advantages, stats.s_star, weights])[:, mask].T.tolist():
        if a != 0:
            name = f"lens_{'pos' if a > 0 else 'neg'}_{'gt' if s > 0 else 'lt'}"
            totals[name] += -a * s
            totals[f"{name}_kept"] += -w / mean * a * s
    assert len(totals) == 8
    for name, total in totals.items():
        assert metrics[name] == pytest.approx(total / int(mask.sum()), rel=1e-5, abs=1e-7)
    assert metrics["lens_neg_lt_kept"] > metrics["lens_neg_lt"]  # Clip_B drops what lowers entropy


def test_per_update_methods_see_only_the_tokens_of_their_update(make_trainer, model, monkeypatch):
    trainer = make_trainer(copy.deepcopy(model), "forking_tokens", updates_per_batch=3)
    shares = []
    token_weights = load_method("forking_tokens").__class__.token_weights

    def spy(self, stats, advantages, mask, **named):
        weights = token_weights(self, stats, advantages, mask, **named)
        shares.append((int(mask.sum()), float((weights > 0).sum() / mask.sum())))
        return weights

    monkeypatch.setattr(trainer.method.__class__, "token_weights", spy)
    metrics = trainer.step(0)
    assert len(shares) == 3
    assert sum(tokens for tokens, _ in shares) == metrics["tokens"]
    assert all(share == pytest.approx(0.2, abs=0.1) for _, share in shares)


@pytest.fixture
def mismatched(make_trainer, model):
    """A trainer with an engine whose log probabilities are off by 0.3 nats at every second token."""
    trainer = make_trainer(copy.deepcopy(model))
    trainer.sampler.returns_logp, sample = True, trainer.sampler.sample

    def off(prompts, **how):
        return [
            replace(one, logp=[logp + 0.3 * (place % 2) for place, logp in enumerate(one.logp)])
            for one in sample(prompts, **how)
        ]

    trainer.sampler.sample = off
    return trainer


def test_without_the_switch_the_engines_log_probabilities_change_nothing(make_trainer, model, mismatched):
    mismatched.sampler.tolerance = 10.0
    assert torch.equal(gradient_after(make_trainer(copy.deepcopy(model))), gradient_after(mismatched))


def test_a_stale_engine_stops_training_before_anything_is_learned(mismatched, model):
    with pytest.raises(UserError, match="engine and trainer disagree"):
        mismatched.step(0)
    for name, parameter in mismatched.policy.model.named_parameters():
        assert torch.equal(parameter, dict(model.named_parameters())[name])
