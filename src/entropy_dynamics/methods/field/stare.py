"""STARE: unlikely tokens of correct answers count more while the entropy is low (arXiv 2606.19236).

    if mean H < target:  weight = amplify on the `share` of the tokens with A > 0 that have the highest -log p,
                         weight = damp on the same share of those with A < 0 (variant C2; variant O1 has damp = 1)

The official code ranks the tokens of a micro-batch under the policy at each update; here the ranking is over the whole
batch, under the policy before the first update on it. Both take the mean entropy over the batch.

Source: hp-luo/STARE (bffb9e7), verl/trainer/ppo/core_algos.py:1070 (compute_stare_token_weights) and :1191,
recipe/STARE/scripts/run_short_cot_qwen2.5_math_7b_STARE.sh.
"""

from typing import Annotated, Any

import torch
from pydantic import Field, NonNegativeFloat

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method
from entropy_dynamics.methods.common import batch_mean, largest, rounded_up
from entropy_dynamics.sections import Share, ZeroToOne


@method("stare")
class Stare(Method):
    """Variant O1 by default. The denominator stays all response tokens."""

    share: Share = 0.1
    """Share of the tokens with A > 0, and of those with A < 0, to reweight; rounded up."""
    amplify: Annotated[float, Field(ge=1)] = 1.1
    """Weight of the chosen tokens with A > 0."""
    damp: ZeroToOne = 1.0
    """Weight of the chosen tokens with A < 0; 0.9 in variant C2."""
    target: NonNegativeFloat = 0.3
    """At a mean entropy of at least this, nats, all weights are 1."""

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        weights = mask.float()
        if batch_mean(stats.entropy.detach(), mask) >= self.target:
            return weights
        for sign, weight in ((1, self.amplify), (-1, self.damp)):
            candidates = mask.bool() & (advantages * sign > 0)
            count = rounded_up(self.share, int(candidates.sum()))
            weights = torch.where(largest(-stats.logp.detach(), candidates, count), weight, weights)
        return weights
