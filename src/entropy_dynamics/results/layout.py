"""Names of all files under `results/<scale>/`; workflow rules pass wildcards such as "{model}" as arguments."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

# File names in directories that are written atomically.
FACTS = "model.json"  # description of a model or a policy, with the hashes of its files
METRICS = "metrics.parquet"
CONFIG = "config.yaml"  # resolved
PROVENANCE = "provenance.json"  # commit, packages, inputs and hashes
SEEDS = "seeds.json"  # in restored results: the number that each seed had, in the order of the new numbers
PROBLEMS_REPORT = "problems.json"
# The folders from which everything is drawn; inputs of a stage are in them, too.
INPUTS = ("data", "models", "pass_rates", "runs", "evaluations", "theory")
# Bytes of tensors per checkpoint file, over all ranks, of which a rank holds its share three times in host memory.
CHECKPOINT_FILE_BYTES = 2**28
# <folder>/<model>/<method>/seed<seed>, with T<temperature> of an evaluation or step<step> of samples
_PLACE = re.compile(
    r"(?:logs/)?\w+/(?:([^/]+)/)?(?:([^/]+)/)?seed(\d+)\b(?:/T(\d[\d.]*(?:e[+-]\d+)?)(?=/|$))?(?:/step(\d+))?"
)


class Place(NamedTuple):
    """What a path in the results says about its content."""

    path: Path
    run: tuple[str, str, int]
    """Model, method (`base`: an untrained model) and seed; pass rates have the model ""."""
    temperature: float | None = None
    """null: that of tables and claims."""
    step: int = 0


@dataclass(frozen=True)
class Layout:
    """Paths under `<results>/<scale>`.

    A run is a model, a method and a seed. Untrained models have the method `base`; `Config.untrained` gives their seed.
    """

    root: Path
    settings: tuple[str, ...] = ()
    """The values of --set, which commands in messages repeat."""

    @classmethod
    def of(cls, scale: str, results: Path | str = "results", settings: Sequence[str] = ()) -> "Layout":
        return cls(Path(results) / scale, tuple(settings))

    def here(self, name: str, scale: str) -> Path:
        """The current path of a file with a recorded name, as results/<scale> may have been moved as a whole."""
        inside = re.fullmatch(rf"(?:.*/)?{re.escape(scale)}/((?:{'|'.join(INPUTS)})/.*)", name)
        return self.root / inside[1] if inside else Path(name)

    def parse(self, path: Path) -> Place | None:
        """What a path of a model, of a run or of the log of one says; None for any other path."""
        match = _PLACE.match(path.relative_to(self.root).as_posix())
        if match is None:
            return None
        model, method, seed, temperature, step = match.groups()
        run = (model or "", method or "base", int(seed))
        return Place(path, run, float(temperature) if temperature else None, int(step or 0))

    def find(self, folder: str, inside: str = "") -> Iterator[Place]:
        """The paths <folder>/<model>/<method>/seed<seed><inside> that exist, sorted; `inside` is a pattern."""
        found = map(self.parse, sorted(self.root.glob(f"{folder}/*/*/seed*{inside}")))
        return filter(None, found)

    def command(self, stage: str) -> str:
        """The command of a stage for these results, as messages name it."""
        results = self.root.parent
        elsewhere = f" --results {shlex.quote(str(results))}" if results != Path("results") else ""
        options = "".join(f" --set {shlex.quote(setting)}" for setting in self.settings)
        return f"entropy-dynamics {stage} --scale {self.root.name}{elsewhere}{options}"

    @property
    def data(self) -> Path:
        return self.root / "data"

    def problems(self, name: str) -> Path:
        return self.data / f"{name}.parquet"

    @property
    def problems_report(self) -> Path:
        """Which problems were dropped, and why."""
        return self.data / PROBLEMS_REPORT

    def pass_rates(self, seed: int | str) -> Path:
        """`seed` is that of the untrained model that was sampled."""
        return self.root / "pass_rates" / f"seed{seed}.parquet"

    def gate(self, seed: int | str) -> Path:
        """What the samples of the pass rates say about the untrained model, and the bounds on it."""
        return self.root / "pass_rates" / f"seed{seed}.gate.json"

    @property
    def logit_steps(self) -> Path:
        return self.root / "theory" / "logit_steps.parquet"

    def model(self, model: str, seed: int | str) -> Path:
        """An untrained model."""
        return self.root / "models" / model / f"seed{seed}"

    def run(self, model: str, method: str, seed: int | str) -> Path:
        return self._run_path("runs", model, method, seed)

    def metrics(self, model: str, method: str, seed: int | str) -> Path:
        return self.run(model, method, seed) / METRICS

    def policy(self, model: str, method: str, seed: int | str) -> Path:
        return self.model(model, seed) if method == "base" else self.run(model, method, seed) / "policy"

    def facts(self, model: str, method: str, seed: int | str) -> Path:
        """A policy's model.json: its description and the hashes of its weights."""
        return self.policy(model, method, seed) / FACTS

    def checkpoints(self, model: str, method: str, seed: int | str) -> Path:
        """Outside the run's directory, as Snakemake deletes the outputs of failed jobs."""
        return self._run_path("checkpoints", model, method, seed)

    def lock(self, model: str, method: str, seed: int | str) -> Path:
        """Lock of the process that writes the run: see `distributed.lock`."""
        return self.root / "locks" / f"{model}+{method}+seed{seed}"

    def failure(self, model: str, method: str, seed: int | str) -> Path:
        """Files for the inspection of a run that stopped with an error."""
        return self._run_path("failures", model, method, seed)

    def evaluation(self, model: str, method: str, seed: int | str) -> Path:
        return self._run_path("evaluations", model, method, seed)

    def evaluation_file(
        self, model: str, method: str, seed: int | str, dataset: str, temperature: float | None = None
    ) -> Path:
        """One row per sample of an evaluation set; `temperature` if it is not that of tables and claims."""
        folder = self.evaluation(model, method, seed)
        return (folder if temperature is None else folder / f"T{temperature:g}") / f"{dataset}.parquet"

    def step_samples(self, model: str, method: str, seed: int | str) -> Path:
        """Responses of three training steps with the statistics of every token; written while the run trains."""
        return self._run_path("samples", model, method, seed)

    def shards(self, *names: str) -> Path:
        """Finished shards of a long sampling stage."""
        return self.root / "shards" / "+".join(names)

    def table(self, name: str, suffix: str) -> Path:
        """`suffix` is csv, md or tex."""
        return self.root / "tables" / f"{name}.{suffix}"

    def figure(self, name: str, suffix: str) -> Path:
        """`suffix` is png, svg, pdf or csv."""
        return self.root / "figures" / f"{name}.{suffix}"

    def judged(self, name: str, suffix: str) -> Path:
        """Verdicts: `name` is claims, for the paper's, or a folder of experiments/."""
        return self.root / f"{name}.{suffix}"

    @property
    def report(self) -> Path:
        """Everything on one page."""
        return self.root / "report.html"

    def log(self, name: str, *run: str) -> Path:
        """Output of a job. `name` is its stage or, with `run`, its folder."""
        path = self._run_path(f"logs/{name}", *run) if run else self.root / "logs" / name
        return path.with_name(f"{path.name}.log")

    @property
    def jobs(self) -> Path:
        """Durations of all jobs, as JSON lines."""
        return self.root / "logs" / "jobs.jsonl"

    def _run_path(self, folder: str, model: str, method: str, seed: int | str) -> Path:
        return self.root / folder / model / method / f"seed{seed}"


def record_of(file: Path) -> Path:
    """The provenance file next to a parquet file; any other file is its own record."""
    return file.with_suffix(f".{PROVENANCE}") if file.suffix == ".parquet" else file
