"""Per-token statistics of a policy: log p, H, S* and E[S], in nats and fp32.

With x = z - max(z) (and z the logits divided by the temperature) every one of them follows from five running sums over
the vocabulary,

    s = sum e^x,   t = sum x e^x,   q = sum e^2x,   u = sum x e^2x,   and x_k of the sampled token k:

    log p_k = x_k - log s                         H    = log s - t/s
    S*      = p_k (H + log p_k) = p_k (x_k - t/s)  E[S] = sum_i p_i S_i = (u - q t/s) / s^2

(paper, Section 3.1 and Theorem 2). Writing S* and E[S] without H avoids the cancellation of log s for peaked
distributions. The sums of parts of a vocabulary merge into those of the whole: with the maximum of a part below the
common one by -D, s becomes e^D s, t becomes e^D (t + D s), and likewise q and u with e^2D. So the vocabulary is
streamed in tiles: from given logits nothing else of the size [tokens, vocabulary] is held, from hidden states not even
those. On a GPU the sums come from the Triton kernels of `token_stats_triton`, where Triton is installed.
"""

import importlib.util
import math
import os
import warnings
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor

# Elements of one block of logits: 4 MiB in fp32, about what stays in a core's cache while it is read five times. A GPU
# has no such cache, but wants many rows at a time: 256 MiB.
BLOCK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26}
# From hidden states a block has at least so many rows: each block reads the whole output projection anew.
MATRIX_ROWS = 64
# From so many tokens on, a CPU streams the vocabulary in tiles and takes e^x by exp2, which PyTorch computes several
# times faster than exp where MKL's exp is slow (AMD). Below it the plain form is as fast, and is exact to the bit
# under a shift of the logits.
WIDE = 4096
TILE_ELEMENTS = 1 << 17  # two buffers of a tile, fp32: 1 MiB, a core's second cache
PROJECTION_TILE = {"cpu": (512, 2048), "cuda": (8192, 8192)}  # rows and tokens of one tile of hidden @ weight.T
# exp underflows to 0 far above this; -inf, which some models give to padding of the vocabulary, would make 0 * inf.
LOWEST = -1e4
LOG2_E = math.log2(math.e)


@dataclass(frozen=True)
class TokenStats:
    """Statistics of sampled tokens, each [...] in fp32; `logp` carries a gradient, `entropy` where asked for."""

    logp: Tensor  # log p of the sampled token, nats
    entropy: Tensor  # H of the next-token distribution, nats
    s_star: Tensor  # S* = p (H + log p) of the sampled token
    s_expected: Tensor  # E_{i~p}[S_i], the policy's own mean of S

    @property
    def s_centered(self) -> Tensor:
        """S_c = S* - E[S], the factor of Theorem 2."""
        return self.s_star - self.s_expected

    def map(self, function) -> "TokenStats":
        """The same statistics with `function` applied to each tensor."""
        return TokenStats(*(function(getattr(self, name)) for name in self.__dataclass_fields__))


def token_stats(
    logits_or_hidden: Tensor,
    tokens: Tensor,
    *,
    weight: Tensor | None = None,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
) -> TokenStats:
    """Statistics of `tokens` under softmax(logits / temperature).

    Args:
        logits_or_hidden: logits [..., V]; or hidden states [..., d] when `weight` is given.
        tokens: int64 [...], the sampled token at every position.
        weight: output projection [V, d]; logits are then hidden @ weight.T, never held for more than one tile of rows
            and tokens.
        temperature: the sampling temperature that the policy is taken at.
        entropy_gradient: let the gradient flow through `entropy` too, for an entropy bonus.

    Returns:
        TokenStats, each [...] fp32. The gradient of `logp` flows into the logits, or into hidden states and weight.

    Raises:
        ValueError: if `tokens` does not have the leading shape of the first argument.
    """
    if logits_or_hidden.shape[:-1] != tokens.shape:
        raise ValueError(f"tokens {tuple(tokens.shape)} do not fit {tuple(logits_or_hidden.shape)}")
    rows = logits_or_hidden.reshape(-1, logits_or_hidden.shape[-1])
    flat = tokens.reshape(-1)
    if weight is None:
        columns = _StatsFromLogits.apply(rows, flat, temperature, entropy_gradient)
    else:
        columns = _StatsFromHidden.apply(rows, weight, flat, temperature, entropy_gradient)
    return TokenStats(*(column.reshape(tokens.shape) for column in columns))


