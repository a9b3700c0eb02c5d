"""Rollouts of a policy some steps old: who sampled them, against whom ratios are, and that a run resumes with them."""

import copy
import json
import math

import pytest
import torch

import reference
from entropy_dynamics.config import load_config
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import NotFiniteError
from entropy_dynamics.sampling.native import NativeSampler
from entropy_dynamics.training.checkpoints import Checkpoints
from mistakes import mistake
from reference import assert_close, gradients, log_probabilities, parameters, slow_advantages


def sampled_by(model, trainer, step):
    """The rollouts of a step by `model`."""
    sampler = NativeSampler(model, end_tokens=trainer.sampler.end_tokens, batch_size=7)
    stream = f"train/seed{trainer.seed}/step{step}"
    return sampler.sample(trainer.prompts_of_step(step), samples=6, temperature=1.0, max_new_tokens=16, stream=stream)


@pytest.mark.parametrize("staleness", [1, 3])
def test_each_batch_is_of_the_policy_that_many_steps_ago(make_trainer, model, staleness):
    trainer = make_trainer(model, steps=6, staleness=staleness, learning_rate=3e-2, updates_per_batch=2)
    policies, batches = [], []
    trainer.keep = lambda step, rollouts, grades, batch, *_: batches.append(batch)
    for step in range(6):
        policies.append(copy.deepcopy(model))
        trainer.step(step)
        batch = batches[-1]
        of = policies[max(0, step - staleness)]
        tokens = [rollout.token_ids for rollout in sampled_by(of, trainer, step)]
        start, lengths = batch.prompt_lengths.tolist(), batch.lengths.tolist()
        assert [row[a:b].tolist() for row, a, b in zip(batch.sequences, start, lengths, strict=True)] == tokens
    assert trainer.ahead == []  # nothing was sampled that no step learns from


def test_weights_may_depend_on_the_log_p_of_the_policy_that_sampled(make_trainer, model):
    """As STEER's do: a method gets it, and a generator, with every batch."""
    trainer, batches, given = make_trainer(model, "steer", steps=2, staleness=1, learning_rate=3e-2), [], []
    trainer.keep = lambda step, rollouts, *_: batches.append(rollouts)
    weigh = trainer.method.token_weights
    object.__setattr__(trainer.method, "token_weights", lambda *of, **named: given.append(named) or weigh(*of, **named))
    for step in range(2):
        trainer.step(step)
    for rollouts, named in zip(batches, given, strict=True):
        for rollout, row in zip(rollouts, named["logp_old"], strict=True):
            sampled = torch.tensor(rollout.logp)
            assert any(torch.equal(sampled, row[start : start + len(sampled)]) for start in range(len(row)))
        assert isinstance(named["generator"], torch.Generator)


def test_corollary_4_on_stale_rollouts_is_4_1(make_trainer, model):
    """The entropy metrics take the ratios to the policy that sampled, which these learning rates move far from 1."""
    trainer, kept = make_trainer(model, steps=4, staleness=3, learning_rate=1e-2), {}
    trainer.keep = lambda step, *of: kept.update({step: of})
    rows = [trainer.step(step) for step in range(4)]
    for row, (rollouts, _, batch, stats, advantages, weights) in zip(rows, kept.values(), strict=True):
        sampled = torch.cat([torch.tensor(rollout.logp) for rollout in rollouts]).double()
        r = (stats.logp[batch.mask].double() - sampled).exp()
        s_centered, a = stats.s_centered[batch.mask].double(), (advantages * weights)[batch.mask].double()
        expected = -1e-2 * ((a - a.mean()) * r * s_centered).mean().item()
        assert row["predicted_entropy_change"] == pytest.approx(expected, rel=1e-3)
        assert row["s_centered_mean"] == pytest.approx((r * s_centered).mean().item(), rel=1e-3, abs=1e-7)
        assert row["s_centered_sampled"] == pytest.approx(s_centered.mean().item(), rel=1e-3, abs=1e-7)
        as_sampled = -1e-2 * ((a - a.mean()) * s_centered).mean().item()
        assert row["predicted_entropy_change_sampled"] == pytest.approx(as_sampled, rel=1e-3)
        plain = advantages[batch.mask].double()
        covariance = torch.stack([plain, r * s_centered]).cov(correction=0)[0, 1].item()
        assert row["neg_cov"] == pytest.approx(-covariance, rel=1e-3)
    assert (r - 1).abs().max() > 0.1


def test_ratios_to_the_engine_that_samples_now_are_one(make_trainer, model):
    """On-policy the engine differs from the trainer by rounding alone, so the update hardly changes."""
    rows, found = [], []
    for changes in ({}, {"old_logp": "engine"}):
        trainer = make_trainer(copy.deepcopy(model), **changes)
        rows.append(trainer.step(0))
        found.append(gradients(trainer.policy.model))
    assert_close(found[1], found[0], relative=1e-4)
    assert rows[1]["engine_logp_difference"] < 1e-5
    assert "engine_logp_difference" not in rows[0]


def checkpoints(folder):
    return Checkpoints(folder, Ranks(), made_from={}, made_by={}, kept=1)


