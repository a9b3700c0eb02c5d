"""One training step against the plain formulas: masks, gradients, PPO steps, order of prompts."""

import copy
from functools import partial

import numpy as np
import pytest
import torch

from conftest import DISTINCT_METHODS, ROOT
from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.methods import Method
from entropy_dynamics.training import policy as policy_module
from entropy_dynamics.training.update import PolicyUpdate
from reference import (
    SINGLE_FORWARD,
    assert_close,
    batch_of,
    even_sum,
    grade_alternately,
    gradients,
    parameters,
    rollouts_of,
    slow_advantages,
    slow_stats,
    timeless,
)


# ---------------------------------------------------------------- gradients
@pytest.mark.parametrize(
    ("method", "params", "kept"),
    [
        *((method, {}, 400) for method in ("kl_cov", "steer", "unlikeliness")),
        *(("clip_b", {"mu": 0.7}, kept) for kept in (0, 400, SINGLE_FORWARD)),
        ("clip_b", {"share": 0.1}, 0),
        ("clip_v", {"share": 0.1}, SINGLE_FORWARD),
    ],
)
def test_the_gradient_is_the_same_whichever_graphs_are_kept(shared_model, make_trainer, method, params, kept):
    """Against one micro-batch, all of whose graph is kept; some groups are constant."""
    found = []
    for settings in (
        {"single_forward_tokens": SINGLE_FORWARD, "tokens_per_micro_batch": 10_000},
        {"single_forward_tokens": kept, "tokens_per_micro_batch": 60},
    ):
        model = copy.deepcopy(shared_model)
        trainer = make_trainer(model, method, params=params, **settings)
        grade_alternately(trainer, 0, 1)
        row = trainer.step(0)
        assert row["zero_variance_groups"] == 0.5
        found.append((gradients(model), timeless(row)))
    assert_close(found[1][0], found[0][0])
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-5, abs=1e-7, nan_ok=True)


@pytest.mark.parametrize(
    ("method", "tokens", "changes", "expected"),
    [
        ("grpo", 0, {}, 0),  # fused: nothing of a token depends on the others
        ("advantage_reweighting", 0, {}, 1),  # the last micro-batch keeps its graph at no cost
        ("clip_b", 150, {}, None),  # some
        ("clip_b", SINGLE_FORWARD, {}, ...),  # all
        ("grpo", SINGLE_FORWARD, {}, 0),
        ("clip_b", SINGLE_FORWARD, {"updates_per_batch": 2}, 0),
    ],
)
def test_each_token_is_forwarded_once_but_where_its_graph_does_not_fit(
    shared_model, make_trainer, method, tokens, changes, expected
):
    model = copy.deepcopy(shared_model)
    settings = {"tokens_per_micro_batch": 40, "single_forward_tokens": tokens, "entropy_change_every": 0}
    trainer = make_trainer(model, method, **settings, **changes)
    grade_alternately(trainer)
    batch, calls, kept = batch_of(trainer), [], []
    cut = partial(batch.subtrees, 40)
    scoring, score = len(cut()), trainer.update.score
    updating = sum(len(cut(rows)) for rows in batch.mini_batches(trainer.config.updates_per_batch))
    trainer.update.score = lambda *arguments: kept.append(score(*arguments)) or kept[-1]
    trainer.policy.register_forward_hook(lambda *_: calls.append(1))
    trainer.step(0)
    graphs = len(kept[0].graphs) if kept else 0
    if expected is None:
        assert 1 < graphs < scoring
    else:
        assert graphs == (scoring if expected is ... else expected)
    assert len(calls) == (scoring if kept else 0) + updating - graphs


@pytest.mark.parametrize("share", [True, False])
def test_the_graphs_that_are_kept_have_at_most_the_tokens_allowed(shared_model, make_trainer, share):
    """Those that the model runs: without a shared prefix, every prompt and the padding count."""
    model, limit, runs = copy.deepcopy(shared_model), 200, []
    settings = {"tokens_per_micro_batch": 120, "single_forward_tokens": limit, "entropy_change_every": 0}
    trainer = make_trainer(model, "clip_b", **settings)
    grade_alternately(trainer)
    trainer.policy.share = share
    batch = batch_of(trainer)

    def note(module, arguments, inputs):
        runs.append((torch.is_grad_enabled(), inputs["input_ids"].numel()))

    model.model.register_forward_pre_hook(note, with_kwargs=True)
    scored = trainer.update.score(batch)
    kept = [tokens for graph, tokens in runs if graph]
    assert len(kept) == len(scored.graphs) > 1
    assert sum(kept) <= limit < sum(kept) + [tokens for graph, tokens in runs if not graph][-1]


