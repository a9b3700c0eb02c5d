"""Where Corollary 4 fails: whose tokens the entropy change of an SGD step comes from, along runs of GRPO (pilot seeds).

To first order the step changes the batch's mean entropy H by rate * grad H . grad J with J = mean(A log p), a double
sum over rollouts: the change of the entropy of one by the gradient of another. Corollary 4 has each token's effect on
itself, a part of the diagonal. The sum is split into the diagonal, pairs of rollouts of one prompt, and the rest. And
what the formula is good for: how the tokens' -S_c rank like grad H . grad log p, their exact effects on the entropy.
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.func import functional_call, grad, jvp, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from common import make_parser, make_trainer, write_record
from entropy_dynamics.config.schema import FIRST_PILOT_SEED
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.trainer import Trainer

PARTS = ("same_rollout", "same_prompt", "other_prompts")
AT_A_TIME = 32  # rollouts; each has gradients of its own


@dataclass(frozen=True)
class Shared:
    """The policy as a function of its parameters, on the rollouts of one batch."""

    model: nn.Module
    batch: RolloutBatch
    temperature: float

    @property
    def parameters(self) -> dict[str, Tensor]:
        return {name: parameter.detach() for name, parameter in self.model.named_parameters()}

    @property
    def responses(self) -> Bool[Tensor, "rollout position"]:
        """True where the next token belongs to the response."""
        position, batch = torch.arange(1, self.batch.sequences.shape[1]), self.batch
        return (position >= batch.prompt_lengths[:, None]) & (position < batch.lengths[:, None])

    def log_p(self, parameters: dict[str, Tensor], ids: Int[Tensor, "rollout token"]) -> Float[Tensor, "..."]:
        """Log-probabilities of the whole vocabulary at every position but the last."""
        logits = functional_call(self.model, parameters, (ids,), {"use_cache": False}).logits[:, :-1]
        return (logits / self.temperature).log_softmax(-1)

    def gram(self, advantages: Float[Tensor, " rollout"]) -> Float[Tensor, "rollout rollout"]:
        """grad H_i . grad J_j, float64: the entropy of rollout i changed by the gradient of rollout j."""
        count = self.batch.mask.sum()

        def entropy(parameters, ids, responses):
            log_p = self.log_p(parameters, ids[None])[0]
            return -((log_p.exp() * log_p).sum(-1) * responses).sum() / count

        def objective(parameters, ids, responses, advantage):
            log_p = self.log_p(parameters, ids[None])[0].gather(-1, ids[1:, None]).squeeze(-1)
            return advantage * (log_p * responses).sum() / count

        def of_rollouts(function, *columns):
            in_dims = (None, *(0 for _ in columns))
            return vmap(grad(function), in_dims=in_dims, chunk_size=AT_A_TIME)(self.parameters, *columns)

        columns = self.batch.sequences, self.responses.to(advantages.dtype)
        with sdpa_kernel(SDPBackend.MATH):
            changes, steps = of_rollouts(entropy, *columns), of_rollouts(objective, *columns, advantages)
        return sum(changes[name].flatten(1).double() @ steps[name].flatten(1).double().T for name in changes)

    def of_tokens(self, direction: list[Tensor]) -> Float[Tensor, " token"]:
        """Derivatives of log p of all response tokens in a direction: with grad H, what each does to the entropy."""

        def log_p(parameters):
            tokens = self.batch.sequences[:, 1:, None]
            return self.log_p(parameters, self.batch.sequences).gather(-1, tokens).squeeze(-1)

        parameters = self.parameters
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no forward mode
            _, derivatives = jvp(log_p, (parameters,), (dict(zip(parameters, direction, strict=True)),))
        return derivatives[self.responses]


def parts(gram: Float[Tensor, "rollout rollout"], groups: Int[Tensor, " rollout"]) -> dict[str, float]:
    """Sums of `gram` over pairs of rollouts by what they share, and of all."""
    own, same = torch.eye(len(groups), dtype=torch.bool), groups[:, None] == groups[None]
    chosen = dict(zip(PARTS, (own, same & ~own, ~same), strict=True))
    return {name: gram[pairs].sum().item() for name, pairs in chosen.items()} | {"total": gram.sum().item()}


def measure(trainer: Trainer, step: int) -> dict[str, float]:
    """The parts at one step, before it is taken, per unit of the learning rate."""
    prompts, rollouts = trainer.prompts_of_step(step), trainer.sample(step)
    batch = RolloutBatch.collate(prompts, rollouts)
    rewards = torch.tensor([trainer.reward(trainer.grade(rollout)) for rollout in rollouts])
    advantages = trainer.method.advantages(rewards, batch.groups)
    shared = Shared(trainer.policy.model, batch, trainer.temperature)
    effects = shared.of_tokens(trainer.update.entropy_gradient(batch))
    scores = trainer.update.statistics(batch).s_centered[batch.mask]
    return parts(shared.gram(advantages), batch.groups) | {"token_order": spearmanr(-scores, effects).statistic}


def summary(steps: pd.DataFrame) -> dict[str, dict[str, float]]:
    """Shares of the parts in the mean and in the variance within runs; correlations with the formula over steps."""
    columns = [*PARTS, "total", "corollary4"]
    within = steps[columns] - steps.groupby("seed")[columns].transform("mean")
    total = within["total"]
    return {
        "share_of_mean": {name: steps[name].mean() / steps["total"].mean() for name in PARTS},
        "share_of_variance": {name: (within[name] * total).sum() / (total**2).sum() for name in PARTS},
        "correlation_with_corollary4": {name: within[name].corr(within["corollary4"]) for name in (*PARTS, "total")},
        "rank_correlation_of_tokens": {"mean": steps["token_order"].mean(), "least": steps["token_order"].min()},
    }


def main() -> None:
    parser = make_parser(__file__, __doc__, scale=True)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--every", type=int, default=5, help="steps between measurements")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for seed in range(FIRST_PILOT_SEED, FIRST_PILOT_SEED + options.seeds):
        layout = Layout.of(options.scale, options.results)
        trainer = make_trainer(options.scale, options.model, "grpo", layout)
        trainer.seed = seed
        for step in range(trainer.config.steps):
            measured = measure(trainer, step) if step % options.every == 0 else None
            row = trainer.step(step)
            if measured is not None:
                rows.append({"seed": seed, "step": step, **measured, "corollary4": row["neg_cov"]})
    steps = pd.DataFrame(rows)
    what = f"grad H . grad J of GRPO's batches by pairs of rollouts, {options.model}, {options.scale} scale"
    rounded = steps.map(lambda value: float(f"{value:.4g}") if isinstance(value, float | np.floating) else value)
    write_record(options.out, what, seeds=options.seeds, **summary(steps), steps=rounded.to_dict("list"))


if __name__ == "__main__":
    main()
