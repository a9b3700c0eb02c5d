"""Metrics of a training step against their definitions, and invariants of runs of several steps."""

import copy
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from entropy_dynamics.analysis.columns import KEPT, PARTS
from entropy_dynamics.core.groups import Grouping
from entropy_dynamics.core.metrics import entropy_metrics
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import NotFiniteError, UserError
from entropy_dynamics.models.storage import load_policy
from entropy_dynamics.stages.train import save_failure
from entropy_dynamics.training.checkpoints import Checkpoints
from entropy_dynamics.training.optimizer import steps_taken
from entropy_dynamics.training.trainer import PHASES, _Clock, engine_agreement
from reference import even_sum, graded, parameters, rollouts_of, run, slow_advantages, slow_stats

COLUMNS = {
    *("step", "entropy", "reward_mean", "accuracy", "response_length", "truncated", "tokens", "grad_norm"),
    *("clip_fraction", "clip_fraction_neg", "s_star_mean", "s_centered_mean", "zero_variance_groups"),
    *("neg_cov", "neg_cov_positive", "neg_cov_negative", "predicted_entropy_change", "entropy_change"),
    *("s_centered_std", "s_centered_positive_top", "s_centered_after", "s_centered_reweighted"),
    *("entropy_change_adam_no_momentum", "entropy_change_first_order", "entropy_change_sgd", "s_star_std"),
    *("validation_accuracy", "validation_pass", *PARTS, *KEPT),
    *("seconds_sample", "seconds_score", "seconds_update", "seconds_training", "seconds_grade", "seconds_measure"),
    *("seconds_push", "seconds_validate"),
}


# ---------------------------------------------------------------- metrics
def test_the_columns_of_the_metrics(model, make_trainer):
    every = {"validation_every": 2, "entropy_change_every": 3}
    validation = {"validation_accuracy": 0.25, "validation_pass": 0.5}
    rows = run(make_trainer(model, steps=3, **every, validate=lambda: validation))
    assert [row["step"] for row in rows] == [0, 1, 2]
    assert all(set(row) == COLUMNS for row in rows)
    assert all(isinstance(value, float | int) for row in rows for value in row.values())
    assert [row["validation_accuracy"] for row in rows] == [0.25, pytest.approx(math.nan, nan_ok=True), 0.25]
    assert [math.isnan(row["entropy_change"]) for row in rows] == [False, True, True]
    assert all(row[f"seconds_{phase}"] > 0 for row in rows for phase in ("sample", "score", "update"))


def test_what_a_step_costs(monkeypatch):
    """Processor time on a CPU, of all phases but validation and measurements; the clocks are set by hand."""
    wall, processor = [0.0], [0.0]
    monkeypatch.setattr("entropy_dynamics.training.trainer.time.perf_counter", lambda: wall[0])
    monkeypatch.setattr("entropy_dynamics.training.trainer.time.process_time", lambda: processor[0])
    for device, cost in (("cpu", 2.0), ("cuda", 30.0)):
        clock = _Clock(torch.device(device))
        for phase in PHASES:
            with clock(phase):
                wall[0], processor[0] = wall[0] + 6, processor[0] + 0.4
        assert clock.seconds == pytest.approx(
            {f"seconds_{phase}": 6.0 for phase in PHASES} | {"seconds_training": cost}
        )