def test_a_constant_group_is_forwarded_once_and_not_differentiated(shared_model, make_trainer):
    trainer = make_trainer(copy.deepcopy(shared_model), "clip_b", entropy_change_every=0)
    grade_alternately(trainer, 0, 1)
    rows = {True: 0, False: 0}

    def count(module, inputs, output):
        rows[torch.is_grad_enabled()] += len(inputs[1])

    trainer.policy.register_forward_hook(count)
    trainer.step(0)
    assert rows == {True: 12, False: 12}


def test_a_rule_of_ones_own_needs_no_flag(shared_model, make_trainer):
    """Shaped rewards, coefficients and divisors reach the loss, whether or not the graphs of a batch fit."""

    class Own(Method):
        def shape_rewards(self, rewards, groups, mean_logp):
            return rewards * (1 - mean_logp)

        def loss_coefficients(self, stats, advantages, mask):
            return stats.entropy

        def token_loss(self, logp, logp_old, advantages, mask, *, coefficients=None, **_):
            return -coefficients * advantages * logp

        def divisors(self, weights, mask, groups):
            return 2 * weights.sum(-1, keepdim=True)

    prompts, rollouts = rollouts_of(make_trainer(shared_model))
    reference = copy.deepcopy(shared_model)
    stats = list(slow_stats(reference, prompts, rollouts))
    rewards = [float(even_sum(rollout).correct) for rollout in rollouts]
    shaped = torch.tensor([r * (1 - one["logp"].mean().item()) for r, one in zip(rewards, stats, strict=True)])
    grouped = shaped.view(-1, 6)
    advantages = ((grouped - grouped.mean(1, keepdim=True)) / (grouped.std(1, keepdim=True) + 1e-6)).flatten()
    for one, advantage in zip(stats, advantages.tolist(), strict=True):
        (-(one["entropy"].detach() * advantage * one["logp"]).sum() / (2 * len(one["logp"]))).backward()
    for kept in (0, SINGLE_FORWARD):
        model = copy.deepcopy(shared_model)
        trainer = make_trainer(model, single_forward_tokens=kept, tokens_per_micro_batch=60)
        trainer.method = trainer.update.method = Own()
        trainer.step(0)
        assert_close(gradients(model), gradients(reference), relative=1e-4)


@pytest.mark.parametrize(
    ("method", "mu", "scope"),
    [
        ("grpo", None, "per_group"),
        ("grpo", None, "per_sequence"),
        ("clip_b", 0.7, "global_token"),
        ("clip_b", 0.7, "per_group"),
        ("clip_b_paper", 0.7, "global_token"),
        ("clip_v", 0.7, "global_token"),
        ("clip_v_paper", 0.7, "per_sequence"),
    ],
)
def test_the_gradient_written_out(shared_model, make_trainer, method, mu, scope):
    """Strictly on-policy the gradient is that of -sum w A log p / N, with masks by the definitions of the methods."""
    model = copy.deepcopy(shared_model)
    params = {} if mu is None else {"mu": mu} | ({"max_frac": 0.9} if method == "clip_v" else {})
    trainer = make_trainer(model, method, params=params | {"loss_scope": scope})
    prompts, rollouts = rollouts_of(trainer)
    advantages = slow_advantages(rollouts, group_size=6)
    assert (advantages > 0).any()
    assert (advantages < 0).any()

    reference = copy.deepcopy(shared_model)
    stats = list(slow_stats(reference, prompts, rollouts))
    score = [(one["s_star"] - (one["s_expected"] if "_v" in method else 0)).detach() for one in stats]
    everything = torch.cat(score)
    center = 0.0 if "_v" in method else everything.mean()
    sigma = everything.std(correction=0)
    names = [prompt.problem_id for prompt in prompts]
    groups = [names.index(r.problem_id) if scope != "per_sequence" else row for row, r in enumerate(rollouts)]
    terms, counts = (torch.zeros(max(groups) + 1, dtype=torch.float64) for _ in range(2))
    dropped = 0
    for one, values, advantage, group in zip(stats, score, advantages, groups, strict=True):
        weight = torch.ones_like(values)
        if mu is not None and advantage < 0:
            deviation = (values - center) / sigma
            weight[deviation < -mu] = 0
            if method.endswith("paper"):
                weight[deviation > mu] = 0
        if method == "clip_v" and advantage == 0:
            weight[values / sigma < -mu] = 0
        dropped += int((weight == 0).sum())
        terms[group] = terms[group] - (weight * advantage * one["logp"]).sum()
        counts[group] += weight.sum() if method in ("clip_b", "clip_v") else len(weight)
    assert (dropped > 0) == (mu is not None)
    loss = terms.sum() / counts.sum() if scope == "global_token" else (terms / counts).mean()
    loss.backward()

    metrics = trainer.step(0)
    assert metrics["clip_fraction"] == pytest.approx(dropped / len(everything))
    assert_close(gradients(model), gradients(reference), relative=1e-5)
    assert metrics["grad_norm"] == pytest.approx(gradients(reference).norm().item(), rel=1e-5)


