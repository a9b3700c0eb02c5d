"""Synthetic batches, and the loss of a whole batch, for the tests of methods and objective."""

import torch

from entropy_dynamics.core.objective import clipped_loss, token_divisors, weighted_sum
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.sampling import Prompt, Rollout
from entropy_dynamics.training.batch import RolloutBatch


def stats_of(logp=None, entropy=None, s_star=None, s_expected=None) -> TokenStats:
    """Those that are not given are 0."""
    columns = logp, entropy, s_star, s_expected
    zero = torch.zeros_like(torch.as_tensor(next(x for x in columns if x is not None)).float())
    logp, *others = (zero if x is None else torch.as_tensor(x).float() for x in columns)
    return TokenStats(logp, *others, **second_pass(logp))


def second_pass(logp) -> dict[str, torch.Tensor]:
    """What token_stats adds on request, if the sampled token is the second of two and was filtered like the first."""
    return {"top_logp": torch.stack([logp + 0.1, logp], -1), "proxy_logp": logp + 0.2}


def of_the_vocabulary(method, logp) -> dict[str, torch.Tensor]:
    """What token_loss gets of it."""
    top_logp = second_pass(logp)["top_logp"]
    if {"engine_top", "reference"} & method.second_pass().keys():
        return {"top_logp": top_logp, "top_logq": top_logp.detach() - 0.2}
    return {"top_logp": top_logp} if "top" in method.second_pass() else {}


def random_batch(seed, rows=12, tokens=30):
    """Log-probabilities, entropies, advantages of all three signs, and a mask that ends elsewhere in every row."""
    generator = torch.Generator().manual_seed(seed)
    logp = -(torch.randn(rows, tokens, generator=generator) ** 2)
    entropy = torch.rand(rows, tokens, generator=generator)
    advantages = torch.randn(rows, 1, generator=generator).expand(rows, tokens).clone()
    advantages[rows // 2] = 0.0
    mask = torch.arange(tokens) < torch.randint(1, tokens + 1, (rows, 1), generator=generator)
    return logp, entropy, advantages, mask


def seeded(seed=0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def loss_weights(weights, mask, groups, **how) -> torch.Tensor:
    """Multipliers such that the loss of a batch is sum(token loss * multipliers)."""
    return torch.where(mask.bool(), weights, 0.0) / token_divisors(weights, mask, groups, **how)


def policy_loss(logp, logp_old, advantages, multipliers, **clip) -> torch.Tensor:
    """The loss of a batch with PPO's clipped objective."""
    return weighted_sum(clipped_loss(logp, logp_old, advantages, multipliers != 0, **clip), multipliers)


def shares(method, weights, mask) -> torch.Tensor:
    """Multipliers with the method's own denominator."""
    return loss_weights(weights, mask, torch.zeros(len(mask), dtype=torch.long), denominator=method.denominator)


def skewed_batch(rows, seed, prompt=100, median=600, longest=7168) -> RolloutBatch:
    """Responses as long as reasoning traces are: log-normal, most of them short, some cut off at the limit."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (median * torch.randn(rows, generator=generator).exp()).clamp(1, longest).int().tolist()
    prompts = [Prompt(str(row), [1] * prompt) for row in range(rows)]
    rollouts = [Rollout(str(row), 0, [2] * length, "stop") for row, length in enumerate(lengths)]
    return RolloutBatch.collate(prompts, rollouts)
