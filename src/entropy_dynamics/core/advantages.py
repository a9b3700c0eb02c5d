"""Advantages: group-normalized (GRPO) and generalized advantage estimation (PPO)."""

import torch
from jaxtyping import Shaped
from torch import Tensor

from entropy_dynamics.core.groups import Grouping
from entropy_dynamics.core.shapes import Groups, Mask, PerToken

STD_EPS = 1e-6  # verl and Trinity-RFT; TRL takes 1e-4


def group_advantages(
    rewards: Shaped[Tensor, " batch"], groups: Groups, *, scale: bool = True
) -> Shaped[Tensor, " batch"]:
    """GRPO: (R - mean of the group) / (std of the group + 1e-6), with the unbiased std (divisor G - 1).

    A group of equal rewards gets exactly 0: otherwise the rounding error of its mean, divided by 1e-6, would push the
    whole group in one direction. For a group of one, the mean is taken as 0 and the std as 1 (verl, Trinity-RFT).
    Without `scale`, advantages are not divided by the std. The result is fp32 or wider, whatever the dtype of
    `rewards`. Raises ValueError if `rewards` and `groups` do not have the same shape [batch].
    """
    if rewards.ndim != 1 or rewards.shape != groups.shape:
        raise ValueError(f"rewards {tuple(rewards.shape)} and groups {tuple(groups.shape)} must both be [batch]")
    grouping, r = Grouping.by(groups), rewards.double()
    group, sizes = grouping.of, grouping.sizes
    centered = r - grouping.reduce(r, "mean")[group]
    std = (grouping.reduce(centered.square(), "sum") / (sizes - 1).clamp_min(1)).sqrt()
    advantages = centered / (std[group] + STD_EPS) if scale else centered
    advantages = advantages.masked_fill(grouping.constant(r)[group], 0.0)
    advantages = torch.where(sizes[group] == 1, r / (1.0 + STD_EPS), advantages)
    return advantages.to(torch.promote_types(rewards.dtype, torch.float32))


def gae(
    rewards: PerToken, values: PerToken, mask: Mask, gamma: float = 1.0, lam: float = 1.0
) -> tuple[PerToken, PerToken]:
    """Generalized advantage estimation (Schulman et al. 2016), over response tokens only.

        delta_t = rho_t + gamma V_{t+1} - V_t,    A_t = delta_t + gamma lam A_{t+1},    return_t = A_t + V_t

    t + 1 is the next response token, which skips gaps inside a response. After the last response token, V and A are 0.
    rho are the `rewards`: that of a whole response goes to its last token. V_t is the critic's value before token t;
    lam = 1 gives A_t = (discounted future reward) - V_t. Returns (advantages, returns), in the dtype of `values`, 0
    outside the mask; advantages are not whitened.
    """
    response = mask.bool()
    advantages = torch.zeros_like(values)
    next_value = values.new_zeros(len(values))
    next_advantage = values.new_zeros(len(values))
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        here = response[:, t]
        next_advantage = torch.where(here, delta + gamma * lam * next_advantage, next_advantage)
        next_value = torch.where(here, values[:, t], next_value)
        advantages[:, t] = torch.where(here, next_advantage, 0.0)
    return advantages, torch.where(response, advantages + values, 0.0)


def whiten(advantages: PerToken, mask: Mask) -> PerToken:
    """Whiten to mean 0 and variance 1 over the response tokens of the batch: (A - mean) / sqrt(var + 1e-8).

    The variance is the unbiased one (verl, Trinity-RFT). The result is 0 outside the mask; a single token is shifted.
    """
    response = mask.bool()
    chosen = advantages[response].double()
    variance = chosen.var() if chosen.numel() > 1 else torch.ones_like(chosen.sum())
    whitened = (advantages.double() - chosen.mean()) / (variance + 1e-8).sqrt()
    return torch.where(response, whitened, 0.0).to(advantages.dtype)
