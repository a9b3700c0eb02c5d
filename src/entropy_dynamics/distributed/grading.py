"""Grading, divided among the ranks."""

from collections.abc import Callable, Sequence

from entropy_dynamics.distributed.ranks import Item, Ranks
from entropy_dynamics.tasks import Grade


def grade_all(grade: Callable[[Item], Grade], rollouts: Sequence[Item], ranks: Ranks) -> list[Grade]:
    """The grades of all rollouts on every rank, each computed on one; see `Ranks.map`."""
    if ranks.size == 1:
        return [grade(rollout) for rollout in rollouts]
    return [Grade(**fields) for fields in ranks.map(lambda rollout: vars(grade(rollout)), rollouts)]
