"""Rejection-sampling fine-tuning on the rollouts of a step: log-likelihood of correct answers, without advantages.

    loss = -mean of log p over the tokens of correct answers

Strictly on-policy its gradient equals PSR's (w_reinforce.py); otherwise it has no importance ratio. It is the common
core of RAFT (arXiv 2304.06767), STaR and RFT; repeated answers are not removed here.
"""

from typing import Any

from entropy_dynamics.core.shapes import PerToken
from entropy_dynamics.methods import method
from entropy_dynamics.methods.field.w_reinforce import PSR


@method("rft")
class RFT(PSR):
    """The advantages of PSR, 1 for correct answers and 0 for others, select the tokens."""

    def token_loss(self, logp: PerToken, logp_old: PerToken, advantages: PerToken, *_: Any, **__: Any) -> PerToken:
        return -advantages * logp
