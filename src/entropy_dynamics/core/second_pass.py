"""Statistics that need a second pass over the vocabulary, tile by tile like the first, in PyTorch on every device.

The mass of the tokens above a fraction of the largest probability needs one because its threshold is known only after
the first pass; the most likely tokens need one because their gradient needs their indices.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entropy_dynamics.core import tiles
from entropy_dynamics.core.tiles import Given, PerRow, Weight


def most_likely(
    given: Given, weight: Weight, count: int
) -> tuple[Int[Tensor, "rows count"], Float[Tensor, "rows count"]]:
    """The `count` most likely tokens of every row and their logits, fp32, in descending order.

    Raises ValueError if the vocabulary has fewer than `count` tokens.
    """
    if count > (vocabulary := tiles.vocabulary_size(given, weight)):
        raise ValueError(f"top is {count}; the vocabulary has {vocabulary} tokens")
    tokens = torch.zeros(len(given), count, dtype=torch.long, device=given.device)
    highest = torch.full((len(given), count), -torch.inf, device=given.device)
    for rows, columns, logits in tiles.logits(given, weight):
        values, places = logits.topk(min(count, logits.shape[-1]))
        highest[rows], order = torch.cat((highest[rows], values), -1).topk(count)
        tokens[rows] = torch.cat((tokens[rows], places + columns.start), -1).gather(-1, order)
    return tokens, highest


def log_mass_above(
    given: Given, weight: Weight, log_normalizer: PerRow, threshold: PerRow, temperature: float
) -> PerRow:
    """log of the sum of p over the tokens with log p >= `threshold`, of every row, nats; at most 0.

    `log_normalizer` is log sum e^(logit / temperature) of every row.
    """
    mass = torch.zeros(len(given), device=given.device)
    for rows, _, logits in tiles.logits(given, weight):
        logp = logits / temperature - log_normalizer[rows, None]
        p = tiles.exp(logp, tiles.vocabulary_size(given, weight))
        mass[rows] += torch.where(logp >= threshold[rows, None], p, 0.0).sum(-1)
    return mass.log().clamp_max(0)
