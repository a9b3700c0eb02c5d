"""Advantage estimation: the method's own (GRPO: group-normalised rewards), or a critic with GAE (PPO)."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from entropy_dynamics.config.schema import TrainingConfig
from entropy_dynamics.core.advantages import gae, whiten
from entropy_dynamics.core.objective import token_divisors, value_loss, weighted_sum
from entropy_dynamics.core.shapes import PerRollout, PerToken, Rows
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import release
from entropy_dynamics.methods import Method
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.update import optimizer_step

Trained = dict[str, tuple[nn.Module, torch.optim.Optimizer]]


class MethodAdvantages:
    """The method's own: one advantage per rollout, the same for each of its tokens."""

    def __init__(self, method: Method):
        self.method = method

    def estimate(self, batch: RolloutBatch, rewards: PerRollout) -> PerToken:
        """Advantages of all response tokens from the rewards of whole responses."""
        return self.method.advantages(rewards, batch.groups)[:, None].expand(batch.mask.shape)

    def learn(self, batch: RolloutBatch, updates: int) -> dict[str, float]:
        """Learn from the batch of the last `estimate`, in `updates` optimizer steps. Returns metrics."""
        return {}

    def trained(self) -> Trained:
        """Modules and optimizers to checkpoint, by name."""
        return {}


class Critic(nn.Module):
    """A backbone like the policy's with a fresh scalar head: the value before each response token."""

    def __init__(self, backbone: nn.Module, hidden_size: int):
        super().__init__()
        self.backbone = backbone
        device = next(backbone.parameters()).device
        self.head = nn.Linear(hidden_size, 1, device=device)
        nn.init.zeros_(self.head.weight)  # values start at 0, the middle of the rewards' range, rather than at random
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: RolloutBatch, rows: Rows) -> Float[Tensor, "rows token"]:
        """Values, 0 on padding."""
        ids = batch.sequences[rows, : int(batch.lengths[rows].max())]
        hidden = self.backbone(input_ids=ids, use_cache=False).last_hidden_state
        mask = batch.mask[rows]
        row, place = mask.nonzero(as_tuple=True)
        flat = self.head(hidden[row, batch.prompt_lengths[rows][row] + place - 1]).squeeze(-1).float()
        return torch.zeros(mask.shape, device=flat.device).index_put((row, place), flat)


class CriticGAE:
    """PPO: GAE over a critic's values, whitened over the tokens of the batch. Methods as in `MethodAdvantages`."""

    def __init__(self, config: TrainingConfig, critic: Critic, ranks: Ranks | None = None):
        self.training, self.config = config, config.critic
        self.critic = critic
        self.ranks = ranks or Ranks()
        self.optimizer = torch.optim.AdamW(
            self.critic.parameters(), lr=self.config.learning_rate, weight_decay=self.config.weight_decay, fused=True
        )

    def estimate(self, batch: RolloutBatch, rewards: PerRollout) -> PerToken:
        values = torch.zeros(batch.mask.shape, device=rewards.device)
        with torch.no_grad():
            for rows in self._micro_batches(batch):
                values[rows] = self.critic(batch, rows)
        release(self.critic)
        self.ranks.sum(values)
        final = torch.zeros_like(values)
        final.scatter_(1, batch.response_lengths[:, None] - 1, rewards[:, None].float())
        advantages, returns = gae(final, values, batch.mask, self.config.gamma, self.config.gae_lambda)
        self.values, self.returns = values, returns
        return whiten(advantages, batch.mask)

    def learn(self, batch: RolloutBatch, updates: int) -> dict[str, float]:
        losses = [self._update(batch, rows) for rows in batch.mini_batches(updates)]
        spread = self.returns[batch.mask].var()
        explained = 1 - (self.returns - self.values)[batch.mask].var() / spread if spread > 0 else math.nan
        return {"value_loss": sum(losses) / len(losses), "value_explained_variance": float(explained)}

    def _update(self, batch: RolloutBatch, rows: Tensor) -> float:
        mask = batch.mask.float()
        divisors = torch.ones(len(batch), 1, device=mask.device)
        divisors[rows] = token_divisors(mask[rows], mask[rows], batch.groups[rows], denominator="all")

        def loss_of(micro_batch: Tensor) -> Tensor:
            values, returns = self.values[micro_batch], self.returns[micro_batch]
            loss = value_loss(self.critic(batch, micro_batch), values, returns, clip=self.config.value_clip)
            return weighted_sum(loss, mask[micro_batch] / divisors[micro_batch])

        loss, _ = optimizer_step(
            self.critic,
            self.optimizer,
            self._micro_batches(batch, rows),
            loss_of,
            ranks=self.ranks,
            max_grad_norm=self.config.max_grad_norm,
            reduce_every_micro_batch=self.training.reduce_every_micro_batch,
            where="the critic",
            knob="training.critic.learning_rate",
        )
        return loss

    def trained(self) -> Trained:
        return {"critic": (self.critic, self.optimizer)}

    def _micro_batches(self, batch: RolloutBatch, rows: Tensor | None = None) -> Sequence[Tensor]:
        return self.ranks.share(batch.micro_batches(self.training.tokens_per_micro_batch, rows, self.ranks.size))


AdvantageEstimator = MethodAdvantages | CriticGAE
