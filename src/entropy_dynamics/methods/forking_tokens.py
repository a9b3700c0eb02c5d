"""Forking tokens: only the tokens of highest entropy are updated (Wang et al. 2025).

    keep H_t >= tau,   tau the ceil(keep_fraction N)-th highest entropy among the batch's N response tokens.

tau is computed over the whole batch of an update, whatever A; in the official code, over a micro-batch of a GPU.

Source: Shenzhi-Wang/Beyond-the-80-20-Rule-RLVR (6f5dda6), verl/trainer/ppo/core_algos.py:53
(get_global_entropy_top_mask) and :1004,
recipe/rlvr_with_high_entropy_tokens_only/run_only_top20_high_entropy_tokens_dapo_qwen3_14b.sh.
"""

from typing import Any, ClassVar

from entropy_dynamics.core.shapes import Mask, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, method
from entropy_dynamics.methods.common import rounded_up
from entropy_dynamics.sections import Share


@method("forking_tokens")
class ForkingTokens(Method):
    """Tokens tied at the threshold are all kept: the mask ignores token order and only grows with `keep_fraction`.

    `denominator`: `all` as in the paper's formula; `kept` as in the official code.
    """

    keep_fraction: Share = 0.2
    """Share of all response tokens to keep; 1 is GRPO."""
    per_update: ClassVar[bool] = True

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        response = mask.bool()
        entropy = stats.entropy.detach()
        tokens = int(response.sum())
        if tokens == 0:
            return mask.float()
        threshold = entropy[response].topk(rounded_up(self.keep_fraction, tokens)).values[-1]
        return mask.float() * (response & (entropy >= threshold))
