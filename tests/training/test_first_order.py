"""The first-order entropy change against forward-mode derivatives in float64, and where Corollary 4 is exact."""

import copy

import pytest
import torch
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

from conftest import ROOT
from entropy_dynamics.core.dynamics import batch_entropy_change
from entropy_dynamics.core.token_stats import token_stats
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.methods import load_method
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.first_order import COLUMNS, FirstOrderChange
from entropy_dynamics.training.optimizer import clip_and_step
from entropy_dynamics.training.update import PolicyUpdate
from reference import batch_of, log_probabilities, rollouts_of, slow_advantages, training_config

RATE = 2e-3


def directional_derivative(model, prompts, rollouts, direction: list[torch.Tensor]) -> float:
    """The derivative of the mean entropy of the rollouts' tokens, in float64 and by forward-mode differentiation."""
    model = copy.deepcopy(model).double()
    values = {name: parameter.detach() for name, parameter in model.named_parameters()}
    tangents = dict(zip(values, direction, strict=True))

    def entropy(parameters):
        def with_parameters(ids):
            return functional_call(model, parameters, (ids,))

        log_p = torch.cat(list(log_probabilities(with_parameters, prompts, rollouts)))
        return -(log_p.exp() * log_p).sum(-1).mean()

    with sdpa_kernel(SDPBackend.MATH):  # the fused ones have no forward mode
        return jvp(entropy, (values,), (tangents,))[1].item()


@pytest.fixture
def model(shared_model):
    """It samples the padding token, whose embedding is 0 at first (no norm is smooth there) and has no gradient."""
    model = copy.deepcopy(shared_model)
    embedding = model.get_input_embeddings()
    embedding.weight.data[embedding.padding_idx] = embedding.weight.data[-1].flip(0)
    embedding.padding_idx = None
    return model


def doubled(tensors) -> list[torch.Tensor]:
    return [tensor.detach().double().clone() for tensor in tensors]


def without_momentum(parameters, gradients, optimizer: torch.optim.AdamW) -> list[torch.Tensor]:
    """The step that torch's own AdamW takes with beta_1 = 0 from the state of `optimizer`."""
    (group,) = optimizer.param_groups
    moved = [torch.nn.Parameter(parameter.clone()) for parameter in parameters]
    settings = {name: group[name] for name in ("lr", "eps", "weight_decay")}
    other = torch.optim.AdamW(moved, betas=(0.0, group["betas"][1]), **settings)
    for parameter, gradient, source in zip(moved, gradients, group["params"], strict=True):
        parameter.grad = gradient.clone()
        if state := optimizer.state.get(source):
            mean, square = state["exp_avg"].double().clone(), state["exp_avg_sq"].double().clone()
            other.state[parameter] = {"step": state["step"].clone(), "exp_avg": mean, "exp_avg_sq": square}
    other.step()
    return [after.detach() - before for after, before in zip(moved, parameters, strict=True)]


@pytest.mark.parametrize(
    ("method", "max_grad_norm", "updates"), [("grpo", 0.05, 1), ("clip_b", 1e9, 1), ("grpo", 1e9, 2)]
)
def test_every_column_is_a_directional_derivative(model, make_trainer, method, max_grad_norm, updates):
    settings = {
        "learning_rate": RATE,
        "weight_decay": 0.1,
        "max_grad_norm": max_grad_norm,
        "updates_per_batch": updates,
    }
    trainer = make_trainer(model, method, entropy_change_first_order=True, tokens_per_micro_batch=80, **settings)
    trainer.step(0)  # momentum is then not the gradient
    prompts, rollouts = rollouts_of(trainer, 1)
    start, before = copy.deepcopy(model), doubled(model.parameters())
    steps, take = [], trainer.optimizer.step

    def record_and_take():
        here, gradients = doubled(model.parameters()), doubled(parameter.grad for parameter in model.parameters())
        plain = [-RATE * gradient for gradient in gradients]
        steps.append((plain, without_momentum(here, gradients, trainer.optimizer)))
        take()

    trainer.optimizer.step = record_and_take
    row = trainer.step(1)
    assert len(steps) == updates
    sums = [[sum(parts) for parts in zip(*directions, strict=True)] for directions in zip(*steps, strict=True)]
    taken = [after - parameter for after, parameter in zip(doubled(model.parameters()), before, strict=True)]
    for name, direction in zip(COLUMNS, (*sums, taken), strict=True):
        assert row[name] == pytest.approx(directional_derivative(start, prompts, rollouts, direction), rel=2e-4), name
    assert len({f"{row[name]:.3g}" for name in COLUMNS}) == 3


def test_what_is_left_of_the_realized_change_is_of_second_order(model, make_trainer):
    errors = []
    for rate in (4e-4, 2e-4, 1e-4):
        row = make_trainer(copy.deepcopy(model), entropy_change_first_order=True, learning_rate=rate).step(0)
        errors.append(row["entropy_change"] - row["entropy_change_first_order"])
    assert errors[0] / errors[1] == pytest.approx(4, rel=0.15)
    assert errors[1] / errors[2] == pytest.approx(4, rel=0.08)


class LogitTable(torch.nn.Module):
    """A policy whose parameters are the logits themselves, so that no two tokens share any."""

    share = False

    def __init__(self, rollouts: int, tokens: int, vocabulary: int):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.logits = torch.nn.Parameter(2 * torch.randn(rollouts, tokens, vocabulary, generator=generator))

    def stats(self, batch, rows, temperature, entropy_gradient=False):
        tokens = batch.sequences[rows, 1:]
        return token_stats(self.logits[rows], tokens, temperature=temperature, entropy_gradient=entropy_gradient)


