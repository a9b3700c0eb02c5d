"""The policy loss: PPO's clipped objective per token, and its reduction over tokens.

A token's loss and its divisor are separate. Divisors are computed once for all tokens of an update, so the loss of the
update is a plain sum over tokens, regardless of how these are split into micro-batches and among ranks.
"""

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from entropy_dynamics.core.groups import Grouping
from entropy_dynamics.core.shapes import Divisors, Groups, Mask, PerPosition, PerToken, Scalar

LOG_RATIO_LIMIT = 20.0  # exp(20) is finite in every dtype used in training except fp16


def token_divisors(
    weights: PerToken, mask: Mask, groups: Groups, *, scope: str = "global_token", denominator: str = "kept"
) -> Divisors:
    """Loss divisor of each row's tokens: the loss of an update is sum(token loss * weights / divisors).

    Divisors are at least 1. A group or sequence in which no token counts still counts in the mean over groups or
    sequences.

    Args:
        weights: a method's token weights, 0 = dropped. All rows of an update, not only of a micro-batch.
        mask: non-zero on response tokens; weights elsewhere are never read.
        scope: `global_token`, the mean over all tokens (verl's token-mean); `per_group`, the mean over groups of each
            group's token mean (eq. 1 of the paper, averaged over prompts); or `per_sequence`, the same over rows.
        denominator: the tokens that a token mean counts: `kept`, the response tokens with a weight above 0 (as in the
            released Clip_B and Clip_V), or `all` response tokens.
    """
    response = mask.bool()
    per_row = (response & (weights > 0) if denominator == "kept" else response).sum(-1)
    match scope:
        case "global_token":
            divisors = per_row.sum().clamp_min(1).expand(len(per_row))
        case "per_group":
            grouping = Grouping.by(groups)
            divisors = len(grouping.sizes) * grouping.reduce(per_row, "sum").clamp_min(1)[grouping.of]
        case "per_sequence":
            divisors = len(per_row) * per_row.clamp_min(1)
        case _:
            raise ValueError(f"unknown scope {scope!r}")
    return divisors[:, None].float()


def importance_ratio(logp: PerPosition, logp_old: PerPosition, mask: Shaped[Tensor, "*position"]) -> PerPosition:
    """r = p / p_old, with log r clamped to [-20, 20]; 1 outside the mask. `logp_old` is detached."""
    log_ratio = torch.where(mask.bool(), logp - logp_old.detach(), 0.0)
    return log_ratio.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()


def clipped_loss(
    logp: PerPosition,
    logp_old: PerPosition,
    advantages: PerPosition,
    mask: Shaped[Tensor, "*position"],
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 3.0,
) -> PerPosition:
    """PPO's clipped objective of every token (eq. 1, negated), with dual clip:

        loss = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)),   for A < 0 at most -A dual_clip

    `logp`, of the sampled tokens under the policy being trained, nats, carries the gradient; `logp_old`, under the
    policy that sampled them, is always detached. Outside the mask the result is arbitrary and has no gradient. A
    `dual_clip` is at least 1; `inf` turns it off.
    """
    ratio = importance_ratio(logp, logp_old, mask)
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high))
    dual = torch.where(advantages < 0, -advantages * dual_clip, torch.inf)
    return torch.minimum(loss, dual)


def full_kl(logp: Float[Tensor, "*position vocab"], logq: Float[Tensor, "*position vocab"]) -> PerPosition:
    """KL(p || q) = sum_v p_v (log p_v - log q_v) of every position, from all log p and log q, nats."""
    return (logp.exp() * (logp - logq)).sum(-1)


def weighted_sum(token_loss: PerPosition, multipliers: PerPosition) -> Scalar:
    """sum_t multiplier_t * loss_t over tokens with a non-zero multiplier, so padding may hold anything."""
    return torch.where(multipliers != 0, token_loss * multipliers, 0.0).sum()


def effective_advantages(
    loss_of: Callable[..., Scalar],
    logp: PerToken,
    entropy: PerToken,
    top_logp: Float[Tensor, "batch token top"] | None = None,
    is_sampled: Bool[Tensor, "batch token top"] | None = None,
) -> PerToken:
    """Coefficient of each token's grad log p in the descent step of a loss: -(dloss/dlogp - L dloss/dH), by autograd.

    For strictly on-policy GRPO it is A / (number of tokens).

    A loss term in the entropy contributes through L = log p + H: as grad H is the mean of -L grad log p over tokens
    drawn from the policy, the sum over sampled tokens is an unbiased estimate. A loss term in the log p of the most
    likely tokens contributes (dloss/dlog p_k) / p if the sampled token is the k-th of them, which is unbiased too.
    Both require a derivative that does not depend on the sampled token; SimKO's contains the advantage of the sampled
    token, so its coefficient is an approximation.

    `loss_of` is the loss as a function of `logp`, `entropy` and, if given, `top_logp`, nats. It is differentiated at
    their values, outside their graphs. `is_sampled` tells which entry of `top_logp` is the sampled token's; None: every
    entry that equals `logp`, so ties count more than once.
    """
    values = [logp, entropy, *([] if top_logp is None else [top_logp])]
    with torch.enable_grad():
        leaves = [value.detach().requires_grad_() for value in values]
        gradients = torch.autograd.grad(loss_of(*leaves), leaves, allow_unused=True, materialize_grads=True)
    by_logp, by_entropy, *by_top = gradients
    effective = (logp + entropy).detach() * by_entropy - by_logp
    for top, gradient in zip(leaves[2:], by_top, strict=True):
        sampled = top == logp.detach()[..., None] if is_sampled is None else is_sampled
        effective -= torch.where(sampled, gradient / top.detach().exp(), 0.0).sum(-1)
    return effective


def value_loss(values: PerPosition, values_old: PerPosition, returns: PerPosition, *, clip: float) -> PerPosition:
    """A critic's loss per token, clipped as in PPO: 0.5 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2).

    V carries the gradient; V_old is V when the advantages were estimated. `clip` is c, how far V may move before its
    gradient vanishes; `inf` turns clipping off.
    """
    clipped = values_old + (values - values_old).clamp(-clip, clip)
    return 0.5 * torch.maximum((values - returns).square(), (clipped - returns).square())
