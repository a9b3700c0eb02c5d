"""Entropy control in verl's V1 trainer: tokens are weighted between the computation of advantages and the update.

verl finds this module through its entry-point group `verl.plugins`. In verl's own command:

    trainer.v1.trainer_mode=entropy_control +entropy_control.method=clip_b +entropy_control.share=0.001

verl has stored the entropy and log p of each token with `old_log_probs`. E[S] is not available: verl keeps no logits.
"""

from pathlib import Path
from typing import Any

import torch
import transfer_queue as tq
from omegaconf import OmegaConf, open_dict
from tensordict import TensorDict
from torch import Tensor
from verl import DataProto
from verl.trainer.ppo.v1.trainer_base import register_trainer
from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync
from verl.workers.utils.padding import response_to_nested

from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.errors import UserError
from entropy_dynamics.integrations.common import reported_metrics, token_weight_method
from entropy_dynamics.methods import Method
from entropy_dynamics.results.token_samples import sampled_steps, write_token_samples

FIELDS = ["advantages", "response_mask", "old_log_probs", "entropy"]


@register_trainer("entropy_control")
class EntropyControlTrainer(PPOTrainerSync):  # type: ignore[misc]
    """verl's synchronous trainer; the section `entropy_control` of its config names the method."""

    def __init__(self, config: Any):
        self.entropy_control = method_of(config)
        with open_dict(config):  # the base class depends on this name in many places
            config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)

    def _compute_advantage(self, batch: Any, metrics: dict[str, Any]) -> Any:
        batch = super()._compute_advantage(batch, metrics)
        where = {"keys": batch.keys, "partition_id": batch.partition_id}
        stored = tq.kv_batch_get(**where, select_fields=FIELDS)
        lengths = stored["response_mask"]  # nested
        data = DataProto(batch=stored.to_padded_tensor())
        generator = torch.Generator().manual_seed(self.global_steps)
        stats, weights = token_weights(self.entropy_control, data, generator)
        if self.global_steps - 1 in sampled_steps(self.total_training_steps):  # verl counts from 1
            self._write_samples(batch, data, stats, weights)
        advantages, mask = data.batch["advantages"], data.batch["response_mask"]
        learning_rate = float(self.config.actor_rollout_ref.actor.optim.lr)
        metrics.update(reported_metrics(stats, advantages, weights, mask, learning_rate))
        changed = apply_weights(self.entropy_control, data, weights)
        fields = {name: response_to_nested(data.batch[name], lengths) for name in changed}
        return tq.kv_batch_put(**where, fields=TensorDict(fields, batch_size=len(batch)))

    def _write_samples(self, batch: Any, data: Any, stats: TokenStats, weights: Tensor) -> None:
        """Write responses of this step with the statistics of every token, for `entropy-dynamics lens`."""
        fields = ["uid", "prompts", "responses"]
        stored = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=fields)
        uids, prompts, ids = list(stored["uid"]), stored["prompts"].unbind(), stored["responses"].to_padded_tensor(0)
        mask, advantages = data.batch["response_mask"], data.batch["advantages"]
        # verl shuffles prompts to balance its ranks, and fills the batch up with rows without response tokens
        rows = sorted(mask.any(dim=1).nonzero().flatten().tolist(), key=uids.__getitem__)
        groups = torch.tensor([uids.index(uids[row]) for row in rows])

        def response(number: int) -> dict[str, Any]:
            row = rows[number]
            return {"prompt": self.tokenizer.decode(prompts[row], skip_special_tokens=True), "uid": uids[row]}

        path = Path(self.config.trainer.default_local_dir) / "samples" / f"step{self.global_steps}.parquet"
        tensors = (mask[rows], ids[rows], stats.map(lambda values: values[rows]), advantages[rows], weights[rows])
        write_token_samples(path, groups, *tensors, lambda token: self.tokenizer.decode([token]), response)


def method_of(config: Any) -> Method:
    """The method in verl's config.

    Raises UserError if it names none, if verl cannot run it, or if verl is set up not to recompute the entropy.
    """
    params = OmegaConf.to_container(config.get("entropy_control") or OmegaConf.create())
    assert isinstance(params, dict)
    if "method" not in params:
        raise UserError("verl's config names no method: add +entropy_control.method=clip_b")
    name, others = str(params.pop("method")), {str(key): value for key, value in params.items()}
    method = token_weight_method(name, others, "verl", s_expected=False)
    if (config.algorithm.get("rollout_correction") or {}).get("bypass_mode", False):
        raise UserError(
            "algorithm.rollout_correction.bypass_mode=true skips the pass that computes entropy: set it to false"
        )
    return method


def token_weights(method: Method, data: Any, generator: torch.Generator) -> tuple[TokenStats, Tensor]:
    """Statistics and weight of every token of a DataProto with the padded tensors of `FIELDS`; E[S] is NaN.

    Raises UserError if a tensor is missing.
    """
    if missing := [name for name in FIELDS if name not in data.batch]:
        raise UserError(f"verl's batch has no {missing[0]}, which entropy control reads")
    advantages, mask, logp, entropy = (data.batch[name] for name in FIELDS)
    stats = TokenStats.from_logged(logp, entropy)
    return stats, method.checked_weights(stats, advantages, mask, generator=generator)


def apply_weights(method: Method, data: Any, weights: Tensor) -> list[str]:
    """Apply token weights to a DataProto in place, and return the names of the tensors that changed.

    Advantages are weighted. With the denominator `kept`, dropped tokens also leave `response_mask`, over which verl
    sums, and `loss_mask`, by which it counts tokens.
    """
    mask = data.batch["response_mask"]
    data.batch["advantages"] = data.batch["advantages"] * weights
    if method.denominator == "all":
        return ["advantages"]
    data.batch["response_mask"] = data.batch["loss_mask"] = mask * (weights > 0).to(mask.dtype)
    return ["advantages", "response_mask", "loss_mask"]
