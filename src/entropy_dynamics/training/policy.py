"""The policy as training sees it: token ids in, statistics of response tokens out. The one place it is run forward."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from entropy_dynamics.core.token_stats import TokenStats, token_stats
from entropy_dynamics.training.batch import RolloutBatch


class Policy(nn.Module):
    """A causal language model whose forward ends in token statistics, so that logits are never held.

    It is a module of its own because FSDP gathers parameters around a module's forward (distributed/sharding.py).
    """

    def __init__(self, model: PreTrainedModel):
        super().__init__()
        self.model = model

    def forward(
        self, ids_BL: Tensor, row_N: Tensor, position_N: Tensor, temperature: float, entropy_gradient: bool
    ) -> tuple[Tensor, ...]:
        """The fields of TokenStats [N] of the tokens that stand at (row, position) in `ids_BL`.

        Padding stands on the right, where causal attention never looks, so no attention mask is needed; only hidden
        states of response tokens go through the output projection.
        """
        hidden = self.model.model(input_ids=ids_BL, use_cache=False).last_hidden_state
        stats = token_stats(
            hidden[row_N, position_N - 1],
            ids_BL[row_N, position_N],
            weight=self.model.lm_head.weight,
            temperature=temperature,
            entropy_gradient=entropy_gradient,
        )
        # Copies, because FSDP hangs its hooks on what a module returns, and a view would lose them.
        return tuple(column.clone() for column in (stats.logp, stats.entropy, stats.s_star, stats.s_expected))

    def stats(
        self, batch: RolloutBatch, rows: Tensor, temperature: float, entropy_gradient: bool = False
    ) -> TokenStats:
        """TokenStats of the response tokens of `rows`, each [len(rows), T], zero on padding.

        `logp` carries the gradient into the model, and `entropy` where asked for.
        """
        ids = batch.sequences_BL[rows, : int(batch.lengths_B[rows].max())]
        mask = batch.mask_BT[rows]
        row, place = mask.nonzero(as_tuple=True)
        position = batch.prompt_lengths_B[rows][row] + place  # of the response token in its sequence
        columns = self(ids, row, position, temperature, entropy_gradient)
        zeros = torch.zeros(mask.shape, device=mask.device)
        return TokenStats(*(zeros.index_put((row, place), column) for column in columns))

    def weights(self, dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
        """The causal language model's weights by their names in its files, each gathered from the ranks by itself.

        All ranks have to go through it together. Tied weights come once, under the name of the input embedding.
        """
        for name, parameter in self.model.named_parameters():
            yield name, whole(parameter).to(dtype or parameter.dtype)


def whole(tensor: Tensor) -> Tensor:
    """A detached parameter or gradient norm, gathered if its parts are spread over the ranks."""
    tensor = tensor.detach()
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
