"""Rewarding the unlikely: among correct answers, less likely ones earn more (He et al. 2025).

    R' = R (1 - beta rank / G),   rank 0 for the least likely of a group's G responses, G - 1 for the most likely,

ranked by the mean log probability of a response's tokens. Advantages are computed from R' throughout.

Source: AndreHe02/rewarding-unlikely-release (ca1cff0), verl/trainer/ppo/ray_lean_trainer.py:643-680,
examples/lean/grpo.sh. Not implemented: its second epoch over each batch and its KL loss to the untrained model (0.1).
"""

import torch

from entropy_dynamics.core.groups import Grouping
from entropy_dynamics.core.shapes import Groups, PerRollout
from entropy_dynamics.methods import Method, method
from entropy_dynamics.sections import ZeroToOne


@method("unlikeliness")
class Unlikeliness(Method):
    """Only rewards above 0 are scaled: a factor below 1 on a negative reward would favor likely wrong answers."""

    beta: ZeroToOne = 0.25
    """The most likely response of a group of G loses the share beta (1 - 1/G) of its reward."""
    shape_constant_groups: bool = False
    """Also scale the rewards of groups in which all are equal; an all-correct group then has advantages by rank alone.
    The official recipe drops such groups, which is equivalent to `false`."""

    def shape_rewards(self, rewards: PerRollout, groups: Groups, mean_logp: PerRollout) -> PerRollout:
        in_batch = mean_logp.argsort(stable=True).argsort()  # ties in order of appearance
        same_group = groups[:, None] == groups
        ranks = (same_group & (in_batch < in_batch[:, None])).sum(-1).to(rewards)
        shaped = torch.where(rewards > 0, rewards * (1 - self.beta * ranks / same_group.sum(-1)), rewards)
        if self.shape_constant_groups:
            return shaped
        grouping = Grouping.by(groups)
        return torch.where(grouping.constant(rewards)[grouping.of], rewards, shaped)
