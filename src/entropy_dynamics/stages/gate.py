"""The gate before RL: bounds on statistics of the untrained model's samples, taken from the pass rates."""

import math
from typing import Any

import pandas as pd

from entropy_dynamics.config import Config


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
    """The content of `Layout.gate`: quantities, their bounds, and the faults."""
    measured, bounds = measure_gate(samples), config.gate.model_dump()
    faults = []
    for name, value in measured.items():
        low, high = bounds[name] or (None, None)
        low, high = -math.inf if low is None else low, math.inf if high is None else high
        if not low <= value <= high:
            faults.append(f"{name} is {value:.3g}, {f'below {low:g}' if value < low else f'above {high:g}'}")
    counts = {"problems": samples["problem_id"].nunique(), "samples": len(samples)}
    return {"seed": seed, **counts, "measured": measured, "bounds": bounds, "faults": faults}