def test_corollary_4_is_exact_where_tokens_share_no_parameters():
    """The loss is a mean over N tokens, so the step on the logits of each is of size rate / N."""
    rollouts, tokens, vocabulary, rate = 6, 5, 7, 0.3
    generator = torch.Generator().manual_seed(1)
    batch = RolloutBatch(
        sequences=torch.randint(vocabulary, (rollouts, tokens + 1), generator=generator),
        prompt_lengths=torch.ones(rollouts, dtype=torch.long),
        response_lengths=torch.full((rollouts,), tokens),
        groups=torch.arange(rollouts) // 3,
        mask=torch.ones(rollouts, tokens, dtype=torch.bool),
        copy_of=torch.arange(rollouts),
    )
    policy, config = LogitTable(rollouts, tokens, vocabulary), training_config(max_grad_norm=1e9, learning_rate=rate)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=rate)
    update = PolicyUpdate(config, policy, load_method("grpo"), 1.0, Ranks())
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])
    advantages = load_method("grpo").advantages(rewards, batch.groups)[:, None].expand(batch.mask.shape)
    first_order, rows = FirstOrderChange(update.entropy_gradient(batch), optimizer), torch.arange(rollouts)
    scored = update.score(batch, advantages)
    decision = update.decide(batch, rows, advantages, scored, None, generator)
    gradient = update.backward(batch, rows, advantages, scored, decision, first=True)
    clip_and_step(policy, optimizer, gradient.loss, config.optimizer, "here")
    first_order.add_update()
    expected = batch_entropy_change(advantages, scored.stats.s_centered, batch.mask, rate / (rollouts * tokens))
    assert abs(expected) > 1e-4
    assert first_order.metrics()["entropy_change_sgd"] == pytest.approx(float(expected), rel=1e-5)


def test_the_measurement_changes_nothing(model, make_trainer):
    rows = [
        make_trainer(copy.deepcopy(model), "clip_b", entropy_change_first_order=first_order).step(0)
        for first_order in (False, True)
    ]
    for name, value in rows[0].items():
        if name not in COLUMNS and not name.startswith("seconds_"):
            assert rows[1][name] == pytest.approx(value, rel=0, abs=0, nan_ok=True), name


def test_pairs_of_rollouts_add_up_to_the_sgd_step(model, make_trainer, monkeypatch):
    """Three ways to one number: per-rollout gradients, derivatives of every token's log p, and the trainer's own."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from shared_parameters import PARTS, Shared, measure

    trainer = make_trainer(model, entropy_change_first_order=True, learning_rate=RATE)
    measured, batch = measure(trainer, 0), batch_of(trainer)
    effects = Shared(model, batch, 1.0).of_tokens(trainer.update.entropy_gradient(batch))
    advantages = torch.tensor(slow_advantages(rollouts_of(trainer)[1], trainer.config.group_size))
    by_token = (advantages[:, None].expand(batch.mask.shape)[batch.mask] * effects).mean().item()
    row = trainer.step(0)
    assert measured["total"] == pytest.approx(sum(measured[name] for name in PARTS), rel=1e-6)
    assert measured["total"] == pytest.approx(by_token, rel=1e-3)
    assert RATE * measured["total"] == pytest.approx(row["entropy_change_sgd"], rel=1e-3)
    assert abs(measured["token_order"]) < 1


@pytest.mark.parametrize("name", ["grpo", "clip_b", "random_mask", "s_star_keep_neg_gt"])
def test_single_steps_of_a_mask_are_those_of_its_loss(model, make_trainer, monkeypatch, name):
    """Central differences along grad H against forward mode, and against grad H . grad of the method's own loss."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from shared_parameters import Shared
    from single_steps import along, single_steps

    trainer = make_trainer(model)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    method = load_method(name, **({"mu": 0.5} if name in ("clip_b", "random_mask") else {}))
    prompts, rollouts = rollouts_of(trainer)
    batch = RolloutBatch.collate(prompts, rollouts)
    update = PolicyUpdate(trainer.config, trainer.policy, method, 1.0, Ranks())
    gradient = update.entropy_gradient(batch)
    effects, _ = along(trainer, gradient, lambda: update.statistics(batch))
    exact = Shared(model, batch, 1.0).of_tokens(gradient)
    assert effects[batch.mask].numpy() == pytest.approx(exact.numpy(), rel=0.01, abs=0.01 * float(exact.abs().max()))

    [row] = single_steps(trainer, {name: method}, 0, gradient)
    rewards = torch.tensor([float(trainer.grade(rollout).correct) for rollout in rollouts])
    advantages = method.advantages(rewards, batch.groups)[:, None].expand(batch.mask.shape)
    scored, rows = update.score(batch, advantages), torch.arange(len(batch))
    decision = update.decide(batch, rows, advantages, scored, None, torch.Generator().manual_seed(0))
    update.backward(batch, rows, advantages, scored, decision, first=True)
    step = [parameter.grad for parameter in model.parameters()]
    expected = -sum(float((a * b).sum()) for a, b in zip(gradient, step, strict=True))
    assert abs(expected) > 1e-6
    assert row["realised"] == pytest.approx(expected, rel=0.01)
    assert row["held_out"] == pytest.approx(row["realised"])
    assert row["error"] < 0.01
    assert (row["dropped"] > 0) == (name != "grpo")
    for parameter, value in zip(model.parameters(), before, strict=True):
        assert parameter.equal(value)
