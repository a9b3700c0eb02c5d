"""CISPO: clip the importance weight, never the gradient of a token (MiniMax-M1, arXiv 2506.13585, eq. 4-5).

    loss = -sg[clip(r, 1 - clip_low, 1 + clip_high)] A log p,   r = p / p_old, sg = stop gradient

Strictly on-policy r = 1, and it is the plain policy gradient.

Source: the paper, which publishes no value of clip_high, and third-party implementations: Trinity-RFT (upper bound
1.28, the default here), verl (b178a3c), verl/trainer/ppo/core_algos.py:1722 (1.2 in its example). There is no official
code.
"""

from typing import Any

import torch

from entropy_dynamics.core.objective import importance_ratio
from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.methods import ClipLow, Method, method
from entropy_dynamics.sections import Threshold


@method("cispo")
class CISPO(Method):
    """`dual_clip` is not used."""

    clip_low: ClipLow = 1.0
    """1 means no lower bound, as in the paper's experiments."""
    clip_high: Threshold = 0.28

    def token_loss(self, logp: PerToken, logp_old: PerToken, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        ratio = importance_ratio(logp, logp_old, mask).detach()
        loss = -ratio.clamp(1 - self.clip_low, 1 + self.clip_high) * advantages * logp
        return torch.where(mask.bool(), loss, 0.0)
