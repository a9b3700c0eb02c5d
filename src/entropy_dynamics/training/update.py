"""Optimizer steps: zero_grad -> micro-batches -> sync -> backward -> clip -> step, for policy and critic alike."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from entropy_dynamics.config.schema import TrainingConfig
from entropy_dynamics.core.objective import effective_advantages, weighted_sum
from entropy_dynamics.core.shapes import PerToken, Rows
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import release, sync_gradients
from entropy_dynamics.errors import NotFiniteError
from entropy_dynamics.methods import Method
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.policy import Policy, whole
from entropy_dynamics.training.scoring import Scoring, choose_scoring

MicroBatch = TypeVar("MicroBatch")


def optimizer_step(
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    micro_batches: Sequence[MicroBatch],
    loss_of: Callable[[MicroBatch], Tensor],
    *,
    ranks: Ranks,
    max_grad_norm: float,
    reduce_every_micro_batch: bool = False,
    before_step: Callable[[], None] | None = None,
    where: str,
    knob: str,
) -> tuple[float, float]:
    """One optimizer step on the losses of all micro-batches, summed over the ranks.

    Args:
        before_step: called once all gradients are computed; if it raises, the parameters are unchanged.
        where, knob: for the error message: what failed, and the setting to change.

    Returns:
        The loss and the gradient norm before clipping.

    Raises:
        NotFiniteError: the loss or the norm is not finite; the step was not taken.
    """
    optimizer.zero_grad(set_to_none=True)
    total = torch.zeros((), dtype=torch.float64, device=ranks.device)
    for number, micro_batch in enumerate(micro_batches, 1):
        loss = loss_of(micro_batch)
        sync_gradients(module, number == len(micro_batches) or reduce_every_micro_batch)
        (loss * ranks.size).backward()  # FSDP averages gradients over ranks
        total += loss.detach()
    if before_step is not None:
        before_step()
    loss, norm = ranks.sum(total).item(), float(whole(nn.utils.clip_grad_norm_(module.parameters(), max_grad_norm)))
    if not (math.isfinite(loss) and math.isfinite(norm)):
        raise NotFiniteError(
            f"{where}: the loss is {loss} and the gradient norm {norm}, so training stopped; a smaller {knob} may help"
        )
    optimizer.step()
    return loss, norm


@dataclass
class Scores:
    """Statistics of a batch under the policy that sampled it, detached, each [batch, token]."""

    scoring: Scoring
    stats: TokenStats
    """Zeros with `DURING_UPDATE`, until the update fills them in."""
    graphs: list[TokenStats] = field(default_factory=list)
    """`SINGLE_FORWARD` only: statistics of this rank's micro-batches, with their autograd graphs."""


