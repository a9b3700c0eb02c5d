"""Clip_B and other token weights as an `advantage_fn` of Trinity-RFT, given by its dotted path in the YAML:

    algorithm:
      algorithm_type: grpo
      advantage_fn: entropy_dynamics.integrations.trinity.EntropyControl
      advantage_fn_args: {method: clip_b, share: 0.02}

Trinity's batch must have `entropys`, which requires `algorithm.bypass_old_logprobs: false`, and `necs` for E[S].
"""

from typing import Any

import torch
from trinity.algorithm.advantage_fn import AdvantageFn

from entropy_dynamics.core.advantages import group_advantages
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.errors import UserError
from entropy_dynamics.integrations.common import reported_metrics, token_weight_method

FIELDS = ("token_level_rewards", "response_mask", "old_log_probs", "entropys")


class EntropyControl(AdvantageFn):  # type: ignore[misc]
    """GRPO's advantages times the token weights of a method."""

    def __init__(self, method: str = "clip_b", **params: Any) -> None:
        self.method, self.calls = token_weight_method(method, params, "Trinity-RFT"), 0

    @torch.no_grad()
    def __call__(self, exps: Any, **_: Any) -> tuple[Any, dict[str, float]]:
        """Write `advantages`, `returns` and, with the denominator `kept`, `response_mask` into Trinity's DataProto.

        Raises UserError if a tensor is missing, such as `necs` for Clip_V.
        """
        if missing := [name for name in FIELDS if name not in exps.batch]:
            raise UserError(f"Trinity's batch has no {missing[0]}: set algorithm.bypass_old_logprobs to false")
        if self.method.uses_s_expected and "necs" not in exps.batch:
            raise UserError(f"{type(self.method).__name__} needs E[S] of each token, and Trinity's batch has no necs")
        rewards, mask, logp, entropy = (exps.batch[name] for name in FIELDS)
        numbers = {uid: number for number, uid in enumerate(dict.fromkeys(exps.non_tensor_batch["uid"]))}
        groups = torch.tensor([numbers[uid] for uid in exps.non_tensor_batch["uid"]], device=mask.device)
        advantages = group_advantages(rewards.sum(-1), groups)[:, None] * mask
        stats = TokenStats.from_logged(logp, entropy, exps.batch.get("necs", None))
        self.calls += 1
        generator = torch.Generator(mask.device).manual_seed(self.calls)
        weights = self.method.checked_weights(stats, advantages, mask, generator=generator)
        exps.batch["returns"], exps.batch["advantages"] = advantages, advantages * weights
        if self.method.denominator == "kept":
            exps.batch["response_mask"] = mask * (weights > 0).to(mask.dtype)
        return exps, reported_metrics(stats, advantages, weights, mask, 1.0)

    @classmethod
    def default_args(cls) -> dict[str, Any]:
        return {"method": "clip_b"}
