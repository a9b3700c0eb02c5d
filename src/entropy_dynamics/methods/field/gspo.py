"""GSPO: the importance ratio of a sequence, clipped as a whole (Zheng et al., arXiv 2507.18071, eq. 5-7).

    s_i = (p(y_i) / p_old(y_i))^(1 / T_i) = exp(mean_t (log p_t - log p_old_t))
    loss = mean_i max(-s_i A_i, -clip(s_i, 1 - clip_low, 1 + clip_high) A_i)

Computed in the paper's token form (eq. 13-17), with s_i = sg[s_i] p_t / sg[p_t] on token t: the same if all tokens of a
response share one A, and also defined if they do not (PPO's critic). `loss_scope: per_sequence` is the mean over
sequences.

Source: the paper (bounds, four updates) and verl (b178a3c), verl/trainer/ppo/core_algos.py:1254
(compute_policy_loss_gspo); there is no official code.
"""

from typing import Any

import torch

from entropy_dynamics.core.objective import LOG_RATIO_LIMIT
from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.methods import ClipLow, LossScope, Method, method
from entropy_dynamics.sections import Threshold


@method("gspo")
class GSPO(Method):
    """Sequence ratios stay close to 1, hence the narrow clipping range. `dual_clip` is not used."""

    clip_low: ClipLow = 3e-4
    clip_high: Threshold = 4e-4
    loss_scope: LossScope = "per_sequence"

    def token_loss(self, logp: PerToken, logp_old: PerToken, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        response = mask.bool()
        log_ratio = torch.where(response, logp - logp_old, 0.0)
        mean = log_ratio.detach().sum(-1, keepdim=True) / response.sum(-1, keepdim=True).clamp_min(1)
        log_s = mean.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT) + log_ratio - log_ratio.detach()
        ratio, advantages = log_s.exp(), torch.where(response, advantages, 0.0)
        return torch.maximum(-ratio * advantages, -ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages)
