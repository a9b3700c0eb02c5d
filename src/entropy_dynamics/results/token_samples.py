"""Sample responses of a training step with the statistics of every token: `samples/<run>/step<n>.parquet`.

One row per response, with its tokens in lists. `entropy-dynamics lens` reads these files; report.html shows them.
"""

from collections.abc import Callable
from itertools import groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from entropy_dynamics.results.files import write_parquet

if TYPE_CHECKING:
    from torch import Tensor

PROMPTS, ROLLOUTS = 16, 4  # the first prompts of a step, and the first rollouts of each
TOKENS = 2**16  # no further prompt is added once there are this many tokens
STATISTICS = ("logp", "entropy", "s_star", "s_expected")


def sampled_steps(steps: int) -> set[int]:
    """The first step of a run, its middle and its last."""
    return {0, steps // 2, max(steps, 1) - 1}


def write_token_samples(
    path: Path,
    groups: "Tensor",
    mask: "Tensor",
    token_ids: "Tensor",
    stats: Any,
    advantages: "Tensor",
    weights: "Tensor",
    text: Callable[[int], str],
    response: Callable[[int], dict[str, Any]],
) -> None:
    """Write the file atomically.

    Args:
        groups: [batch]; rollouts of one prompt share a number, and are adjacent.
        mask, token_ids, advantages, weights: [batch, token]; the mask is true on response tokens.
        stats: has the attributes `STATISTICS`, as TokenStats, [batch, token], nats. One with NaN gets no column.
        text: maps a token id to its text.
        response: maps a row of the batch to further columns, such as problem_id, prompt and correct.
    """
    import pandas as pd

    mask, rows, count = mask.bool().cpu(), [], 0
    for _, group in islice(groupby(range(len(mask)), groups.tolist().__getitem__), PROMPTS):
        if count < TOKENS:
            rows += (chosen := list(group)[:ROLLOUTS])
            count += int(mask[chosen].sum())
    statistics = {name: getattr(stats, name) for name in STATISTICS}
    statistics = {name: values for name, values in statistics.items() if not values.cpu()[mask].isnan().any()}
    tokens = {"token_id": token_ids, **statistics, "advantage": advantages, "weight": weights}
    columns = {name: [values[row].cpu()[mask[row]].numpy() for row in rows] for name, values in tokens.items()}
    texts = [[text(int(token)) for token in ids] for ids in columns["token_id"]]
    frame = pd.DataFrame([response(row) for row in rows]).assign(token=texts, **columns)
    write_parquet(path, frame, compression="zstd")
