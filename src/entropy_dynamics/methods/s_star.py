"""The eight ablations of Figure 1: keep or mask the tokens whose S* has one sign (paper, Section 5.2).

`s_star_keep_pos_gt` updates only tokens of positive samples with S* > 0; `s_star_mask_pos_gt` updates all tokens but
those. Theorem 1 says which way each moves entropy. That `keep` also silences the samples of the other sign is a
reading (docs/decisions.md): otherwise keep_pos_gt and mask_pos_lt would be one and the same run.
"""

import itertools
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method


@dataclass(frozen=True, kw_only=True)
class SStar(Method):
    """Weights from the signs of A and S*; the denominator stays all response tokens, since gradients are masked.

    mode: keep (only the chosen tokens) or mask (all but the chosen tokens).
    samples: pos (A > 0) or neg (A < 0).
    side: gt (S* > 0) or lt (S* < 0).
    """

    mode: Literal["keep", "mask"]
    samples: Literal["pos", "neg"]
    side: Literal["gt", "lt"]
    needs_batch: ClassVar[bool] = False

    def token_weights(
        self, stats: TokenStats, advantages: Tensor, mask: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        of_samples = advantages > 0 if self.samples == "pos" else advantages < 0
        of_side = stats.s_star > 0 if self.side == "gt" else stats.s_star < 0
        chosen = of_samples & of_side
        return mask.float() * (chosen if self.mode == "keep" else ~chosen)


for _mode, _samples, _side in itertools.product(("keep", "mask"), ("pos", "neg"), ("gt", "lt")):
    method(f"s_star_{_mode}_{_samples}_{_side}", mode=_mode, samples=_samples, side=_side)(SStar)