def test_the_metrics_of_a_step_by_their_definitions(shared_model, make_trainer):
    model = copy.deepcopy(shared_model)
    trainer = make_trainer(model, "clip_b", params={"mu": 0.7}, learning_rate=2e-3)
    prompts, rollouts = rollouts_of(trainer)
    with torch.no_grad():
        stats = list(slow_stats(shared_model, prompts, rollouts))
    row = trainer.step(0)
    with torch.no_grad():
        changed = list(slow_stats(model, prompts, rollouts))
    after = {name: torch.cat([one[name] for one in changed]).numpy() for name in changed[0]}

    flat = {name: torch.cat([one[name] for one in stats]).numpy() for name in stats[0]}
    lengths = [len(rollout.token_ids) for rollout in rollouts]
    advantage = np.repeat(slow_advantages(rollouts, 6), lengths)
    centered = flat["s_star"] - flat["s_expected"]
    low = flat["s_star"] < flat["s_star"].mean() - 0.7 * flat["s_star"].std()
    dropped = low & (advantage < 0)
    kept = advantage * ~dropped
    terms = -(advantage - advantage.mean()) * (centered - centered.mean())
    centered_after = after["s_star"] - after["s_expected"]
    top = flat["entropy"] >= np.sort(flat["entropy"])[-math.ceil(len(centered) / 5)]
    rewards = np.array([float(even_sum(rollout).correct) for rollout in rollouts])
    expected = {
        "step": 0,
        "entropy": flat["entropy"].mean(),
        "reward_mean": rewards.mean(),
        "accuracy": rewards.mean(),
        "response_length": np.mean(lengths),
        "truncated": np.mean([rollout.finish_reason == "length" for rollout in rollouts]),
        "clip_fraction": dropped.mean(),
        "clip_fraction_neg": dropped.sum() / (advantage < 0).sum(),
        "s_star_mean": flat["s_star"].mean(),
        "s_star_std": flat["s_star"].std(),
        "s_centered_mean": centered.mean(),
        "s_centered_std": centered.std(),
        "s_centered_positive_top": (centered[top] > 0).mean(),
        "s_centered_after": centered_after.mean(),
        "s_centered_reweighted": (np.exp(after["logp"] - flat["logp"]) * centered_after).mean(),
        "neg_cov": -(np.mean(advantage * centered) - advantage.mean() * centered.mean()),
        "neg_cov_positive": terms[terms > 0].sum() / len(terms),
        "neg_cov_negative": terms[terms < 0].sum() / len(terms),
        "zero_variance_groups": np.mean([group.std() == 0 for group in rewards.reshape(-1, 6)]),
        "predicted_entropy_change": -2e-3 * (np.mean(kept * centered) - kept.mean() * centered.mean()),
        "entropy_change": after["entropy"].mean() - flat["entropy"].mean(),
        "tokens": len(centered),
    }
    assert 0 < expected["clip_fraction"] < 1
    assert 0 < expected["truncated"] < 1
    assert abs(expected["entropy_change"]) > 1e-4
    assert 0 < expected["s_centered_positive_top"] < 1
    assert abs(expected["s_centered_reweighted"] - expected["s_centered_after"]) > 1e-5
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, rel=1e-4, abs=2e-7), name


def test_corollary_2_and_the_law_of_sampling_for_the_tokens_that_the_sampler_draws(shared_model, make_trainer):
    """Nothing moves: over 40 batches the mean of S_c is zero up to its error, and that of S* is not."""
    trainer = make_trainer(copy.deepcopy(shared_model), learning_rate=1e-12, weight_decay=0.0, steps=40)
    rows = run(trainer)
    columns = ("tokens", "s_centered_mean", "s_centered_std", "s_star_mean", "s_star_std")
    tokens, centered, spread, star, star_spread = (np.array([row[name] for row in rows]) for name in columns)
    error = np.sqrt((tokens * spread**2).sum())
    assert abs((tokens * centered).sum() / error) < 4
    assert (tokens * star).sum() / np.sqrt((tokens * star_spread**2).sum()) > 20
    scores = centered / spread * np.sqrt(tokens)
    assert np.sqrt((scores**2).mean()) == pytest.approx(1, abs=0.4)  # 3.5 standard errors


def test_tokens_at_zero_are_on_neither_side():
    """A = 0 is no negative sample, and S_c = 0 is not above 0; one token alone is the fifth of highest entropy."""
    zero, advantages, weights = torch.zeros(1, 4), torch.tensor([[0.0, -1.0, 1.0, 0.0]]), torch.tensor([[0.0, 0, 1, 1]])
    stats = TokenStats(logp=zero, entropy=torch.tensor([[0.1, 0.2, 0.3, 0.4]]), s_star=zero, s_expected=zero)
    row = entropy_metrics(stats, advantages, weights, torch.ones(1, 4, dtype=torch.bool), 0.1)
    assert (row["clip_fraction"], row["clip_fraction_neg"], row["s_centered_positive_top"]) == (0.5, 1.0, 0.0)


