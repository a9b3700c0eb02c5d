"""QAE: a quantile of the group's rewards as the baseline instead of their mean (Wu et al., arXiv 2509.22611, eq. 3).

    A = (R - b) / (std + 1e-6),   b = inf {x: F(x) >= quantile},   F the empirical distribution of the group

With binary rewards only one kind of answer has a non-zero advantage: the correct ones if their share of the group is at
most 1 - quantile, otherwise the wrong ones.

Source: the paper's web page and the README of junkangwu/QAE, which interpolates between order statistics
(`torch.quantile`, `qae_authors`). Its code was not available.
"""

from typing import Annotated

from pydantic import Field

from entropy_dynamics.core.advantages import STD_EPS
from entropy_dynamics.core.shapes import Scalar
from entropy_dynamics.methods import method
from entropy_dynamics.methods.common import PerGroup, PerMember, rounded_up


@method("qae")
class QAE(PerGroup):
    """Only the advantages differ from GRPO's."""

    quantile: Annotated[float, Field(gt=0, lt=1)] = 0.4
    """K in the paper. With a larger one more groups learn from their wrong answers, and the entropy is higher."""

    def group_advantages(self, rewards: PerMember) -> PerMember:
        return (rewards - self._baseline(rewards)) / (rewards.std(correction=min(1, len(rewards) - 1)) + STD_EPS)

    def _baseline(self, rewards: PerMember) -> Scalar:
        return rewards.sort().values[rounded_up(self.quantile, len(rewards)) - 1]


@method("qae_authors")
class QAEAuthors(QAE):
    """With an interpolated quantile."""

    def _baseline(self, rewards: PerMember) -> Scalar:
        return rewards.quantile(self.quantile)
