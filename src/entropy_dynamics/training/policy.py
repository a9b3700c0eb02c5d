"""The policy as training sees it: token ids in, statistics of response tokens out."""

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from transformers import PreTrainedModel

from entropy_dynamics.core.shapes import Rows
from entropy_dynamics.core.token_stats import TokenStats, token_stats
from entropy_dynamics.training.batch import RolloutBatch


class Policy(nn.Module):
    """A causal language model whose forward returns token statistics, so that logits are never held.

    It is a separate module because FSDP gathers parameters around a module's forward (distributed/sharding.py).
    """

    def __init__(self, model: PreTrainedModel, head_dtype: torch.dtype | None = None):
        """head_dtype: of the output projection; None: that of the hidden states."""
        super().__init__()
        self.model, self.head_dtype = model, head_dtype

    def forward(
        self,
        ids: Int[Tensor, "rows length"],
        row: Int[Tensor, " tokens"],
        position: Int[Tensor, " tokens"],
        temperature: float,
        entropy_gradient: bool,
    ) -> tuple[Float[Tensor, " tokens"], ...]:
        """The fields of TokenStats for the tokens at (row, position) in `ids`.

        Padding is on the right, where causal attention never looks, so no attention mask is needed; only hidden states
        of response tokens go through the output projection.
        """
        hidden = self.model.model(input_ids=ids, use_cache=False).last_hidden_state
        dtype = self.head_dtype or hidden.dtype
        stats = token_stats(
            hidden[row, position - 1].to(dtype),
            ids[row, position],
            weight=self.model.lm_head.weight.to(dtype),
            temperature=temperature,
            entropy_gradient=entropy_gradient,
        )
        # Copies, because FSDP attaches its hooks to what a module returns, and a view would lose them.
        return tuple(column.clone() for column in (stats.logp, stats.entropy, stats.s_star, stats.s_expected))

    def stats(self, batch: RolloutBatch, rows: Rows, temperature: float, entropy_gradient: bool = False) -> TokenStats:
        """TokenStats of the response tokens of `rows`, each [rows, token], 0 on padding.

        `logp` carries the gradient into the model, and `entropy` with `entropy_gradient`.
        """
        ids = batch.sequences[rows, : int(batch.lengths[rows].max())]
        mask = batch.mask[rows]
        row, place = mask.nonzero(as_tuple=True)
        position = batch.prompt_lengths[rows][row] + place  # of the response token in its sequence
        columns = self(ids, row, position, temperature, entropy_gradient)
        zeros = torch.zeros(mask.shape, device=mask.device)
        return TokenStats(*(zeros.index_put((row, place), column) for column in columns))

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """The language model's weights by their names in its files, each gathered from the ranks in turn.

        Each is cast to `dtype` (default: its own) before it is gathered, so that no whole fp32 copy travels. All ranks
        have to iterate together. Tied weights come once, under the name of the input embedding.
        """
        for name, parameter in self.model.named_parameters():
            yield name, whole(parameter.detach().to(dtype or parameter.dtype))


def whole(tensor: Tensor) -> Tensor:
    """A detached parameter or gradient norm, gathered if it is sharded over the ranks."""
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
