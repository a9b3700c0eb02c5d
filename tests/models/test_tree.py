"""Trees of prefixes: every prefix is one node, and no node sees a token outside its own prefix."""

import pytest
import torch

from conftest import ARCHITECTURES
from entropy_dynamics.models import tree as tree_module
from entropy_dynamics.models.tree import Tree, fits
from entropy_dynamics.training.modules import prepare_blocks
from entropy_dynamics.training.policy import Policy
from reference import assert_close, gradients, training_config

SEQUENCES = [[5, 6, 7], [5, 6], [5, 6, 8, 9], [4], [5, 6, 7], [4, 6, 7, 8]]


def padded(sequences: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [torch.tensor(ids) for ids in sequences]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), torch.tensor([len(ids) for ids in sequences])


def test_each_prefix_is_one_node_in_depth_first_order():
    tree = Tree.of(*padded(SEQUENCES))
    assert tree.tokens.tolist() == [4, 6, 7, 8, 5, 6, 7, 8, 9]
    assert tree.depths.tolist() == [0, 1, 2, 3, 0, 1, 2, 2, 3]
    nodes = [tree.nodes[row, : len(ids)].tolist() for row, ids in enumerate(SEQUENCES)]
    assert nodes == [[4, 5, 6], [4, 5], [4, 5, 7, 8], [0], [4, 5, 6], [0, 1, 2, 3]]


@pytest.mark.parametrize("size", [1, 2, 4, 100])
def test_a_node_attends_to_its_prefix_only(monkeypatch, size):
    monkeypatch.setattr(tree_module, "BLOCK", size)
    tree = Tree.of(*padded([*SEQUENCES, [5, 6, 8, 9, 9, 9]]))
    seen = {}
    for rows, keys, mask in tree.blocks():
        seen |= {node: keys[mask[place]].tolist() for place, node in enumerate(range(rows.start, rows.stop))}
    paths = [tree.distinct[tree.first[node], : tree.depths[node] + 1].tolist() for node in range(len(tree.tokens))]
    assert [sorted(seen[node]) for node in range(len(paths))] == paths


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_random_trees_give_states_and_gradients_of_plain_forward_passes(make_model, monkeypatch, architecture):
    monkeypatch.setattr(tree_module, "BLOCK", 5)
    model = make_model(architecture, layers=2, heads=4, kv_heads=2).double()
    for seed in range(4):
        draw = torch.Generator().manual_seed(seed)
        lengths = torch.randint(1, 9, (12,), generator=draw)
        sequences = torch.randint(4, 6, (12, 9), generator=draw)  # two tokens only, so that many prefixes are shared
        sequences[6:8], lengths[6:8] = sequences[:2], lengths[:2]  # copies
        found = []
        for of_tree in (True, False):
            model.zero_grad()
            if of_tree:
                tree = Tree.of(sequences, lengths)
                assert len(tree.tokens) < lengths[[0, 1, 2, 3, 4, 5, 8, 9, 10, 11]].sum()
                hidden = tree.hidden(model.model)
                states = [hidden[tree.nodes[row, :length]] for row, length in enumerate(lengths)]
            else:
                rows = [sequences[row : row + 1, :length] for row, length in enumerate(lengths)]
                states = [model.model(ids, use_cache=False).last_hidden_state[0] for ids in rows]
            sum((place + 1) * (state * state.roll(1, -1)).sum() for place, state in enumerate(states)).backward()
            found.append((torch.cat(states).detach(), gradients(model)))
        for got, expected in zip(*found, strict=True):
            assert_close(got, expected, relative=1e-6)  # norms compute in fp32


def test_a_parent_is_the_node_before():
    tree = Tree.of(*padded(SEQUENCES))
    below = torch.tensor([1, 2, 3, 5, 6, 7, 8])
    assert tree.parents(below).tolist() == [0, 1, 2, 4, 5, 5, 7]


def test_memory_is_of_the_size_of_the_padded_batch():
    """Not of the number of nodes times the length, which would be terabytes for a batch of long responses."""
    sequences = torch.arange(2, 2002).view(20, 100)
    tree = Tree.of(sequences, torch.full((20,), 100))
    assert sum(values.untyped_storage().nbytes() for values in vars(tree).values()) <= 8 * sequences.nbytes


def test_recomputed_activations_give_the_gradient_of_kept_ones(make_model, make_trainer):
    """Recomputation must see the tree, too: with plain causal attention the gradient would be another."""
    found = []
    for checkpointing in ("none", "full"):
        model = make_model(layers=2)
        prepare_blocks(model.model.layers, training_config(activation_checkpointing=checkpointing))
        trainer = make_trainer(model)
        assert trainer.policy.share
        row = trainer.step(0)  # with the native engine on the same blocks
        found.append((gradients(model), row["entropy"], row["tokens"]))
    assert torch.equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


def test_a_sliding_window_and_other_attention_run_without_trees(make_model):
    model = make_model()
    assert fits(model)
    model.config._attn_implementation = "eager"
    assert not fits(model)
    assert not Policy(model).share
    model.config._attn_implementation = "sdpa"
    model.config.layer_types = ["sliding_attention"]
    assert not fits(model)
