"""The eight ablations of Figure 1: keep or mask the tokens with one sign of S* (paper, Section 5.2).

`s_star_keep_pos_gt` updates only tokens of positive samples with S* > 0; `s_star_mask_pos_gt` updates all other tokens.
Theorem 1 predicts the direction in which each moves the entropy. `keep` also drops the samples of the opposite sign,
which is our interpretation (docs/decisions.md): otherwise keep_pos_gt and mask_pos_lt would be the same run.
"""

import itertools
from typing import Any, ClassVar, Literal

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method


class SStar(Method):
    """Weights from the signs of A and S*. Only gradients are masked: the denominator stays all response tokens."""

    mode: ClassVar[Literal["keep", "mask"]]
    """keep (only the chosen tokens) or mask (all but the chosen tokens)."""
    samples: ClassVar[Literal["pos", "neg"]]
    """pos (A > 0) or neg (A < 0)."""
    side: ClassVar[Literal["gt", "lt"]]
    """gt (S* > 0) or lt (S* < 0)."""

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        of_samples = advantages > 0 if self.samples == "pos" else advantages < 0
        of_side = stats.s_star > 0 if self.side == "gt" else stats.s_star < 0
        chosen = of_samples & of_side
        return mask.float() * (chosen if self.mode == "keep" else ~chosen)


for _mode, _samples, _side in itertools.product(("keep", "mask"), ("pos", "neg"), ("gt", "lt")):
    _fixed = {"mode": _mode, "samples": _samples, "side": _side, "__module__": __name__}
    method(f"s_star_{_mode}_{_samples}_{_side}")(type(f"SStar_{_mode}_{_samples}_{_side}", (SStar,), _fixed))
