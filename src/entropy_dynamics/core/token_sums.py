"""Per-token statistics of a policy: log p, H, S* and E[S], in nats and fp32.

Let z be the logits divided by the temperature, and x = z - max(z). All four statistics follow from running sums over
the vocabulary and from x_k of the sampled token k:

    s = sum e^x,   t = sum x e^x,   q = sum e^2x,   u = sum x e^2x

    log p_k = x_k - log s                         H    = log s - t/s
    S*      = p_k (H + log p_k) = p_k (x_k - t/s)  E[S] = sum_i p_i S_i = (u - q t/s) / s^2

(paper, Section 3.1 and Theorem 2). Writing S* and E[S] without H avoids the cancellation of log s for peaked
distributions. The sums over parts of the vocabulary can be merged: with D = (maximum of the part) - (overall maximum),
s becomes e^D s, t becomes e^D (t + D s), and likewise q and u with e^2D. The vocabulary is therefore streamed in tiles:
given logits, no other tensor of size [tokens, vocabulary] is allocated; given hidden states, none at all. On a GPU the
sums come from the Triton kernels of `token_stats_triton` if Triton is installed.
"""

import importlib.util
import math
import os
import subprocess
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entropy_dynamics.core import tiles
from entropy_dynamics.core.shapes import PerPosition
from entropy_dynamics.core.tiles import Given, PerRow, Weight

TokenPerRow = Int[Tensor, " rows"]
Further = Int[Tensor, "rows further"]
PerFurther = Float[Tensor, "rows further"]
Columns = tuple[PerRow, ...]
Kernels = ModuleType | None

# exp underflows to 0 far above this. Some models have logits of -inf for vocabulary padding, which would give 0 * inf.
LOWEST = -1e4


@dataclass(frozen=True)
class TokenStats:
    """Statistics of sampled tokens, fp32, in nats. `logp` carries a gradient; `entropy` does so on request."""

    logp: PerPosition
    """log p of the sampled token."""
    entropy: PerPosition
    """H of the next-token distribution."""
    s_star: PerPosition
    """S* = p (H + log p) of the sampled token."""
    s_expected: PerPosition
    """E_{i~p}[S_i], the mean of S under the policy."""
    top_logp: Float[Tensor, "*position top"] | None = None
    """log p of the most likely tokens, in descending order, or of the tokens `among`, with gradient. If the sampled
    token is one of them, its entry equals `logp`. None: not requested."""
    proxy_logp: PerPosition | None = None
    """log p of the sampled token under the policy restricted to tokens with p >= min_p max p and renormalized; -inf
    for a token below that threshold. None: not requested."""

    @classmethod
    def from_logged(
        cls, logp: PerPosition, entropy: PerPosition, s_expected: PerPosition | None = None
    ) -> "TokenStats":
        """Build from the log p and entropy that a trainer logged, nats; detached.

        S* = p (H + log p) follows from these two. E[S] does not: it is NaN unless given.
        """
        logp, entropy = logp.detach().float(), entropy.detach().float()
        expected = torch.full_like(logp, torch.nan) if s_expected is None else s_expected.float()
        return cls(logp, entropy, logp.exp() * (entropy + logp), expected)

    @property
    def s_centered(self) -> PerPosition:
        """S_c = S* - E[S], the factor of Theorem 2."""
        return self.s_star - self.s_expected

    def map(self, function: Callable[[Tensor], Tensor]) -> "TokenStats":
        """The same statistics with `function` applied to each tensor."""
        return TokenStats(**{name: function(column) for name, column in self.columns().items()})

    def columns(self) -> dict[str, Tensor]:
        """The statistics that are not None, by name."""
        return {name: column for name, column in vars(self).items() if column is not None}