def test_the_gradient_is_clipped_to_its_norm(shared_model, make_trainer):
    model = copy.deepcopy(shared_model)
    metrics = make_trainer(model, max_grad_norm=0.01).step(0)
    assert metrics["grad_norm"] > 0.02  # as it was before
    assert gradients(model).norm().item() == pytest.approx(0.01, rel=1e-3)


# ---------------------------------------------------------------- several updates per batch
def ppo_reference(model, trainer, updates, *, learning_rate, clip_low, clip_high, dual_clip, eps, max_grad_norm):
    """PPO written out: AdamW over shares of the prompts in their order; returns the ratios of every update."""
    prompts, rollouts = rollouts_of(trainer)
    advantages = slow_advantages(rollouts, trainer.config.group_size)
    with torch.no_grad():
        old = [one["logp"] for one in slow_stats(model, prompts, rollouts)]
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, (0.9, 0.999), eps, weight_decay=0.01)
    ratios = []
    for share in np.array_split(np.arange(len(prompts)), updates):
        names = {prompts[index].problem_id for index in share}
        chosen = [index for index, rollout in enumerate(rollouts) if rollout.problem_id in names]
        total, tokens, seen = 0.0, 0, []
        for index, one in zip(chosen, slow_stats(model, prompts, [rollouts[i] for i in chosen]), strict=True):
            ratio, advantage = (one["logp"] - old[index]).exp(), float(advantages[index])
            for r in ratio:
                value = min(r * advantage, r.clamp(1 - clip_low, 1 + clip_high) * advantage)
                if advantage < 0:
                    value = max(value, torch.tensor(dual_clip * advantage, dtype=torch.float64))
                total = total - value
            tokens += len(ratio)
            seen.append(ratio.detach())
        optimizer.zero_grad()
        (total / tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
        optimizer.step()
        ratios.append(torch.cat(seen))
    return ratios


def test_several_updates_per_batch_are_ppo(shared_model, make_trainer):
    updates = 3
    size = {"updates_per_batch": updates, "group_size": 4}
    clipping = {"clip_low": 0.1, "clip_high": 0.15, "dual_clip": 1.3}
    optimizer = {"learning_rate": 0.01, "eps": 1e-3, "max_grad_norm": 1.0}
    model, reference = copy.deepcopy(shared_model), copy.deepcopy(shared_model)
    trainer = make_trainer(model, params=clipping, **size, **optimizer)
    twin = make_trainer(copy.deepcopy(shared_model), **size)
    ratios = ppo_reference(reference, twin, updates, **clipping, **optimizer)
    assert torch.allclose(ratios[0], torch.ones_like(ratios[0]), atol=1e-12)
    assert len(ratios) == updates
    assert (ratios[-1] < 0.9).any(), "clipping was not tried"
    assert (ratios[-1] > 1.3).any(), "the dual clip was not tried"
    trainer.step(0)
    moved = parameters(reference) - parameters(shared_model)
    assert_close(parameters(model) - parameters(shared_model), moved, relative=1e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"updates_per_batch": 5}, r"^training.prompts_per_step is 4; it should be at least updates_per_batch \(5\)"),
        ({"prompts_per_step": 13}, r"^training.prompts_per_step is 13; .* number of training problems left \(12\)"),
    ],
)
def test_more_updates_than_prompts_and_too_few_problems_are_refused(shared_model, make_trainer, changes, message):
    with pytest.raises(UserError, match=message):
        make_trainer(shared_model, **changes)


def test_a_batch_is_divided_into_just_as_many_updates(model, make_trainer):
    trainer = make_trainer(model, prompts_per_step=7, updates_per_batch=5, group_size=2)
    batch = batch_of(trainer)
    shares = batch.mini_batches(5)
    assert len(shares) == 5
    assert sorted(torch.cat(shares).tolist()) == list(range(14))
    for share in shares:  # groups stay whole
        assert len(share) == sum(int((batch.groups == group).sum()) for group in batch.groups[share].unique())


