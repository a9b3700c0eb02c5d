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

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from entropy_dynamics.core import tiles
from entropy_dynamics.core.kernels import kernels_for
from entropy_dynamics.core.shapes import PerPosition
from entropy_dynamics.core.token_gradients import Statistics


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
    arguments = rows, weight, flat, further, logits.float(), temperature, entropy_gradient, kernels_for(rows)
    *columns, log_normalizer, highest, top_logp = Statistics.apply(*arguments)
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
