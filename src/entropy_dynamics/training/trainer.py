"""The training loop: sample -> grade -> advantages -> score -> weigh -> update.

The same loop serves every method and every scale. Weights that a method gives are decided for the whole batch of an
optimizer step, before its backward pass, so they depend neither on how the batch is cut into micro-batches nor on how
these are dealt to ranks: each rank runs the model on its micro-batches only, and everything else on the whole batch.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from entropy_dynamics.config import TrainingConfig
from entropy_dynamics.config_checks import check_dealing
from entropy_dynamics.core.objective import loss_weights, policy_loss
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.sharding import release, sync_gradients
from entropy_dynamics.errors import NotFiniteError, UserError
from entropy_dynamics.methods import Method
from entropy_dynamics.sampling import Prompt, Rollout, Sampler, sample_seed
from entropy_dynamics.tasks.grading import REWARDS, Grade
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.estimators import AdvantageEstimator, GroupNormalised
from entropy_dynamics.training.metrics import engine_agreement, entropy_metrics, zero_variance_groups
from entropy_dynamics.training.optimisation import clip_and_step
from entropy_dynamics.training.policy import Policy


@dataclass(frozen=True)
class Weighing:
    """What a method makes of a batch, each [B, T]: weights, and coefficients of |log p - log p_old| if it has any."""

    weights: Tensor
    drift_penalty: Tensor | None


class Trainer:
    """Trains `policy` in place; `run` yields the metrics of every step."""

    def __init__(
        self,
        config: TrainingConfig,
        *,
        policy: Policy,
        method: Method,
        sampler: Sampler,
        grade: Callable[[Rollout], Grade],
        prompts: Sequence[Prompt],
        temperature: float,
        max_new_tokens: int,
        pad_token: int,
        seed: int,
        estimator: AdvantageEstimator | None = None,
        validate: Callable[[], float] | None = None,
        engine_tolerance: float = 1e-4,
        ranks: Ranks | None = None,
    ):
        """
        Args:
            grade: says whether a rollout is right.
            prompts: the training set.
            temperature: of the rollouts, and of the policy that is trained.
            seed: of the order of the prompts and of the rollouts.
            estimator: of the advantages; group-normalised rewards by default.
            validate: accuracy of the current policy on held-out problems, asked every `validation_every` steps.
            engine_tolerance: mean difference of log p, in nats, above which engine and policy disagree.
        """
        if not prompts:
            raise UserError("no training problems are left: the pass-rate filter dropped them all")
        per_step = min(config.prompts_per_step, len(prompts))
        if config.updates_per_batch > per_step:
            raise UserError(
                f"training.updates_per_batch is {config.updates_per_batch}, but a step has only {per_step} prompts "
                "to divide among its updates"
            )
        self.ranks = ranks or Ranks()
        check_dealing(per_step, config, self.ranks.size)  # a step has fewer prompts where few problems are left
        self.config, self.policy, self.method, self.sampler = config, policy, method, sampler
        self.grade, self.prompts, self.validate = grade, prompts, validate
        self.temperature, self.max_new_tokens, self.pad_token = temperature, max_new_tokens, pad_token
        self.seed = seed
        self.engine_tolerance = engine_tolerance
        self.reward = REWARDS[config.reward]
        optimizer = config.optimizer
        self.optimizer = torch.optim.AdamW(
            policy.parameters(),
            lr=optimizer.learning_rate,
            betas=tuple(optimizer.betas),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        self.estimator = estimator or GroupNormalised()
        self.bounds: tuple[float, float] | None = None  # of the step before, where `bounds_from` asks for them
        self.under_way: tuple[RolloutBatch, Tensor] | None = None  # the batch that is learned from, and its rewards
        self.changed_since_step = False  # whether an optimizer step was taken since the last whole step
        if config.bounds_from == "previous_step" and not method.has_bounds:
            raise UserError("training.bounds_from=previous_step goes with methods that have bounds: Clip_B and Clip_V")

    def trained(self) -> dict[str, tuple[torch.nn.Module, torch.optim.Optimizer]]:
        """All that learns, by name: what a checkpoint has to hold beside the number of the step."""
        return {"policy": (self.policy, self.optimizer), **self.estimator.trained()}

    def run(self, done: Sequence[dict[str, float]] = ()) -> Iterator[dict[str, float]]:
        """Train up to `config.steps`, after the steps whose metrics are `done`.

        Everything random belongs to the seed and the number of the step, so a run may stop and go on at any step.

        Yields:
            The metrics of each step (step 0 is the untrained policy's batch).

        Raises:
            NotFiniteError: the loss or the gradient is not finite. The model is then as it was before that update, and
                `under_way` is the batch.
        """
        if done and "bounds_low" in done[-1]:
            self.bounds = (done[-1]["bounds_low"], done[-1]["bounds_high"])
        for step in range(len(done), self.config.steps):
            yield self.step(step)

    def step(self, step: int) -> dict[str, float]:
        """One batch of rollouts and its update."""
        clock = _Clock()
        metrics = {"step": step, "validation_accuracy": math.nan, "entropy_change": math.nan}
        with clock("push"):
            self.push()
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
            self.sampler.sleep()
        with clock("grade"):
            grades = [self.grade(rollout) for rollout in rollouts]
            rewards = torch.tensor([self.reward(grade) for grade in grades], device=self.ranks.device)
            batch = RolloutBatch.collate(prompts, rollouts, self.pad_token).to(self.ranks.device)
            self.under_way = batch, rewards

        generator = torch.Generator(self.ranks.device)
        generator.manual_seed(sample_seed(f"method/seed{self.seed}", "", step) % 2**63)
        if self._needs_no_scores(batch):
            with clock("score"):
                advantages = self.estimator.estimate(batch, rewards)
            with clock("update"):
                stats, weights, grad_norm, agreement = self.update_in_one_pass(batch, advantages, generator, step)
        else:
            with clock("score"):
                stats, graphs = self.score(batch)
                agreement = self._check(batch, stats, step)
                mean_logp = (stats.logp * batch.mask_BT).sum(-1) / batch.response_lengths_B
                advantages = self.estimator.estimate(
                    batch, self.method.shape_rewards(rewards, batch.groups_B, mean_logp)
                )
                weighing = None
                if not self._weighs_every_update:
                    weighing = self.weigh(stats, advantages, batch.mask_BT, generator)
            with clock("update"):
                weights, grad_norm = self.update(batch, stats, advantages, weighing, graphs, generator, step)
        metrics |= self._bounds_metrics(stats, advantages, weights, batch.mask_BT)
        with clock("update"):
            learnt = self.estimator.learn(self._mini_batches(batch))
        if self.config.entropy_change_every and step % self.config.entropy_change_every == 0:
            with clock("measure"):
                before = _mean(stats.entropy, batch.mask_BT)
                metrics["entropy_change"] = _mean(self.score(batch, graph=False)[0].entropy, batch.mask_BT) - before

        self.changed_since_step = False
        return {
            **metrics,
            **entropy_metrics(stats, advantages, weights, batch.mask_BT, self.config.optimizer.learning_rate),
            **agreement,
            "reward_mean": rewards.mean().item(),
            "accuracy": float(np.mean([grade.correct for grade in grades])),
            "response_length": batch.response_lengths_B.double().mean().item(),
            "truncated": float(np.mean([grade.truncated for grade in grades])),
            "zero_variance_groups": zero_variance_groups(rewards, batch.groups_B),
            "grad_norm": grad_norm,
            **learnt,
            **clock.seconds,
        }

    def prompts_of_step(self, step: int) -> list[Prompt]:
        """The step's prompts. Each epoch goes through the set in a new seeded order; no step repeats a prompt."""
        size, count = len(self.prompts), min(self.config.prompts_per_step, len(self.prompts))
        per_epoch = size // count  # a remainder too small for a step is left out of its epoch
        epoch, place = divmod(step, per_epoch)
        order = np.random.default_rng([self.seed, epoch]).permutation(size)
        return [self.prompts[index] for index in order[place * count : (place + 1) * count]]

    def score(
        self, batch: RolloutBatch, rows: Tensor | None = None, graph: bool = True
    ) -> tuple[TokenStats, list[TokenStats]]:
        """Statistics of `rows` (the whole batch by default) under the current policy, detached, each [B, T].

        When one update follows and the batch is small enough to hold (`held_tokens`), the forward passes keep their
        graphs and the update goes on from them: the statistics with the graph of each of this rank's micro-batches.
        Else the list is empty.
        """
        parts = self._parts(batch, rows)
        held = graph and self._can_be_held(batch)
        graphs = [self._stats(batch, part) for part in parts] if held else []
        own = TokenStats(*(torch.zeros_like(batch.mask_BT, dtype=torch.float32) for _ in _COLUMNS))
        with torch.no_grad():
            for number, part in enumerate(parts):
                _put(own, part, graphs[number] if held else self._stats(batch, part))
        if not held:
            release(self.policy)
        return own.map(self.ranks.sum), graphs  # every row is one rank's; the others have zeros there

    def _can_be_held(self, batch: RolloutBatch) -> bool:
        few = self.config.updates_per_batch == 1 and int(batch.lengths_B.sum()) <= self.config.held_tokens
        # Under FSDP a backward pass has to follow each forward pass.
        return few and (self.ranks.mesh is None or len(self._parts(batch)) == 1)

    def _needs_no_scores(self, batch: RolloutBatch) -> bool:
        """Whether the forward passes of the update do for scores too: a second one is saved where none is needed.

        So it is where nothing about a token depends on the rest of the batch, or only on bounds of the step before.
        """
        kept = self.method.denominator == "kept"
        beside = kept and (self.config.objective.loss_scope != "global_token" or self.method.entropy_bonus() != 0)
        weighs = not self.method.needs_batch or (self.config.bounds_from == "previous_step" and self.bounds is not None)
        return weighs and not beside and self.config.updates_per_batch == 1 and not self._can_be_held(batch)

    @property
    def _weighs_every_update(self) -> bool:
        return self.method.every_update and self.config.updates_per_batch > 1

    def weigh(self, stats: TokenStats, advantages: Tensor, mask: Tensor, generator: torch.Generator) -> Weighing:
        """Ask the method, with the tokens of a whole batch."""
        weights = self.method.token_weights(stats, advantages, mask, generator)
        return Weighing(weights, self.method.drift_penalty(stats, advantages, mask))

    def update(
        self,
        batch: RolloutBatch,
        stats: TokenStats,
        advantages: Tensor,
        weighing: Weighing | None,
        graphs: list[TokenStats],
        generator: torch.Generator,
        step: int,
    ) -> tuple[Tensor, float]:
        """`updates_per_batch` optimizer steps, each on its share of the prompts.

        Returns:
            The weights that were used, [B, T], and the mean gradient norm.
        """
        used = torch.zeros_like(stats.logp)
        norms = []
        for number, rows in enumerate(self._mini_batches(batch)):
            if self._weighs_every_update:
                current = stats if number == 0 else self.score(batch, rows)[0]  # the policy has moved since
                weighing = self.weigh(current, advantages, _only(batch.mask_BT, rows), generator)
            used[rows] = weighing.weights[rows]
            self.optimizer.zero_grad(set_to_none=True)
            total = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
            # Before the first update the policy that sampled is the one trained: lp_old = lp, and the ratio exactly 1.
            # The stored scores would equal it only up to the rounding of another micro-batch.
            logp_old = stats.logp if number > 0 else None
            trust = self._importance(batch, stats.logp)
            for loss, last in self._losses(batch, rows, logp_old, advantages, weighing, trust, graphs):
                sync_gradients(self.policy, last or self.config.reduce_every_micro_batch)
                (loss * self.ranks.size).backward()  # the ranks' gradients are averaged
                total += loss.detach()
            norms.append(self._clip_and_step(total, step))
        return used, float(np.mean(norms))

    def update_in_one_pass(
        self, batch: RolloutBatch, advantages: Tensor, generator: torch.Generator, step: int
    ) -> tuple[TokenStats, Tensor, float, dict[str, float]]:
        """One optimizer step whose forward passes are the only ones: tokens are weighed as they come.

        Returns:
            The statistics of the batch and the weights that were used, each [B, T], the gradient norm, and how far the
            engine agreed.
        """
        mask = batch.mask_BT
        own = TokenStats(*(torch.zeros_like(mask, dtype=torch.float32) for _ in _COLUMNS))
        own_weights = torch.zeros_like(mask, dtype=torch.float32)
        scope = self.config.objective.loss_scope
        everywhere = loss_weights(mask.float(), mask, batch.groups_B, scope=scope, denominator="all")
        self.optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), dtype=torch.float64, device=self.ranks.device)
        parts = self._parts(batch)
        for number, part in enumerate(parts, 1):
            now = self._stats(batch, part)
            detached = now.map(Tensor.detach)
            arguments = (detached, advantages[part], mask[part])
            if self.method.needs_batch:
                weights = self.method.weights_within(self.bounds, *arguments)
            else:
                weights = self.method.token_weights(*arguments, generator)
            _put(own, part, detached)
            own_weights[part] = weights
            multipliers = weights * everywhere[part]
            if (trust := self._importance(batch, detached.logp, part)) is not None:
                multipliers = multipliers * trust
            loss = self._loss(now, detached.logp, advantages[part], multipliers, everywhere[part], None)
            sync_gradients(self.policy, number == len(parts) or self.config.reduce_every_micro_batch)
            (loss * self.ranks.size).backward()
            total += loss.detach()
        stats, weights = own.map(self.ranks.sum), self.ranks.sum(own_weights)
        agreement = self._check(batch, stats, step)
        if self.method.denominator == "kept":  # how many that are is known only now
            scale = float(mask.sum() / (weights > 0).sum().clamp_min(1))
            for parameter in self.policy.parameters():
                parameter.grad.mul_(scale)
            total *= scale
        return stats, weights, self._clip_and_step(total, step), agreement

    def _clip_and_step(self, total: Tensor, step: int) -> float:
        """An optimizer step; `total` is this rank's share of the loss. The gradient norm."""
        norm = clip_and_step(
            self.policy,
            self.optimizer,
            self.ranks.sum(total).item(),
            max_grad_norm=self.config.optimizer.max_grad_norm,
            where=f"step {step}",
            knob="training.optimizer.learning_rate",
        )
        self.changed_since_step = True
        return norm

    def _losses(
        self,
        batch: RolloutBatch,
        rows: Tensor,
        logp_old_BT: Tensor | None,
        advantages: Tensor,
        weighing: Weighing,
        trust: Tensor | None,
        graphs: list[TokenStats],
    ) -> Iterator[tuple[Tensor, bool]]:
        """The losses of this rank's micro-batches of `rows`, and whether it is the last of them.

        Their sum over micro-batches and ranks is the loss of one optimizer step.
        logp_old_BT: under the policy that sampled; None where that is the current one.
        """
        scope = self.config.objective.loss_scope
        mask = _only(batch.mask_BT, rows)

        def shares(weights: Tensor, denominator: str) -> Tensor:
            result = torch.zeros_like(weights)
            own = (weights[rows], mask[rows], batch.groups_B[rows])
            result[rows] = loss_weights(*own, scope=scope, denominator=denominator)
            return result

        multipliers = shares(weighing.weights, self.method.denominator)
        if trust is not None:
            multipliers = multipliers * trust
        everywhere = shares(mask.float(), "all")  # terms beside the policy loss are means over all response tokens
        parts = self._parts(batch, rows)
        for number, part in enumerate(parts):
            now = graphs[number] if graphs else self._stats(batch, part)
            logp_old = now.logp.detach() if logp_old_BT is None else logp_old_BT[part]
            penalty = None if weighing.drift_penalty is None else weighing.drift_penalty[part]
            loss = self._loss(now, logp_old, advantages[part], multipliers[part], everywhere[part], penalty)
            yield loss, number == len(parts) - 1

    def _loss(
        self,
        now: TokenStats,
        logp_old: Tensor,
        advantages: Tensor,
        multipliers: Tensor,
        everywhere: Tensor,
        drift_penalty: Tensor | None,
    ) -> Tensor:
        """The loss of one micro-batch, all arguments [rows, T]; `everywhere` averages over all response tokens."""
        objective = self.config.objective
        loss = policy_loss(
            now.logp,
            logp_old,
            advantages,
            multipliers,
            clip_low=objective.clip_low,
            clip_high=objective.clip_high,
            dual_clip=objective.dual_clip,
        )
        if drift_penalty is not None:
            loss = loss + (drift_penalty * (now.logp - logp_old).abs() * everywhere).sum()
        if self.method.entropy_bonus():
            loss = loss - self.method.entropy_bonus() * (now.entropy * everywhere).sum()
        return loss

    def _importance(self, batch: RolloutBatch, logp: Tensor, part: Tensor | slice = slice(None)) -> Tensor | None:
        """Truncated importance sampling of the rows `part`: p(trainer) / p(engine), at most `importance_truncation`.

        None where it is off, or the engine gives no log-probabilities.
        """
        limit = self.config.importance_truncation
        if limit is None or batch.engine_logp_BT is None:
            return None
        return (logp - batch.engine_logp_BT[part]).exp().clamp_max(limit)

    def _check(self, batch: RolloutBatch, stats: TokenStats, step: int) -> dict[str, float]:
        """Raise for log-probabilities that are no numbers, or not the engine's: see `engine_agreement`.

        Nothing of the latter for an engine that gives none.
        """
        mask = batch.mask_BT
        logp = stats.logp[mask]
        if bad := int((~logp.isfinite()).sum()):  # asked first: an engine with the same weights can only disagree
            raise NotFiniteError(
                f"step {step}: log p of {bad} of {len(logp)} tokens is not finite, so training stopped; "
                "a smaller training.optimizer.learning_rate may help"
            )
        if batch.engine_logp_BT is None:
            return {}
        return engine_agreement(batch.engine_logp_BT[mask], logp, self.engine_tolerance)

    def _bounds_metrics(self, stats: TokenStats, advantages: Tensor, weights: Tensor, mask: Tensor) -> dict[str, float]:
        """Keep this batch's bounds for the next step, where that is asked for, and say what those of the last changed.

        `bounds_changed` is the share of response tokens that the batch's own bounds would have weighed otherwise.
        """
        if self.config.bounds_from != "previous_step" or not self.method.needs_batch:
            return {}
        self.bounds = self.method.bounds(stats, advantages, mask)
        own = self.method.token_weights(stats, advantages, mask)
        changed = float((own != weights)[mask].double().mean())
        return {"bounds_low": self.bounds[0], "bounds_high": self.bounds[1], "bounds_changed": changed}

    def push(self) -> None:
        """Give the engine the policy's weights, and the memory that the last update took."""
        for _, optimizer in self.trained().values():
            optimizer.zero_grad(set_to_none=True)
        if self.ranks.device.type == "cuda":
            torch.cuda.empty_cache()
        self.sampler.push(self.policy.weights())

    def _mini_batches(self, batch: RolloutBatch) -> list[Tensor]:
        groups = batch.groups_B.unique().tensor_split(self.config.updates_per_batch)
        return [torch.isin(batch.groups_B, chosen).nonzero().squeeze(-1) for chosen in groups]

    def _parts(self, batch: RolloutBatch, rows: Tensor | None = None) -> Sequence[Tensor]:
        """This rank's micro-batches of `rows`."""
        return self.ranks.share(batch.micro_batches(self.config.tokens_per_micro_batch, rows, self.ranks.size))

    def _stats(self, batch: RolloutBatch, part: Tensor) -> TokenStats:
        bonus = self.method.entropy_bonus() != 0
        return self.policy.stats(batch, part, self.temperature, entropy_gradient=bonus)


_COLUMNS = tuple(TokenStats.__dataclass_fields__)


def _put(whole: TokenStats, rows: Tensor, part: TokenStats) -> None:
    """Write the statistics of some rows into those of the batch."""
    for name in _COLUMNS:
        getattr(whole, name)[rows] = getattr(part, name).detach()


def _only(mask: Tensor, rows: Tensor) -> Tensor:
    """The mask [B, T] with all rows but `rows` at 0."""
    chosen = torch.zeros_like(mask)
    chosen[rows] = mask[rows]
    return chosen


def _mean(values: Tensor, mask: Tensor) -> float:
    return values[mask].double().mean().item()


class _Clock:
    """`with clock("sample"): ...` adds up `seconds_sample`."""

    def __init__(self):
        self.seconds = {
            f"seconds_{phase}": 0.0 for phase in ("validate", "sample", "grade", "score", "update", "measure", "push")
        }

    @contextmanager
    def __call__(self, phase: str):
        start = time.perf_counter()
        yield
        self.seconds[f"seconds_{phase}"] += time.perf_counter() - start
