"""Score centering: subtract the pull of an older or noisy sampler from the gradient (arXiv 2609.20807).

Where q samples and p is trained, E_q[grad log p] = sum_v q_v grad log p_v is not 0: it draws p towards q, whatever the
rewards are. With w(r) = 1, min(r, bound) or r 1[r <= bound] of r = p / q, and sg = stop gradient,

    loss  = -A (sg[w(p_y / q_y)] log p_y - sum_v sg[q_v w(p_v / q_v) - alpha p_v] log p_v)
    alpha = rho w(1 / rho),   rho = (1 - sum_v q_v) / (1 - sum_v p_v)

v runs over the sampler's `top` most likely tokens; outside of them q is taken for p times rho. Over the whole
vocabulary the sum is exact: its terms with p have no gradient in sum. Where q = p, it is the plain policy gradient.

Source: ScoreCenteringLoss of torchtitan, read in felipemello1/torchtitan (55d886f),
torchtitan/rl/losses/score_centering.py:23, whose test quotes the authors' reference, and prime-rl (349283d),
src/prime_rl/trainer/rl/score_centering.py:11. Neither the paper nor the authors' repository was read. torchtitan has
w = 1 and min(r, 2); that the paper tries masked ratios too is from a third-party summary.
"""

from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor

from entropy_dynamics.core.objective import importance_ratio
from entropy_dynamics.core.shapes import PerToken
from entropy_dynamics.methods import Method, method
from entropy_dynamics.methods.clip_b import ClipB
from entropy_dynamics.sections import PositiveInt

MIN_TAIL = 1e-6  # rounding may leave no mass outside of the top


@method("score_centering")
class ScoreCentering(Method):
    """Needs the native engine, which reports its most likely tokens. Neither clipping nor dual clip is used."""

    top: PositiveInt | None = None
    """Number of the sampler's most likely tokens in the sum; null: the whole vocabulary."""
    ratios: Literal["none", "truncated", "masked"] = "truncated"
    """Weight of a token: none (1) | truncated (min(p / q, bound)) | masked (p / q, and 0 above the bound)."""
    bound: Annotated[float, Field(ge=1)] = 2.0

    def second_pass(self) -> dict[str, Any]:
        return {"engine_top": self.top}

    def token_loss(
        self, logp: PerToken, *arguments: Any, top_logp: Any = None, top_logq: Any = None, **_: Any
    ) -> PerToken:
        logp_old, advantages, mask = arguments
        response = mask.bool()
        top_logp = torch.where(response[..., None], top_logp, 0.0)
        p, q = top_logp.detach().exp(), torch.where(response[..., None], top_logq, 0.0).exp()
        tails = ((1 - head.sum(-1, keepdim=True)).clamp_min(MIN_TAIL) for head in (q, p))
        rho = next(tails) / next(tails)
        correction = ((self._weighted(p, q) - self._weighted(torch.ones_like(rho), rho) * p) * top_logp).sum(-1)
        ratio = importance_ratio(logp, logp_old, mask).detach()
        loss = -advantages * (self._weighted(ratio, torch.ones_like(ratio)) * logp - correction)
        return torch.where(response, loss, 0.0)

    def _weighted(self, p: Tensor, q: Tensor) -> Tensor:
        """q w(p / q), which is finite where q underflows."""
        match self.ratios:
            case "none":
                return q
            case "truncated":
                return torch.minimum(p, self.bound * q)
            case "masked":
                return torch.where(p <= self.bound * q, p, 0.0)


@method("score_centering_clip_b")
class ScoreCenteringClipB(ClipB, ScoreCentering):
    """With Clip_B's token weights, on the token and its correction alike."""
