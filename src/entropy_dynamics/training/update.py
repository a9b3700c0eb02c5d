"""Score, decide, backward: the per-token part of a training step (`Trainer.step`)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, takewhile

import torch
from jaxtyping import Float
from torch import Tensor

from entropy_dynamics.config.schema.training import TrainingConfig
from entropy_dynamics.core.objective import effective_advantages, weighted_sum
from entropy_dynamics.core.shapes import PerToken, Rows
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import release
from entropy_dynamics.methods import Method
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.optimizer import backward
from entropy_dynamics.training.policy import Policy

MicroBatch = tuple[Rows, TokenStats]


@dataclass(frozen=True)
class Scored:
    """A batch under the policy before its first update, which sampled it unless rollouts are stale."""

    stats: TokenStats
    """Statistics of all rows, the same on every rank; detached."""
    graphs: tuple[MicroBatch, ...] = ()
    """This rank's micro-batches whose autograd graphs are kept for the update."""


@dataclass(frozen=True)
class Decision:
    """The method's weights and coefficients for one update, fixed before its backward pass."""

    weights: PerToken
    coefficients: PerToken | None
    divisors: Float[Tensor, "batch 1"]


@dataclass(frozen=True)
class Gradient:
    """Results of a backward pass; the gradients themselves are in the parameters."""

    loss: Float[Tensor, ""]
    effective: PerToken
    """`effective_advantages` times the number of response tokens of the update, which is A in strictly on-policy GRPO.
    0 in rows outside the update."""
    stats: TokenStats
    """The given scores or, in a fused update, the scores of its own forward passes."""


