"""The policy during training: token ids in, statistics of response tokens out."""

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from entropy_dynamics.core.shapes import Rows
from entropy_dynamics.core.token_stats import TokenStats, token_stats
from entropy_dynamics.distributed.precision import autocast
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import whole
from entropy_dynamics.models.tree import fits
from entropy_dynamics.training.batch import RolloutBatch


class Policy(nn.Module):
    """A causal language model whose forward, around which FSDP gathers parameters, returns token statistics.

    Args:
        head_dtype: dtype of the output projection; None: `precision` or, in float32, the hidden states' dtype.
        precision: dtype of matrix products in the model, whose weights stay as they are.
        share: run equal prefixes of a micro-batch's sequences once, if the model's attention allows it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        head_dtype: torch.dtype | None = None,
        *,
        precision: torch.dtype = torch.float32,
        share: bool = True,
    ):
        super().__init__()
        self.model, self.head_dtype, self.precision = model, head_dtype, precision
        self.share = share and fits(model)

    def forward(
        self, batch: RolloutBatch, rows: Rows, temperature: float, options: dict[str, Any]
    ) -> dict[str, Float[Tensor, "tokens ..."]]:
        """The columns of TokenStats for the response tokens of `rows`, concatenated row by row.

        Only the hidden states that predict response tokens go through the output projection.
        """
        row, place = batch.mask[rows].nonzero(as_tuple=True)
        position = batch.prompt_lengths[rows][row] + place
        if self.share:
            tree = batch.tree(rows)
            node, inverse = tree.nodes[row, position], torch.arange(len(row), device=row.device)
            if batch.top is None:  # else what the engine held likely may differ at a node
                node, inverse = node.unique(return_inverse=True)
            with autocast(row.device, self.precision):
                hidden = nn.functional.embedding(tree.parents(node), tree.hidden(self.model.model))
            tokens = tree.tokens[node]
        else:  # padding is on the right, where causal attention never looks, so no attention mask is needed
            ids = batch.sequences[rows, : int(batch.lengths[rows].max())]
            with autocast(row.device, self.precision):
                hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state[row, position - 1]
            tokens, inverse = batch.sequences[rows[row], position], torch.arange(len(row), device=row.device)
        dtype = self.head_dtype or (hidden.dtype if self.precision == torch.float32 else self.precision)
        weight = self.model.lm_head.weight.to(dtype)
        if batch.top is not None:
            options = options | {"among": batch.top[rows[row], place]}
        stats = token_stats(hidden.to(dtype), tokens, weight=weight, temperature=temperature, **options)
        # Copies, because FSDP attaches hooks to a module's outputs, and a view would lose them.
        return {name: column[inverse] for name, column in stats.columns().items()}

    def stats(self, batch: RolloutBatch, rows: Rows, temperature: float, **options: Any) -> TokenStats:
        """TokenStats of the response tokens of `rows`, each [rows, token], 0 on padding. Identical rows are run once.

        `options` are `entropy_gradient`, `top` and `min_p` of `token_stats`; `engine_top` and `reference`, of a
        method's `second_pass`, are in the batch.
        """
        options = {name: value for name, value in options.items() if name not in ("engine_top", "reference")}
        distinct, inverse = batch.copy_of[rows].unique(return_inverse=True)
        mask = batch.mask[distinct]

        def padded(column: Tensor) -> Tensor:  # masked_scatter fills the tokens row by row
            zeros = torch.zeros(*mask.shape, *column.shape[1:], device=mask.device)
            return zeros.masked_scatter(mask.view(*mask.shape, *(1 for _ in column.shape[1:])), column)[inverse]

        columns = self(batch, distinct, temperature, options)
        return TokenStats(**{name: padded(column) for name, column in columns.items()})

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """The language model's weights under their names in the model's files, gathered one at a time.

        Each is cast to `dtype` (default: its own) before it is gathered, to send fewer bytes. A collective: all ranks
        must iterate together. Tied weights come once, under the name of the input embedding.
        """
        for name, parameter in self.model.named_parameters():
            yield name, whole(parameter.detach().to(dtype or parameter.dtype))

    def weights_on_main(self, ranks: Ranks, dtype: torch.dtype | None = None) -> list[tuple[str, Tensor]]:
        """`weights` in rank 0's host memory; nothing on the other ranks, which must gather them too."""
        return [(name, weight.cpu()) for name, weight in self.weights(dtype) if ranks.is_main]
