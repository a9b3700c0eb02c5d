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

# Elements of one block of logits: 4 MiB in fp32, about what stays in a core's cache while it is read five times.
BLOCK_ELEMENTS = 1 << 20
# exp underflows to 0 far above this; -inf, which some models give to padding of the vocabulary, would make 0 * inf.
LOWEST = -1e4


@dataclass(frozen=True)
class TokenStats:
    """Statistics of sampled tokens, each [...] in fp32; only `logp` carries a gradient."""

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
    logits_or_hidden: Tensor, tokens: Tensor, *, weight: Tensor | None = None, temperature: float = 1.0
) -> TokenStats:
    """Statistics of `tokens` under softmax(logits / temperature).

    Args:
        logits_or_hidden: logits [..., V]; or hidden states [..., d] when `weight` is given.
        tokens: int64 [...], the sampled token at every position.
        weight: output projection [V, d]; logits are then hidden @ weight.T, never held for more than one block of rows.
        temperature: the sampling temperature that the policy is taken at.

    Returns:
        TokenStats, each [...] fp32. The gradient flows through `logp` only, into the logits, or into hidden and weight.

    Raises:
        ValueError: if `tokens` does not have the leading shape of the first argument.
    """
    if logits_or_hidden.shape[:-1] != tokens.shape:
        raise ValueError(f"tokens {tuple(tokens.shape)} do not fit {tuple(logits_or_hidden.shape)}")
    rows = logits_or_hidden.reshape(-1, logits_or_hidden.shape[-1])
    flat = tokens.reshape(-1)
    if weight is None:
        columns = _StatsFromLogits.apply(rows, flat, temperature)
    else:
        columns = _StatsFromHidden.apply(rows, weight, flat, temperature)
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


def _softmax_minus_onehot_(logits: Tensor, tokens: Tensor, log_normaliser: Tensor, temperature: float) -> Tensor:
    """d(-log p)/d(logits / temperature) of one block, fp32 [rows, V]."""
    p = logits.float() if temperature == 1.0 else logits.float() / temperature
    p = (p - log_normaliser[:, None]).exp_()
    p.scatter_add_(-1, tokens[:, None], p.new_full((len(p), 1), -1.0))
    return p


def _blocks(rows: int, vocabulary: int) -> list[slice]:
    size = max(1, BLOCK_ELEMENTS // vocabulary)
    return [slice(start, min(start + size, rows)) for start in range(0, rows, size)]


def _empty_columns(like: Tensor, rows: int) -> list[Tensor]:
    return [torch.empty(rows, dtype=torch.float32, device=like.device) for _ in range(5)]


class _StatsFromLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits: Tensor, tokens: Tensor, temperature: float):
        columns = _empty_columns(logits, len(logits))
        for block in _blocks(*logits.shape):
            for column, values in zip(columns, _block_stats(logits[block], tokens[block], temperature), strict=True):
                column[block] = values
        ctx.save_for_backward(logits, tokens, columns[4])
        ctx.temperature = temperature
        ctx.mark_non_differentiable(*columns[1:4])
        return tuple(columns[:4])

    @staticmethod
    def backward(ctx, grad_logp: Tensor, *_):
        logits, tokens, log_normaliser = ctx.saved_tensors
        grad = torch.empty_like(logits)  # the gradient itself is [tokens, V]; nothing else of that size is made
        scale = -grad_logp / ctx.temperature
        for block in _blocks(*logits.shape):
            d = _softmax_minus_onehot_(logits[block], tokens[block], log_normaliser[block], ctx.temperature)
            grad[block] = d.mul_(scale[block, None])
        return grad, None, None


class _StatsFromHidden(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden: Tensor, weight: Tensor, tokens: Tensor, temperature: float):
        columns = _empty_columns(hidden, len(hidden))
        for block in _blocks(len(hidden), len(weight)):
            logits = hidden[block] @ weight.T
            for column, values in zip(columns, _block_stats(logits, tokens[block], temperature), strict=True):
                column[block] = values
        ctx.save_for_backward(hidden, weight, tokens, columns[4])
        ctx.temperature = temperature
        ctx.mark_non_differentiable(*columns[1:4])
        return tuple(columns[:4])

    @staticmethod
    def backward(ctx, grad_logp: Tensor, *_):
        hidden, weight, tokens, log_normaliser = ctx.saved_tensors
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
        scale = -grad_logp / ctx.temperature
        for block in _blocks(len(hidden), len(weight)):
            logits = hidden[block] @ weight.T
            d = _softmax_minus_onehot_(logits, tokens[block], log_normaliser[block], ctx.temperature)
            d = d.mul_(scale[block, None]).to(weight.dtype)
            grad_hidden[block] = d @ weight
            grad_weight.addmm_(d.T.float(), hidden[block].float())
        return grad_hidden, grad_weight.to(weight.dtype), None, None
