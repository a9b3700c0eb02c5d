"""Theorem 2 on single steps from one policy: what each mask of tokens does to the entropy, predicted and realised.

To first order an SGD step on the loss -sum(w A log p) / divisor changes the entropy H of a policy by the sum of w A c /
divisor over the tokens, with c = grad H . grad log p of a token. So the same c serve the masks w of all methods on a
batch: one backward pass for grad H, and two forward passes for the derivatives of log p along it, by central
differences. Theorem 2 predicts -w A S_c. H is the mean entropy of the batch, or of another batch of other problems.
The unit of either side is the root mean square of GRPO's changes, as a network's scale is not in the theorem.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import scipy.stats
import torch
from jaxtyping import Float
from matplotlib import rc_context
from matplotlib.figure import Figure
from torch import Tensor

from common import make_parser, make_trainer, write_record
from entropy_dynamics.config import load_config
from entropy_dynamics.core.token_stats import TokenStats
from entropy_dynamics.figures.style import COLORS, SMALL, STYLE, WIDTH, add_footer, pretty, save
from entropy_dynamics.methods import Method
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.training.batch import RolloutBatch
from entropy_dynamics.training.trainer import Trainer

ABLATIONS = [
    f"s_star_{how}_{sign}_{side}" for how in ("keep", "mask") for sign in ("pos", "neg") for side in ("gt", "lt")
]
MASKS = [
    "grpo",
    "clip_b",
    "clip_v",
    "clip_b@mu=2.5",
    "clip_v@mu=8.5,max_frac=0.0001",
    "random_mask",
    "low_p_mask",
    *ABLATIONS,
]
CHANGE = 0.003  # nats, of the mean entropy by the displacement of the central differences


def along(
    trainer: Trainer, direction: Sequence[Tensor], measure: Callable[[], TokenStats]
) -> tuple[Float[Tensor, "batch token"], Float[Tensor, "batch token"]]:
    """Derivatives of log p and of the entropy of every token in a direction. The parameters are restored to the bit."""
    parameters = list(trainer.policy.parameters())
    start, size = [parameter.detach().clone() for parameter in parameters], sum(float((d**2).sum()) for d in direction)
    stats = []
    with torch.no_grad():
        for h in (CHANGE / size, -CHANGE / size):
            for parameter, before, part in zip(parameters, start, direction, strict=True):
                parameter.copy_(before).add_(part, alpha=h)
            stats.append(measure())
        for parameter, before in zip(parameters, start, strict=True):
            parameter.copy_(before)
    forward, backward = stats
    return tuple(
        (getattr(forward, name).double() - getattr(backward, name)) / (2 * CHANGE / size)
        for name in ("logp", "entropy")
    )


def single_steps(
    trainer: Trainer, methods: dict[str, Method], step: int, other: Sequence[Tensor]
) -> list[dict[str, object]]:
    """A row per mask on one batch. Changes are per unit of the learning rate, nats.

    Args:
        other: the gradient of the mean entropy of another batch.
    """
    prompts, rollouts = trainer.prompts_of_step(step), trainer.sample(step)
    batch, update = RolloutBatch.collate(prompts, rollouts), trainer.update
    rewards = torch.tensor([float(trainer.grade(rollout).correct) for rollout in rollouts])
    advantages = trainer.method.advantages(rewards, batch.groups)[:, None].expand(batch.mask.shape)
    stats = update.statistics(batch)
    own = update.entropy_gradient(batch)
    effects, entropies = along(trainer, own, lambda: update.statistics(batch))
    held_out, _ = along(trainer, other, lambda: update.statistics(batch))
    size = sum(float((part.double() ** 2).sum()) for part in own)
    error = abs(float(entropies[batch.mask].mean()) / size - 1)  # relative, as grad H . grad H is known exactly
    acting = batch.mask & (advantages != 0)
    order = scipy.stats.spearmanr(-stats.s_centered[acting], effects[acting]).statistic
    rows = []
    for name, method in methods.items():
        generator = torch.Generator().manual_seed(step)
        weights = method.checked_weights(stats, advantages, batch.mask, generator=generator, logp_old=stats.logp)
        scaled = (weights * advantages / method.divisors(weights, batch.mask, batch.groups)).double()
        rows.append(
            {
                "mask": name,
                "batch": step,
                "dropped": float((weights[batch.mask] == 0).double().mean()),
                "predicted": -float((scaled * stats.s_centered)[batch.mask].sum()),
                "without_expected": -float((scaled * stats.s_star)[batch.mask].sum()),
                "realised": float((scaled * effects)[batch.mask].sum()),
                "held_out": float((scaled * held_out)[batch.mask].sum()),
                "token_order": order,
                "error": error,
            }
        )
    return rows


def summary(steps: pd.DataFrame) -> tuple[pd.DataFrame, dict[str, float]]:
    """Per mask the change minus GRPO's with its 95 % interval over batches; and correlations with the prediction.

    Over the masks these leave out masks that drop nothing, and those that keep one quadrant of sign(A) and sign(S*):
    they are complements of the masks that drop it, so they add no information.
    """
    sides = ["predicted", "without_expected", "realised", "held_out"]
    grpo = steps[steps["mask"] == "grpo"].set_index("batch")[sides]
    units = (grpo**2).mean() ** 0.5
    table = {}
    for mask, rows in steps.groupby("mask", sort=False):
        differences = (rows.set_index("batch")[sides] - grpo) / units
        half = scipy.stats.t.ppf(0.975, len(grpo) - 1) * differences.std() / len(grpo) ** 0.5
        columns = {name: differences[name].mean() for name in sides} | {f"{name}_half": half[name] for name in sides}
        table[mask] = {"dropped": rows["dropped"].mean(), **columns}
    of_grpo = {f"grpo_{side}": grpo["predicted"].corr(grpo[side]) for side in ("realised", "held_out")}
    masks = pd.DataFrame(table).T
    masks = masks[(masks["dropped"] > 0) & ~masks.index.str.contains("_keep_")]
    overall = {f"masks_{side}": masks["predicted"].corr(masks[side]) for side in ("realised", "held_out")}
    overall |= {"masks_without_expected": masks["without_expected"].corr(masks["realised"]), "masks": len(masks)}
    tokens = {"token_order": steps["token_order"].mean(), "largest_error": steps["error"].max()}
    return pd.DataFrame(table).T, of_grpo | overall | tokens


def draw(steps: pd.DataFrame, table: pd.DataFrame, labels: dict[str, str], path: Path) -> None:
    with rc_context(fname=STYLE):
        figure = Figure(figsize=(WIDTH, 4), layout="constrained")
        above, below = figure.subplots(2, 1, height_ratios=[1, 1.7])
        grpo, masks = steps[steps["mask"] == "grpo"], table.drop("grpo")
        above.plot(1000 * grpo["predicted"], grpo["realised"], "o", color=COLORS[0], markersize=2.5)
        above.set_xlabel("predicted: mean of $-A S_c$ ($10^{-3}$)")
        above.set_ylabel("realized per unit\nof the rate (nats)")
        above.set_title("(a) GRPO, a point per batch")
        for side, label, color, shift in (
            ("predicted", "predicted", "0.5", -0.17),
            ("realised", "realized", COLORS[0], 0.17),
        ):
            bars = {"xerr": masks[f"{side}_half"], "fmt": "o", "markersize": 2.5, "elinewidth": 1, "color": color}
            below.errorbar(masks[side], np.arange(len(masks)) + shift, label=label, **bars)
        below.axvline(0, color="black", linewidth=0.8, zorder=0)
        below.set_yticks(range(len(masks)), [pretty(labels[mask]) for mask in masks.index], fontsize=SMALL)
        below.invert_yaxis()
        below.set_xlabel("change minus GRPO's")
        below.set_title("(b) masks of tokens")
        below.legend(loc="upper right")
        notes = ["unit in (b): root mean square of GRPO's changes", "bars: 95% intervals"]
        add_footer(figure, [f"{len(grpo)} batches", *notes])
        save(figure, "Predicted and realized entropy changes of single steps", path)


def main() -> None:
    parser = make_parser(__file__, __doc__, scale=True)
    parser.add_argument("--seed", type=int, default=0, help="of the untrained model and of the prompt order")
    parser.add_argument("--batches", type=int, default=40)
    parser.add_argument("--policy", type=Path, help="a run's policy, instead of the untrained model")
    parser.add_argument("--figure", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    layout = Layout.of(options.scale, options.results)
    trainer = make_trainer(options.scale, options.model, "grpo", layout, seed=options.seed, directory=options.policy)
    configs = {name: load_config(options.scale, options.model, name).method for name in MASKS}
    methods = {name: config.build() for name, config in configs.items()}
    last = options.batches
    other = trainer.update.entropy_gradient(RolloutBatch.collate(trainer.prompts_of_step(last), trainer.sample(last)))
    steps = pd.DataFrame([row for step in range(last) for row in single_steps(trainer, methods, step, other)])
    table, overall = summary(steps)
    write_record(
        options.out,
        f"single steps of {len(MASKS)} masks on {last} batches, {options.model}, {options.scale} scale",
        seed=options.seed,
        policy="trained" if options.policy else "untrained",
        correlations={name: round(value, 4) for name, value in overall.items()},
        masks=table.round(4).to_dict("index"),
        steps=steps.map(lambda value: float(f"{value:.4g}") if isinstance(value, float) else value).to_dict("list"),
    )
    if options.figure:
        released = {name: " as released" if "@" in name else "" for name in MASKS}
        draw(steps, table, {name: f"{configs[name].label}{released[name]}" for name in MASKS}, options.figure)


if __name__ == "__main__":
    main()
