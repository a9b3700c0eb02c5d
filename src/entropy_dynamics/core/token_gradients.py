"""The token statistics as a differentiable function, and the gradient of the logits or of hidden states and weight."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entropy_dynamics.core import tiles
from entropy_dynamics.core.tiles import Given, PerRow, Weight
from entropy_dynamics.core.token_sums import LOWEST, Kernels, TokenPerRow, columns_of

Further = Int[Tensor, "rows further"]
PerFurther = Float[Tensor, "rows further"]


class Statistics(torch.autograd.Function):
    """The `Columns` of `token_sums`, and log p of the further tokens.

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
        logp, entropy, *constant, highest = columns_of(given, weight, tokens, temperature, kernels)
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


def _add_further(gradient: Float[Tensor, "rows tile"], upstream: _Upstream, columns: slice, temperature: float) -> None:
    """Add the gradient of the logits of those further tokens that are in this tile."""
    if upstream.further.shape[-1]:
        place, inside = tiles.place(upstream.further, columns)
        gradient.scatter_add_(-1, place, (upstream.grad_further * inside / temperature).to(gradient.dtype))
