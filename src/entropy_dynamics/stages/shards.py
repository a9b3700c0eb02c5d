"""Sampling in shards: an interrupted stage does not repeat the shards that it has sampled and graded."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.results.files import read_parquet, write_parquet
from entropy_dynamics.results.provenance import fingerprint
from entropy_dynamics.sampling import PROMPTS_HELD, Prompt, Rollout, Sampler
from entropy_dynamics.stages.common import sample_rows
from entropy_dynamics.tasks import Grade
from entropy_dynamics.training.rewards import grades_of


class Shards:
    """Finished shards, for results of the same `record` (see `provenance`) except for machine and commit."""

    def __init__(self, root: Path, ranks: Ranks, record: dict[str, Any]):
        made_from = {key: value for key, value in record.items() if key not in ("git", "hardware")}
        self.root, self.folder, self.ranks = root, root / fingerprint(made_from), ranks
        # All ranks must see the same shards, as they sample the remaining ones together.
        self.finished = set(ranks.on_main(lambda: [path.stem for path in self.folder.glob("*.parquet")]))

    def graded_samples(
        self, sampler: Sampler, prompts: Sequence[Prompt], grade: Callable[[Rollout], Grade], **settings: Any
    ) -> pd.DataFrame:
        """The `sample_rows` of all `prompts`, PROMPTS_HELD at a time: read from a finished shard, or made and written.

        `settings` as in `Sampler.sample`.
        """
        frames = []
        for start in range(0, len(prompts), PROMPTS_HELD):
            shard = prompts[start : start + PROMPTS_HELD]
            path = self.folder / f"{start}-{start + len(shard)}.parquet"
            if path.stem in self.finished:
                frames.append(read_parquet(path))
                continue
            rollouts = sampler.sample(shard, **settings)
            frames.append(sample_rows(rollouts, grades_of(rollouts, grade, self.ranks)))
            if self.ranks.is_main:
                write_parquet(path, frames[-1])
        return pd.concat(frames, ignore_index=True)

    def delete(self) -> None:
        """Remove all shards, once the result is written."""
        if self.ranks.is_main:
            shutil.rmtree(self.root, ignore_errors=True)
