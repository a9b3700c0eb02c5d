"""One training step of a scale by phase: seconds, tokens per second and peak memory, Clip_B and Clip_V against GRPO.

With batches whose autograd graphs all fit in memory, or that of the last micro-batch only (as at the paper's scale).
The other tokens go through the model twice in Clip_B and Clip_V, and once in GRPO. The methods take turns step by step,
each from its own copy of the base model, so that a drift of the machine's speed affects all alike. Medians over the
steps after the first.
"""

import resource
from collections.abc import Callable
from statistics import median

import torch

from common import make_parser, make_trainer, write_record
from entropy_dynamics.config import load_config
from entropy_dynamics.results.layout import Layout

PHASES = ("sample", "grade", "score", "update")
REPEATED = ", prompts repeated"  # in every row, instead of once in a micro-batch
METHODS = ("grpo", "clip_b", "clip_v", f"grpo{REPEATED}", f"clip_b{REPEATED}")
CASES = {"all graphs": 10**9, "one graph": 0}  # training.single_forward_tokens
Rows = dict[str, list[dict[str, float]]]  # metrics of each step, by method


def main() -> None:
    parser = make_parser(__file__, __doc__, scale=True)
    parser.add_argument("--steps", type=int, default=12)
    options = parser.parse_args()
    layout = Layout.of(options.scale, options.results)
    torch.set_num_threads(load_config(options.scale).threads)
    results = {}
    for case, tokens in CASES.items():
        overrides = [f"training.single_forward_tokens={tokens}"]
        trainers = {
            name: make_trainer(options.scale, options.model, name.removesuffix(REPEATED), layout, overrides)
            for name in METHODS
        }
        for name, trainer in trainers.items():
            trainer.policy.share = not name.endswith(REPEATED)
        rows: Rows = {name: [] for name in METHODS}
        for step in range(options.steps + 1):
            for name, trainer in trainers.items():
                rows[name].append(trainer.step(step))
        results[case] = summary({name: steps[1:] for name, steps in rows.items()})
    what = f"a training step, scale {options.scale}, toy model of {options.model}, {options.steps} steps each"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    write_record(options.out, what, peak_memory_mib=peak, **results)


def summary(rows: Rows) -> dict:
    def seconds(row: dict[str, float]) -> float:
        return sum(row[f"seconds_{phase}"] for phase in PHASES)

    def middle(method: str, value: Callable[[dict[str, float]], float]) -> float:
        return round(median(value(row) for row in rows[method]), 4)

    def against_grpo(method: str) -> float:
        each = [[seconds(row) / row["tokens"] for row in rows[name]] for name in (method, "grpo")]
        return round(median(cost / reference for cost, reference in zip(*each, strict=True)), 3)

    return {
        "methods": {
            method: {
                "seconds_per_step": middle(method, seconds),
                **{f"seconds_{phase}": middle(method, lambda row, p=phase: row[f"seconds_{p}"]) for phase in PHASES},
                "response_tokens_per_second": middle(method, lambda row: row["tokens"] / seconds(row)),
                "tokens_per_step": middle(method, lambda row: row["tokens"]),
            }
            for method in METHODS
        },
        "seconds_per_token_against_grpo": {method: against_grpo(method) for method in METHODS},
    }


if __name__ == "__main__":
    main()
