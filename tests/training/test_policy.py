"""The policy as training sees it: statistics and gradients against one sequence at a time."""

import copy
import dataclasses
import itertools
from collections import Counter
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import ARCHITECTURES
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.models.storage import save_policy
from entropy_dynamics.sampling import Prompt, Rollout
from entropy_dynamics.training import batch as batch_module
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.modules import load_trained_policy, prepare_blocks
from entropy_dynamics.training.policy import Policy
from reference import assert_close, batch_of, gradients, training_config


def written(prompts: dict[str, list[int]], responses: dict[str, list[list[int]]]) -> RolloutBatch:
    rollouts = [Rollout(name, 0, ids, "stop") for name, of in responses.items() for ids in of]
    return RolloutBatch.collate([Prompt(name, ids) for name, ids in prompts.items()], rollouts)


def test_a_misspelt_option_of_the_second_pass_is_refused(model):
    batch = written({"a": [5]}, {"a": [[1, 2]]})
    with pytest.raises(TypeError, match="minp"):
        Policy(model).stats(batch, torch.arange(1), 1.0, minp=0.1)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_prompts_that_run_once_get_the_gradient_of_all_their_responses(make_model, architecture):
    responses = {"a": [[1, 2, 3, 4], [4]], "b": [[2, 2], [3, 5, 6, 7, 8]], "c": [[6]]}
    batch = written({"a": [5, 6, 7], "b": [8], "c": [9, 10]}, responses)
    for rows in ([3, 1, 4, 0, 2], [4, 1], [2]):  # also of one token each, and one alone
        found = []
        for share_prompts in (True, False):
            model = make_model(architecture, layers=2)
            stats = Policy(model, share=share_prompts).stats(batch, torch.tensor(rows), 1.0, entropy_gradient=True)
            (stats.logp * torch.arange(1, len(rows) + 1)[:, None] + stats.entropy).sum().backward()
            found.append((stats.logp.detach(), gradients(model)))
        for got, expected in zip(*found, strict=True):
            assert_close(got, expected)


@pytest.mark.parametrize("share_prompts", [True, False])
def test_copies_run_once_and_get_the_gradient_of_all(make_model, share_prompts):
    responses = {"a": [[1, 2], [1, 2], [1, 2, 0]], "b": [[2, 2, 3], [1, 2], [2, 2, 3], [2, 2, 3]]}
    batch = written({"a": [5, 6, 7], "b": [8]}, responses)  # padding, 0, also ends the third
    rows, found, run = torch.tensor([6, 1, 2, 4, 5, 0]), [], []
    for each in (batch, dataclasses.replace(batch, copy_of=torch.arange(len(batch)))):
        model = make_model(layers=2)
        policy = Policy(model, share=share_prompts)
        policy.register_forward_hook(lambda module, inputs, output: run.append(len(inputs[1])))
        stats = policy.stats(each, rows, 1.0, entropy_gradient=True)
        (stats.logp * torch.arange(1, len(rows) + 1)[:, None] + stats.entropy).sum().backward()
        found.append((stats.logp.detach(), stats.s_expected, gradients(model)))
    assert run == [4, 6]
    for got, expected in zip(*found, strict=True):
        assert_close(got, expected)


@pytest.mark.parametrize(("precision", "dtype"), [("bfloat16", torch.bfloat16), (None, None)])
def test_the_precision_of_the_head_is_that_of_the_config(shared_model, tokenizer, tmp_path, precision, dtype):
    save_policy(shared_model, tokenizer, tmp_path)
    policy = load_trained_policy(tmp_path, training_config(head_precision=precision), Ranks())
    assert policy.head_dtype == dtype


