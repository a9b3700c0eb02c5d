"""Grades of responses, and their rewards."""

from collections.abc import Callable, Sequence

from entropy_dynamics.core.shapes import PerRollout, PerToken
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.methods import Method
from entropy_dynamics.sampling import Rollout
from entropy_dynamics.tasks import Grade
from entropy_dynamics.training.batch import RolloutBatch


def grades_of(rollouts: Sequence[Rollout], grade: Callable[[Rollout], Grade], ranks: Ranks) -> list[Grade]:
    """The grades of all rollouts, each computed on one rank (see `Ranks.map`)."""
    return [Grade(**fields) for fields in ranks.map(lambda rollout: vars(grade(rollout)), rollouts)]


def paper_reward(grade: Grade) -> float:
    """The four values of the paper's Appendix B.

    1: answer and format correct; 0: only the answer correct; -1: wrong and "extremely long"; -0.1: otherwise wrong.
    "Extremely long" is interpreted as truncated at the limit; a wrong answer in the correct format counts as wrong.
    """
    if grade.answer_correct:
        return 1.0 if grade.formatted else 0.0
    return -1.0 if grade.truncated else -0.1


REWARDS: dict[str, Callable[[Grade], float]] = {
    "paper": paper_reward,
    "binary": lambda grade: float(grade.correct),  # as in the released code
}


def shaped_rewards(method: Method, rewards: PerRollout, batch: RolloutBatch, logp: PerToken) -> PerRollout:
    """The rewards from which a method computes advantages; `logp` is that of the policy that sampled, nats."""
    mean_logp = (logp * batch.mask).sum(-1) / batch.response_lengths
    return method.shape_rewards(rewards, batch.groups, mean_logp)
