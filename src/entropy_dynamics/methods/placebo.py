"""Placebos of Clip_B and Clip_V: drop as many tokens as the reference method would, but others. Not in the paper.

A placebo inherits from its reference, with all parameters, and computes the reference's weights on the same batch. It
drops as many tokens of negative, of positive and of zero advantage. So the share of dropped tokens and the denominator
are the reference's at every step, and only the selection of the tokens differs.
"""

from typing import Any

import torch
from torch import Generator

from entropy_dynamics.core.shapes import Mask, PerToken, TokenStats
from entropy_dynamics.methods import method
from entropy_dynamics.methods.clip_b import ClipB
from entropy_dynamics.methods.clip_v import ClipV
from entropy_dynamics.methods.common import largest, permutation


def dropping_others(reference: PerToken, priority: PerToken, advantages: PerToken, mask: Mask) -> PerToken:
    """Weights with as many zeros of each sign of the advantage as `reference`, at the tokens of highest priority."""
    response, dropped = mask.bool(), torch.zeros_like(mask, dtype=torch.bool)
    for of_sign in (advantages < 0, advantages > 0, advantages == 0):
        candidates = response & of_sign
        dropped |= largest(priority, candidates, int((candidates & (reference == 0)).sum()))
    return torch.where(dropped, 0.0, mask.float())


class _Random:
    """Precedes the reference among the bases of a placebo."""

    def token_weights(
        self, stats: TokenStats, advantages: PerToken, mask: Mask, *, generator: Generator | None = None, **_: Any
    ) -> PerToken:
        reference = super().token_weights(stats, advantages, mask)  # type: ignore[misc]
        # A random order of the response tokens, which depends on neither padding nor micro-batches.
        order = permutation(int(mask.bool().sum()), generator).to(mask.device, torch.double)
        priority = torch.zeros_like(mask, dtype=torch.double).masked_scatter(mask.bool(), order)
        return dropping_others(reference, priority, advantages, mask)


class _LowP:
    """Precedes the reference among the bases of a placebo."""

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        reference = super().token_weights(stats, advantages, mask)  # type: ignore[misc]
        return dropping_others(reference, -stats.logp.detach(), advantages, mask)


@method("random_mask")
class RandomMask(_Random, ClipB):
    """Drops tokens drawn uniformly, as many as Clip_B. The draw is seeded by the run and the step."""


@method("random_mask_v")
class RandomMaskV(_Random, ClipV):
    """Drops tokens drawn uniformly, as many as Clip_V. The draw is seeded by the run and the step."""


@method("low_p_mask")
class LowPMask(_LowP, ClipB):
    """Drops the tokens of lowest probability, as many as Clip_B."""


@method("low_p_mask_v")
class LowPMaskV(_LowP, ClipV):
    """Drops the tokens of lowest probability, as many as Clip_V."""
