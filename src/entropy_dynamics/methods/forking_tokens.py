"""Forking tokens: only the tokens of highest entropy are updated (Wang et al. 2025).

    keep H_t >= tau,   tau the entropy of the ceil(keep_fraction N)-th highest of the batch's N response tokens.

tau is over the whole batch of the optimizer, tokens of positive, negative and zero advantage together; the official
code takes the same number of tokens in each micro-batch of a GPU.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, check_number, method


@method("forking_tokens")
@dataclass(frozen=True, kw_only=True)
class ForkingTokens(Method):
    """Tokens tied at the threshold are all kept, so the mask depends on no order and grows with `keep_fraction`.

    keep_fraction: share of all response tokens that is kept; 1 is GRPO.
    denominator: `all` as in the paper's formula; `kept` as in the official code (a gradient 1 / keep_fraction times as
        large).
    """

    keep_fraction: float = 0.2

    every_update: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        right = "a share of all response tokens, in (0, 1]"
        check_number("keep_fraction", self.keep_fraction, lambda v: 0 < v <= 1, right)

    def token_weights(
        self, stats: TokenStats, advantages: Tensor, mask: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        response = mask.bool()
        entropy = stats.entropy.detach()
        tokens = int(response.sum())
        if tokens == 0:
            return mask.float()
        below = tokens - math.ceil(self.keep_fraction * tokens)
        threshold = entropy[response].kthvalue(below + 1).values
        return mask.float() * (response & (entropy >= threshold))
