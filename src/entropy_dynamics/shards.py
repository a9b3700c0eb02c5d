"""Long samplings in parts: what was sampled and graded before a machine went is not sampled again."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd

from entropy_dynamics.files import read_parquet, write_parquet
from entropy_dynamics.provenance import fingerprint
from entropy_dynamics.ranks import Ranks


class Shards:
    """Parts of one result, numbered, each a file of `root`/<fingerprint of what it is made from> once it is made."""

    def __init__(self, root: Path, ranks: Ranks, made_from: dict[str, Any]):
        self.root, self.folder, self.ranks = root, root / fingerprint(made_from), ranks
        self.there = {path.stem for path in self.folder.glob("*.parquet")}
        ranks.barrier()  # all ranks have to see the same ones: they make the others together

    def rows(self, number: int, make: Callable[[], pd.DataFrame]) -> pd.DataFrame:
        """The rows of a part: read where it is there, else made by all ranks and written.

        Raises UserError for a file that cannot be read.
        """
        path = self.folder / f"{number}.parquet"
        if path.stem not in self.there:
            made = make()
            if self.ranks.is_main:
                write_parquet(path, made)
            return made
        return read_parquet(path)

    def delete(self) -> None:
        """Once the result is written, its parts are of no use."""
        if self.ranks.is_main:
            shutil.rmtree(self.root)
