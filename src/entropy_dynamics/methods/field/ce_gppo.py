"""CE-GPPO: tokens that PPO clips keep a bounded gradient (Su et al., arXiv 2509.20712).

    loss = -A g r / sg[r],   g = beta_low (1 - clip_low)    if A < 0 and r < 1 - clip_low,
                             g = beta_high (1 + clip_high)  if A > 0 and r > 1 + clip_high,
                             g = r                          else; for A < 0 at most -A dual_clip

r = p / p_old, sg = stop gradient. Strictly on-policy it is the plain policy gradient.

Source: Kwai-Klear/CE-GPPO (10558fe), verl/trainer/ppo/core_algos.py:531 (compute_gppo_loss_general_beta),
verl/workers/actor/dp_actor.py:326-410 (positive_loss), recipe/dapo/7B_perf_run_gppo_v1_beta1_075_beta2_1_ours_math.sh.
"""

from typing import Any, ClassVar

import torch
from pydantic import NonNegativeFloat

from entropy_dynamics.core.objective import importance_ratio
from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import DualClip, Method, method


@method("ce_gppo")
class CEGPPO(Method):
    """With both betas at 0 the gradient equals PPO's."""

    beta_low: NonNegativeFloat = 0.75
    beta_high: NonNegativeFloat = 1.0
    dual_clip: DualClip = 10.0

    def token_loss(self, logp: PerToken, logp_old: PerToken, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        ratio = importance_ratio(logp, logp_old, mask)
        g = ratio.detach()
        g = torch.where((advantages < 0) & (g < 1 - self.clip_low), self.beta_low * (1 - self.clip_low), g)
        g = torch.where((advantages > 0) & (g > 1 + self.clip_high), self.beta_high * (1 + self.clip_high), g)
        loss = -advantages * g * ratio / ratio.detach()
        dual = torch.where(advantages < 0, -advantages * self.dual_clip, torch.inf)
        return torch.minimum(loss, dual)


@method("ce_gppo_authors")
class CEGPPOAuthors(CEGPPO):
    """With the likelihood term of the released recipes: + positive_loss * mean(-log p) over tokens of correct answers.

    Correct means A > 0, as the recipes drop groups of equal rewards. The means of both terms are over the update; in
    the official code they are over a micro-batch.
    """

    positive_loss: NonNegativeFloat = 0.1
    per_update: ClassVar[bool] = True

    def loss_coefficients(self, stats: TokenStats, advantages: PerToken, mask: Mask) -> PerToken:
        correct = mask.bool() & (advantages > 0)
        share = correct.sum() / mask.bool().sum().clamp_min(1)
        return torch.where(correct, self.positive_loss / share, 0.0)

    def token_loss(self, logp: PerToken, *arguments: Any, coefficients: Any = None, **more: Any) -> PerToken:
        loss: PerToken = super().token_loss(logp, *arguments, **more) - coefficients * logp
        return loss
