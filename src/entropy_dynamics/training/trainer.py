"""The training loop: sample -> grade -> advantages -> score -> weigh -> update.

The same loop serves every method and every scale. Weights that a method gives are decided once for the whole batch of
a step, before any backward pass, so they do not depend on how the batch is cut into micro-batches.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from entropy_dynamics.config import TrainingConfig
from entropy_dynamics.core.advantages import group_advantages
from entropy_dynamics.core.objective import loss_weights, policy_loss
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.errors import UserError
from entropy_dynamics.methods import Method
from entropy_dynamics.sampling import Prompt, Rollout, Sampler
from entropy_dynamics.tasks.grading import REWARDS, Grade
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.policy import policy_stats
from entropy_dynamics.training.step_metrics import entropy_metrics, zero_variance_groups


class Trainer:
    """Trains `model` in place; `run` yields the metrics of every step."""

    def __init__(
        self,
        config: TrainingConfig,
        *,
        model: PreTrainedModel,
        method: Method,
        sampler: Sampler,
        grade: Callable[[Rollout], Grade],
        prompts: Sequence[Prompt],
        temperature: float,
        max_new_tokens: int,
        pad_token: int,
        seed: int,
        validate: Callable[[], float] | None = None,
    ):
        """
        Args:
            grade: says whether a rollout is right.
            prompts: the training set.
            temperature: of the rollouts, and of the policy that is trained.
            seed: of the order of the prompts and of the rollouts.
            validate: accuracy of the current policy on held-out problems, asked every `validation_every` steps.
        """
        if not prompts:
            raise UserError("no training problems are left: the pass-rate filter dropped them all")
        self.config, self.model, self.method, self.sampler = config, model, method, sampler
        self.grade, self.prompts, self.validate = grade, prompts, validate
        self.temperature, self.max_new_tokens, self.pad_token = temperature, max_new_tokens, pad_token
        self.seed = seed
        self.reward = REWARDS[config.reward]
        optimizer = config.optimizer
        self.optimizer = torch.optim.AdamW(
            model.parameters(),
            lr=optimizer.learning_rate,
            betas=tuple(optimizer.betas),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )

    def run(self) -> Iterator[dict[str, float]]:
        """Train for `config.steps` steps.

        Yields:
            The metrics of each step (step 0 is the untrained policy's batch).

        Raises:
            UserError: the loss or the gradient is not finite; the model is then as it was before that step.
        """
        for step in range(self.config.steps):
            yield self.step(step)

    def step(self, step: int) -> dict[str, float]:
        """One batch of rollouts and its update."""
        clock = _Clock()
        metrics = {"step": step, "validation_accuracy": math.nan, "entropy_change": math.nan}
        every = self.config.validation_every
        if self.validate is not None and every and step % every == 0:
            with clock("validate"):
                metrics["validation_accuracy"] = self.validate()

        with clock("sample"):
            prompts = self.prompts_of_step(step)
            rollouts = self.sampler.sample(
                prompts,
                samples=self.config.group_size,
                temperature=self.temperature,
                max_new_tokens=self.max_new_tokens,
                stream=f"train/seed{self.seed}/step{step}",
            )
        with clock("grade"):
            grades = [self.grade(rollout) for rollout in rollouts]
            rewards = torch.tensor([self.reward(grade) for grade in grades], device=self.model.device)
            batch = RolloutBatch.collate(prompts, rollouts, self.pad_token).to(self.model.device)
            advantages = group_advantages(rewards, batch.groups_B)[:, None].expand(batch.mask_BT.shape)

        with clock("score"):
            stats, graphs = self.score(batch)
            weights = self.method.token_weights(stats, advantages, batch.mask_BT)
        with clock("update"):
            grad_norm = self.update(batch, stats, advantages, weights, graphs, step)
        if self.config.entropy_change_every and step % self.config.entropy_change_every == 0:
            with clock("measure"):
                before = _mean(stats.entropy, batch.mask_BT)
                metrics["entropy_change"] = _mean(self.score(batch, graph=False)[0].entropy, batch.mask_BT) - before

        return {
            **metrics,
            **entropy_metrics(stats, advantages, weights, batch.mask_BT, self.config.optimizer.learning_rate),
            "reward_mean": rewards.mean().item(),
            "accuracy": float(np.mean([grade.correct for grade in grades])),
            "response_length": batch.response_lengths_B.double().mean().item(),
            "truncated": float(np.mean([grade.truncated for grade in grades])),
            "zero_variance_groups": zero_variance_groups(rewards, batch.groups_B),
            "grad_norm": grad_norm,
            **clock.seconds,
        }

    def prompts_of_step(self, step: int) -> list[Prompt]:
        """The step's prompts. Each epoch goes through the set in a new seeded order; no step repeats a prompt."""
        size, count = len(self.prompts), min(self.config.prompts_per_step, len(self.prompts))
        per_epoch = size // count  # a remainder too small for a step is left out of its epoch
        epoch, place = divmod(step, per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(size)
        return [self.prompts[index] for index in order[place * count : (place + 1) * count]]

    def score(self, batch: RolloutBatch, graph: bool = True) -> tuple[TokenStats, list[tuple[Tensor, Tensor]]]:
        """Statistics of the whole batch under the current policy, detached, each [B, T].

        When one update follows and the batch is small enough to hold (`held_tokens`), the forward passes keep their
        graphs and the update goes on from them: [(rows, logp [rows, T] with its graph), ...]. Else the list is empty.
        """
        held = graph and self.config.updates_per_batch == 1 and int(batch.lengths_B.sum()) <= self.config.held_tokens
        columns = {name: torch.zeros(batch.mask_BT.shape, device=batch.mask_BT.device) for name in _COLUMNS}
        graphs = []
        with torch.set_grad_enabled(held):
            for rows in batch.micro_batches(self.config.tokens_per_micro_batch):
                stats = policy_stats(self.model, batch, rows, self.temperature)
                for name, column in columns.items():
                    column[rows] = getattr(stats, name).detach()
                if held:
                    graphs.append((rows, stats.logp))
        return TokenStats(**columns), graphs

    def update(
        self,
        batch: RolloutBatch,
        stats: TokenStats,
        advantages: Tensor,
        weights: Tensor,
        graphs: list[tuple[Tensor, Tensor]],
        step: int,
    ) -> float:
        """`updates_per_batch` optimizer steps, each on its share of the prompts; returns the mean gradient norm."""
        objective = self.config.objective
        norms = []
        for rows in self._mini_batches(batch):
            multipliers = torch.zeros_like(weights)
            multipliers[rows] = loss_weights(
                weights[rows],
                batch.mask_BT[rows],
                batch.groups_B[rows],
                scope=objective.loss_scope,
                denominator=self.method.denominator,
            )
            self.optimizer.zero_grad(set_to_none=True)
            total = 0.0
            for part, logp in graphs or self._forward_again(batch, rows):
                # Strictly on-policy the policy that sampled is the one trained: lp_old = lp, and the ratio exactly 1.
                logp_old = stats.logp[part] if self.config.updates_per_batch > 1 else logp.detach()
                loss = policy_loss(
                    logp,
                    logp_old,
                    advantages[part],
                    multipliers[part],
                    clip_low=objective.clip_low,
                    clip_high=objective.clip_high,
                    dual_clip=objective.dual_clip,
                )
                loss.backward()
                total += loss.item()
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optimizer.max_grad_norm).item()
            if not (math.isfinite(total) and math.isfinite(norm)):
                raise UserError(
                    f"step {step}: the loss is {total} and the gradient norm {norm}, so training stopped; "
                    "a smaller training.optimizer.learning_rate may help"
                )
            self.optimizer.step()
            norms.append(norm)
        return float(np.mean(norms))

    def _mini_batches(self, batch: RolloutBatch) -> list[Tensor]:
        groups = batch.groups_B.unique().chunk(self.config.updates_per_batch)
        return [torch.isin(batch.groups_B, chosen).nonzero().squeeze(-1) for chosen in groups]

    def _forward_again(self, batch: RolloutBatch, rows: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        for part in batch.micro_batches(self.config.tokens_per_micro_batch, rows):
            yield part, policy_stats(self.model, batch, part, self.temperature).logp


_COLUMNS = tuple(TokenStats.__dataclass_fields__)


def _mean(values: Tensor, mask: Tensor) -> float:
    return values[mask].double().mean().item()


class _Clock:
    """`with clock("sample"): ...` adds up `seconds_sample`."""

    def __init__(self):
        self.seconds = {
            f"seconds_{phase}": 0.0 for phase in ("validate", "sample", "grade", "score", "update", "measure")
        }

    @contextmanager
    def __call__(self, phase: str):
        start = time.perf_counter()
        yield
        self.seconds[f"seconds_{phase}"] += time.perf_counter() - start
