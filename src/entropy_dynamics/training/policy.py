"""Statistics of rollouts under a policy: the one place where the trained model is run forward."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from entropy_dynamics.core.token_stats import TokenStats, token_stats
from entropy_dynamics.training.batch import RolloutBatch


def policy_stats(
    model: PreTrainedModel, batch: RolloutBatch, rows: Tensor, temperature: float, entropy_gradient: bool = False
) -> TokenStats:
    """TokenStats of the response tokens of `rows`, each [len(rows), T], zero on padding.

    `logp` carries the gradient into the model, and `entropy` where asked for. Padding stands on the right, where causal
    attention never looks, so no attention mask is needed; only hidden states of response tokens go through the output
    projection.
    """
    length = int(batch.lengths_B[rows].max())
    ids = batch.sequences_BL[rows, :length]
    hidden = model.model(input_ids=ids, use_cache=False).last_hidden_state
    mask = batch.mask_BT[rows]
    row, place = mask.nonzero(as_tuple=True)
    position = batch.prompt_lengths_B[rows][row] + place  # of the response token in its sequence
    stats = token_stats(
        hidden[row, position - 1],
        ids[row, position],
        weight=model.lm_head.weight,
        temperature=temperature,
        entropy_gradient=entropy_gradient,
    )
    return stats.map(lambda flat: torch.zeros(mask.shape, device=flat.device).index_put((row, place), flat))
