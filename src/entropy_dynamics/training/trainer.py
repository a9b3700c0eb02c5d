"""The training loop: sample -> grade -> score -> advantages -> update.

The same loop serves every method and every scale. Each rank grades its share of the rollouts and runs the model on its
own micro-batches only; rewards, advantages, masks and metrics are those of the whole batch on every rank.
"""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from entropy_dynamics.config.schema import TrainingConfig
from entropy_dynamics.core.advantages import group_advantages
from entropy_dynamics.core.metrics import entropy_metrics, lens_metrics
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.distributed.grading import grade_all
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import NotFiniteError, UserError
from entropy_dynamics.methods import Method
from entropy_dynamics.sampling import Prompt, Rollout, Sampler, sample_seed
from entropy_dynamics.tasks import Grade
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.critic import AdvantageEstimator, MethodAdvantages, Trained
from entropy_dynamics.training.metrics import engine_agreement, zero_variance_groups
from entropy_dynamics.training.policy import Policy
from entropy_dynamics.training.rewards import REWARDS
from entropy_dynamics.training.update import PolicyUpdate, Scores

VALIDATION = ("validation_accuracy", "validation_pass")  # metrics, NaN on the steps between validations
PHASES = ("validate", "sample", "grade", "score", "update", "measure", "push")


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
        validate: Callable[[], dict[str, float]] | None = None,
        engine_dtype: torch.dtype | None = None,
        engine_tolerance: float = 1e-4,
        ranks: Ranks | None = None,
    ):
        """
        Args:
            prompts: the training set.
            temperature: of the rollouts, and of the policy that is trained.
            seed: of the order of the prompts and of the rollouts.
            estimator: of the advantages; the method's own by default.
            validate: the metrics `VALIDATION` of the current policy, called every `validation_every` steps.
            engine_dtype: weights are pushed in it; the policy's own by default.
            engine_tolerance: see `engine_agreement`.
        """
        if not prompts:
            raise UserError("no training problems are left: the pass-rate filter dropped them all")
        self.ranks = ranks or Ranks()
        self.prompts_per_step = min(config.prompts_per_step, len(prompts))
        if config.updates_per_batch > self.prompts_per_step:
            raise UserError(
                f"training.updates_per_batch is {config.updates_per_batch}, but a step has only "
                f"{self.prompts_per_step} prompts to divide among its updates"
            )
        try:
            config.check_divisible(self.prompts_per_step, self.ranks.size)
        except ValueError as error:  # the config passed, but few problems are left
            raise UserError(str(error)) from None
        self.config, self.policy, self.method, self.sampler = config, policy, method, sampler
        self.grade, self.prompts, self.validate = grade, prompts, validate
        self.temperature, self.max_new_tokens, self.pad_token = temperature, max_new_tokens, pad_token
        self.seed, self.engine_dtype, self.engine_tolerance = seed, engine_dtype, engine_tolerance
        self.reward = REWARDS[config.reward]
        optimizer = config.optimizer
        self.optimizer = torch.optim.AdamW(
            policy.parameters(),
            lr=optimizer.learning_rate,
            betas=(optimizer.betas[0], optimizer.betas[1]),
            eps=optimizer.eps,
            weight_decay=optimizer.weight_decay,
            fused=True,
        )
        self.updates = PolicyUpdate(config, policy, method, self.optimizer, temperature, self.ranks)
        self.estimator = estimator or MethodAdvantages(method)
        self.in_progress: tuple[RolloutBatch, Tensor] | None = None  # the batch being learned from, and its rewards

    def trained(self) -> Trained:
        """Everything that learns, by name."""
        return {"policy": (self.policy, self.optimizer), **self.estimator.trained()}

    def run(self, first_step: int = 0) -> Iterator[dict[str, float]]:
        """Train from `first_step` up to `config.steps`.

        All randomness belongs to the seed and the number of the step, so a run may stop and resume at any step.

        Yields:
            The metrics of each step (step 0 is the untrained policy's batch).

        Raises:
            NotFiniteError: the loss or the gradient is not finite. The model is then as it was before that update, and
                `in_progress` is the batch.
            EngineMismatchError: the engine's log-probabilities differ from the trainer's.
        """
        for step in range(first_step, self.config.steps):
            yield self.step(step)

    def step(self, step: int) -> dict[str, float]:
        """One batch of rollouts and its update."""
        clock = _Clock()
        with clock("push"):
            self.push()
        with clock("validate"):
            validation = dict.fromkeys(VALIDATION, math.nan)
            if self.validate is not None and self._due(step, self.config.validation_every):
                validation = self.validate()
        with clock("sample"):
            prompts, rollouts = self.sample(step)
        with clock("grade"):
            grades = grade_all(self.grade, rollouts, self.ranks)
            rewards = torch.tensor([self.reward(grade) for grade in grades], device=self.ranks.device)
            batch = RolloutBatch.collate(prompts, rollouts, self.pad_token).to(self.ranks.device)
            self.in_progress = batch, rewards
        with clock("score"):
            scores = self.updates.score(batch)
            advantages = self.estimator.estimate(batch, self.shaped(rewards, batch, scores))
        with clock("update"):
            agreement: dict[str, float] = {}
            weights, effective, grad_norm = self.updates.update(
                batch,
                scores,
                advantages,
                self.generator(step),
                check=lambda: agreement.update(self.check(batch, scores.stats, step)),
                where=f"step {step}",
            )
            learned = self.estimator.learn(batch, self.config.updates_per_batch)
        with clock("measure"):
            entropy_change = math.nan
            if self._due(step, self.config.entropy_change_every):
                after = self.updates.statistics(batch).entropy[batch.mask].double().mean().item()
                entropy_change = after - scores.stats.entropy[batch.mask].double().mean().item()
        metrics = {
            "step": step,
            **validation,
            "entropy_change": entropy_change,
            **entropy_metrics(scores.stats, advantages, weights, batch.mask, self.config.optimizer.learning_rate),
            **lens_metrics(scores.stats, group_advantages(rewards, batch.groups), effective, batch.mask),
            **agreement,
            "reward_mean": rewards.mean().item(),
            "accuracy": float(np.mean([grade.correct for grade in grades])),
            "response_length": batch.response_lengths.double().mean().item(),
            "truncated": float(np.mean([grade.truncated for grade in grades])),
            "zero_variance_groups": zero_variance_groups(rewards, batch.groups),
            "grad_norm": grad_norm,
            **learned,
            **self.method.metrics(scores.stats, advantages, weights, batch.mask),
        }
        self.method.observe(metrics)
        self.updates.stepped = False
        return metrics | clock.seconds

    def push(self) -> None:
        """Give the engine the policy's weights, and free the memory of the last update."""
        for _, optimizer in self.trained().values():
            optimizer.zero_grad(set_to_none=True)
        if self.ranks.device.type == "cuda":
            torch.cuda.empty_cache()
        self.sampler.push(self.policy.weights(self.engine_dtype))

    def sample(self, step: int) -> tuple[list[Prompt], list[Rollout]]:
        """The prompts of a step and their rollouts."""
        prompts = self.prompts_of_step(step)
        rollouts = self.sampler.sample(
            prompts,
            samples=self.config.group_size,
            temperature=self.temperature,
            max_new_tokens=self.max_new_tokens,
            stream=f"train/seed{self.seed}/step{step}",
        )
        self.sampler.sleep()
        return prompts, rollouts

    def prompts_of_step(self, step: int) -> list[Prompt]:
        """Each epoch visits the training set in its own seeded order; no step repeats a prompt."""
        size, count = len(self.prompts), self.prompts_per_step
        epoch, place = divmod(step, size // count)  # the last partial step of an epoch is dropped
        order = np.random.default_rng([self.seed, epoch]).permutation(size)
        return [self.prompts[index] for index in order[place * count : (place + 1) * count]]

    def shaped(self, rewards: Tensor, batch: RolloutBatch, scores: Scores) -> Tensor:
        """The rewards as the method shapes them."""
        if not self.method.needs_batch:  # it reshapes none, and scores may not be there yet
            return rewards
        mean_logp = (scores.stats.logp * batch.mask).sum(-1) / batch.response_lengths
        return self.method.shape_rewards(rewards, batch.groups, mean_logp)

    def generator(self, step: int) -> torch.Generator:
        """For methods that choose at random."""
        generator = torch.Generator(self.ranks.device)
        generator.manual_seed(sample_seed(f"method/seed{self.seed}", "", step) % 2**63)
        return generator

    def check(self, batch: RolloutBatch, stats: TokenStats, step: int) -> dict[str, float]:
        """Compare the engine's log-probabilities with the trainer's; no metrics if the engine returns none.

        Raises:
            NotFiniteError: log-probabilities of the trainer are not finite.
            EngineMismatchError: see `engine_agreement`.
        """
        logp = stats.logp[batch.mask]
        if bad := int((~logp.isfinite()).sum()):  # first, as an engine with such weights would only disagree
            raise NotFiniteError(
                f"step {step}: log p of {bad} of {len(logp)} tokens is not finite, so training stopped; "
                "a smaller training.optimizer.learning_rate may help"
            )
        if batch.engine_logp is None:
            return {}
        return engine_agreement(batch.engine_logp[batch.mask], logp, self.engine_tolerance)

    @staticmethod
    def _due(step: int, every: int) -> bool:
        return every > 0 and step % every == 0


class _Clock:
    """`with clock("sample"): ...` adds up `seconds_sample`."""

    def __init__(self) -> None:
        self.seconds = {f"seconds_{phase}": 0.0 for phase in PHASES}

    @contextmanager
    def __call__(self, phase: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[f"seconds_{phase}"] += time.perf_counter() - start