class PolicyUpdate:
    """Scores batches, and updates the policy with a method's loss."""

    def __init__(
        self,
        config: TrainingConfig,
        policy: Policy,
        method: Method,
        optimizer: torch.optim.Optimizer,
        temperature: float,
        ranks: Ranks,
    ):
        self.config, self.policy, self.method, self.optimizer = config, policy, method, optimizer
        self.temperature, self.ranks = temperature, ranks
        self.stepped = False  # whether an optimizer step was taken since the caller last set this to False

    def score(self, batch: RolloutBatch) -> Scores:
        """Statistics of a batch before its update, computed as `choose_scoring` says."""
        fits = int(batch.lengths.sum()) <= self.config.single_forward_tokens
        if fits and self.ranks.mesh is not None:  # under FSDP a backward pass has to follow each forward pass
            fits = len(self._micro_batches(batch)) == 1
        scoring = choose_scoring(self.method, self.config.updates_per_batch, fits_single_forward=fits)
        match scoring:
            case Scoring.SINGLE_FORWARD:
                micro_batches = self._micro_batches(batch)
                graphs = [self._stats(batch, rows) for rows in micro_batches]
                return Scores(scoring, self._gathered(batch, micro_batches, graphs), graphs)
            case Scoring.SCORING_PASS:
                return Scores(scoring, self.statistics(batch))
            case Scoring.DURING_UPDATE:
                return Scores(scoring, _zeros(batch))

    @torch.no_grad()
    def statistics(self, batch: RolloutBatch, rows: Rows | None = None) -> TokenStats:
        """Statistics of `rows` (default: all) under the current policy, detached; 0 in the other rows."""
        micro_batches = self._micro_batches(batch, rows)
        stats = self._gathered(batch, micro_batches, (self._stats(batch, one) for one in micro_batches))
        release(self.policy)
        return stats

    def update(
        self,
        batch: RolloutBatch,
        scores: Scores,
        advantages: PerToken,
        generator: torch.Generator,
        *,
        check: Callable[[], None],
        where: str,
    ) -> tuple[PerToken, PerToken, float]:
        """`updates_per_batch` optimizer steps, each on its share of the prompts.

        Args:
            check: called once `scores.stats` are complete, before the first optimizer step.
            where: for error messages.

        Returns:
            The token weights that were used; the effective advantages times the response tokens of the optimizer step
            (see `effective_advantages`), which is A in strictly on-policy GRPO; and the mean gradient norm.
        """
        weights, coefficients = torch.zeros_like(scores.stats.logp), None
        used, effective, norms = torch.zeros_like(weights), torch.zeros_like(weights), []
        per_update = self.method.per_update and self.config.updates_per_batch > 1
        for number, rows in enumerate(batch.mini_batches(self.config.updates_per_batch)):
            if scores.scoring is not Scoring.DURING_UPDATE and (number == 0 or per_update):
                stats = scores.stats if number == 0 else self.statistics(batch, rows)  # the policy has moved since
                mask = _only(batch.mask, rows) if per_update else batch.mask
                weights = self.method.token_weights(stats, advantages, mask, generator)
                coefficients = self.method.loss_coefficients(stats, advantages, mask)
            divisors = self._divisors(batch, rows, weights)
            step = _Step(batch, scores, advantages, weights, coefficients, divisors, effective, generator, number == 0)
            norms.append(self._optimizer_step(step, rows, check if number == 0 else None, where))
            used[rows] = weights[rows]
            effective[rows] *= batch.mask[rows].sum()
        return used, self.ranks.sum(effective), sum(norms) / len(norms)

    def _optimizer_step(self, step: "_Step", rows: Tensor, check: Callable[[], None] | None, where: str) -> float:
        """The gradient norm."""
        during_update = step.scores.scoring is Scoring.DURING_UPDATE
        if not step.scores.graphs:
            rows, without_gradient = self._by_gradient(step, rows)
            if during_update:
                self._fill_in(step, without_gradient)

        def before_step() -> None:
            if during_update:
                self.ranks.sum(step.weights)
                step.scores.stats.map(self.ranks.sum)
            if check is not None:
                check()

        _, norm = optimizer_step(
            self.policy,
            self.optimizer,
            list(enumerate(self._micro_batches(step.batch, rows))),
            lambda micro_batch: self._loss(step, *micro_batch),
            ranks=self.ranks,
            max_grad_norm=self.config.optimizer.max_grad_norm,
            reduce_every_micro_batch=self.config.reduce_every_micro_batch,
            before_step=before_step,
            where=where,
            knob="training.optimizer.learning_rate",
        )
        self.stepped = True
        return norm

    def _by_gradient(self, step: "_Step", rows: Tensor) -> tuple[Tensor, ...]:
        """The rows that a backward pass needs, and those whose loss is constant: no token with weight and advantage.

        Some constant ones are among the first, so that all ranks make the same number of passes, and at least one: an
        optimizer step with a gradient of 0 still moves the parameters.
        """
        acting = step.batch.mask if step.scores.scoring is Scoring.DURING_UPDATE else step.weights != 0
        if not self.method.acts_without_advantage:
            acting = acting & (step.advantages != 0)
        chosen = acting[rows].any(-1)
        count = max(int(chosen.sum()), 1)
        return torch.cat([rows[chosen], rows[~chosen]]).tensor_split([count + -count % self.ranks.size])

    @torch.no_grad()
    def _fill_in(self, step: "_Step", rows: Tensor) -> None:
        """Statistics and token weights of rows without a backward pass."""
        for micro_batch in self._micro_batches(step.batch, rows):
            self._score(step, micro_batch)
        release(self.policy)

    def _score(self, step: "_Step", rows: Tensor) -> TokenStats:
        """Statistics of `rows` under the current policy, which also decide their weights in a fused update."""
        now = self._stats(step.batch, rows)
        if step.scores.scoring is Scoring.DURING_UPDATE:
            detached = now.map(Tensor.detach)
            _write(step.scores.stats, rows, detached)
            step.weights[rows] = self.method.token_weights(
                detached, step.advantages[rows], step.batch.mask[rows], step.generator
            )
        return now

    def _loss(self, step: "_Step", place: int, rows: Tensor) -> Float[Tensor, ""]:
        """Loss of `rows`, micro-batch number `place` of this rank, as its part of the loss of the optimizer step."""
        batch, stats, advantages, mask = step.batch, step.scores.stats, step.advantages[rows], step.batch.mask[rows]
        now = step.scores.graphs[place] if step.scores.graphs else self._score(step, rows)
        # Before the first update the policy that sampled is the one being trained, and the ratio is exactly 1; the
        # stored scores would equal it only up to the rounding of another micro-batch.
        logp_old = now.logp.detach() if step.first else stats.logp[rows]
        coefficients = None if step.coefficients is None else step.coefficients[rows]
        multipliers = step.weights[rows] / step.divisors[rows]
        limit = self.config.importance_truncation  # of truncated importance sampling, p(trainer) / p(engine)
        if limit is not None and batch.engine_logp is not None:
            multipliers = multipliers * (stats.logp[rows] - batch.engine_logp[rows]).exp().clamp_max(limit)

        def loss_of(logp: Tensor, entropy: Tensor) -> Tensor:
            token_loss = self.method.token_loss(
                logp, logp_old, advantages, mask, entropy=entropy, coefficients=coefficients
            )
            return weighted_sum(token_loss, multipliers)

        step.effective[rows] = effective_advantages(loss_of, now.logp, now.entropy)
        return loss_of(now.logp, now.entropy)

    def _divisors(self, batch: RolloutBatch, rows: Tensor, weights: Tensor) -> Tensor:
        divisors = torch.ones(len(batch), 1, device=weights.device)
        divisors[rows] = self.method.divisors(weights[rows], batch.mask[rows], batch.groups[rows])
        return divisors

    def _micro_batches(self, batch: RolloutBatch, rows: Tensor | None = None) -> Sequence[Tensor]:
        """This rank's micro-batches of `rows`."""
        return self.ranks.share(batch.micro_batches(self.config.tokens_per_micro_batch, rows, self.ranks.size))

    def _stats(self, batch: RolloutBatch, rows: Tensor) -> TokenStats:
        return self.policy.stats(batch, rows, self.temperature, entropy_gradient=self.method.entropy_in_loss)

    def _gathered(
        self, batch: RolloutBatch, micro_batches: Sequence[Tensor], stats: Iterable[TokenStats]
    ) -> TokenStats:
        """Detached statistics of the micro-batches of all ranks: a row comes from one rank and is 0 on the others."""
        whole_batch = _zeros(batch)
        for rows, own in zip(micro_batches, stats, strict=True):
            _write(whole_batch, rows, own.map(Tensor.detach))
        return whole_batch.map(self.ranks.sum)


@dataclass(frozen=True)
class _Step:
    """The inputs of one optimizer step."""

    batch: RolloutBatch
    scores: Scores
    advantages: Tensor
    weights: Tensor
    coefficients: Tensor | None
    divisors: Tensor
    effective: Tensor
    """Filled in by the update, see `effective_advantages`."""
    generator: torch.Generator
    first: bool
    """The first step on this batch: the policy is still the one that sampled it."""


def _zeros(batch: RolloutBatch) -> TokenStats:
    return TokenStats(*(torch.zeros_like(batch.mask, dtype=torch.float32) for _ in TokenStats.__dataclass_fields__))


def _write(stats: TokenStats, rows: Tensor, of_rows: TokenStats) -> None:
    for name in TokenStats.__dataclass_fields__:
        getattr(stats, name)[rows] = getattr(of_rows, name)


def _only(mask: Tensor, rows: Tensor) -> Tensor:
    """The mask, 0 in all rows but `rows`."""
    chosen = torch.zeros_like(mask)
    chosen[rows] = mask[rows]
    return chosen
