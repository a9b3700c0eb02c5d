"""Recomputed activations and compiled blocks: the same gradients, and whole blocks recomputed."""

import copy
from collections import Counter
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from conftest import ARCHITECTURES
from entropy_dynamics.training.modules import prepare_blocks
from entropy_dynamics.training.policy import Policy
from reference import assert_close, batch_of, gradients, training_config


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
