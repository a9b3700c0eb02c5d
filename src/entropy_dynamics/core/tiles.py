"""Tiling of the vocabulary, so that no tensor of size [tokens, vocabulary] is held, and second passes over the tiles.

The mass of the tokens above a fraction of the largest probability needs a second pass because its threshold is known
only after the first; the most likely tokens need one because their gradient needs their indices.
"""

import math
from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

# Elements of one block of logits. CPU: 4 MiB in fp32, about what stays in a core's cache while it is read five times.
# GPU: 256 MiB, for many rows at a time.
BLOCK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26}
# Minimum rows of a block computed from hidden states, because each block reads the whole output projection.
MATRIX_ROWS = 64
# For vocabularies at least this large, a CPU streams the vocabulary in tiles and computes e^x with exp2, which is
# several times faster in PyTorch than exp where MKL's exp is slow (AMD). For smaller ones the untiled form is as fast,
# and is bitwise invariant under a shift of the logits.
WIDE = 4096
TILE_ELEMENTS = 1 << 17  # the two fp32 buffers of a tile take 1 MiB, which fits a core's L2 cache
PROJECTION_TILE = {"cpu": (512, 2048), "cuda": (8192, 8192)}  # rows and tokens of one tile of hidden @ weight.T
LOG2_E = math.log2(math.e)

PerRow = Float[Tensor, " rows"]
Given = Float[Tensor, "rows features"]
"""Logits, or hidden states if there is a weight."""
Weight = Float[Tensor, "vocab features"] | None
"""Output projection: logits are hidden @ weight.T."""


def vocabulary_size(given: Given, weight: Weight) -> int:
    return given.shape[-1] if weight is None else len(weight)


def exp(x: Tensor, vocabulary: int) -> Tensor:
    """e^x, by the faster method for this vocabulary size."""
    return x.exp() if vocabulary < WIDE else torch.mul(x, LOG2_E).exp2_()


def slices(length: int, size: int) -> list[slice]:
    """Consecutive slices of at most `size`."""
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def blocks(rows: Tensor, vocabulary: int, at_least: int = 1) -> list[slice]:
    """Split `rows`, each of which has or yields `vocabulary` logits, into blocks; one empty block if there are none."""
    on_cpu = rows.device.type == "cpu"
    elements = TILE_ELEMENTS if on_cpu and vocabulary >= WIDE else BLOCK_ELEMENTS["cpu" if on_cpu else "cuda"]
    return slices(max(len(rows), 1), max(at_least, elements // vocabulary))


def place(tokens: Int[Tensor, "rows ..."], columns: slice) -> tuple[Int[Tensor, "rows ..."], Bool[Tensor, "rows ..."]]:
    """Each token as an index into `columns` of the vocabulary (clamped), and whether it is one of them."""
    inside = (tokens >= columns.start) & (tokens < columns.stop)
    return (tokens - columns.start).clamp(0, columns.stop - columns.start - 1), inside


def projection_tile(hidden: Tensor, vocabulary: int) -> tuple[int, int]:
    """Rows and columns of one tile of hidden @ weight.T when each tile is a separate matrix product."""
    if hidden.device.type != "cpu":
        return PROJECTION_TILE["cuda"]
    if vocabulary >= WIDE:
        return PROJECTION_TILE["cpu"]
    return max(MATRIX_ROWS, BLOCK_ELEMENTS["cpu"] // vocabulary), vocabulary


def product(a: Float[Tensor, "m k"], b: Float[Tensor, "k n"]) -> Float[Tensor, "m n"]:
    """a @ b, accumulated and returned in fp32 on a GPU, so that every pass sees the same logits as the kernels."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda and a.dtype != torch.float32 else a @ b


def add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """total += a @ b in fp32; the `first` product overwrites `total`."""
    if a.is_cuda and a.dtype != torch.float32:
        total.copy_(product(a, b)) if first else total.add_(product(a, b))
    else:
        total.addmm_(a.float(), b.float(), beta=0 if first else 1)


def logits(given: Given, weight: Weight) -> Iterator[tuple[slice, slice, Float[Tensor, "rows tile"]]]:
    """Iterate over tiles: their rows, columns and logits (fp32)."""
    vocabulary = vocabulary_size(given, weight)
    if weight is None:
        for rows in blocks(given, vocabulary):
            yield rows, slice(0, vocabulary), given[rows].float()
        return
    height, width = projection_tile(given, vocabulary)
    for columns in slices(vocabulary, width):
        for rows in slices(len(given), height):
            yield rows, columns, product(given[rows], weight[columns].T).float()


def most_likely(
    given: Given, weight: Weight, count: int
) -> tuple[Int[Tensor, "rows count"], Float[Tensor, "rows count"]]:
    """The `count` most likely tokens of every row and their logits, fp32, in descending order.

    Raises ValueError if the vocabulary has fewer than `count` tokens.
    """
    if count > (vocabulary := vocabulary_size(given, weight)):
        raise ValueError(f"top is {count}; the vocabulary has {vocabulary} tokens")
    tokens = torch.zeros(len(given), count, dtype=torch.long, device=given.device)
    highest = torch.full((len(given), count), -torch.inf, device=given.device)
    for rows, columns, tile in logits(given, weight):
        values, places = tile.topk(min(count, tile.shape[-1]))
        highest[rows], order = torch.cat((highest[rows], values), -1).topk(count)
        tokens[rows] = torch.cat((tokens[rows], places + columns.start), -1).gather(-1, order)
    return tokens, highest


def logits_of(given: Given, weight: Weight, tokens: Int[Tensor, "rows count"]) -> Float[Tensor, "rows count"]:
    """The logits of `tokens` of every row, fp32."""
    found = torch.zeros(tokens.shape, device=given.device)
    for rows, columns, tile in logits(given, weight):
        index, inside = place(tokens[rows], columns)
        found[rows] = torch.where(inside, tile.gather(-1, index), found[rows])
    return found


def log_mass_above(
    given: Given, weight: Weight, log_normalizer: PerRow, threshold: PerRow, temperature: float
) -> PerRow:
    """log of the sum of p over the tokens with log p >= `threshold`, of every row, nats; at most 0.

    `log_normalizer` is log sum e^(logit / temperature) of every row.
    """
    mass = torch.zeros(len(given), device=given.device)
    for rows, _, tile in logits(given, weight):
        logp = tile / temperature - log_normalizer[rows, None]
        p = exp(logp, vocabulary_size(given, weight))
        mass[rows] += torch.where(logp >= threshold[rows, None], p, 0.0).sum(-1)
    return mass.log().clamp_max(0)
