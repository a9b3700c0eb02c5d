"""The token-level policy loss: PPO clipping with dual clip, and how tokens are averaged.

A token's loss and its share in the average are two things. `loss_weights` computes the shares once, for the whole
batch, so that the loss of a batch is the sum over its tokens, however these are cut into micro-batches or ranks.
"""

import torch
from torch import Tensor

from entropy_dynamics.errors import UserError

LOG_RATIO_LIMIT = 20.0  # exp(20) is finite in every dtype that training uses but fp16


def loss_weights(
    weights: Tensor,
    mask: Tensor,
    groups: Tensor,
    *,
    scope: str = "global_token",
    denominator: str = "kept",
) -> Tensor:
    """Per-token multipliers, such that the loss of the batch is sum(token loss * multipliers).

    Args:
        weights: a method's token weights [B, T], 0 = dropped.
        mask: [B, T], non-zero on response tokens; weights elsewhere are never read.
        groups: integers [B], rollouts of one prompt share a number. All rollouts of one optimizer step, not a
            micro-batch: a group in pieces would be two groups.
        scope: `global_token`, the mean over all tokens of the batch (verl's token-mean); or `per_group`, the mean over
            groups of the token mean inside each (eq. 1 of the paper, averaged over prompts).
        denominator: what a token mean divides by: `kept`, the response tokens with a weight above 0 (the released
            Clip_B and Clip_V); or `all` response tokens.

    Returns:
        [B, T], dtype of `weights`. A batch or group without a token to divide by adds 0; such a group still counts
        as one in the mean over groups.

    Raises:
        UserError: unknown scope or denominator.
    """
    response = mask.bool()
    if denominator not in ("kept", "all"):
        raise UserError(f"denominator is {denominator!r}; it can be 'kept' or 'all'")
    counted = response & (weights > 0) if denominator == "kept" else response
    per_rollout = counted.sum(-1)

    if scope == "global_token":
        divisor = per_rollout.sum().clamp_min(1).expand(len(weights))
    elif scope == "per_group":
        names, group_of = torch.unique(groups, return_inverse=True)
        per_group = per_rollout.new_zeros(len(names)).index_add(0, group_of, per_rollout)
        divisor = len(names) * per_group.clamp_min(1)[group_of]
    else:
        raise UserError(f"loss_scope is {scope!r}; it can be 'global_token' or 'per_group'")
    return torch.where(response, weights, 0.0) / divisor[:, None]


def policy_loss(
    logp: Tensor,
    logp_old: Tensor,
    advantages: Tensor,
    multipliers: Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float = 3.0,
) -> Tensor:
    """sum_t multiplier_t * loss_t, with the clipped surrogate of PPO as the loss of a token (eq. 1, negated):

        loss = max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)),   for A < 0 at most -A dual_clip,
        r = exp(logp - logp_old), its logarithm clamped to [-20, 20].

    Strictly on-policy (`logp_old = logp.detach()`) r is exactly 1 and the gradient is -A times that of logp.

    Args:
        logp: log-probability of the sampled tokens under the policy being trained [B, T], nats; carries the gradient.
        logp_old: the same under the policy that sampled them [B, T]; always detached.
        advantages: [B, T].
        multipliers: from `loss_weights`, or a micro-batch's part of it [B, T]. Tokens at 0 are left out of the
            computation, so that padding may hold anything, nan included.
        clip_low, clip_high: PPO's clipping range.
        dual_clip: bound on the loss of a token with A < 0, in units of |A|; at least 1, `inf` turns it off.

    Returns:
        A scalar; 0, with a gradient of 0, if every multiplier is.
    """
    active = multipliers != 0
    logp, logp_old, advantages, multipliers = (x[active] for x in (logp, logp_old, advantages, multipliers))
    log_ratio = (logp - logp_old.detach()).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    ratio = log_ratio.exp()
    loss = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip_low, 1 + clip_high))
    dual = torch.where(advantages < 0, -advantages * dual_clip, torch.inf)
    return (torch.minimum(loss, dual) * multipliers).sum()


def value_loss(values: Tensor, values_old: Tensor, returns: Tensor, multipliers: Tensor, *, clip: float) -> Tensor:
    """sum_t multiplier_t * loss_t of a critic, clipped as in PPO:

        loss = 0.5 max((V - R)^2, (clip(V, V_old - clip, V_old + clip) - R)^2)

    Args:
        values: V of the critic being trained [B, T]; carries the gradient.
        values_old: V as it was when the advantages were estimated [B, T].
        returns: R [B, T].
        multipliers: from `loss_weights` with every response token at weight 1 [B, T].
        clip: how far V may move before its gradient stops; `inf` turns clipping off.

    Returns:
        A scalar.
    """
    active = multipliers != 0
    values, values_old, returns, multipliers = (x[active] for x in (values, values_old, returns, multipliers))
    clipped = values_old + (values - values_old).clamp(-clip, clip)
    return (0.5 * torch.maximum((values - returns).square(), (clipped - returns).square()) * multipliers).sum()
