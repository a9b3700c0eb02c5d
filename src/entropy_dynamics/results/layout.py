"""Where results stand: the one place that knows the names of files under `results/<scale>/`."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Layout:
    """Paths under `<results>/<scale>`. The untrained model is the method `base` with seed 0."""

    root: Path

    @classmethod
    def of(cls, scale: str, results: Path | str = "results") -> "Layout":
        return cls(Path(results) / scale)

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def pass_rates(self) -> Path:
        return self.data / "pass_rates.parquet"

    @property
    def logit_steps(self) -> Path:
        return self.root / "theory" / "logit_steps.parquet"

    def problems(self, name: str) -> Path:
        return self.data / f"{name}.parquet"

    def model(self, model: str) -> Path:
        return self.root / "models" / model

    def run(self, model: str, method: str, seed: int) -> Path:
        return self.root / "runs" / model / method / f"seed{seed}"

    def checkpoints(self, model: str, method: str, seed: int) -> Path:
        """Outside the run's directory: Snakemake deletes the outputs of a job that failed."""
        return self.root / "checkpoints" / model / method / f"seed{seed}"

    def failure(self, model: str, method: str, seed: int) -> Path:
        """What a run that broke off leaves for inspection."""
        return self.root / "failures" / model / method / f"seed{seed}"

    def shards(self, *names: str) -> Path:
        """What a long sampling has done so far."""
        return self.root / "shards" / "+".join(names)

    def policy(self, model: str, method: str, seed: int) -> Path:
        return self.model(model) if method == "base" else self.run(model, method, seed) / "policy"

    def evaluation(self, model: str, method: str, seed: int) -> Path:
        return self.root / "evaluations" / model / method / f"seed{seed}"

    def table(self, name: str, suffix: str) -> Path:
        """`suffix`: csv, md, tex or html."""
        return self.root / "tables" / f"{name}.{suffix}"

    def figure(self, name: str, suffix: str) -> Path:
        """`suffix`: png, svg or csv."""
        return self.root / "figures" / f"{name}.{suffix}"

    def claims(self, suffix: str) -> Path:
        """`suffix`: json, md, html, png or svg."""
        return self.root / f"claims.{suffix}"
