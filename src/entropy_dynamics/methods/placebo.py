"""Placebos of Clip_B, Clip_V and Clip-Cov: drop as many tokens as the reference would, but others. Not in the paper.

A placebo inherits from its reference, with all parameters, and computes the reference's weights on the same batch.
Those of Clip_B and Clip_V drop as many tokens of negative, of positive and of zero advantage, so that only the
selection of the tokens differs.
"""

from typing import Any, ClassVar

import torch
from torch import Generator

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import method
from entropy_dynamics.methods.clip_b import ClipB
from entropy_dynamics.methods.clip_v import ClipV
from entropy_dynamics.methods.common import largest, permutation, without_some
from entropy_dynamics.methods.covariance import ClipCov


class _Placebo:
    """Precedes the reference among the bases of a placebo."""

    random: ClassVar[bool] = True
    """Drop tokens drawn at random, else those of lowest probability."""

    def token_weights(
        self, stats: TokenStats, advantages: PerToken, mask: Mask, *, generator: Generator | None = None, **_: Any
    ) -> PerToken:
        reference = super().token_weights(stats, advantages, mask)  # type: ignore[misc]
        response, priority = mask.bool(), -stats.logp
        if self.random:  # an order of the response tokens, which depends on neither padding nor micro-batches
            order = permutation(int(response.sum()), generator).to(mask.device, torch.double)
            priority = torch.zeros_like(mask, dtype=torch.double).masked_scatter(response, order)
        dropped = torch.zeros_like(response)
        for of_sign in (advantages < 0, advantages > 0, advantages == 0):
            candidates = response & of_sign
            dropped |= largest(priority, candidates, int((candidates & (reference == 0)).sum()))
        return torch.where(dropped, 0.0, mask.float())


@method("random_mask")
class RandomMask(_Placebo, ClipB):
    """Drops tokens drawn uniformly, as many as Clip_B. The draw is seeded by the run and the step."""


@method("random_mask_v")
class RandomMaskV(_Placebo, ClipV):
    """Drops tokens drawn uniformly, as many as Clip_V. The draw is seeded by the run and the step."""


@method("low_p_mask")
class LowPMask(_Placebo, ClipB):
    """Drops the tokens of lowest probability, as many as Clip_B."""

    random: ClassVar[bool] = False


@method("low_p_mask_v")
class LowPMaskV(_Placebo, ClipV):
    """Drops the tokens of lowest probability, as many as Clip_V."""

    random: ClassVar[bool] = False


@method("random_positive")
class RandomPositive(ClipCov):
    """Drops tokens of correct answers (A > 0) drawn uniformly, as many as Clip-Cov drops in all.

    Or all of them, if there are fewer. Zeroing random tokens of positive advantage did about what Clip-Cov does in
    arXiv 2511.05993, of which only third-party summaries were read.
    """

    def token_weights(
        self, stats: TokenStats, advantages: PerToken, mask: Mask, *, generator: Generator | None = None, **_: Any
    ) -> PerToken:
        reference = super().token_weights(stats, advantages, mask, generator=generator)
        dropped = int((mask.bool() & (reference == 0)).sum())
        return without_some(mask, mask.bool() & (advantages > 0), dropped, generator)
