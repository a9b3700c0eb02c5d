"""Recurring types: shapes, where `batch` counts rollouts and `token` response tokens (right-padded), and TokenStats."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

Scalar = Float[Tensor, ""]
PerPosition = Float[Tensor, "*position"]
PerToken = Float[Tensor, "batch token"]
PerRollout = Float[Tensor, " batch"]
Chosen = Bool[Tensor, "batch token"]
Mask = Shaped[Tensor, "batch token"]
"""Non-zero on response tokens; other tensors are arbitrary where it is zero."""
Groups = Int[Tensor, " batch"]
"""Group of every rollout: rollouts of one prompt share a number."""
Divisors = Float[Tensor, "batch 1"]
"""Divisor of the loss of every token of a rollout."""
Rows = Int[Tensor, " rows"]
"""Indices of rollouts in the batch."""


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
    """log p of the most likely tokens, in descending order, with gradient. If the sampled token is among them, its
    entry equals `logp`. None: not requested."""
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
