"""Where advantages come from: the group's own rewards (GRPO), or a critic and GAE (PPO)."""

import copy
import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from entropy_dynamics.config import CriticConfig
from entropy_dynamics.core.advantages import gae, group_advantages, whiten
from entropy_dynamics.core.objective import loss_weights, value_loss
from entropy_dynamics.errors import UserError
from entropy_dynamics.training.batch import RolloutBatch


class AdvantageEstimator(Protocol):
    """What the trainer asks of either."""

    def estimate(self, batch: RolloutBatch, rewards: Tensor) -> Tensor:
        """Advantages [B, T] from the rewards [B] of whole responses."""
        ...

    def learn(self, mini_batches: Sequence[Tensor]) -> dict[str, float]:
        """Learn from the batch last estimated, one optimizer step for the rows of each mini-batch; metrics to log."""
        ...


class GroupNormalised:
    """GRPO: the same advantage for every token of a response; there is nothing to learn."""

    def estimate(self, batch: RolloutBatch, rewards: Tensor) -> Tensor:
        return group_advantages(rewards, batch.groups_B)[:, None].expand(batch.mask_BT.shape)

    def learn(self, mini_batches: Sequence[Tensor]) -> dict[str, float]:
        return {}


class Critic(nn.Module):
    """The policy's backbone with a fresh scalar head: the value before each response token."""

    def __init__(self, policy: PreTrainedModel):
        super().__init__()
        self.backbone = copy.deepcopy(policy.model)
        self.head = nn.Linear(policy.config.hidden_size, 1).to(policy.device)
        nn.init.zeros_(self.head.weight)  # values start at 0, in the middle of the rewards, not at a random guess
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: RolloutBatch, rows: Tensor) -> Tensor:
        """Values [len(rows), T], zero on padding."""
        ids = batch.sequences_BL[rows, : int(batch.lengths_B[rows].max())]
        hidden = self.backbone(input_ids=ids, use_cache=False).last_hidden_state
        mask = batch.mask_BT[rows]
        row, place = mask.nonzero(as_tuple=True)
        flat = self.head(hidden[row, batch.prompt_lengths_B[rows][row] + place - 1]).squeeze(-1).float()
        return torch.zeros(mask.shape, device=flat.device).index_put((row, place), flat)


class CriticGAE:
    """PPO: GAE over a critic's values, whitened over the tokens of the batch."""

    def __init__(self, config: CriticConfig, policy: PreTrainedModel, tokens_per_micro_batch: int):
        self.config = config
        self.critic = Critic(policy)
        self.tokens_per_micro_batch = tokens_per_micro_batch
        self.optimizer = torch.optim.AdamW(
            self.critic.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay, fused=True
        )

    def estimate(self, batch: RolloutBatch, rewards: Tensor) -> Tensor:
        values = torch.zeros(batch.mask_BT.shape, device=rewards.device)
        with torch.no_grad():
            for rows in batch.micro_batches(self.tokens_per_micro_batch):
                values[rows] = self.critic(batch, rows)
        at_the_end = torch.zeros_like(values)
        at_the_end.scatter_(1, batch.response_lengths_B[:, None] - 1, rewards[:, None].float())
        advantages, returns = gae(at_the_end, values, batch.mask_BT, self.config.gamma, self.config.lam)
        self.batch, self.values, self.returns = batch, values, returns
        return whiten(advantages, batch.mask_BT)

    def learn(self, mini_batches: Sequence[Tensor]) -> dict[str, float]:
        losses = []
        for rows in mini_batches:
            ones = self.batch.mask_BT[rows].float()
            multipliers = torch.zeros_like(self.values)
            multipliers[rows] = loss_weights(ones, ones, self.batch.groups_B[rows], denominator="all")
            self.optimizer.zero_grad(set_to_none=True)
            total = 0.0
            for part in self.batch.micro_batches(self.tokens_per_micro_batch, rows):
                loss = value_loss(
                    self.critic(self.batch, part),
                    self.values[part],
                    self.returns[part],
                    multipliers[part],
                    clip=self.config.value_clip,
                )
                loss.backward()
                total += loss.item()
            norm = nn.utils.clip_grad_norm_(self.critic.parameters(), self.config.max_grad_norm).item()
            if not (math.isfinite(total) and math.isfinite(norm)):
                raise UserError(
                    f"the critic's loss is {total} and its gradient norm {norm}, so training stopped; "
                    "a smaller training.critic.learning_rate may help"
                )
            self.optimizer.step()
            losses.append(total)
        mask = self.batch.mask_BT
        spread = self.returns[mask].var()
        explained = 1 - (self.returns - self.values)[mask].var() / spread if spread > 0 else torch.tensor(math.nan)
        return {"value_loss": sum(losses) / len(losses), "value_explained_variance": explained.item()}