def token_stats(
    logits_or_hidden: Float[Tensor, "*position features"],
    tokens: Int[Tensor, "*position"],
    *,
    weight: Float[Tensor, "vocab features"] | None = None,
    temperature: float = 1.0,
    entropy_gradient: bool = False,
    top: int = 0,
    min_p: float = 0.0,
    among: Int[Tensor, "*position top"] | None = None,
) -> TokenStats:
    """Per-position statistics of `tokens` under softmax(logits / temperature), fp32, in nats.

    The gradient of `logp` flows into the logits, or into the hidden states and the weight. `top`, `min_p` or `among`
    takes a second pass over the vocabulary. Raises ValueError if `tokens` does not have the leading shape of the first
    argument, or if `top` exceeds the vocabulary.

    Args:
        logits_or_hidden: logits, or hidden states when `weight` is given.
        tokens: the sampled token at every position.
        weight: output projection. The logits are then hidden @ weight.T, of which one tile of rows and vocabulary
            exists at a time.
        temperature: sampling temperature of the policy.
        entropy_gradient: let gradients flow through `entropy` too, as an entropy bonus needs.
        top: number of most likely tokens in `top_logp`.
        min_p: `proxy_logp` drops tokens below this fraction of the largest probability.
        among: the tokens whose log p `top_logp` has, instead of those of `top`.
    """
    if logits_or_hidden.shape[:-1] != tokens.shape:
        raise ValueError(f"tokens {tuple(tokens.shape)} do not fit {tuple(logits_or_hidden.shape)}")
    rows = logits_or_hidden.reshape(-1, logits_or_hidden.shape[-1])
    flat = tokens.reshape(-1)
    with torch.no_grad():
        further, logits = (flat.new_empty(len(flat), 0),) * 2
        if top or among is not None:
            further, logits = tiles.most_likely(rows, weight, top or 1)
        if among is not None:  # after the most likely token
            given = among.reshape(len(flat), -1)
            further = torch.cat((further[:, :1], given), -1)
            logits = torch.cat((logits[:, :1], tiles.logits_of(rows, weight, given)), -1)
    arguments = rows, weight, flat, further, logits.float(), temperature, entropy_gradient, _kernels(rows)
    *columns, log_normalizer, highest, top_logp = _Statistics.apply(*arguments)
    proxy_logp = None
    if min_p:
        with torch.no_grad():
            threshold, logp = highest + math.log(min_p), columns[0]
            log_mass = tiles.log_mass_above(rows, weight, log_normalizer, threshold, temperature)
            # At min_p = 1, rounding may leave no mass at all.
            proxy = torch.where(logp >= threshold, (logp - log_mass).clamp_max(0), -torch.inf)
        proxy_logp = proxy.reshape(tokens.shape)
    if among is not None:
        top_logp = top_logp[:, 1:].reshape(among.shape)
    else:
        top_logp = top_logp.reshape(*tokens.shape, top) if top else None
    stats = TokenStats(*(column.reshape(tokens.shape) for column in columns))
    return replace(stats, top_logp=top_logp, proxy_logp=proxy_logp)


def _block_stats(logits: Float[Tensor, "rows vocab"], tokens: TokenPerRow, temperature: float) -> Columns:
    """log p, H, S*, E[S], the log-normalizer and the largest log p of one block of rows, without tiling."""
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
    """The six columns of `_block_stats` from x of the sampled tokens and the running sums."""
    log_s = s.log()
    mean_x = t / s
    logp = x_token - log_s
    entropy = (log_s - mean_x).clamp_min(0)  # rounding alone makes it negative
    s_star = logp.exp() * (x_token - mean_x)
    s_expected = (u - q * mean_x) / s.square()
    return logp, entropy, s_star, s_expected, top + log_s, -log_s


def _from_tiles(sums: Float[Tensor, "5 rows"], z_token: PerRow, temperature: float) -> Columns:
    """The six columns of `_block_stats` from tile sums (max, s, t, q, u), where only e^x includes the temperature."""
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
    columns: tuple[list[Tensor], ...] = ([], [], [], [], [])
    for block in logits.split(len(x)):
        for tile in block.split(width, -1):
            full = tile.shape == x.shape  # slicing the buffers for every tile would cost 5 % of the time
            buffers = (x, e) if full else (x[: len(tile), : tile.shape[1]], e[: len(tile), : tile.shape[1]])
            for column, value in zip(columns, _tile_sums(tile, temperature, *buffers), strict=True):
                column.append(value)
    # With several tiles per row, a block is one row, so the order is always [rows, tiles].
    return torch.stack([torch.cat(column) for column in columns]).view(5, len(logits), count).permute(2, 0, 1)


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


class _Upstream(NamedTuple):
    """The per-row inputs of a logit's gradient."""

    tokens: TokenPerRow
    log_normalizer: PerRow
    grad_logp: PerRow
    entropy: PerRow
    grad_entropy: PerRow | None
    further: Further
    """Tokens besides `tokens` whose logits have a gradient of their own."""
    grad_further: PerFurther
    """That gradient, before division by the temperature."""

    def at(self, rows: slice) -> "_Upstream":
        return _Upstream._make(None if values is None else values[rows] for values in self)


