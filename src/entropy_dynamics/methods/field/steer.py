"""STEER: tokens that would change the entropy most count less, in either direction (arXiv 2510.10150).

    Omega = (A / p_old) p (1 - p) (log p + H),   weight = exp(-k |Omega|),   k = -ln(w_min) / max(max |Omega|, floor)

so that the token with the largest |Omega| has weight w_min. p is the probability under the policy at each update. The
maximum is over the batch of the update; in the official code it is over a micro-batch.

Source: zz-haooo/STEER (b31df71), verl/trainer/ppo/core_algos.py:580 (compute_token_weights) and :681, run/run_exp.sh.
"""

import math
from typing import Any, ClassVar

import torch
from pydantic import PositiveFloat

from entropy_dynamics.core.objective import importance_ratio
from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method
from entropy_dynamics.sections import Share


@method("steer")
class Steer(Method):
    """The denominator stays all response tokens."""

    w_min: Share = 0.8
    """The smallest weight; 1 is GRPO."""
    floor: PositiveFloat = 0.02
    """Lower bound on max |Omega| in k: a batch whose |Omega| are all smaller is damped less."""
    per_update: ClassVar[bool] = True

    def token_weights(
        self, stats: TokenStats, advantages: PerToken, mask: Mask, *, logp_old: PerToken | None = None, **_: Any
    ) -> PerToken:
        logp = stats.logp.detach()
        ratio = 1.0 if logp_old is None else importance_ratio(logp, logp_old, mask)
        omega = (advantages * ratio * (1 - logp.exp()) * (logp + stats.entropy.detach())).abs()
        omega = torch.where(mask.bool(), omega, 0.0)
        k = -math.log(self.w_min) / omega.max().clamp_min(self.floor)
        return mask.float() * (-k * omega).exp()