# ---------------------------------------------------------------- statistics


def _block_stats(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, ...]:
    """log p, H, S*, E[S] and the log-normaliser of one block [rows, V], in the plain form."""
    x = logits.float() if temperature == 1.0 else logits.float() / temperature
    top = x.amax(-1, keepdim=True)
    x = (x - top).clamp_min_(LOWEST)
    x_token = x.gather(-1, tokens[:, None]).squeeze(-1)
    e = x.exp()
    s = e.sum(-1)
    t = (e * x).sum(-1)
    e.square_()
    q = e.sum(-1)
    u = e.mul_(x).sum(-1)
    return _from_sums(x_token, top.squeeze(-1), s, t, q, u)


def _from_sums(x_token: Tensor, top: Tensor, s: Tensor, t: Tensor, q: Tensor, u: Tensor) -> tuple[Tensor, ...]:
    """The same five columns [rows] from x of the sampled tokens and the running sums."""
    log_s = s.log()
    mean_x = t / s
    logp = x_token - log_s
    entropy = (log_s - mean_x).clamp_min(0)  # rounding alone makes it negative
    s_star = logp.exp() * (x_token - mean_x)
    s_expected = (u - q * mean_x) / s.square()
    return logp, entropy, s_star, s_expected, top + log_s


def _from_tiles(sums: Tensor, z_token: Tensor, temperature: float) -> tuple[Tensor, ...]:
    """The same five columns from `sums` (max, s, t, q, u) [5, rows] of a whole vocabulary, as tiles have them.

    Tiles divide by the temperature within e^x alone: max, t, u and `z_token` [rows] are those of the given logits.
    """
    top, s, t, q, u = sums
    x_token = ((z_token - top) / temperature).clamp_min(LOWEST)
    return _from_sums(x_token, top / temperature, s, t / temperature, q, u / temperature)


def _merge(parts: Tensor, temperature: float) -> Tensor:
    """Sums (max, s, t, q, u) [5, rows] of the whole from those of its parts [P, 5, rows]."""
    if len(parts) == 1:
        return parts[0]
    top, s, t, q, u = parts.unbind(1)
    highest = top.amax(0)
    down = (top - highest).clamp_min(LOWEST)
    w = (down / temperature).exp()
    w2 = w.square()
    sums = (w * s, w * (t + down * s), w2 * q, w2 * (u + down * q))
    return torch.stack((highest, *(x.sum(0) for x in sums)))


def _tile_sums(logits: Tensor, temperature: float, x: Tensor, e: Tensor, infinite: bool = False) -> tuple[Tensor, ...]:
    """(max, s, t, q, u), each [rows], of one tile [rows, T] of logits; `x` and `e` are fp32 buffers of its shape.

    -inf among the logits takes one more pass, so it is looked for only when it has made t NaN.
    """
    z = logits if logits.dtype == torch.float32 else x.copy_(logits)
    top = z.amax(-1, keepdim=True)
    if infinite:
        top.clamp_min_(torch.finfo(torch.float32).min)
    torch.sub(z, top, out=x)
    if infinite:
        x.clamp_min_(LOWEST)
    torch.mul(x, LOG2_E / temperature, out=e).exp2_()
    s = e.sum(-1)
    t = x.mul_(e).sum(-1)
    if not infinite and math.isnan(t.sum()):
        return _tile_sums(logits, temperature, x, e, infinite=True)
    u = x.mul_(e).sum(-1)
    q = e.mul_(e).sum(-1)
    return top.squeeze(-1), s, t, q, u


