"""Sequences that begin alike, run once: a forward pass over the tree of their prefixes.

Rollouts of a prompt share it, prompts share a system message, and responses share their first tokens. Every distinct
prefix is one node, which attends to its own prefix only. The nodes are one flat sequence in depth-first order, so there
is no padding, and a model sees each of them once in a forward pass, as activation checkpointing requires.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

Block = tuple[slice, Int[Tensor, " key"], Bool[Tensor, "node key"]]
"""Consecutive nodes, the nodes to which at least one of them attends, and which attends to which."""
BLOCK = 128  # nodes whose attention is computed together; a larger block computes more scores that its mask drops


@dataclass(frozen=True)
class Tree:
    tokens: Int[Tensor, " node"]
    """The last token of each prefix."""
    depths: Int[Tensor, " node"]
    """Position of that token in its sequences."""
    nodes: Int[Tensor, "row position"]
    """Node of every prefix of every sequence; meaningless on padding."""
    first: Int[Tensor, " node"]
    """A sequence through each node, by its row in `distinct`."""
    distinct: Int[Tensor, "sequence position"]
    """`nodes` of the distinct sequences, in depth-first order."""

    @classmethod
    def of(cls, sequences: Int[Tensor, "row position"], lengths: Int[Tensor, " row"]) -> "Tree":
        """The tree of right-padded sequences."""
        inside = torch.arange(int(lengths.max()), device=lengths.device) < lengths[:, None]
        rows, inverse = sequences[:, : inside.shape[1]].masked_fill(~inside, -1).unique(dim=0, return_inverse=True)
        # The rows are sorted, so a prefix that an earlier row has too is also one of the row just before.
        shared = nn.functional.pad((rows[1:] == rows[:-1]).int().cumprod(-1), (0, 0, 1, 0))
        new = (rows >= 0) & (shared == 0)
        nodes = (new.flatten().cumsum(0).view_as(rows) - 1).masked_fill(~new, 0).cummax(0).values
        first, depths = new.nonzero(as_tuple=True)
        return cls(rows[new], depths, nodes[inverse], first, nodes)

    def parents(self, nodes: Int[Tensor, " node"]) -> Int[Tensor, " node"]:
        """The node before each of `nodes`, none of which is a root."""
        return self.distinct[self.first[nodes], self.depths[nodes] - 1]

    def blocks(self) -> list[Block]:
        """The nodes in blocks, each as large as the longest sequence, but at least `BLOCK`."""
        size, found = max(BLOCK, self.nodes.shape[1]), []
        every = torch.arange(len(self.tokens), device=self.tokens.device)
        for own in every.split(size):
            # In depth-first order, all ancestors before the block are ancestors of its first node.
            keys = torch.cat((self.distinct[self.first[own[0]], : int(self.depths[own[0]])], own))
            paths = self.distinct[self.first[own, None], self.depths[keys]]
            above = (paths == keys) & (self.depths[keys] <= self.depths[own, None])
            found.append((slice(int(own[0]), int(own[-1]) + 1), keys, above))
        return found

    def hidden(self, backbone: nn.Module) -> Float[Tensor, "node width"]:
        """The last hidden state of every node under a transformers model with attention "sdpa"."""
        unused = torch.empty(1, 1, 0, 0, device=self.tokens.device)  # a mask of four dimensions is passed on as it is
        inputs = {"input_ids": self.tokens[None], "position_ids": self.depths[None], "attention_mask": unused}
        return backbone(**inputs, use_cache=False, tree=self.blocks()).last_hidden_state[0]


def fits(model: Any) -> bool:
    """Whether a model can run trees: attention is `attention` below, and sees the whole prefix."""
    return model.config._attn_implementation == "sdpa" and sees_whole_prefix(model.config)


def sees_whole_prefix(config: Any) -> bool:
    """Whether each token of a model attends to all tokens before it, up to the longest context."""
    window = getattr(config, "sliding_window", None) or config.max_position_embeddings
    kinds = set(getattr(config, "layer_types", None) or ())
    return kinds <= {"full_attention"} and window >= config.max_position_embeddings


def attention(
    module: nn.Module,
    query: Float[Tensor, "row head token size"],
    key: Float[Tensor, "row kv_head seen size"],
    value: Float[Tensor, "row kv_head seen size"],
    attention_mask: Tensor | None,
    tree: list[Block] | None = None,
    **options: Any,
) -> tuple[Float[Tensor, "row token head size"], None]:
    """transformers' "sdpa", for trees too. On a CPU, heads that share keys and values read them without a copy."""
    if tree is not None:
        states = ((query[:, :, rows], key[:, :, keys], value[:, :, keys], mask) for rows, keys, mask in tree)
        return torch.cat([attention(module, *state, **options)[0] for state in states], 1), None
    if attention_mask is None or query.device.type != "cpu":
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    settings = {"dropout_p": options.get("dropout", 0.0), "scale": options.get("scaling"), "enable_gqa": True}
    found = nn.functional.scaled_dot_product_attention(query, key, value, attention_mask, **settings)
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register("sdpa", attention)
