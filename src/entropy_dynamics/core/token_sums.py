"""The forward pass of the token statistics: the running sums of `token_stats`, merged over parts of the vocabulary."""

import math
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entropy_dynamics.core import tiles
from entropy_dynamics.core.tiles import Given, PerRow, Weight

TokenPerRow = Int[Tensor, " rows"]
Columns = tuple[PerRow, ...]
"""log p, H, S*, E[S], the log-normalizer and the largest log p of every row."""
Kernels = ModuleType | None
"""`token_stats_triton`, or None for PyTorch."""

# exp underflows to 0 far above this. Some models have logits of -inf for vocabulary padding, which would give 0 * inf.
LOWEST = -1e4


def columns_of(given: Given, weight: Weight, tokens: TokenPerRow, temperature: float, kernels: Kernels) -> Columns:
    """The columns of all rows, by the fastest method for this device and vocabulary."""
    vocabulary = tiles.vocabulary_size(given, weight)
    if len(given) and (kernels or (given.device.type == "cpu" and vocabulary >= tiles.WIDE)):
        sums_of_logits = kernels.sums_of_logits if kernels else _sums_of_logits
        if weight is None:
            parts, z_token = sums_of_logits(given, temperature), given.gather(-1, tokens[:, None]).squeeze(-1).float()
        else:
            parts, z_token = _sums_of_hidden(given, weight, tokens, temperature, sums_of_logits)
        return _from_tiles(_merge(parts, temperature), z_token, temperature)
    blocks = []
    for rows in tiles.blocks(given, vocabulary, 1 if weight is None else tiles.MATRIX_ROWS):
        logits = given[rows] if weight is None else given[rows] @ weight.T
        blocks.append(_block_stats(logits, tokens[rows], temperature))
    return tuple(map(torch.cat, zip(*blocks, strict=True)))


def _block_stats(logits: Float[Tensor, "rows vocab"], tokens: TokenPerRow, temperature: float) -> Columns:
    """The columns of one block of rows, without tiling."""
    x = logits.float() if temperature == 1.0 else logits.float() / temperature
    top = x.amax(-1, keepdim=True)
    x = (x - top).clamp_min_(LOWEST)
    x_token = x.gather(-1, tokens[:, None]).squeeze(-1)
    e = x.exp()
    s = e.sum(-1)
    t = (e * x).sum(-1)
    q = e.square_().sum(-1)
    u = e.mul_(x).sum(-1)
    return _from_sums(x_token, top.squeeze(-1), s, t, q, u)


def _from_sums(x_token: PerRow, top: PerRow, s: PerRow, t: PerRow, q: PerRow, u: PerRow) -> Columns:
    """The columns from x of the sampled tokens and the running sums."""
    log_s = s.log()
    mean_x = t / s
    logp = x_token - log_s
    entropy = (log_s - mean_x).clamp_min(0)  # rounding alone makes it negative
    s_star = logp.exp() * (x_token - mean_x)
    s_expected = (u - q * mean_x) / s.square()
    return logp, entropy, s_star, s_expected, top + log_s, -log_s


def _from_tiles(sums: Float[Tensor, "5 rows"], z_token: PerRow, temperature: float) -> Columns:
    """The columns from tile sums (max, s, t, q, u), where only e^x includes the temperature."""
    top, s, t, q, u = sums
    x_token = ((z_token - top) / temperature).clamp_min(LOWEST)
    return _from_sums(x_token, top / temperature, s, t / temperature, q, u / temperature)


def _merge(parts: Float[Tensor, "parts 5 rows"], temperature: float) -> Float[Tensor, "5 rows"]:
    """Merge the sums (max, s, t, q, u) over parts of the vocabulary into those over all of it."""
    if len(parts) == 1:
        return parts[0]
    top, s, t, q, u = parts.unbind(1)
    highest = top.amax(0)
    down = (top - highest).clamp_min(LOWEST)
    w = (down / temperature).exp()
    w2 = w.square()
    sums = (w * s, w * (t + down * s), w2 * q, w2 * (u + down * q))
    return torch.stack((highest, *(x.sum(0) for x in sums)))


def _tile_sums(
    logits: Float[Tensor, "rows tile"],
    temperature: float,
    x: Float[Tensor, "rows tile"],
    e: Float[Tensor, "rows tile"],
    infinite: bool = False,
) -> Columns:
    """(max, s, t, q, u) of one tile; `x` and `e` are fp32 buffers. A tile with logits of -inf (t is NaN) is redone."""
    z = logits if logits.dtype == torch.float32 else x.copy_(logits)
    top = z.amax(-1, keepdim=True)
    if infinite:
        top.clamp_min_(torch.finfo(torch.float32).min)
    torch.sub(z, top, out=x)
    if infinite:
        x.clamp_min_(LOWEST)
    torch.mul(x, tiles.LOG2_E / temperature, out=e).exp2_()
    s = e.sum(-1)
    t = x.mul_(e).sum(-1)
    if not infinite and math.isnan(t.sum()):
        return _tile_sums(logits, temperature, x, e, infinite=True)
    u = x.mul_(e).sum(-1)
    q = e.mul_(e).sum(-1)
    return top.squeeze(-1), s, t, q, u


def _sums_of_logits(logits: Float[Tensor, "rows vocab"], temperature: float) -> Float[Tensor, "tiles 5 rows"]:
    """Sums per tile of a large vocabulary, on a CPU."""
    vocabulary = logits.shape[-1]
    count = math.ceil(vocabulary / tiles.TILE_ELEMENTS)
    width = math.ceil(vocabulary / count)
    x, e = torch.empty(2, max(1, tiles.TILE_ELEMENTS // width), width)
    sums = []
    for block in logits.split(len(x)):
        for tile in block.split(width, -1):
            full = tile.shape == x.shape  # slicing the buffers for every tile would cost 5 % of the time
            buffers = (x, e) if full else (x[: len(tile), : tile.shape[1]], e[: len(tile), : tile.shape[1]])
            sums.append(_tile_sums(tile, temperature, *buffers))
    # With several tiles per row, a block is one row, so the order is always [rows, tiles].
    columns = torch.stack([torch.cat(column) for column in zip(*sums, strict=True)])
    return columns.view(5, len(logits), count).permute(2, 0, 1)


def _sums_of_hidden(
    hidden: Float[Tensor, "rows hidden"],
    weight: Float[Tensor, "vocab hidden"],
    tokens: TokenPerRow,
    temperature: float,
    sums_of_logits: Callable[[Tensor, float], Tensor],
) -> tuple[Float[Tensor, "1 5 rows"], PerRow]:
    """Sums and the sampled tokens' logits, from hidden states. One tile of logits is held at a time.

    Tiles are merged once, as every small operation is a launch. A product fused with the sums is no faster for large
    heads on an H100: benchmarks/results/README.md.
    """
    parts: dict[int, list[Tensor]] = defaultdict(list)  # by their first row
    z_token = torch.empty(len(hidden), device=hidden.device)
    for rows, columns, logits in tiles.logits(hidden, weight):
        parts[rows.start].append(sums_of_logits(logits, temperature))
        place, inside = tiles.place(tokens[rows], columns)
        z_token[rows] = torch.where(inside, logits.gather(-1, place[:, None]).squeeze(-1), z_token[rows])
        del logits  # before the next tile is allocated
    sums = [_merge(torch.cat(of_rows), temperature) for of_rows in parts.values()]
    return torch.cat(sums, -1)[None], z_token