def test_a_head_in_bf16_rounds_hidden_states_and_weights(make_model, make_trainer):
    model = make_model("qwen2", layers=2)
    batch = batch_of(make_trainer(model))
    rows = torch.arange(len(batch))
    stats = Policy(model, torch.bfloat16).stats(batch, rows, 1.0)
    hidden = model.model(batch.sequences).last_hidden_state.bfloat16().double()
    logits = hidden @ model.lm_head.weight.bfloat16().double().T
    row, place = batch.mask.nonzero(as_tuple=True)
    position = batch.prompt_lengths[row] + place
    expected = logits[row, position - 1].log_softmax(-1).gather(-1, batch.sequences[row, position][:, None]).squeeze(-1)
    exact = Policy(model).stats(batch, rows, 1.0).logp[batch.mask].double()
    rounding = (stats.logp[batch.mask].double() - expected).abs().max()  # products are bf16 too
    assert 0 < rounding < 0.1
    assert 1e-5 < (expected - exact).abs().max() < 0.1
    assert (stats.logp[batch.mask].double() - exact).abs().max() > 1e-5
    stats.logp.sum().backward()
    assert model.lm_head.weight.grad.dtype == torch.float32


# ---------------------------------------------------------------- recomputed and compiled blocks
class Operators(TorchDispatchMode):
    """Counts the operators that are executed."""

    supports_higher_order_operators = True  # for compiled blocks

    def __init__(self):
        super().__init__()
        self.count = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        self.count[operator] += 1
        return operator(*args, **(kwargs or {}))


@pytest.fixture
def trained(make_model, make_trainer):
    """`trained(architecture, **settings)`: gradients of all parameters, and the operators of the backward pass."""

    def backward(architecture: str = "qwen2", **settings) -> tuple[torch.Tensor, Counter]:
        policy = Policy(make_model(architecture, layers=2), share=False)
        batch = batch_of(make_trainer(copy.deepcopy(policy.model)))
        prepare_blocks(policy.model.model.layers, training_config(**settings))
        for rows in batch.micro_batches(200):
            with torch.no_grad():
                policy.stats(batch, rows, 1.0)
            loss = policy.stats(batch, rows, 1.0).logp.sum()
            with Operators() as operators:
                loss.backward()
        return gradients(policy.model), operators.count

    return backward


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_recomputation_changes_no_gradient(trained, architecture):
    expected, plain = trained(architecture)
    gradient, operators = trained(architecture, activation_checkpointing="full")
    assert torch.equal(gradient, expected)
    aten = torch.ops.aten
    products = (aten.mm.default, aten.addmm.default, aten._scaled_dot_product_flash_attention_for_cpu.default)
    repeated = sum(operators[operator] - plain[operator] for operator in products)
    assert repeated == 2 * 8 - 2  # seven products and attention, but the last


@pytest.mark.parametrize("kind", ["none", "full"])
def test_compiled_blocks_give_the_same_gradient(trained, monkeypatch, kind):
    """With one graph for all blocks, and one without gradients; traced, but not compiled to machine code here."""
    torch._dynamo.reset()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager", fullgraph=True))
    graphs = torch._dynamo.utils.counters["stats"]
    graphs.clear()
    gradient, _ = trained(activation_checkpointing=kind, compile=True)
    assert_close(gradient, trained()[0])
    assert graphs["unique_graphs"] == 2