def test_entropy_metrics_see_response_tokens_only():
    generator = torch.Generator().manual_seed(0)
    columns = [torch.rand(3, 8, generator=generator) for _ in range(4)]
    advantages, weights = torch.randn(3, 8, generator=generator), torch.ones(3, 8)
    mask = torch.arange(8) < torch.tensor([[3], [8], [5]])
    weights[1, ::2] = 0
    expected = entropy_metrics(TokenStats(*columns), advantages, weights * mask, mask, 0.1)
    garbage = [torch.where(mask, column, 1e9) for column in columns]
    assert entropy_metrics(TokenStats(*garbage), advantages, weights * mask, mask, 0.1) == expected
    assert expected["tokens"] == 16
    assert expected["clip_fraction"] == 4 / 16
    assert expected["neg_cov"] == pytest.approx(expected["neg_cov_positive"] + expected["neg_cov_negative"])


def test_hand_worked_constant_groups():
    rewards = torch.tensor([-0.1, -0.1, 1.0, 0.0, 1.0, 1.0])
    assert Grouping.by(torch.tensor([0, 0, 1, 1, 2, 2])).constant(rewards).tolist() == [True, False, True]
    assert Grouping.by(torch.tensor([7, 3, 7, 3, 3, 7])).constant(rewards).tolist() == [False, False]


# ---------------------------------------------------------------- runs
def test_the_reward_is_the_configured_one(shared_model, make_trainer):
    """The paper's reward gives a truncated wrong answer -1 and any other wrong one -0.1, the binary one 0."""
    means = {}
    for reward in ("paper", "binary"):
        trainer = make_trainer(copy.deepcopy(shared_model), reward=reward)
        grades = [even_sum(rollout) for rollout in rollouts_of(trainer)[1]]
        means[reward] = trainer.step(0)["reward_mean"]
    paper = [1.0 if one.correct else -1.0 if one.truncated else -0.1 for one in grades]
    assert means["paper"] == pytest.approx(np.mean(paper), abs=1e-6)
    assert means["binary"] == pytest.approx(np.mean([one.correct for one in grades]))


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_training_and_leaves_the_model(model, make_trainer, broken):
    trainer = make_trainer(model, steps=9, learning_rate=1e-3)
    start = parameters(model)
    run(trainer, steps=2)
    before = parameters(model)
    assert not torch.equal(before, start)
    trainer.reward = lambda grade: broken if grade.correct else 0.0
    with pytest.raises(UserError, match=r"^step 2: the loss is nan"):
        trainer.step(2)
    assert torch.equal(parameters(model), before)


def test_weights_that_are_not_finite_are_not_blamed_on_the_engine(model, make_trainer):
    trainer = make_trainer(model)
    sample = trainer.sampler.sample

    def then_broken(*arguments, **settings):
        rollouts = sample(*arguments, **settings)
        model.lm_head.weight.data.fill_(math.nan)
        return [replace(one, logp=[-1.0] * len(one.token_ids)) for one in rollouts]

    trainer.sampler.sample = then_broken
    with pytest.raises(NotFiniteError, match=r"^step 0: log p of (\d+) of \1 tokens is not finite"):
        trainer.step(0)


def break_after(trainer, steps):
    """The gradient is infinite once so many optimizer steps have been taken."""
    head, optimizer = trainer.policy.model.lm_head.weight, trainer.optimizer
    head.register_hook(lambda it: it * (math.inf if steps_taken(optimizer) == steps else 1))


