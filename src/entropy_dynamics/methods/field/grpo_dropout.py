"""GRPODropout: drop the rollouts of a group that lower the entropy most, until the rest no longer lower it.

    h = A (s - mean of s),   s the mean -log p of a response's tokens, A GRPO's advantage

The mean of h over a group is -Cov(A, mean log p). Rollouts with the most negative h are dropped until the sum of h is
positive; of a group without a positive h, the quarter with the highest h stays. Advantages are normalized again over
the rollouts that stay, and shifted by their mean with weights exp(-s). Dropped rollouts leave the denominator.

Source: hexuandeng/GRPODropout (4ad3b3b), verl/examples/grpo_dropout/selector_methods.py (select_balanced_push_zero and
..._add_negpush_negadv), selector.py, and verl/verl/trainer/ppo/ray_trainer.py (_apply_adv_p_center_after_select). The
code also drops rollouts with h = 0 where enough others stay, and draws the quarter of a group with A = 0 at random.
"""

from typing import Any

import torch
from pydantic import PrivateAttr

from entropy_dynamics.core.advantages import group_advantages
from entropy_dynamics.core.shapes import Groups, Mask, PerRollout, PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Denominator, Method, method


@method("grpo_dropout")
class GRPODropout(Method):
    """Dropped and kept rollouts are chosen once per batch, under the policy before its first update."""

    restore_negative: bool = True
    """Keep all rollouts with A < 0, so that only likely correct answers are dropped (`balance_neg` of the released
    code). False: `balance`."""
    denominator: Denominator = "kept"

    _mean_logp: PerRollout | None = PrivateAttr(None)
    _kept: torch.Tensor | None = PrivateAttr(None)

    def shape_rewards(self, rewards: PerRollout, groups: Groups, mean_logp: PerRollout) -> PerRollout:
        self._mean_logp = mean_logp.double()
        return rewards

    def advantages(self, rewards: PerRollout, groups: Groups) -> PerRollout:
        assert self._mean_logp is not None
        before = group_advantages(rewards, groups)
        after = torch.zeros_like(before)
        self._kept = torch.zeros_like(groups, dtype=torch.bool)
        for group in groups.unique():
            members = (groups == group).nonzero().squeeze(-1)
            logp = self._mean_logp[members]
            push, order = (before[members] * (logp.mean() - logp)).sort(descending=True, stable=True)
            count = int((push.cumsum(0) > 1e-12).sum()) or max(1, len(members) // 4)
            kept = torch.zeros_like(members, dtype=torch.bool)
            kept[order[:count]] = True
            if self.restore_negative:
                kept |= before[members] < 0
            members, logp = members[kept], logp[kept]
            own = group_advantages(rewards[members], groups[members])
            after[members] = (own - (logp.softmax(0) * own).sum()).to(after)
            self._kept[members] = True
        return after

    def token_weights(self, stats: TokenStats, advantages: PerToken, mask: Mask, **_: Any) -> PerToken:
        kept = advantages != 0 if self._kept is None else self._kept[:, None]
        return torch.where(kept, mask.float(), 0.0)