# ---------------------------------------------------------------- batches, and how they are cut
def test_hand_worked_collation(monkeypatch):
    prompts = [Prompt("b", [7, 8, 9]), Prompt("a", [5])]
    rollouts = [Rollout("b", 0, [1, 2], "stop"), Rollout("a", 0, [3], "length"), Rollout("b", 1, [4, 4, 4], "stop")]
    batch = RolloutBatch.collate(prompts, rollouts)
    assert batch.sequences.tolist() == [[7, 8, 9, 1, 2, 0], [5, 3, 0, 0, 0, 0], [7, 8, 9, 4, 4, 4]]
    assert batch.prompt_lengths.tolist() == [3, 1, 3]
    assert batch.response_lengths.tolist() == [2, 1, 3]
    assert batch.lengths.tolist() == [5, 2, 6]
    assert batch.groups.tolist() == [0, 1, 0]
    assert batch.mask.tolist() == [[True, True, False], [True, False, False], [True, True, True]]
    assert batch.copy_of.tolist() == [0, 1, 2]
    assert batch.is_sampled(torch.tensor([2, 0])) is None
    every = dataclasses.replace(batch, top=torch.arange(10).expand(3, 3, 10))
    assert every.is_sampled(torch.tensor([2, 0])).int().argmax(-1).tolist() == [[4, 4, 4], [1, 2, 0]]
    monkeypatch.setattr(batch_module, "PADDING", 1)
    assert [rows.tolist() for rows in batch.micro_batches(12)] == [[2, 0], [1]]
    assert [rows.tolist() for rows in batch.micro_batches(11)] == [[2], [0, 1]]
    assert [rows.tolist() for rows in batch.micro_batches(1)] == [[2], [0], [1]]
    assert [rows.tolist() for rows in batch.micro_batches(100, torch.tensor([1, 2]))] == [[2, 1]]
    assert [rows.tolist() for rows in batch.subtrees(8)] == [[1, 0], [2]]  # 2 + 5 prefixes, and 6
    assert [rows.tolist() for rows in batch.subtrees(10)] == [[1, 0, 2]]  # the prompt [7, 8, 9] counts once
    assert [rows.tolist() for rows in batch.subtrees(1, torch.tensor([2, 0]))] == [[0], [2]]
    assert batch.subtrees(9, torch.arange(0)) == []


def test_hand_worked_micro_batches_of_copies_and_with_little_padding(monkeypatch):
    responses = {"a": [[1, 2, 3], [1], [1, 2, 3], [2]], "b": [[1, 2, 3], [1, 2, 4], [1, 2, 3]]}
    batch = written({"a": [5], "b": [5]}, responses)
    assert batch.copy_of.tolist() == [0, 1, 0, 3, 4, 5, 4]

    def cut(tokens, padding, **options):
        monkeypatch.setattr(batch_module, "PADDING", padding)
        return [rows.tolist() for rows in batch.micro_batches(tokens, **options)]

    assert cut(20, 1) == [[0, 2, 4, 6, 5, 1, 3]]  # five different rows of four tokens
    assert cut(19, 1) == [[0, 2, 4, 6, 5, 1], [3]]
    assert cut(8, 1) == [[0, 2, 4, 6], [5, 1], [3]]
    assert cut(20, 3 / 20) == [[0, 2, 4, 6, 5], [1, 3]]  # the two short rows would be padded by four tokens
    assert cut(20, 4 / 20) == [[0, 2, 4, 6, 5, 1, 3]]
    assert cut(16, 1, rows=torch.tensor([1, 2, 0, 3]), ranks=2) == [[2, 0], [1, 3]]


@pytest.mark.parametrize("tokens", [1, 100, 10_000])
def test_micro_batches_cover_all_rows_once_within_the_limit(shared_model, make_trainer, tokens):
    batch = batch_of(make_trainer(shared_model))
    rows = torch.tensor([0, 2, 3, 5, 7, 11, 13, 17, 19])
    for chosen, kind in itertools.product((None, rows), ("micro_batches", "subtrees")):
        cuts = getattr(batch, kind)(tokens, chosen)
        assert sorted(torch.cat(cuts).tolist()) == (list(range(len(batch))) if chosen is None else rows.tolist())
        for cut in cuts:
            ends = [(row, end) for row in cut.tolist() for end in range(1, int(batch.lengths[row]) + 1)]
            prefixes = {tuple(batch.sequences[row, :end].tolist()) for row, end in ends}
            size = len(prefixes) if kind == "subtrees" else len(cut) * int(batch.lengths[cut].max())
            assert len(cut) == 1 or size <= tokens
