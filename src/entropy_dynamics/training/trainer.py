"""The training loop of every method and scale: sample -> grade -> score -> advantages -> update."""

import copy
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from entropy_dynamics.config.schema.training import TrainingConfig
from entropy_dynamics.core.advantages import group_advantages
from entropy_dynamics.core.groups import Grouping
from entropy_dynamics.core.metrics import change_metrics, entropy_metrics, lens_metrics
from entropy_dynamics.core.objective import full_kl, importance_ratio
from entropy_dynamics.core.shapes import PerToken
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.distributed.time_limit import TimeLimit
from entropy_dynamics.errors import NotFiniteError, Unfinished, UserError
from entropy_dynamics.methods import Method
from entropy_dynamics.results.progress import Progress
from entropy_dynamics.sampling import Prompt, Rollout, Sampler, sample_seed
from entropy_dynamics.tasks import Grade
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.checkpoints import Checkpoints, checkpoint_bytes
from entropy_dynamics.training.critic import CriticGAE
from entropy_dynamics.training.first_order import NOT_MEASURED, FirstOrderChange
from entropy_dynamics.training.optimizer import Trained, clip_and_step, steps_taken
from entropy_dynamics.training.policy import Policy
from entropy_dynamics.training.rewards import REWARDS, grades_of, shaped_rewards
from entropy_dynamics.training.update import PolicyUpdate, Scored

Row = dict[str, float]
"""The metrics of a step, by column of metrics.parquet."""
VALIDATION = ("validation_accuracy", "validation_pass")  # NaN on steps without validation
CHANGE = ("entropy_change", "s_centered_after", "s_centered_reweighted")  # NaN unless `entropy_change_every` is due
TRAINING = ("push", "sample", "grade", "score", "update")  # phases, each timed as `seconds_<phase>`
PHASES = (*TRAINING, "validate", "measure")


