"""The gate before RL: bounds on statistics of the untrained model's samples, taken from the pass rates."""

import math
from typing import Any

import pandas as pd

from entropy_dynamics.config import Config

EASIER, HARDER = "easier problems in data.train, or a larger cold_start.steps", "harder problems in data.train"
ADVICE = {  # remedies for a quantity below its minimum, and above its maximum
    "pass_rate": (EASIER, HARDER),
    "mixed_groups": ("problems in data.train that are solved sometimes, or a larger cold_start.steps", HARDER),
    "entropy": ("a smaller cold_start.steps or cold_start.learning_rate", EASIER),
    "formatted": ("a larger cold_start.steps or another model.prompt_format", HARDER),
    "truncated": ("a smaller sampling.max_new_tokens", "a larger sampling.max_new_tokens or cold_start.steps"),
}


def measure_gate(samples: pd.DataFrame) -> dict[str, float]:
    """The quantities that `gate` of a config bounds, from the `sample_rows` of the training problems.

    The entropy (nats per token, at the temperature of rollouts) is estimated by the mean of -log p of sampled tokens.
    """
    rates = samples.groupby("problem_id")["correct"].mean()
    return {
        "pass_rate": float(samples["correct"].mean()),
        "mixed_groups": float(((rates > 0) & (rates < 1)).mean()),
        "entropy": float(-samples["logp"].sum() / samples["tokens"].sum()),
        "formatted": float(samples["formatted"].mean()),
        "truncated": float((samples["finish_reason"] == "length").mean()),
    }


def gate_record(config: Config, seed: int, samples: pd.DataFrame) -> dict[str, Any]:
    """The content of `Layout.gate`: quantities, their bounds, and the faults with their remedies."""
    measured, bounds = measure_gate(samples), config.gate.model_dump()
    faults = []
    for name, value in measured.items():
        low, high = bounds[name] or (None, None)
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        if not low <= value <= high:
            side = f"below {low:g}" if value < low else f"above {high:g}"
            faults.append(f"{name} is {value:.3g}, {side}: try {ADVICE[name][value > high]}")
    counts = {"problems": samples["problem_id"].nunique(), "samples": len(samples)}
    return {"seed": seed, **counts, "measured": measured, "bounds": bounds, "faults": faults}