def _sums_of_logits(logits: Tensor, temperature: float) -> Tensor:
    """Sums [tiles, 5, rows] from wide logits [rows, V] on a CPU."""
    vocabulary = logits.shape[-1]
    count = math.ceil(vocabulary / TILE_ELEMENTS)
    width = math.ceil(vocabulary / count)
    x, e = torch.empty(2, max(1, TILE_ELEMENTS // width), width)
    columns = ([], [], [], [], [])
    for block in logits.split(len(x)):
        for tile in block.split(width, -1):
            whole = tile.shape == x.shape  # cutting the buffers for every row would cost 5 % of its time
            buffers = (x, e) if whole else (x[: len(tile), : tile.shape[1]], e[: len(tile), : tile.shape[1]])
            for column, value in zip(columns, _tile_sums(tile, temperature, *buffers), strict=True):
                column.append(value)
    # A vocabulary of several tiles has blocks of one row, so the order is always [rows, tiles].
    return torch.stack([torch.cat(column) for column in columns]).view(5, len(logits), count).permute(2, 0, 1)


def _sums_of_hidden(hidden: Tensor, weight: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Sums [1, 5, rows] and the sampled tokens' logits [rows], from hidden states [rows, d] on a CPU."""
    height, width = PROJECTION_TILE["cpu"]
    logits = hidden.new_empty(min(height, len(hidden)), width)
    buffers = torch.empty(2, TILE_ELEMENTS // width, width)
    sums = torch.zeros(5, len(hidden))
    sums[0] = torch.finfo(torch.float32).min
    z_token = torch.empty(len(hidden))
    for columns in _slices(len(weight), width):
        for rows in _slices(len(hidden), height):
            tile = logits[: rows.stop - rows.start, : columns.stop - columns.start]
            torch.mm(hidden[rows], weight[columns].T, out=tile)
            parts = [
                torch.stack(_tile_sums(few, temperature, *buffers[:, : len(few), : few.shape[1]]))
                for few in tile.split(buffers.shape[1])
            ]
            sums[:, rows] = _merge(torch.stack((sums[:, rows], torch.cat(parts, -1))), temperature)
            place, inside = _place(tokens[rows], columns)
            z_token[rows] = torch.where(inside, tile.gather(-1, place[:, None]).squeeze(-1), z_token[rows])
    return sums[None], z_token


# ---------------------------------------------------------------- gradient


class _Upstream(NamedTuple):
    """What the gradient of a logit needs of its row, each [rows]."""

    tokens: Tensor
    log_normaliser: Tensor
    grad_logp: Tensor
    entropy: Tensor
    grad_entropy: Tensor | None

    def at(self, rows: slice) -> "_Upstream":
        return _Upstream(*(None if x is None else x[rows] for x in self))


def _gradient(logits: Tensor, upstream: _Upstream, columns: slice, temperature: float, vocabulary: int) -> Tensor:
    """Gradient of one tile of logits, fp32 [rows, T], which stands at `columns` of the vocabulary.

    d log p_k = e_k - p, dH = -p (log p + H).
    """
    tokens, log_normaliser, grad_logp, entropy, grad_entropy = upstream
    x = logits.float() if temperature == 1.0 else logits.float() / temperature
    logp = x - log_normaliser[:, None]
    if grad_entropy is None:
        gradient = _exp(logp, vocabulary).mul_(-grad_logp[:, None])
    else:
        p = _exp(logp.clamp_min_(LOWEST), vocabulary)
        gradient = logp.add_(entropy[:, None]).mul_(grad_entropy[:, None]).add_(grad_logp[:, None]).mul_(p).neg_()
    place, inside = _place(tokens, columns)
    gradient.scatter_add_(-1, place[:, None], (grad_logp * inside)[:, None])
    return gradient if temperature == 1.0 else gradient.div_(temperature)


def _exp(x: Tensor, vocabulary: int) -> Tensor:
    return x.exp() if vocabulary < WIDE else torch.mul(x, LOG2_E).exp2_()


# ---------------------------------------------------------------- tiles


def _slices(length: int, size: int) -> list[slice]:
    return [slice(start, min(start + size, length)) for start in range(0, length, size)]


def _blocks(rows: Tensor, vocabulary: int, at_least: int = 1) -> list[slice]:
    """Cut `rows` [N, ...], of which every one has or makes `vocabulary` logits."""
    on_cpu = rows.device.type == "cpu"
    elements = TILE_ELEMENTS if on_cpu and vocabulary >= WIDE else BLOCK_ELEMENTS["cpu" if on_cpu else "cuda"]
    return _slices(len(rows), max(at_least, elements // vocabulary))


def _place(tokens: Tensor, columns: slice) -> tuple[Tensor, Tensor]:
    """Where each row's token stands among these columns of the vocabulary, and whether it does; both [rows]."""
    inside = (tokens >= columns.start) & (tokens < columns.stop)
    return (tokens - columns.start).clamp(0, columns.stop - columns.start - 1), inside


def _projection_tile(hidden: Tensor, vocabulary: int) -> tuple[int, int]:
    """Rows and tokens of one tile of hidden @ weight.T in the backward pass."""
    if hidden.device.type != "cpu":
        return PROJECTION_TILE["cuda"]
    if vocabulary >= WIDE:
        return PROJECTION_TILE["cpu"]
    return max(MATRIX_ROWS, BLOCK_ELEMENTS["cpu"] // vocabulary), vocabulary


def _product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b; on a GPU in fp32, so that the backward pass sees the logits that the kernels summed."""
    return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda and a.dtype != torch.float32 else a @ b


def _add_product(total: Tensor, a: Tensor, b: Tensor, *, first: bool) -> None:
    """total += a @ b, summed in fp32 as `total` is; the `first` product is put there instead."""
    if a.is_cuda and a.dtype != torch.float32:
        total.copy_(_product(a, b)) if first else total.add_(_product(a, b))
    else:
        total.addmm_(a.float(), b.float(), beta=0 if first else 1)


_TRIED: list[ModuleType | None] = []  # what `_kernels` gives while `_works_on` compares


def _kernels(tensor: Tensor) -> ModuleType | None:
    """The Triton kernels where they can run: on a GPU that they have proved right on, or in Triton's interpreter."""
    if _TRIED:
        return _TRIED[-1]
    if not (tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1") or importlib.util.find_spec("triton") is None:
        return None
    if tensor.is_cuda and not _works_on(tensor.device, tensor.dtype):
        return None
    from entropy_dynamics.core import token_stats_triton

    return token_stats_triton


@cache
def _works_on(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels give there what PyTorch gives, values and gradients; else says so, and PyTorch is used.

    Asked once for each device and dtype, before a result depends on it: a kernel may ask for more than a GPU has.
    """
    from entropy_dynamics.core import token_stats_triton

    found = []
    for kernels in (token_stats_triton, None):
        _TRIED.append(kernels)
        try:
            found.append(_small_case(device, dtype))
        except Exception as error:  # Triton's and the driver's have no common base
            warnings.warn(f"no Triton kernels for token statistics in {dtype} on {device}: {error}", stacklevel=2)
            return False
        finally:
            _TRIED.pop()
    # Relative to the size of each result: E[S] is a thousand times smaller than the entropy. In bf16 PyTorch rounds
    # the logits, the kernels do not.
    bound = 1e-3 if dtype == torch.float32 else 0.05
    if not all((one - other).norm() <= bound * other.norm() for one, other in zip(*found, strict=True)):  # nan neither
        warnings.warn(f"Triton kernels for token statistics are wrong in {dtype} on {device}: not used", stacklevel=2)
        return False
    return True


def _small_case(device: torch.device, dtype: torch.dtype) -> list[Tensor]:
    """Statistics and gradients of 70 tokens, from hidden states and from logits, sizes that no block divides."""
    draw = torch.Generator().manual_seed(0)
    found = []
    with torch.enable_grad():
        for sizes in ((70, 96), (70, 5001)):
            given = torch.randn(*sizes, generator=draw).to(device, dtype).requires_grad_()
            weight = (torch.randn(5001, 96, generator=draw) / 5).to(device, dtype).requires_grad_()
            tokens = torch.randint(5001, (70,), generator=draw).to(device)
            of = {"weight": weight} if sizes[1] == 96 else {}
            stats = token_stats(given, tokens, **of, entropy_gradient=True)
            (stats.logp + stats.entropy).sum().backward()
            found += [stats.logp, stats.entropy, stats.s_star, stats.s_expected, given.grad]
            found += [weight.grad] if of else []
    return [one.detach().float() for one in found]


# ---------------------------------------------------------------- autograd


def _stacked(blocks: list[tuple[Tensor, ...]], rows: Tensor) -> tuple[Tensor, ...]:
    """Columns [N] from those of the blocks of rows."""
    if not blocks:
        return tuple(torch.empty(0, device=rows.device) for _ in range(5))
    return tuple(torch.cat(column) for column in zip(*blocks, strict=True))


def _keep_for_backward(ctx, inputs: tuple[Tensor, ...], columns: tuple[Tensor, ...], temperature, entropy_gradient):
    logp, entropy, s_star, s_expected, log_normaliser = columns
    ctx.save_for_backward(*inputs, entropy, log_normaliser)
    ctx.temperature, ctx.entropy_gradient = temperature, entropy_gradient
    ctx.mark_non_differentiable(s_star, s_expected, *([] if entropy_gradient else [entropy]))
    return logp, entropy, s_star, s_expected


class _StatsFromLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: Tensor, tokens: Tensor, temperature: float, entropy_gradient: bool):
        vocabulary = logits.shape[-1]
        kernels = _kernels(logits)
        if len(logits) and (kernels or (logits.device.type == "cpu" and vocabulary >= WIDE)):
            sums_of_logits = _sums_of_logits if kernels is None else kernels.sums_of_logits
            z_token = logits.gather(-1, tokens[:, None]).squeeze(-1).float()
            columns = _from_tiles(_merge(sums_of_logits(logits, temperature), temperature), z_token, temperature)
        else:
            blocks = _blocks(logits, vocabulary)
            columns = _stacked([_block_stats(logits[block], tokens[block], temperature) for block in blocks], logits)
        return _keep_for_backward(ctx, (logits, tokens), columns, temperature, entropy_gradient)

    @staticmethod
    def backward(ctx, grad_logp: Tensor, grad_entropy: Tensor, *_):
        logits, tokens, entropy, log_normaliser = ctx.saved_tensors
        columns = slice(0, logits.shape[-1])
        upstream = _Upstream(tokens, log_normaliser, grad_logp, entropy, grad_entropy if ctx.entropy_gradient else None)
        grad = torch.empty_like(logits)  # the gradient itself is [tokens, V]; nothing else of that size is made
        if kernels := _kernels(logits):
            kernels.gradient(logits, *upstream, 0, ctx.temperature, out=grad)
        else:
            for rows in _blocks(logits, logits.shape[-1]):
                grad[rows] = _gradient(logits[rows], upstream.at(rows), columns, ctx.temperature, logits.shape[-1])
        return grad, None, None, None


class _StatsFromHidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, tokens: Tensor, temperature: float, entropy_gradient: bool):
        kernels = _kernels(hidden)
        if len(hidden) and (kernels or (hidden.device.type == "cpu" and len(weight) >= WIDE)):
            sums_of_hidden = _sums_of_hidden if kernels is None else kernels.sums_of_hidden
            parts, z_token = sums_of_hidden(hidden, weight, tokens, temperature)
            columns = _from_tiles(_merge(parts, temperature), z_token, temperature)
        else:
            blocks = _blocks(hidden, len(weight), MATRIX_ROWS)
            columns = _stacked(
                [_block_stats(hidden[rows] @ weight.T, tokens[rows], temperature) for rows in blocks], hidden
            )
        return _keep_for_backward(ctx, (hidden, weight, tokens), columns, temperature, entropy_gradient)

    @staticmethod
    def backward(ctx, grad_logp: Tensor, grad_entropy: Tensor, *_):
        # Tiles of the vocabulary outside, so that the fp32 sum of one tile's rows of the weight is all that is held.
        hidden, weight, tokens, entropy, log_normaliser = ctx.saved_tensors
        upstream = _Upstream(tokens, log_normaliser, grad_logp, entropy, grad_entropy if ctx.entropy_gradient else None)
        grad_hidden = torch.empty(hidden.shape, dtype=torch.float32, device=hidden.device)
        grad_weight = torch.empty_like(weight)
        kernels = _kernels(hidden)
        height, width = _projection_tile(hidden, len(weight))
        for columns in _slices(len(weight), width):
            weight_tile = weight[columns]
            grad_tile = torch.zeros(weight_tile.shape, dtype=torch.float32, device=weight.device)
            for rows in _slices(len(hidden), height):
                logits, of_rows = _product(hidden[rows], weight_tile.T), upstream.at(rows)
                if kernels:
                    d = torch.empty_like(logits, dtype=weight.dtype)
                    kernels.gradient(logits, *of_rows, columns.start, ctx.temperature, out=d)
                else:
                    d = _gradient(logits, of_rows, columns, ctx.temperature, len(weight)).to(weight.dtype)
                _add_product(grad_hidden[rows], d, weight_tile, first=columns.start == 0)
                _add_product(grad_tile, d.T, hidden[rows], first=rows.start == 0)
            grad_weight[columns] = grad_tile
        return grad_hidden.to(hidden.dtype), grad_weight, None, None, None
