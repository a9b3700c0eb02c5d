"""Long samplings in parts: what was sampled and graded before a machine went is not sampled again."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from entropy_dynamics.distributed.ranks import Ranks
from entropy_dynamics.results.files import read_parquet, write_parquet
from entropy_dynamics.results.provenance import fingerprint
from entropy_dynamics.sampling import PROMPTS_HELD, Prompt


class Shards:
    """Parts of one result, each a file of `root`/<fingerprint of what it is made from> once it is made."""

    def __init__(self, root: Path, ranks: Ranks, record: dict[str, Any]):
        """record: of the result (see `provenance`). Parts are taken only if all of it but machine and commit agrees."""
        made_from = {key: value for key, value in record.items() if key not in ("git", "hardware")}
        self.root, self.folder, self.ranks = root, root / fingerprint(made_from), ranks
        self.there = {path.stem for path in self.folder.glob("*.parquet")}
        ranks.barrier()  # all ranks have to see the same ones: they make the others together

    def rows(self, prompts: Sequence[Prompt], make: Callable[[Sequence[Prompt]], pd.DataFrame]) -> pd.DataFrame:
        """The rows that `make` gives for all `prompts`, of which it gets PROMPTS_HELD at a time.

        A part is read where it is there, else made by all ranks and written. Raises UserError for a damaged file.
        """
        parts = []
        for start in range(0, len(prompts), PROMPTS_HELD):
            part = prompts[start : start + PROMPTS_HELD]
            path = self.folder / f"{start}-{start + len(part)}.parquet"
            if path.stem in self.there:
                parts.append(read_parquet(path))
                continue
            parts.append(make(part))
            if self.ranks.is_main:
                write_parquet(path, parts[-1])
        return pd.concat(parts, ignore_index=True)

    def delete(self) -> None:
        """Once the result is written, its parts are of no use."""
        if self.ranks.is_main:
            shutil.rmtree(self.root)