def _gradient(
    logits: Float[Tensor, "rows tile"], upstream: _Upstream, columns: slice, temperature: float, vocabulary: int
) -> Float[Tensor, "rows tile"]:
    """Gradient of the logits in `columns` of the vocabulary, fp32: d log p_k = e_k - p, dH = -p (log p + H)."""
    tokens, log_normalizer, grad_logp, entropy, grad_entropy, *_ = upstream
    x = logits.float() if temperature == 1.0 else logits.float() / temperature
    logp = x - log_normalizer[:, None]
    if grad_entropy is None:
        gradient = tiles.exp(logp, vocabulary).mul_(-grad_logp[:, None])
    else:
        p = tiles.exp(logp.clamp_min_(LOWEST), vocabulary)
        gradient = logp.add_(entropy[:, None]).mul_(grad_entropy[:, None]).add_(grad_logp[:, None]).mul_(p).neg_()
    place, inside = tiles.place(tokens, columns)
    gradient.scatter_add_(-1, place[:, None], (grad_logp * inside)[:, None])
    if temperature != 1.0:
        gradient.div_(temperature)
    _add_further(gradient, upstream, columns, temperature)
    return gradient


def _kernels(tensor: Tensor) -> Kernels:
    """The Triton kernels if they can run: on a GPU for which `_works_on` is true, or in Triton's interpreter."""
    if not (tensor.is_cuda or os.environ.get("TRITON_INTERPRET") == "1") or importlib.util.find_spec("triton") is None:
        return None
    if tensor.is_cuda and not _works_on(tensor.device, tensor.dtype):
        return None
    from entropy_dynamics.core import token_stats_triton

    return token_stats_triton