class PolicyUpdate:
    """Scoring and backward passes of a policy under a method's loss. Keeps no state between calls.

    If the method needs no scores (`Method.needs_scores`), the update is fused with scoring: `scored` is None.
    """

    def __init__(self, config: TrainingConfig, policy: Policy, method: Method, temperature: float, ranks: Ranks):
        self.config, self.policy, self.method = config, policy, method
        self.temperature, self.ranks = temperature, ranks

    def score(self, batch: RolloutBatch, advantages: PerToken | None = None) -> Scored:
        """Statistics of the whole batch, and the autograd graphs that the update can reuse.

        Without `advantages`, which may depend on the scores, any row may need a backward pass.
        """
        rows = torch.arange(len(batch), device=batch.groups.device)
        constant = rows[:0]
        if advantages is not None:
            rows, constant = self._by_gradient(batch, rows, advantages, batch.mask)
        micro_batches = self._micro_batches(batch, rows)
        first_kept = len(micro_batches) - self._graphs_kept(batch, rows, micro_batches)
        with torch.no_grad():
            without = (*self._micro_batches(batch, constant), *micro_batches[:first_kept])
            detached = [(part, self._stats(batch, part)) for part in without]
        release(self.policy)
        graphs = tuple((part, self._stats(batch, part)) for part in micro_batches[first_kept:])
        detached += [(part, stats.map(Tensor.detach)) for part, stats in graphs]
        return Scored(self._gather(batch, detached), graphs)

    def sampled_logp(self, batch: RolloutBatch, scored: Scored | None) -> PerToken:
        """log p_old of all rows, nats: from the engine, or from the trainer before the first update."""
        return batch.engine_logp if self.config.engine_ratios else scored.stats.logp

    @torch.no_grad()
    def statistics(self, batch: RolloutBatch, rows: Rows | None = None) -> TokenStats:
        """Statistics of `rows` (default: all) under the current policy, detached; 0 in the other rows."""
        stats = self._gather(batch, ((part, self._stats(batch, part)) for part in self._micro_batches(batch, rows)))
        release(self.policy)
        return stats

    def entropy_gradient(self, batch: RolloutBatch) -> list[Tensor]:
        """Gradient of the mean entropy over a batch's positions: one tensor per parameter, sharded like it.

        Must not be called while graphs are kept: under FSDP each forward pass must be followed by its backward pass.
        """
        count = batch.mask.sum()

        def loss_of(part: Rows) -> Float[Tensor, ""]:
            return self.policy.stats(batch, part, self.temperature, entropy_gradient=True).entropy.sum() / count

        backward(self.policy, self._micro_batches(batch), loss_of, self.config, self.ranks)
        gradient = [parameter.grad for parameter in self.policy.parameters()]
        self.policy.zero_grad()
        return gradient

    def decide(
        self,
        batch: RolloutBatch,
        rows: Rows,
        advantages: PerToken,
        scored: Scored | None,
        earlier: Decision | None,
        generator: torch.Generator,
    ) -> Decision:
        """Weights, coefficients and divisors of the update on `rows`; `scored` is None in a fused update.

        Those of `earlier`, the decision for the previous update, are reused unless the method decides `per_update`.
        """
        if scored is None:
            weights, coefficients = batch.mask.float(), None
        elif earlier is not None and not self.method.per_update:
            weights, coefficients = earlier.weights, earlier.coefficients
        else:
            stats = scored.stats if earlier is None else self.statistics(batch, rows)  # the policy has moved since
            mask = batch.mask
            if self.method.per_update:  # only the tokens of this update
                mask = torch.zeros_like(mask).index_put((rows,), mask[rows])
            logp_old = self.sampled_logp(batch, scored)
            weights = self.method.checked_weights(stats, advantages, mask, generator=generator, logp_old=logp_old)
            coefficients = self.method.loss_coefficients(stats, advantages, mask)
        divisors = torch.ones(len(batch), 1, device=weights.device)
        divisors[rows] = self.method.divisors(weights[rows], batch.mask[rows], batch.groups[rows])
        return Decision(weights, coefficients, divisors)

    def backward(
        self,
        batch: RolloutBatch,
        rows: Rows,
        advantages: PerToken,
        scored: Scored | None,
        decision: Decision,
        *,
        first: bool,
    ) -> Gradient:
        """Compute the gradient of the loss of `rows`.

        Rows with a constant loss (no token has both a weight and an advantage) get a backward pass only if their graph
        is kept anyway. At the `first` update on a batch, ratios are exactly 1, unless p_old is the engine's: stored
        log p equals the new one only up to rounding.
        """
        graphs, remaining = scored.graphs if scored else (), rows
        if graphs:
            own = torch.cat([part for part, _ in graphs])
            in_graph = self.ranks.sum(torch.zeros(len(batch), device=rows.device).index_fill(0, own, 1))
            remaining = rows[in_graph[rows] == 0]
        remaining, constant = self._by_gradient(batch, remaining, advantages, decision.weights, int(not graphs))
        micro_batches = [*graphs, *((part, None) for part in self._micro_batches(batch, remaining))]
        effective, detached = torch.zeros_like(decision.weights), []

        def loss_of(micro_batch: tuple[Rows, TokenStats | None]) -> Float[Tensor, ""]:
            part, kept = micro_batch
            now = kept or self._stats(batch, part)
            exact = first and not self.config.engine_ratios
            logp_old = now.logp.detach() if exact else self.sampled_logp(batch, scored)[part]
            loss, effective[part] = self._loss(batch, part, now, logp_old, advantages, decision)
            if scored is None:
                detached.append((part, now.map(Tensor.detach)))
            return loss

        total = backward(self.policy, micro_batches, loss_of, self.config, self.ranks)
        if scored is None:
            with torch.no_grad():
                detached += [(part, self._stats(batch, part)) for part in self._micro_batches(batch, constant)]
            release(self.policy)
        stats = scored.stats if scored else self._gather(batch, detached)
        return Gradient(total, self.ranks.sum(effective) * batch.mask[rows].sum(), stats)

    def _loss(
        self,
        batch: RolloutBatch,
        rows: Rows,
        now: TokenStats,
        logp_old: PerToken,
        advantages: PerToken,
        decision: Decision,
    ) -> tuple[Float[Tensor, ""], PerToken]:
        """A micro-batch's contribution to the loss of the update, and its effective advantages."""
        coefficients = None if decision.coefficients is None else decision.coefficients[rows]
        multipliers = decision.weights[rows] / decision.divisors[rows]
        if self.config.reweighted:
            ratio = (logp_old - batch.engine_logp[rows]).exp()  # p(trainer) / p(engine)
            if (bound := self.config.importance_truncation) is not None:
                multipliers = multipliers * ratio.clamp_max(bound)
            else:
                multipliers = multipliers * ratio.where(ratio <= self.config.importance_masking, 0.0)
        of_other = {} if batch.top_logq is None else {"top_logq": batch.top_logq[rows]}

        def loss_of(logp: Tensor, entropy: Tensor, top_logp: Tensor | None = None) -> Tensor:
            token_loss = self.method.token_loss(
                logp,
                logp_old,
                advantages[rows],
                batch.mask[rows],
                entropy=entropy if self.method.uses_entropy() else None,
                coefficients=coefficients,
                **({} if top_logp is None else {"top_logp": top_logp, **of_other}),
            )
            return weighted_sum(token_loss, multipliers)

        values = now.logp, now.entropy, now.top_logp
        return loss_of(*values), effective_advantages(loss_of, *values, batch.is_sampled(rows))

    def _by_gradient(
        self, batch: RolloutBatch, rows: Rows, advantages: PerToken, weights: PerToken, least: int = 1
    ) -> tuple[Rows, Rows]:
        """Split `rows` into rows that need a backward pass and rows with a constant loss.

        The first part is padded with constant rows to a multiple of the number of ranks, which run equally many passes,
        and to at least `least` rows: an optimizer step with a gradient of 0 still moves the parameters.
        """
        acting = weights[rows] != 0
        if not self.method.acts_without_advantage:
            acting = acting & (advantages[rows] != 0)
        chosen = acting.any(-1)
        count = max(int(chosen.sum()), least)
        return torch.cat([rows[chosen], rows[~chosen]]).tensor_split([count + -count % self.ranks.size])

    def _graphs_kept(self, batch: RolloutBatch, rows: Rows, micro_batches: Sequence[Rows]) -> int:
        """Number of last micro-batches that keep their graph: as many as fit, but at least one.

        That one costs no extra memory, as the backward pass starts with it. With several updates per batch none is
        kept, as the first is on some rows only; under FSDP only if it is alone, as its backward pass must come next.
        """
        limit = self.config.single_forward_tokens
        if self.config.updates_per_batch > 1:
            return 0
        if self.ranks.mesh is not None:
            return int(len(micro_batches) == 1 and int(batch.lengths[rows].sum()) <= limit)
        run = (lambda part: len(batch.tree(part).tokens)) if self.policy.share else batch.padded
        tokens = accumulate(run(part) for part in reversed(micro_batches))
        return max(1, sum(1 for _ in takewhile(lambda total: total <= limit, tokens)))

    def _micro_batches(self, batch: RolloutBatch, rows: Rows | None = None) -> Sequence[Rows]:
        """This rank's micro-batches of `rows` (default: all)."""
        tokens = self.config.tokens_per_micro_batch
        if self.policy.share:
            return batch.subtrees(tokens, rows)
        return self.ranks.share(batch.micro_batches(tokens, rows, self.ranks.size))

    def _stats(self, batch: RolloutBatch, rows: Rows) -> TokenStats:
        entropy = self.method.uses_entropy()
        return self.policy.stats(batch, rows, self.temperature, entropy_gradient=entropy, **self.method.second_pass())

    def _gather(self, batch: RolloutBatch, micro_batches: Iterable[MicroBatch]) -> TokenStats:
        """Statistics of the whole batch from the micro-batches of all ranks: each row is non-zero on one rank only."""
        full: dict[str, Tensor] = {}
        for rows, stats in micro_batches:
            for name, column in stats.columns().items():
                if name not in full:
                    full[name] = column.new_zeros(len(batch), *column.shape[1:])
                full[name][rows] = column
        return TokenStats(**full).map(self.ranks.sum)
