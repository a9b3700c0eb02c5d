"""Where advantages come from: the group's own rewards (GRPO), or a critic and GAE (PPO)."""

import math
from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from entropy_dynamics.config import TrainingConfig
from entropy_dynamics.core.advantages import gae, group_advantages, whiten
from entropy_dynamics.core.objective import loss_weights, value_loss
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import release, sync_gradients
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.optimisation import clip_and_step


class AdvantageEstimator(Protocol):
    """What the trainer asks of either."""

    def estimate(self, batch: RolloutBatch, rewards: Tensor) -> Tensor:
        """Advantages [B, T] from the rewards [B] of whole responses."""
        ...

    def learn(self, mini_batches: Sequence[Tensor]) -> dict[str, float]:
        """Learn from the batch last estimated, one optimizer step for the rows of each mini-batch; metrics to log."""
        ...

    def trained(self) -> dict[str, tuple[nn.Module, torch.optim.Optimizer]]:
        """What a checkpoint has to hold of it, by name."""
        ...


class GroupNormalised:
    """GRPO: the same advantage for every token of a response; there is nothing to learn."""

    def estimate(self, batch: RolloutBatch, rewards: Tensor) -> Tensor:
        return group_advantages(rewards, batch.groups_B)[:, None].expand(batch.mask_BT.shape)

    def learn(self, mini_batches: Sequence[Tensor]) -> dict[str, float]:
        return {}

    def trained(self) -> dict[str, tuple[nn.Module, torch.optim.Optimizer]]:
        return {}


class Critic(nn.Module):
    """A backbone like the policy's with a fresh scalar head: the value before each response token."""

    def __init__(self, backbone: nn.Module, hidden_size: int):
        super().__init__()
        self.backbone = backbone
        device = next(backbone.parameters()).device
        self.head = nn.Linear(hidden_size, 1, device=device)
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

    def __init__(self, config: TrainingConfig, critic: Critic, ranks: Ranks | None = None):
        self.config = config.critic
        self.critic = critic
        self.tokens_per_micro_batch = config.tokens_per_micro_batch
        self.reduce_every_micro_batch = config.reduce_every_micro_batch
        self.ranks = ranks or Ranks()
        self.optimizer = torch.optim.AdamW(
            self.critic.parameters(), lr=self.config.learning_rate, weight_decay=self.config.weight_decay, fused=True
        )

    def estimate(self, batch: RolloutBatch, rewards: Tensor) -> Tensor:
        values = torch.zeros(batch.mask_BT.shape, device=rewards.device)
        with torch.no_grad():
            for rows in self._parts(batch):
                values[rows] = self.critic(batch, rows)
        release(self.critic)
        self.ranks.sum(values)
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
            total = torch.zeros((), dtype=torch.float64, device=self.values.device)
            parts = self._parts(self.batch, rows)
            for number, part in enumerate(parts, 1):
                loss = value_loss(
                    self.critic(self.batch, part),
                    self.values[part],
                    self.returns[part],
                    multipliers[part],
                    clip=self.config.value_clip,
                )
                sync_gradients(self.critic, number == len(parts) or self.reduce_every_micro_batch)
                (loss * self.ranks.size).backward()  # the ranks' gradients are averaged
                total += loss.detach()
            losses.append(self.ranks.sum(total).item())
            clip_and_step(
                self.critic,
                self.optimizer,
                losses[-1],
                max_grad_norm=self.config.max_grad_norm,
                where="the critic",
                knob="training.critic.learning_rate",
            )
        mask = self.batch.mask_BT
        spread = self.returns[mask].var()
        explained = 1 - (self.returns - self.values)[mask].var() / spread if spread > 0 else torch.tensor(math.nan)
        return {"value_loss": sum(losses) / len(losses), "value_explained_variance": explained.item()}

    def trained(self) -> dict[str, tuple[nn.Module, torch.optim.Optimizer]]:
        return {"critic": (self.critic, self.optimizer)}

    def _parts(self, batch: RolloutBatch, rows: Tensor | None = None) -> Sequence[Tensor]:
        return self.ranks.share(batch.micro_batches(self.tokens_per_micro_batch, rows, self.ranks.size))
