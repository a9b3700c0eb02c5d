"""Per-token statistics of a policy: log p, H, S* and E[S], in nats and fp32.

With x = z - max(z) every one of them follows from five running sums over the vocabulary,

    s = sum e^x,   t = sum x e^x,   q = sum e^2x,   u = sum x e^2x,   and x_k of the sampled token k:

    log p_k = x_k - log s                         H    = log s - t/s
    S*      = p_k (H + log p_k) = p_k (x_k - t/s)  E[S] = sum_i p_i S_i = (u - q t/s) / s^2

(paper, Section 3.1 and Theorem 2). Writing S* and E[S] without H avoids the cancellation of log s for peaked
distributions. Rows are processed in blocks, so nothing of the size [tokens, vocabulary] is held beside the
given logits; from hidden states not even those are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# Elements of one block of logits: 4 MiB in fp32, about what stays in a core's cache while it is read five times. A GPU
# has no such cache, but wants many rows at a time: 256 MiB.
BLOCK_ELEMENTS = {"cpu": 1 << 20, "cuda": 1 << 26}
# From hidden states a block has at least so many rows: each block reads the whole output projection anew.
MATRIX_ROWS = 64
# exp underflows to 0 far above this; -inf, which some models give to padding of the vocabulary, would make 0 * inf.
LOWEST = -1e4


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
        weight: output projection [V, d]; logits are then hidden @ weight.T, never held for more than one block of rows.
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


def _block_stats(logits: Tensor, tokens: Tensor, temperature: float) -> tuple[Tensor, ...]:
    """log p, H, S*, E[S] and the log-normaliser of one block [rows, V]."""
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
    log_s = s.log()
    mean_x = t / s
    logp = x_token - log_s
    entropy = (log_s - mean_x).clamp_min(0)  # rounding alone makes it negative
    s_star = logp.exp() * (x_token - mean_x)
    s_expected = (u - q * mean_x) / s.square()
    return logp, entropy, s_star, s_expected, top.squeeze(-1) + log_s


def _block_gradient(
    logits: Tensor,
    tokens: Tensor,
    log_normaliser: Tensor,
    grad_logp: Tensor,
    entropy: Tensor,
    grad_entropy: Tensor | None,
    temperature: float,
) -> Tensor:
    """Gradient of one block of logits, fp32 [rows, V]: d log p_k = e_k - p, dH = -p (log p + H)."""
    x = logits.float() if temperature == 1.0 else logits.float() / temperature
    logp = (x - log_normaliser[:, None]).clamp_min_(LOWEST)
    p = logp.exp()
    if grad_entropy is None:
        gradient = p.mul_(-grad_logp[:, None])
    else:
        gradient = logp.add_(entropy[:, None]).mul_(grad_entropy[:, None]).add_(grad_logp[:, None]).mul_(p).neg_()
    gradient.scatter_add_(-1, tokens[:, None], grad_logp[:, None])
    return gradient if temperature == 1.0 else gradient / temperature


def _blocks(rows: Tensor, vocabulary: int, at_least: int = 1) -> list[slice]:
    """Cut `rows` [N, ...], of which every one has or makes `vocabulary` logits."""
    size = max(at_least, BLOCK_ELEMENTS["cpu" if rows.device.type == "cpu" else "cuda"] // vocabulary)
    rows = len(rows)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _empty_columns(like: Tensor, rows: int) -> list[Tensor]:
    return [torch.empty(rows, dtype=torch.float32, device=like.device) for _ in range(5)]


def _keep_for_backward(ctx, inputs: tuple[Tensor, ...], columns: list[Tensor], temperature, entropy_gradient):
    logp, entropy, s_star, s_expected, log_normaliser = columns
    ctx.save_for_backward(*inputs, entropy, log_normaliser)
    ctx.temperature, ctx.entropy_gradient = temperature, entropy_gradient
    ctx.mark_non_differentiable(s_star, s_expected, *([] if entropy_gradient else [entropy]))
    return logp, entropy, s_star, s_expected


class _StatsFromLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: Tensor, tokens: Tensor, temperature: float, entropy_gradient: bool):
        columns = _empty_columns(logits, len(logits))
        for block in _blocks(logits, logits.shape[-1]):
            values = _block_stats(logits[block], tokens[block], temperature)
            for column, value in zip(columns, values, strict=True):
                column[block] = value
        return _keep_for_backward(ctx, (logits, tokens), columns, temperature, entropy_gradient)

    @staticmethod
    def backward(ctx, grad_logp: Tensor, grad_entropy: Tensor, *_):
        logits, tokens, entropy, log_normaliser = ctx.saved_tensors
        grad = torch.empty_like(logits)  # the gradient itself is [tokens, V]; nothing else of that size is made
        for block in _blocks(logits, logits.shape[-1]):
            grad[block] = _block_gradient(
                logits[block],
                tokens[block],
                log_normaliser[block],
                grad_logp[block],
                entropy[block],
                grad_entropy[block] if ctx.entropy_gradient else None,
                ctx.temperature,
            )
        return grad, None, None, None


class _StatsFromHidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, tokens: Tensor, temperature: float, entropy_gradient: bool):
        columns = _empty_columns(hidden, len(hidden))
        for block in _blocks(hidden, len(weight), MATRIX_ROWS):
            values = _block_stats(hidden[block] @ weight.T, tokens[block], temperature)
            for column, value in zip(columns, values, strict=True):
                column[block] = value
        return _keep_for_backward(ctx, (hidden, weight, tokens), columns, temperature, entropy_gradient)

    @staticmethod
    def backward(ctx, grad_logp: Tensor, grad_entropy: Tensor, *_):
        hidden, weight, tokens, entropy, log_normaliser = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        for block in _blocks(hidden, len(weight), MATRIX_ROWS):
            d = _block_gradient(
                hidden[block] @ weight.T,
                tokens[block],
                log_normaliser[block],
                grad_logp[block],
                entropy[block],
                grad_entropy[block] if ctx.entropy_gradient else None,
                ctx.temperature,
            ).to(weight.dtype)
            grad_hidden[block] = d @ weight
            grad_weight.addmm_(d.T.float(), hidden[block].float())
        return grad_hidden, grad_weight.to(weight.dtype), None, None, None