@pytest.mark.parametrize("name", ["grpo", "adaptive_entropy", "score_centering", "reference_kl"])
def test_a_resumed_run_is_bitwise_the_same(make_trainer, model, tmp_path, name):
    """Its queue is in the checkpoint: the policies that sampled it are gone."""
    changes = {"steps": 7, "staleness": 3, "learning_rate": 1e-2, "checkpoint_every": 2}

    def trainer():
        return make_trainer(copy.deepcopy(model), name, **changes)

    straight = trainer()
    expected = straight.run("straight", checkpoints(tmp_path / "a"), lambda *_: None)
    stopped = trainer()
    reference.interrupt(stopped, before=5)
    with pytest.raises(KeyboardInterrupt):
        stopped.run("stopped", checkpoints(tmp_path / "b"), lambda *_: None)
    [record] = (tmp_path / "b").rglob("step4/checkpoint.json")
    assert json.loads(record.read_text())["ahead"]
    resumed = trainer()
    seen = []
    rows = resumed.run("resumed", checkpoints(tmp_path / "b"), lambda number, _: seen.append(number))
    assert seen == [4, 5, 6]
    for one, other in zip(rows, expected, strict=True):
        whole = reference.timeless(other)
        assert reference.timeless(one) == pytest.approx(whole, rel=0, abs=0, nan_ok=True)
    assert torch.equal(parameters(resumed.policy.model), parameters(straight.policy.model))


def test_the_checkpoint_of_a_step_that_fails_has_its_batch(make_trainer, model, tmp_path):
    changes = {"steps": 5, "staleness": 2, "learning_rate": 1e-2, "checkpoint_every": 1}
    expected = make_trainer(copy.deepcopy(model), **changes)
    expected.run("straight", checkpoints(tmp_path / "a"), lambda *_: None)
    failing = make_trainer(copy.deepcopy(model), **changes)
    rewards = failing.rewards
    failing.rewards = lambda grades, step: [math.nan] * len(grades) if step == 3 else rewards(grades, step)
    with pytest.raises(NotFiniteError, match="step 3"):
        failing.run("failing", checkpoints(tmp_path / "b"), lambda *_: None)
    resumed = make_trainer(copy.deepcopy(model), **changes)
    resumed.run("resumed", checkpoints(tmp_path / "b"), lambda *_: None)
    assert torch.equal(parameters(resumed.policy.model), parameters(expected.policy.model))


def test_random_rewards_are_half_ones_and_belong_to_the_step(make_trainer, model):
    rewards = []
    for _ in range(2):
        trainer = make_trainer(copy.deepcopy(model), reward="random", group_size=6)
        drawn = [trainer.rewards([None] * 1000, step) for step in range(3)]
        rewards.append(drawn)
    assert rewards[0] == rewards[1]
    assert len({tuple(of_step) for of_step in rewards[0]}) == 3
    assert all(sum(of_step) == pytest.approx(500, abs=80) for of_step in rewards[0])  # five standard deviations
    assert {value for of_step in rewards[0] for value in of_step} == {0.0, 1.0}


@pytest.mark.parametrize(
    ("settings", "weight"),
    [
        ({"params": {"clip_low": 1.0, "clip_high": math.inf, "dual_clip": math.inf}}, lambda r: r),  # PPO's ratio
        # PPO's ratio is then to the trainer's own policy, 1, and the weight, cut at 1.05, corrects for p'.
        ({"importance_truncation": 1.05}, lambda r: r.clamp_max(1.05)),
        ({"importance_masking": 1.05}, lambda r: r * (r <= 1.05)),
    ],
)
def test_the_gradient_on_stale_rollouts_is_weighted_by_the_ratio_to_the_policy_that_sampled(
    make_trainer, model, settings, weight
):
    """One update, against autograd: the gradient of -A sg[weight(p / p')] log p."""
    trainer = make_trainer(model, steps=2, staleness=1, learning_rate=3e-2, **settings)
    before = copy.deepcopy(model)
    trainer.step(0)
    now = copy.deepcopy(model)
    row = trainer.step(1)
    prompts, rollouts = trainer.prompts_of_step(1), sampled_by(before, trainer, 1)
    loss, ratios = 0.0, []
    both = (log_probabilities(each, prompts, rollouts) for each in (now, before))
    for advantage, rollout, *of_both in zip(slow_advantages(rollouts, 6), rollouts, *both, strict=True):
        ours, theirs = (each.gather(-1, torch.tensor(rollout.token_ids)[:, None]) for each in of_both)
        ratios.append((ours - theirs).detach().exp())
        loss = loss - (advantage * weight(ratios[-1]) * ours).sum()
    ratios = torch.cat(ratios)
    assert 0.05 < (ratios > 1.05).double().mean() < 0.95
    now.zero_grad()
    (loss / len(ratios)).backward()
    assert_close(gradients(trainer.policy.model), gradients(now), relative=1e-4)
    assert row["engine_logp_difference"] == pytest.approx(ratios.log().abs().mean().item(), rel=1e-3)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("old_logp=engine,training.importance_masking=2.0", "old_logp should be trainer with an importance weight"),
        (
            "importance_truncation=2.0,training.importance_masking=2.0",
            "importance_truncation or importance_masking should be null",
        ),
    ],
)
def test_two_corrections_at_once_are_refused(settings, message):
    with mistake(message):
        load_config("laptop", "qwen2.5-7b-instruct", f"grpo@training.staleness=2,training.{settings},hardware.ranks=1")