# ---------------------------------------------------------------- pushes, and the order of prompts
def test_weights_are_cast_before_they_are_gathered(shared_model, make_trainer, monkeypatch):
    """Half of the bytes travel for an engine in bf16."""
    gathered, pushed = [], {}
    monkeypatch.setattr(policy_module, "whole", lambda tensor: gathered.append(tensor.dtype) or tensor)
    trainer = make_trainer(shared_model)
    trainer.sampler.weights_dtype, trainer.sampler.push = torch.bfloat16, pushed.update
    trainer.push()
    assert set(gathered) == {torch.bfloat16}
    expected = dict(shared_model.named_parameters())
    assert pushed.keys() == expected.keys()
    assert all(torch.equal(pushed[name], expected[name].bfloat16()) for name in expected)


@pytest.mark.parametrize("count", [5, 12])
def test_an_epoch_has_no_repeats(shared_model, make_trainer, count):
    trainer = make_trainer(shared_model, prompts_per_step=count)
    per_epoch = 12 // count
    epochs = []
    for epoch in range(3):
        steps = [trainer.prompts_of_step(epoch * per_epoch + place) for place in range(per_epoch)]
        assert all(len(step) == count for step in steps)
        epochs.append([prompt.problem_id for step in steps for prompt in step])
        assert len(set(epochs[-1])) == len(epochs[-1]) == per_epoch * count
    assert epochs[0] != epochs[1] != epochs[2]
    again = make_trainer(shared_model, prompts_per_step=count)
    assert again.prompts_of_step(1) == trainer.prompts_of_step(1)
    other = make_trainer(shared_model, prompts_per_step=count, seed=1)
    assert [other.prompts_of_step(step) for step in range(3)] != [trainer.prompts_of_step(step) for step in range(3)]


# ---------------------------------------------------------------- rows without a gradient
CONFIGS = ROOT / "configs"
CONSTANT = 0, 2  # places of the prompts whose group has no reward variance


@pytest.fixture
def run(trainer_on, shared_model, monkeypatch):
    """`run(name, skipping)`: metrics, gradients of the last update and rows of backward passes in one step."""

    def one_step(name, *, skipping=True, **changes):
        model, settings = copy.deepcopy(shared_model), {"reward": "binary", "tokens_per_micro_batch": 50} | changes
        trainer = trainer_on(torch.device("cpu"), name, model, **settings)
        grade_alternately(trainer, *CONSTANT)
        rows = []
        trainer.policy.register_forward_hook(
            lambda module, inputs, output: rows.append(len(inputs[1])) if torch.is_grad_enabled() else None
        )
        with monkeypatch.context() as patched:
            if not skipping:
                patched.setattr(PolicyUpdate, "_by_gradient", lambda self, batch, rows, *_: (rows, rows[:0]))
            metrics = trainer.step(0)
        return metrics, gradients(model), sum(rows)

    return one_step


@pytest.mark.parametrize("name", DISTINCT_METHODS)
def test_the_update_is_the_same(run, name):
    metrics, gradient, rows = run(name)
    expected, whole, all_rows = run(name, skipping=False)
    assert metrics["zero_variance_groups"] == 0.5
    assert timeless(metrics) == pytest.approx(timeless(expected), rel=1e-5, abs=1e-7, nan_ok=True)
    if whole.any():
        assert_close(gradient, whole, relative=1e-5)  # the order of summation differs
    else:
        assert not gradient.any()
    assert all_rows == 24
    config = load_config("laptop", "qwen2.5-7b-instruct", name)
    if config.training.advantage == "gae" or name == "w_reinforce":  # groups of equal rewards have advantages too
        assert rows == 24
    elif config.method.build().acts_without_advantage:
        assert rows == (8 if name == "nsr_authors" else 18 if name == "psr_authors" else 24)  # rows with a weight
    elif name in ("psr", "rft"):  # correct responses of all groups
        assert rows == 18
    else:
        assert rows < 16  # half of them, and one in an update without any


def test_an_optimizer_step_without_gradients_is_still_taken(run):
    """One row is kept, so that momentum and weight decay still apply."""
    metrics, gradient, rows = run("grpo", prompts_per_step=1)
    assert (metrics["grad_norm"], rows) == (0.0, 1)
    assert not gradient.any()
