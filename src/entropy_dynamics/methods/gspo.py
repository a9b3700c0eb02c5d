"""GSPO: the importance ratio of a sequence, clipped as a whole (Zheng et al., arXiv 2507.18071, eq. 5-7).

    s_i = (p(y_i) / p_old(y_i))^(1 / T_i) = exp(mean_t (log p_t - log p_old_t))
    loss = mean_i max(-s_i A_i, -clip(s_i, 1 - clip_low, 1 + clip_high) A_i)

Every token of a response gets the loss of its sequence, and `loss_scope: per_sequence` (see its config) averages over
sequences. Strictly on-policy s = 1, and it is a policy gradient averaged per sequence.
"""

from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import Field

from entropy_dynamics.core.objective import LOG_RATIO_LIMIT
from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.methods import Method, method


@method("gspo")
class GSPO(Method):
    """Ratios of sequences stay close to 1, hence the narrow clipping range. `dual_clip` is not used."""

    clip_low: Annotated[float, Field(gt=0, le=1)] = 3e-4
    clip_high: Annotated[float, Field(gt=0, allow_inf_nan=True)] = 4e-4
    loss_scope: Literal["global_token", "per_group", "per_sequence"] = "per_sequence"
    needs_batch: ClassVar[bool] = False

    def token_loss(self, logp: PerToken, logp_old: PerToken, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        response = mask.bool()
        log_ratio = torch.where(response, logp - logp_old, 0.0)
        mean = log_ratio.sum(-1, keepdim=True) / response.sum(-1, keepdim=True).clamp_min(1)
        ratio = mean.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
        return torch.maximum(-ratio * advantages, -ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages)