@dataclass(eq=False)
class Trainer:
    """Trains `policy` in place: `step` runs one training step, `run` all of them."""

    config: TrainingConfig
    _: KW_ONLY
    policy: Policy
    method: Method
    sampler: Sampler
    grade: Callable[[Rollout], Grade]
    prompts: Sequence[Prompt]
    """The training set."""
    temperature: float
    """Temperature at which the rollouts are sampled, and by which the logits of the trained policy are divided."""
    max_new_tokens: int
    seed: int
    """Seed that fixes the order of the prompts and the sampling of the rollouts."""
    critic: CriticGAE | None = None
    """PPO's critic; None: advantages come from the method."""
    validate: Callable[[], Row] | None = None
    """Returns the metrics `VALIDATION` of the current policy; called every `validation_every` steps."""
    keep: Callable[..., None] | None = None
    """Called after each step's updates with its number, rollouts, grades, batch, statistics, advantages and weights."""
    ranks: Ranks = field(default_factory=Ranks)

    def __post_init__(self) -> None:
        config = self.config
        if not config.updates_per_batch <= config.prompts_per_step <= len(self.prompts):
            raise UserError(
                f"training.prompts_per_step is {config.prompts_per_step}; it should be at least updates_per_batch "
                f"({config.updates_per_batch}) and at most the number of training problems left ({len(self.prompts)}), "
                "which pass_rates.low and pass_rates.high decide"
            )
        self.reward = REWARDS.get(config.reward)  # None: random
        self.optimizer = torch.optim.AdamW(
            self.policy.parameters(),
            lr=config.optimizer.learning_rate,
            betas=tuple(config.optimizer.betas),
            eps=config.optimizer.eps,
            weight_decay=config.optimizer.weight_decay,
            fused=True,
        )
        self.update = PolicyUpdate(config, self.policy, self.method, self.temperature, self.ranks)
        self.engine_top: dict[str, int] = {}
        if "engine_top" in (asked := self.method.second_pass()):
            if not self.sampler.returns_top:
                reason = "the engine's most likely tokens; it should have engine.name native and hardware.ranks null"
                raise UserError(f"method {type(self.method).__name__} needs {reason}")
            self.engine_top = {"top": asked["engine_top"] or self.policy.model.config.vocab_size}
        self.start: PolicyUpdate | None = None  # the policy before training, if the method compares with it
        if "reference" in asked:
            if self.ranks.mesh is not None:
                raise UserError(
                    f"method {type(self.method).__name__} should have hardware.ranks null: it copies the policy"
                )
            start = copy.deepcopy(self.policy).requires_grad_(False)  # before a checkpoint is loaded
            self.start = PolicyUpdate(config, start, self.method, self.temperature, self.ranks)
        self.ahead: list[list[Rollout]] = []  # rollouts of this and the next steps, sampled but not yet learned from
        self.in_progress: tuple[int, RolloutBatch, Tensor] | None = None  # the current step, its batch and rewards

    def step(self, step: int) -> Row:
        """One batch of rollouts and its updates: the whole algorithm, for every method. Returns metrics.

        All randomness depends only on the seed and the step, so a run may stop and resume at any step.

        Raises:
            NotFiniteError: a loss, gradient, log p or token weight is not finite. The failing module is unchanged by
                that update, and `in_progress` holds the batch.
            UserError: the engine's log probabilities differ from the trainer's.
        """
        config, method, clock = self.config, self.method, _Clock(self.ranks.device)
        with clock("push"):
            self.push()
        with clock("validate"):
            validation = dict.fromkeys(VALIDATION, math.nan)
            if self.validate is not None and _due(step, config.validation_every):
                validation = self.validate()
        with clock("sample"):
            prompts = self.prompts_of_step(step)
            # At the first step, rollouts of `staleness` further steps are sampled, then of one more at each step.
            last = max(step, min(step + config.staleness, config.steps - 1))
            self.ahead += [self.sample(later) for later in range(step + len(self.ahead), last + 1)]
            self.sampler.sleep()
            rollouts = self.ahead[0]
        with clock("grade"):
            grades = grades_of(rollouts, self.grade, self.ranks)
            rewards = torch.tensor(self.rewards(grades, step), device=self.ranks.device)
            batch = RolloutBatch.collate(prompts, rollouts).to(self.ranks.device)
            self.in_progress = step, batch, rewards
        with clock("measure"):
            measured, first_order = _due(step, config.entropy_change_every), None
            if measured and config.entropy_change_first_order:  # set up before the batch is scored
                first_order = FirstOrderChange(self.update.entropy_gradient(batch), self.optimizer)
        with clock("score"):
            if self.start is not None:
                batch = self.compared(batch, self.start)
            scored, shaped = None, rewards
            if method.overrides("shape_rewards"):
                scored = self.update.score(batch)
                shaped = shaped_rewards(method, rewards, batch, self.update.sampled_logp(batch, scored))
            if self.critic is None:
                advantages = method.advantages(shaped, batch.groups)[:, None].expand(batch.mask.shape)
            else:
                estimate = self.critic.estimate(batch, shaped)
                advantages = estimate.advantages
            if scored is None and method.needs_scores(config.updates_per_batch):
                scored = self.update.score(batch, advantages)
        with clock("update"):
            seed = sample_seed(f"method/seed{self.seed}", "", step) % 2**63
            generator, decision, norms = torch.Generator(self.ranks.device).manual_seed(seed), None, []
            weights, effective = torch.zeros_like(advantages), torch.zeros_like(advantages)
            for rows in batch.mini_batches(config.updates_per_batch):
                first = decision is None  # no optimizer step on this batch yet
                decision = self.update.decide(batch, rows, advantages, scored, decision, generator)
                gradient = self.update.backward(batch, rows, advantages, scored, decision, first=first)
                scored = Scored(gradient.stats)  # without the graphs, which the backward pass has freed
                if first:
                    agreement = self.check(batch, scored.stats, decision.weights, step)
                where = f"step {step}"
                norms.append(clip_and_step(self.policy, self.optimizer, gradient.loss, config.optimizer, where))
                if first_order is not None:
                    first_order.add_update()
                weights[rows], effective[rows] = decision.weights[rows], gradient.effective[rows]
            learned = {} if self.critic is None else self.critic.learn(batch, estimate, config.updates_per_batch)
        with clock("measure"):
            changed = dict.fromkeys(CHANGE, math.nan)
            if measured:
                changed = change_metrics(scored.stats, self.update.statistics(batch), batch.mask)
            ratio = None  # to the engine's p', which may be stale
            if config.off_policy:
                ratio = importance_ratio(scored.stats.logp, batch.engine_logp, batch.mask)
            row = {
                "step": step,
                **validation,
                **changed,
                **(NOT_MEASURED if first_order is None else first_order.metrics()),
                **entropy_metrics(scored.stats, advantages, weights, batch.mask, config.optimizer.learning_rate, ratio),
                **lens_metrics(scored.stats, group_advantages(rewards, batch.groups), effective, batch.mask),
                **agreement,
                **reward_metrics(batch, grades, rewards),
                **({} if self.start is None else kl_metrics(scored.stats, batch)),
                "grad_norm": sum(norms) / len(norms),
                **learned,
                **method.metrics(scored.stats, advantages, weights, batch.mask),
            }
            method.observe(row)
            if self.keep is not None:
                self.keep(step, rollouts, grades, batch, scored.stats, advantages, weights)
        self.ahead.pop(0)  # at the end: if the step fails, the checkpoint holds its rollouts
        return row | clock.seconds

    def run(
        self,
        name: str,
        checkpoints: Checkpoints,
        log: Callable[[int, Row], None],
        shorter: Mapping[int, tuple[Path, Checkpoints]] = MappingProxyType({}),
    ) -> list[Row]:
        """Train to the end, starting from the last checkpoint, and save one every `checkpoint_every` steps.

        Returns the metrics of all steps, including those before the checkpoint.

        Args:
            name: name of the run, shown with its progress.
            log: called with the number and the metrics of every step.
            shorter: number of steps -> lock and checkpoints of the run that ends after them, which gets its last
                checkpoint from here.

        Raises:
            Unfinished: the time limit is near, or SIGURG was received. A checkpoint of the latest step is saved first.
            NotFiniteError: see `step`. A checkpoint of the previous step is saved first, unless an update was taken.
        """
        every, steps = self.config.checkpoint_every, self.config.steps
        limit = TimeLimit(self.ranks, checkpoint_bytes(self.trained()))
        rows = self._resume(checkpoints)
        progress = Progress(name, steps, done=len(rows), shown=self.ranks.is_main)
        for step in range(len(rows), steps):
            if step in shorter:
                lock, other = shorter[step]
                other.earlier = checkpoints.earlier
                other.leave(lock, self.trained(), rows, self.method.state_dict())
            try:
                row = self.step(step)
            except NotFiniteError:
                if every and steps_taken(self.optimizer) == step * self.config.updates_per_batch:
                    checkpoints.save(self.trained(), rows, self.method.state_dict(), self.ahead)
                raise
            rows.append(row)
            log(step, row)
            progress.step(entropy=row["entropy"], accuracy=row["accuracy"])
            finished = len(rows) == steps
            ends = limit.reached() and not finished
            if ends or (every and (finished or len(rows) % every == 0)):
                checkpoints.save(self.trained(), rows, self.method.state_dict(), self.ahead, finished)
            if ends:
                self.ranks.note(f"ends early, at a checkpoint after step {len(rows)}; the same command resumes it")
                self.ranks.barrier()  # the first rank to exit ends the others
                raise Unfinished
        return rows

    def _resume(self, checkpoints: Checkpoints) -> list[Row]:
        """Load the last checkpoint, if any, and return the metrics of the steps before it."""
        rows, method_state = checkpoints.resume(self.trained())
        if rows:
            self.method.load_state_dict(method_state)
            self.ahead = checkpoints.ahead
            others = "; a longer run, other code or packages made some of its steps" if checkpoints.earlier else ""
            self.ranks.note(f"resumes from the checkpoint after step {len(rows)}{others}")
        elif checkpoints.others():
            self.ranks.note(f"{checkpoints.root} has checkpoints of another config or other inputs")
        return rows

    def trained(self) -> Trained:
        """All trained modules with their optimizers, by name."""
        critic = {} if self.critic is None else {"critic": (self.critic.critic, self.critic.optimizer)}
        return {"policy": (self.policy, self.optimizer), **critic}

    def push(self) -> None:
        """Send the policy's weights to the engine, after freeing the memory of the last update."""
        for _, optimizer in self.trained().values():
            optimizer.zero_grad(set_to_none=True)
        torch.cuda.empty_cache()  # a no-op if CUDA is not in use
        self.sampler.push(self.policy.weights(self.sampler.weights_dtype))

    def rewards(self, grades: Sequence[Grade], step: int) -> list[float]:
        """The reward of every rollout of a step."""
        if self.reward is None:  # 0 or 1 with equal probability: a control in which there is nothing to learn
            return np.random.default_rng([self.seed, step, 1]).integers(2, size=len(grades)).astype(float).tolist()
        return [self.reward(grade) for grade in grades]

    def sample(self, step: int) -> list[Rollout]:
        """Rollouts of a step's prompts, from the policy pushed last."""
        return self.sampler.sample(
            self.prompts_of_step(step),
            samples=self.config.group_size,
            temperature=self.temperature,
            max_new_tokens=self.max_new_tokens,
            stream=f"train/seed{self.seed}/step{step}",
            **self.engine_top,
        )

    def compared(self, batch: RolloutBatch, start: PolicyUpdate) -> RolloutBatch:
        """The batch with log p of the whole vocabulary under the policy before training."""
        every = torch.arange(self.policy.model.config.vocab_size, device=batch.mask.device)
        batch = replace(batch, top=every.expand(*batch.mask.shape, -1))
        return replace(batch, top_logq=start.statistics(batch).top_logp)

    def prompts_of_step(self, step: int) -> list[Prompt]:
        """The prompts of a step. Each epoch has its own seeded order; no step repeats a prompt."""
        size, count = len(self.prompts), self.config.prompts_per_step
        epoch, place = divmod(step, size // count)  # an epoch's last, incomplete step is dropped
        order = np.random.default_rng([self.seed, epoch]).permutation(size)
        return [self.prompts[index] for index in order[place * count : (place + 1) * count]]

    def check(self, batch: RolloutBatch, stats: TokenStats, weights: PerToken, step: int) -> dict[str, float]:
        """Compare the engine's log probabilities with the trainer's; no metrics if the engine returns none.

        Raises NotFiniteError if the trainer's log p or token weights are not finite; otherwise as `engine_agreement`.
        """
        logp = stats.logp[batch.mask]
        if bad := int((~logp.isfinite()).sum()):  # checked first, as it would otherwise be reported as a mismatch
            raise NotFiniteError(
                f"step {step}: log p of {bad} of {len(logp)} tokens is not finite, so training stopped; "
                "a smaller training.optimizer.learning_rate may help"
            )
        if bad := int((~weights[batch.mask].isfinite()).sum()):
            name = type(self.method).__name__
            raise NotFiniteError(f"step {step}: {bad} token weights of {name} are not finite, so training stopped")
        if batch.engine_logp is None:
            return {}
        # With stale batches the engine's log p is an older policy's, so a difference is expected.
        tolerance = math.inf if self.config.staleness else self.sampler.tolerance
        return engine_agreement(batch.engine_logp[batch.mask], logp, tolerance)


def engine_agreement(
    engine_logp: Float[Tensor, " tokens"], trainer_logp: Float[Tensor, " tokens"], tolerance: float
) -> dict[str, float]:
    """Difference between the engine's and the trainer's log p of the sampled tokens, nats.

    It verifies the push of the weights on every token. `engine_kl`, the mean of log p(engine) - log p(trainer),
    estimates KL(engine || trainer). Raises UserError if the mean absolute difference is above `tolerance`.
    """
    difference = (engine_logp - trainer_logp).double()
    mean, most = difference.abs().mean().item(), difference.abs().max().item()
    if not mean <= tolerance:  # NaN counts as disagreement
        raise UserError(
            f"engine and trainer disagree: log p differs by {mean:.3g} nats on average and {most:.3g} at most over "
            f"{len(difference)} tokens, engine.tolerance is {tolerance:g}; the engine's weights are not the trainer's, "
            "unless engine.dtype or training.precision explain it"
        )
    return {"engine_logp_difference": mean, "engine_logp_difference_max": most, "engine_kl": difference.mean().item()}


def reward_metrics(batch: RolloutBatch, grades: Sequence[Grade], rewards: Tensor) -> Row:
    """Means over a batch's rollouts; `zero_variance_groups` is a share of its groups."""
    return {
        "reward_mean": rewards.mean().item(),
        "accuracy": float(np.mean([grade.correct for grade in grades])),
        "response_length": batch.response_lengths.double().mean().item(),
        "truncated": float(np.mean([grade.truncated for grade in grades])),
        "zero_variance_groups": Grouping.by(batch.groups).constant(rewards).double().mean().item(),
    }


def kl_metrics(stats: TokenStats, batch: RolloutBatch) -> Row:
    """KL to the policy before training, which is 0 at the first step."""
    return {"reference_kl": full_kl(stats.top_logp, batch.top_logq)[batch.mask].double().mean().item()}


def _due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


class _Clock:
    """`with clock("sample"): ...` adds wall time to `seconds_sample`; phases in TRAINING add to `seconds_training` too.

    `seconds_training` is the cost of a step: on a CPU the processor time of this process, which other work on the
    machine affects less than wall time; on a GPU wall time.
    """

    def __init__(self, device: torch.device) -> None:
        self.cost = time.process_time if device.type == "cpu" else time.perf_counter
        self.seconds = {f"seconds_{phase}": 0.0 for phase in (*PHASES, "training")}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start, cost = time.perf_counter(), self.cost()
        yield
        self.seconds[f"seconds_{phase}"] += time.perf_counter() - start
        if phase in TRAINING:
            self.seconds["seconds_training"] += self.cost() - cost