@pytest.mark.parametrize("updates", [1, 2])
def test_what_broke_a_run_is_kept(tmp_path, model, make_trainer, tokenizer, updates):
    trainer = make_trainer(model, steps=9, learning_rate=1e-3, updates_per_batch=updates)
    trainer.step(0)
    taken = steps_taken(trainer.optimizer)
    assert taken == updates
    break_after(trainer, taken + updates - 1)  # in the last update of the next step
    with pytest.raises(NotFiniteError) as caught:
        trainer.step(1)
    assert steps_taken(trainer.optimizer) == taken + updates - 1
    save_failure(tmp_path / "failure", trainer, tokenizer, str(caught.value))
    kept, _ = load_policy(tmp_path / "failure" / "policy")
    assert all(torch.equal(one, other) for one, other in zip(kept.parameters(), model.parameters(), strict=True))
    batch = load_file(tmp_path / "failure" / "batch.safetensors")
    prompts = {prompt.problem_id: list(prompt.token_ids) for prompt in trainer.prompts_of_step(1)}
    rows = zip(batch["sequences"].tolist(), batch["prompt_lengths"].tolist(), strict=True)
    assert {tuple(row[:length]) for row, length in rows} == {tuple(ids) for ids in prompts.values()}
    assert len(batch["rewards"]) == len(batch["sequences"])
    record = json.loads((tmp_path / "failure" / "failure.json").read_text())
    assert record["steps_done"] == 1
    assert record["message"].startswith("step 1: the loss is")


@pytest.mark.parametrize(("update", "saved"), [(0, ["step1"]), (1, [])])
def test_a_checkpoint_is_never_of_half_a_step(model, make_trainer, tmp_path, update, saved):
    """Step 1 breaks in its first or its second update: after that the policy is no longer that of step 0."""
    trainer = make_trainer(model, steps=9, updates_per_batch=2, checkpoint_every=5)
    break_after(trainer, 2 + update)
    checkpoints = Checkpoints(tmp_path, Ranks(), made_from={}, made_by={}, kept=9)
    logged = []
    with pytest.raises(NotFiniteError):
        trainer.run("a run", checkpoints, lambda step, row: logged.append(step))
    assert [path.name for path in tmp_path.glob("*/*")] == saved
    assert logged == [0]


def test_it_learns_a_trivial_reward(model, make_trainer):
    """Half of the vocabulary is right as the first token."""
    size = {"steps": 20, "prompts_per_step": 6, "group_size": 8, "max_new": 3, "entropy_change_every": 0}

    def first_is_even(rollout):
        return graded(rollout.token_ids[0] % 2 == 0)

    trainer = make_trainer(model, "clip_b", grade=first_is_even, **size, learning_rate=5e-3, max_grad_norm=1.0)
    accuracy = [row["accuracy"] for row in run(trainer)]
    assert np.mean(accuracy[:2]) < 0.75
    assert np.mean(accuracy[-3:]) > 0.95


def test_weights_that_are_not_finite_are_named_and_no_step_is_taken(model, make_trainer, monkeypatch):
    trainer, before = make_trainer(model, "clip_b"), copy.deepcopy(model.state_dict())
    nan = lambda self, stats, advantages, mask, **_: torch.where(mask.bool(), math.nan, 0.0)  # noqa: E731
    monkeypatch.setattr(type(trainer.method), "token_weights", nan)
    with pytest.raises(NotFiniteError, match=r"^step 0: \d+ token weights of ClipB are not finite"):
        trainer.step(0)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_engine_and_trainer_agree_within_the_tolerance_or_training_stops():
    engine, trainer = torch.tensor([-1.0, -2.0, -0.5]), torch.tensor([-1.25, -1.75, -0.5])
    assert engine_agreement(engine, trainer, 0.2) == {
        "engine_logp_difference": pytest.approx(0.5 / 3),
        "engine_logp_difference_max": 0.25,
        "engine_kl": pytest.approx(0.0),
    }
    with pytest.raises(UserError, match=r"0\.167 nats on average and 0\.25 at most over 3 tokens, engine\.tolerance"):
        engine_agreement(engine, trainer, 0.1)
    with pytest.raises(UserError, match="nan"):
        engine_agreement(torch.tensor([float("nan")]), torch.tensor([-1.0]), 0.1)
