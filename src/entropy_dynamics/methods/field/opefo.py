"""OPEFO: token weights that leave the entropy unchanged to first order (arXiv 2605.11491).

    w = 1 + lambda for tokens whose update raises the entropy, 1 - lambda for those that lower it,
    lambda = (|S-| - S+) / (|S-| + S+),   S+ and S-: sums over the batch of the changes above and below 0

so that (1 + lambda) S+ = (1 - lambda) |S-|. The change of a token is -A S* in the paper (Eq. 6), which leaves out what
its update does to the other tokens of the vocabulary: -A (S* - E[S]) in `opefo_centered` (Corollary 2).

Source: a secondary one; the paper's code was not found.
"""

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method


@method("opefo")
class Opefo(Method):
    """The change of a token is -A S*, as published."""

    strength: Annotated[float, Field(ge=-1, le=1)] | None = None
    """lambda; null: computed from each batch."""
    side: Literal["both", "raise", "lower"] = "both"
    """Weight both kinds of tokens, or only those that raise, or lower, the entropy."""

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        s = stats.s_centered if self.uses_s_expected else stats.s_star
        change = torch.where(mask.bool(), -advantages * s.detach(), 0.0).double()
        raised, lowered = change.clamp(min=0).sum(), -change.clamp(max=0).sum()
        total = raised + lowered
        strength = (lowered - raised) / total if total > 0 else total  # without any change no weight matters
        strength = strength if self.strength is None else torch.full_like(total, self.strength)
        upper, lower = (strength if self.side in ("both", kind) else 0 * strength for kind in ("raise", "lower"))
        weights = 1 + upper * (change > 0) - lower * (change < 0)
        return torch.where(mask.bool(), weights.float(), 0.0)

    def metrics(self, stats: TokenStats, advantages: PerToken, weights: PerToken, mask: Mask) -> dict[str, float]:
        """`opefo_sign_changes`: the share of response tokens for which S* and S* - E[S] differ in sign."""
        changed = (stats.s_star > 0) != (stats.s_centered > 0)
        return {"opefo_sign_changes": float(changed[mask.bool()].float().mean())}


@method("opefo_centered")
class OpefoCentered(Opefo):
    """The change of a token is -A (S* - E[S]), with the term that the paper leaves out."""

    uses_s_expected: ClassVar[bool] = True