@cache
def _works_on(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether the kernels agree with PyTorch in values and gradients. If not (e.g. on a small GPU), warn once."""
    from triton.errors import TritonError

    from entropy_dynamics.core import token_stats_triton

    try:
        fast, plain = (_small_case(device, dtype, kernels) for kernels in (token_stats_triton, None))
        # Relative to the norm of each result: E[S] is a thousand times smaller than the entropy. In bf16, PyTorch
        # rounds the logits and the kernels do not. NaN disagrees, too.
        bound = 1e-3 if dtype == torch.float32 else 0.05
        if all((one - other).norm() <= bound * other.norm() for one, other in zip(fast, plain, strict=True)):
            return True
        reason = "they are wrong"
    # Errors of Triton, of its C compiler, and of the driver.
    except (TritonError, ImportError, OSError, RuntimeError, subprocess.SubprocessError) as error:
        reason = str(error)
        if "out of memory" in reason:  # PyTorch would lack the same memory
            raise
    warnings.warn(f"no Triton kernels for token statistics in {dtype} on {device}: {reason}", stacklevel=2)
    return False


@torch.enable_grad()
def _small_case(device: torch.device, dtype: torch.dtype, kernels: Kernels) -> list[Tensor]:
    """Statistics and gradients of 70 tokens, from hidden states and from logits; no size is a multiple of a block."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((1.0, 70, 96), (0.2, 5001, 96), (1.0, 70, 5001))
    normal = (scale * torch.randn(*size, generator=generator) for scale, *size in sizes)
    hidden, weight, logits = (values.to(device, dtype).requires_grad_() for values in normal)
    tokens = torch.linspace(0, 5000, 70, device=device).long()  # in every block of the vocabulary
    none = torch.empty(70, 0, dtype=torch.long, device=device)
    results = []
    for given, projection in ((hidden, weight), (logits, None)):
        columns = _Statistics.apply(given, projection, tokens, none, none.float(), 1.0, True, kernels)
        (columns[0] + columns[1]).sum().backward()
        results += [*columns[:4], given.grad]
    return [result.detach().float() for result in (*results, weight.grad)]


def _add_further(gradient: Float[Tensor, "rows tile"], upstream: _Upstream, columns: slice, temperature: float) -> None:
    """Add the gradient of the logits of those further tokens that are in this tile."""
    if upstream.further.shape[-1]:
        place, inside = tiles.place(upstream.further, columns)
        gradient.scatter_add_(-1, place, (upstream.grad_further * inside / temperature).to(gradient.dtype))


def _columns(given: Given, weight: Weight, tokens: TokenPerRow, temperature: float, kernels: Kernels) -> Columns:
    """The six columns of `_block_stats` for all rows, by the fastest method for this device and vocabulary."""
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


def _gradient_of_logits(logits: Given, upstream: _Upstream, temperature: float, kernels: Kernels) -> Given:
    columns = slice(0, logits.shape[-1])
    # The only new tensor of size [tokens, V]. Its rows are dense, as the kernels require, unlike those of some logits.
    grad = torch.empty_like(logits, memory_format=torch.contiguous_format)
    if kernels:
        kernels.gradient(logits, *upstream[:5], 0, temperature, out=grad)
        _add_further(grad, upstream, columns, temperature)
    else:
        for rows in tiles.blocks(logits, columns.stop):
            grad[rows] = _gradient(logits[rows], upstream.at(rows), columns, temperature, columns.stop)
    return grad


def _gradients_of_hidden(
    hidden: Float[Tensor, "rows hidden"],
    weight: Float[Tensor, "vocab hidden"],
    upstream: _Upstream,
    temperature: float,
    kernels: Kernels,
) -> tuple[Float[Tensor, "rows hidden"], Float[Tensor, "vocab hidden"]]:
    """Gradients of the hidden states and of the weight.

    The outer loop is over the vocabulary, so that the fp32 gradient of only one tile of the weight is held at a time.
    """
    grad_hidden = torch.empty(hidden.shape, dtype=torch.float32, device=hidden.device)
    grad_weight = torch.empty_like(weight)
    height, width = tiles.projection_tile(hidden, len(weight))
    for columns in tiles.slices(len(weight), width):
        weight_tile = weight[columns]
        grad_tile = torch.zeros(weight_tile.shape, dtype=torch.float32, device=weight.device)
        for rows in tiles.slices(len(hidden), height):
            logits, of_rows = tiles.product(hidden[rows], weight_tile.T), upstream.at(rows)
            if kernels:
                d = torch.empty_like(logits, dtype=weight.dtype)
                kernels.gradient(logits, *of_rows[:5], columns.start, temperature, out=d)
                _add_further(d, of_rows, columns, temperature)
            else:
                d = _gradient(logits, of_rows, columns, temperature, len(weight)).to(weight.dtype)
            tiles.add_product(grad_hidden[rows], d, weight_tile, first=columns.start == 0)
            tiles.add_product(grad_tile, d.T, hidden[rows], first=rows.start == 0)
        grad_weight[columns] = grad_tile
    return grad_hidden.to(hidden.dtype), grad_weight


class _Statistics(torch.autograd.Function):
    """The six columns of `_block_stats`, and log p of the further tokens.

    The input is logits, or hidden states and a weight. The first of the further tokens must be the most likely one.
    """

    @staticmethod
    def forward(
        ctx: Any,
        given: Given,
        weight: Weight,
        tokens: TokenPerRow,
        further: Further,
        further_logits: PerFurther,
        temperature: float,
        entropy_gradient: bool,
        kernels: Kernels,
    ) -> tuple[Tensor, ...]:
        logp, entropy, *constant, highest = _columns(given, weight, tokens, temperature, kernels)
        further_logp = (further_logits - further_logits[:, :1]) / temperature + highest[:, None]
        further_logp = torch.where(further == tokens[:, None], logp[:, None], further_logp)
        ctx.save_for_backward(given, weight, tokens, further, entropy, constant[-1])
        ctx.entropy_gradient, ctx.settings = entropy_gradient, (temperature, kernels)
        ctx.mark_non_differentiable(*constant, highest, *([] if entropy_gradient else [entropy]))
        return logp, entropy, *constant, highest, further_logp

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        given, weight, tokens, further, entropy, log_normalizer = ctx.saved_tensors
        grad_logp, grad_entropy, *_, grad_further = gradients
        # d log p_k = e_k - p for every token k, so -p is multiplied by the sum of all gradients. Passing that sum as
        # the gradient of the sampled token also adds it to e_k there, which a further token with its negative undoes.
        total = grad_further.sum(-1)
        if further.shape[-1]:
            further = torch.cat((further, tokens[:, None]), -1)
            grad_further = torch.cat((grad_further, -total[:, None]), -1)
        grad_h = grad_entropy if ctx.entropy_gradient else None
        upstream = _Upstream(tokens, log_normalizer, grad_logp + total, entropy, grad_h, further, grad_further)
        if weight is None:
            return _gradient_of_logits(given, upstream, *ctx.settings), *(None,) * 7
        return *_gradients_of_hidden(given, weight, upstream, *ctx.settings), *(None,) * 6
