"""Clip-Cov and KL-Cov: hold back the tokens whose advantage and log-probability vary together (Cui et al. 2025).

Entropy falls with the covariance of log p and A over the batch, and a few tokens carry most of it,

    cov_t = (A_t - mean A) (log p_t - mean log p),   means over all response tokens of the batch.

Clip-Cov drops some of these tokens, KL-Cov ties them to the policy that sampled them. The official code takes the
means, the number of tokens and the choice inside each micro-batch of a GPU; here all three are of the optimizer's
batch, so that they do not depend on how it was cut.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.methods import Method, batch_mean_and_std, check_number, method

SHARE = "a share of all response tokens, in (0, 1]"


@method("clip_cov")
@dataclass(frozen=True, kw_only=True)
class ClipCov(Method):
    """Drops tokens drawn uniformly among those with lb < cov < ub; the denominator stays all response tokens.

    The official code draws among those that PPO clipping leaves a gradient. Here the others can be drawn too, which
    changes nothing strictly on-policy, where it clips none, and little with the official clipping range of 1.

    ratio: share of all response tokens that is dropped; rounded down, but at least one, and at most all candidates.
    lb, ub: bounds of the candidates' cov. The few tokens above ub are kept.
    """

    ratio: float = 2e-4
    lb: float = 1.0
    ub: float = 5.0

    every_update: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        check_number("ratio", self.ratio, lambda v: 0 < v <= 1, SHARE)
        check_number("ub", self.ub, lambda v: not math.isnan(v), "a number, the largest cov of a candidate")
        check_number("lb", self.lb, lambda v: v < self.ub, f"a number below ub ({self.ub})")

    def token_weights(
        self, stats: TokenStats, advantages: Tensor, mask: Tensor, generator: torch.Generator | None = None
    ) -> Tensor:
        cov = token_covariance(stats, advantages, mask)
        candidates = ((cov > self.lb) & (cov < self.ub)).flatten().nonzero().squeeze(-1)
        count = max(math.floor(self.ratio * int(mask.sum())), 1)
        device = None if generator is None else generator.device  # a generator draws on its own device only
        drawn = torch.randperm(len(candidates), generator=generator, device=device)[:count]
        dropped = torch.zeros(mask.numel(), dtype=torch.bool, device=mask.device)
        dropped[candidates[drawn.to(mask.device)]] = True
        return torch.where(dropped.view(mask.shape), 0.0, mask.float())


@method("kl_cov")
@dataclass(frozen=True, kw_only=True)
class KLCov(Method):
    """Adds beta |log p - log p_old| to the loss of the tokens with the largest cov; every token keeps its weight.

    Meant for a loss without PPO clipping, -A r (see its config). At log p = log p_old the term has no gradient, so it
    takes several updates a batch for KL-Cov to differ from the plain policy gradient.

    frac: share of all response tokens that is penalised; rounded down, but at least one.
    beta: strength of the penalty.
    """

    frac: float = 2e-3
    beta: float = 1.0

    every_update: ClassVar[bool] = True

    def __post_init__(self):
        super().__post_init__()
        check_number("frac", self.frac, lambda v: 0 < v <= 1, SHARE)
        check_number("beta", self.beta, lambda v: 0 <= v < math.inf, "a finite number, 0 or more")

    def drift_penalty(self, stats: TokenStats, advantages: Tensor, mask: Tensor) -> Tensor:
        cov = token_covariance(stats, advantages, mask)
        tokens = int(mask.sum())
        count = min(max(math.floor(self.frac * tokens), 1), tokens)
        largest = cov.flatten().argsort(descending=True, stable=True)[:count]  # of equal ones the first
        penalty = torch.zeros(cov.numel(), device=cov.device)
        penalty[largest] = self.beta
        return penalty.view(cov.shape)

    def notes(self, updates_per_batch: int) -> str | None:
        if updates_per_batch > 1:
            return None
        return (
            "KL-Cov has exactly no effect with training.updates_per_batch = 1: strictly on-policy "
            "|log p - log p_old| is 0 and so is its gradient"
        )


def token_covariance(stats: TokenStats, advantages: Tensor, mask: Tensor) -> Tensor:
    """cov_t of every token, float64 [B, T], without a gradient; -inf on padding. Arguments as in `Method`."""
    logp = stats.logp.detach()
    mean_advantage, mean_logp = (batch_mean_and_std(values, mask)[0] for values in (advantages, logp))
    cov = (advantages.double() - mean_advantage) * (logp.double() - mean_logp)
    return torch.where(mask.bool(), cov, -math.inf)
