"""The policy during training: token ids in, statistics of response tokens out."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from entropy_dynamics.core.shapes import Rows
from entropy_dynamics.core.token_stats import TokenStats, token_stats
from entropy_dynamics.training.batch import RolloutBatch


class Policy(nn.Module):
    """A causal language model whose forward returns token statistics, so that logits are never held in full.

    It is a module of its own because FSDP gathers parameters around a module's forward (distributed/sharding.py).
    """

    def __init__(self, model: PreTrainedModel, head_dtype: torch.dtype | None = None, *, share_prompts: bool = True):
        """
        Args:
            head_dtype: dtype of the output projection; None: that of the hidden states.
            share_prompts: run a prompt once for all its responses in a micro-batch. Not possible with FSDP or
                activation checkpointing, where a block may run only once per forward pass.
        """
        super().__init__()
        self.model, self.head_dtype, self.share_prompts = model, head_dtype, share_prompts

    def forward(
        self, batch: RolloutBatch, rows: Rows, temperature: float, options: dict[str, Any]
    ) -> dict[str, Float[Tensor, "tokens ..."]]:
        """The columns of TokenStats for the response tokens of `rows`, concatenated row by row.

        Only the hidden states that predict response tokens go through the output projection.
        """
        row, place = batch.mask[rows].nonzero(as_tuple=True)
        position = batch.prompt_lengths[rows][row] + place
        if self.share_prompts:
            hidden = self._hidden_of_responses(batch, rows)[row, place]
        else:  # padding is on the right, where causal attention never looks, so no attention mask is needed
            ids = batch.sequences[rows, : int(batch.lengths[rows].max())]
            hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state[row, position - 1]
        dtype = self.head_dtype or hidden.dtype
        stats = token_stats(
            hidden.to(dtype),
            batch.sequences[rows[row], position],
            weight=self.model.lm_head.weight.to(dtype),
            temperature=temperature,
            **options,
        )
        # Copies, because FSDP attaches hooks to a module's outputs, and a view would lose them.
        return {name: column.clone() for name, column in stats.columns().items()}

    def _hidden_of_responses(self, batch: RolloutBatch, rows: Rows) -> Float[Tensor, "rows token width"]:
        """The hidden state that predicts each response token. Prompts run once; responses then use their KV cache."""
        groups, group = batch.groups[rows].unique(return_inverse=True)
        first = rows.new_empty(len(groups)).scatter_(0, group, rows)  # one row with each group's prompt
        lengths, cache = batch.prompt_lengths[first], DynamicCache()
        width = int(lengths.max())
        hidden = self.model.model(batch.sequences[first, :width], past_key_values=cache).last_hidden_state
        last = hidden[torch.arange(len(first), device=rows.device), lengths - 1][group, None]
        count = int(batch.response_lengths[rows].max()) - 1  # the last token predicts nothing
        if count == 0:
            return last
        for layer in cache.layers:  # indexing has a deterministic backward pass, also on a GPU
            layer.keys, layer.values = layer.keys[group], layer.values[group]
        lengths = lengths[group, None]
        positions = lengths + torch.arange(count, device=rows.device)
        columns = positions.clamp_max(batch.sequences.shape[1] - 1)  # beyond the end of a short row is padding
        seen = torch.arange(width, device=rows.device) < lengths
        hidden = self.model.model(
            batch.sequences[rows[:, None], columns],
            attention_mask=torch.nn.functional.pad(seen, (0, count), value=True),
            position_ids=positions,
            past_key_values=cache,
        ).last_hidden_state
        return torch.cat([last, hidden], 1)

    def stats(self, batch: RolloutBatch, rows: Rows, temperature: float, **options: Any) -> TokenStats:
        """TokenStats of the response tokens of `rows`, each [rows, token], 0 on padding.

        `logp` carries the gradient into the model. Identical rows are run once.

        Args:
            options: `entropy_gradient`, `top` and `min_p` of `token_stats`.
        """
        distinct, inverse = batch.copy_of[rows].unique(return_inverse=True)
        mask = batch.mask[distinct]

        def padded(column: Tensor) -> Tensor:  # masked_scatter fills the tokens row by row
            trailing = column.shape[1:]
            zeros = torch.zeros(*mask.shape, *trailing, device=mask.device)
            return zeros.masked_scatter(mask.view(*mask.shape, *(1 for _ in trailing)), column)[inverse]

        columns = self(batch, distinct, temperature, options)
        return TokenStats(**{name: padded(column) for name, column in columns.items()})

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """The language model's weights under their names in the model's files, gathered one at a time.

        Each is cast to `dtype` (default: its own) before it is gathered, to send fewer bytes. A collective: all ranks
        must iterate together. Tied weights come once, under the name of the input embedding.
        """
        for name, parameter in self.model.named_parameters():
            yield name, whole(parameter.detach().to(dtype or parameter.dtype))


def whole(tensor: Tensor) -> Tensor:
    """The full, detached tensor: a DTensor is gathered from the ranks."""
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
