"""PPO's critic, and advantages by GAE over its values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from entropy_dynamics.config.schema.training import TrainingConfig
from entropy_dynamics.core.advantages import gae, whiten
from entropy_dynamics.core.objective import token_divisors, value_loss, weighted_sum
from entropy_dynamics.core.shapes import PerRollout, PerToken, Rows
from entropy_dynamics.distributed.precision import autocast
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import release
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.optimizer import backward, clip_and_step


class Critic(nn.Module):
    """A backbone like the policy's with a new scalar head, which predicts the value before each response token."""

    def __init__(self, backbone: nn.Module, hidden_size: int, precision: torch.dtype = torch.float32):
        super().__init__()
        self.backbone, self.precision = backbone, precision
        self.head = nn.Linear(hidden_size, 1, device=next(backbone.parameters()).device)
        nn.init.zeros_(self.head.weight)  # initial values are 0, the middle of the rewards' range, not random
        nn.init.zeros_(self.head.bias)

    def forward(self, batch: RolloutBatch, rows: Rows) -> Float[Tensor, "rows token"]:
        """Values, fp32, 0 on padding. Identical rows are run once."""
        rows, inverse = batch.copy_of[rows].unique(return_inverse=True)
        ids = batch.sequences[rows, : int(batch.lengths[rows].max())]
        with autocast(ids.device, self.precision):
            hidden = self.backbone(input_ids=ids, use_cache=False).last_hidden_state
        mask = batch.mask[rows]
        row, place = mask.nonzero(as_tuple=True)
        flat = self.head(hidden[row, batch.prompt_lengths[rows][row] + place - 1]).squeeze(-1).float()
        return torch.zeros(mask.shape, device=flat.device).index_put((row, place), flat)[inverse]


@dataclass(frozen=True)
class Estimate:
    """GAE of one batch, each [batch, token]."""

    advantages: PerToken
    """Whitened over the tokens of the batch."""
    values: PerToken
    returns: PerToken


class CriticGAE:
    """GAE over a critic's values, and the updates of the critic."""

    def __init__(self, config: TrainingConfig, critic: Critic, ranks: Ranks | None = None):
        self.training, self.config = config, config.critic
        self.critic, self.ranks = critic, ranks or Ranks()
        self.optimizer = torch.optim.AdamW(
            critic.parameters(), lr=self.config.learning_rate, weight_decay=self.config.weight_decay, fused=True
        )

    @torch.no_grad()
    def estimate(self, batch: RolloutBatch, rewards: PerRollout) -> Estimate:
        """Advantages, values and returns of all response tokens, from one reward per response."""
        values = torch.zeros(batch.mask.shape, device=rewards.device)
        for rows in self._micro_batches(batch):
            values[rows] = self.critic(batch, rows)
        release(self.critic)
        values = self.ranks.sum(values)
        final = torch.zeros_like(values).scatter(1, batch.response_lengths[:, None] - 1, rewards[:, None].float())
        advantages, returns = gae(final, values, batch.mask, self.config.gamma, self.config.gae_lambda)
        return Estimate(whiten(advantages, batch.mask), values, returns)

    def learn(self, batch: RolloutBatch, estimate: Estimate, updates: int) -> dict[str, float]:
        """Train the critic on a batch with `updates` optimizer steps; returns metrics."""
        losses = [self._update(batch, estimate, rows) for rows in batch.mini_batches(updates)]
        values, returns = estimate.values, estimate.returns
        spread = returns[batch.mask].var()
        explained = 1 - (returns - values)[batch.mask].var() / spread if spread > 0 else math.nan
        return {"value_loss": sum(losses) / len(losses), "value_explained_variance": float(explained)}

    def _update(self, batch: RolloutBatch, estimate: Estimate, rows: Rows) -> float:
        mask = batch.mask.float()
        divisors = torch.ones(len(batch), 1, device=mask.device)
        divisors[rows] = token_divisors(mask[rows], mask[rows], batch.groups[rows], denominator="all")

        def loss_of(part: Rows) -> Float[Tensor, ""]:
            values, returns = estimate.values[part], estimate.returns[part]
            loss = value_loss(self.critic(batch, part), values, returns, clip=self.config.value_clip)
            return weighted_sum(loss, mask[part] / divisors[part])

        loss = backward(self.critic, self._micro_batches(batch, rows), loss_of, self.training, self.ranks)
        clip_and_step(self.critic, self.optimizer, loss, self.config, "the critic")
        return loss.item()

    def _micro_batches(self, batch: RolloutBatch, rows: Rows | None = None) -> Sequence[Rows]:
        return self.ranks.share(batch.micro_batches(self.training.tokens_per_micro_batch, rows, self.ranks.size))
