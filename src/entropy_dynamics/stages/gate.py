"""The gate before RL: bounds on statistics of the untrained model's samples, taken from the pass rates."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from entropy_dynamics.config import Config
from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.errors import UserError
from entropy_dynamics.results.files import read_json, write_json
from entropy_dynamics.results.layout import Layout


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


def pass_gate(config: Config, layout: Layout, seed: int, ranks: Ranks, record: Mapping[str, Any] | None = None) -> None:
    """Judge the `record` of the pass rates by the bounds of the config, and write both; default: the one in the file.

    Raises UserError if a quantity is out of bounds.
    """
    file = layout.gate(seed)
    if record is None and not file.is_file():
        if not any(config.gate.model_dump().values()):
            return  # of a version before the gate
        made = layout.command(f"pass_rates --seed {seed}")
        raise UserError(f"no {file}, whose numbers the config bounds in gate; make it with: {made}")
    recorded = read_json(file) if record is None else record
    now = {**recorded, "bounds": config.gate.model_dump(), "faults": config.gate.faults(recorded["measured"])}
    if ranks.is_main and now != recorded:
        write_json(file, now)
    if now["faults"]:
        raise UserError(f"no signal: {'; '.join(now['faults'])}; or widen the bounds in gate")
