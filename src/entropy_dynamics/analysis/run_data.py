"""The results of a scale as data frames, with one-line errors for missing and damaged files."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import scipy  # imports scipy.special when it is first used
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict

from entropy_dynamics.analysis.columns import DERIVED
from entropy_dynamics.analysis.pass_at_k import problem_pass_at_k
from entropy_dynamics.config import CONFIGS, Config, load_config, method_label, read_yaml, split_method
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.load import (
    Experiment,
    Run,
    Seeds,
    config_of,
    experiment_files,
    first_of,
    load_experiment,
)
from entropy_dynamics.experiments.specs import PaperValues, Spec
from entropy_dynamics.results.files import read_json, read_parquet, read_table
from entropy_dynamics.results.layout import FACTS, SEEDS, Layout
from entropy_dynamics.sections import parse
from entropy_dynamics.tasks import GeneratedSet
from entropy_dynamics.tasks.sources import SplitSet

Arm = tuple[str, str]
"""(model, method)"""


class Model(BaseModel):
    """The model that ran under a name, from its model.json."""

    model_config = ConfigDict(strict=True, frozen=True, extra="ignore")

    label: str
    """Name of the paper's model, as written in the paper."""
    toy: bool
    substitute: bool
    architecture: str
    parameters: int
    pretrained: str | None
    """Id on the Hugging Face Hub; None: a toy model, or one from elsewhere."""

    @property
    def is_the_papers(self) -> bool:
        return not (self.toy or self.substitute)

    @property
    def name(self) -> str:
        """'toy Qwen2', 'Qwen2.5-0.5B-Instruct', or the label."""
        if self.toy:
            return f"toy {self.architecture.capitalize()}"
        return (self.pretrained or self.label).rpartition("/")[2] if self.substitute else self.label

    @property
    def ran(self) -> str:
        """'toy Qwen2 for Qwen2.5-7B-Instruct', or the label alone."""
        return self.label if self.is_the_papers else f"{self.name} for {self.label}"

    @property
    def size(self) -> str:
        millions = self.parameters / 1e6
        return f"{millions / 1000:.1f} B" if millions >= 1000 else f"{millions:.{0 if millions >= 10 else 2}f} M"

    @property
    def ran_with_size(self) -> str:
        return f"{self.ran}, {self.size} parameters"


@dataclass(frozen=True)
class Samples:
    """Counts from the evaluation of a run on a data set."""

    ids: str
    """Digest of the problems' ids."""
    correct: Int[np.ndarray, " problem"]
    """Number of correct samples out of K, in the order of the sorted ids."""
    k: int
    unreadable: float
    """Share of samples without an answer in the required format."""
    truncated: float
    """Share of samples cut off at the token limit."""
    majority: Float[np.ndarray, " problem"]
    """Whether the most frequent answer is correct, of equally frequent ones the share; NaN if answers are unknown."""
    unique: Float[np.ndarray, " problem"]
    """Number of different correct answers over K; NaN if answers are unknown."""
    answer_entropy: Float[np.ndarray, " problem"]
    """Entropy of the distribution of the correct answers over ln K, 0 without any; NaN if answers are unknown."""

    @property
    def pass_rates(self) -> Float[np.ndarray, " problem"]:
        """Share of correct samples of each problem; the mean is Avg@K."""
        return self.correct / self.k

    @property
    def solved(self) -> Float[np.ndarray, " problem"]:
        """1 for each problem with a correct sample, else 0; the mean is Pass@K."""
        return problem_pass_at_k(self.correct, self.k, self.k)


Evaluated = dict[Arm, dict[int, dict[str, Samples]]]
"""Arm -> seed -> data set -> counts; all on the same problems."""


def _share(column: pa.ChunkedArray, text: str) -> float:
    """The share of `text` in a column."""
    return (pc.sum(pc.equal(column, text)).as_py() or 0) / len(column)


def _votes(table: pa.Table, problem: np.ndarray, problems: int, k: int) -> dict[str, np.ndarray]:
    """Scores by the answers to each problem. Samples without a readable answer have no vote."""
    if _share(table["answer"], "") == 1:  # restored from counts
        return dict.fromkeys(("majority", "unique", "answer_entropy"), np.full(problems, np.nan))
    answers = table["answer"].combine_chunks().dictionary_encode()
    readable = answers.is_valid().to_numpy(zero_copy_only=False)
    pairs = problem[readable] * len(answers.dictionary) + answers.indices.drop_null().to_numpy()
    different, pair, size = np.unique(pairs, return_inverse=True, return_counts=True)
    of = different // max(len(answers.dictionary), 1)  # the problem of each different answer
    right = size * (np.bincount(pair, table["correct"].to_numpy()[readable], len(size)) > 0)
    most = np.zeros(problems)
    np.maximum.at(most, of, size)

    def total(weights: np.ndarray) -> np.ndarray:
        return np.bincount(of, weights, problems)

    first, shares = size == most[of], right / np.maximum(total(right), 1)[of]
    return {
        "majority": total(first & (right > 0)) / np.maximum(total(first), 1),
        "unique": total(right > 0) / k,
        "answer_entropy": total(scipy.special.entr(shares)) / np.log(max(k, 2)),
    }


def final_means(curves: Iterable[np.ndarray]) -> Float[np.ndarray, " run"]:
    """The mean of each curve over the last tenth of its steps."""
    return np.array([curve[-max(1, len(curve) // 10) :].mean() for curve in curves])


@dataclass(frozen=True)
class Results:
    """The results of one scale, with its configs and the paper's values."""

    root: Path
    """results/<scale>."""
    scale: str
    seeds: Seeds
    configs: Path = CONFIGS
    experiments: Path | None = None
    """null: the scale's `experiments_folder`."""
    origin: Path | None = None
    """results/<scale>, if `root` is a copy that must say the same, as in `verify`."""
    _counted: dict[tuple[Any, ...], Samples] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def layout(self) -> Layout:
        return Layout(self.root)

    @cached_property
    def config(self) -> Config:
        return load_config(self.scale, configs=self.configs)

    @property
    def folder(self) -> Path:
        """The folder of tables, figures and claims."""
        return self.experiments or Path(self.config.experiments_folder)

    @cached_property
    def paper(self) -> PaperValues:
        path = self.folder / "paper_values.yaml"
        return parse(PaperValues, read_yaml(path), str(path)) if path.is_file() else PaperValues()

    def experiment(self, name: str) -> Experiment[Any]:
        """experiments/<name>.yaml at this scale. Raises UserError as `load_experiment`."""
        return load_experiment(name, self.scale, self.seeds, self.folder, self.configs)

    def beyond(self, experiment: Experiment[Any]) -> tuple[Experiment[Any], Self] | None:
        """The experiment `beyond` of its spec, if its results are complete."""
        beyond = experiment.spec.beyond
        if beyond is None or beyond.scale == self.scale:
            return None
        config = config_of(beyond.scale, self.configs)
        root = (self.origin or self.root).with_name(config.scale)
        restored = {"first": 0, "tables": len(read_json(path))} if (path := root / SEEDS).is_file() else {}
        seeds, folder = dict(config.seeds) | restored, self.configs.parent / config.experiments_folder
        others = replace(self, root=root, scale=config.scale, seeds=seeds, experiments=folder, origin=None)
        larger = others.experiment(beyond.experiment)
        larger = replace(larger, spec=larger.spec.model_copy(update={"beyond": None}))
        return (larger, others) if all(path.is_file() for path in larger.input_files(root)) else None

    @property
    def names(self) -> list[str]:
        """The tables and figures of this scale."""
        by_default = (name for name in experiment_files(self.folder) if self.experiment(name).by_default)
        return self.config.experiments or list(by_default)

    def model(self, name: str) -> Model:
        """The model that ran under this name, from any of its untrained models, which differ only in their weights."""
        first = self.layout.model(name, self.config.untrained(name, first_of(self.seeds)))
        path = self._existing(min(first.parent.glob(f"seed*/{FACTS}"), default=first / FACTS))
        return parse(Model, read_json(path), str(path))

    @property
    def models(self) -> dict[str, Model]:
        """All models with results, by name."""
        names = {path.parents[1].name for path in self.root.glob(f"models/*/*/{FACTS}")}
        return {name: self.model(name) for name in sorted(names)}

    def method_label(self, method: str) -> str:
        """'clip_b@mu=1.2' -> 'Clip_B (mu 1.2)'. Keys of other sections are shortened to their last part."""
        name, parameters = split_method(method)
        label = method_label(name, self.configs)
        values = (re.sub(r"[\w.]*\.(?=\w+=)", "", parameter).replace("=", " ") for parameter in parameters)
        return f"{label} ({', '.join(values)})" if parameters else label

    def label(self, spec: Spec, method: str) -> str:
        """The label of a method in an experiment."""
        return getattr(spec, "labels", {}).get(method) or self.method_label(method)

    def original(self, seeds: Sequence[int]) -> list[int]:
        """The numbers of seeds in the runs that were published, if these results were restored from them."""
        numbers = read_json(path) if (path := self.root / SEEDS).is_file() else []
        return [numbers[seed] if seed < len(numbers) else seed for seed in seeds]

    def dataset_label(self, dataset: str) -> str:
        """'AIME24', 'toy AIME24' for generated problems under that name, or the name of a generated set of its own."""
        source = self.config.data.evaluation[dataset]
        generated = isinstance(self.config.data.train if isinstance(source, SplitSet) else source, GeneratedSet)
        if generated and dataset not in self.paper.datasets:
            return dataset
        name = dataset.upper() if re.search(r"\d", dataset) else dataset
        return f"toy {name}" if generated else name

    def metrics(self, run: Run, columns: Iterable[str]) -> pd.DataFrame:
        """`step` and `columns` of a run's training curve, including those of `DERIVED`."""
        wanted = list(dict.fromkeys(["step", *columns]))
        parts = [part for column in wanted for part in DERIVED.get(column, ([column],))[0]]
        frame = self._parquet(run.metrics_file(self.root), parts)
        computed = {column: DERIVED[column][1](frame) for column in wanted if column in DERIVED}
        return frame.assign(**computed)[wanted].sort_values("step")

    def evaluation_file(self, run: Run, dataset: str, temperature: float | None = None) -> Path:
        """`temperature`: of the evaluation; None: that of the tables."""
        return run.evaluation_file(self.root, dataset, self.config.evaluation.folder_of(temperature))

    def samples(self, run: Run, dataset: str, temperature: float | None = None) -> Samples:
        """The counts of a run on a data set. Cached, as many claims read the same file."""
        key = run.path, dataset, temperature
        if key not in self._counted:
            self._counted[key] = self._count(self.evaluation_file(run, dataset, temperature))
        return self._counted[key]

    def _count(self, path: Path) -> Samples:
        """Through Arrow, as some commands read thousands of small files."""
        columns = ("problem_id", "sample", "correct", "answer", "finish_reason")
        table = read_table(self._existing(path), columns, self._remedy("delete it and rerun", path))
        coded = table["problem_id"].combine_chunks().dictionary_encode()
        ids = coded.dictionary.to_numpy(zero_copy_only=False)
        order = np.argsort(ids)
        sample, numbers = pd.factorize(table["sample"].to_numpy())
        k = len(numbers)
        complete = len(table) and not any(table[column].null_count for column in columns[:3])
        problem = np.argsort(order)[coded.indices] if complete else order
        if not complete or (np.bincount(problem * k + sample, minlength=len(ids) * k) != 1).any():
            wrong = f"{path}: not every problem has the same number of samples"
            raise UserError(f"{wrong}; {self._remedy('delete it and rerun', path)}")
        correct = table["correct"].to_numpy().astype(bool)
        return Samples(
            ids=hashlib.sha256("\n".join(map(str, ids[order])).encode()).hexdigest(),
            correct=np.bincount(problem[correct], minlength=len(ids)),
            k=k,
            unreadable=table["answer"].null_count / len(table),
            truncated=_share(table["finish_reason"], "length"),
            **_votes(table, problem, len(ids), k),
        )

    def counts(self, experiment: Experiment[Spec], model: str | None = None, at: float | None = None) -> Evaluated:
        """The counts of one or all models' runs at a temperature. Raises UserError if their problems or K differ."""
        arms: Evaluated = {}
        runs = [run for run in experiment.runs if model in (None, run.model)]
        expected: dict[str, Samples] = {}
        for dataset, run in product(experiment.evaluations, runs):
            samples = self.samples(run, dataset, at)
            first = expected.setdefault(dataset, samples)
            if (samples.ids, samples.k) != (first.ids, first.k):
                path = self.evaluation_file(run, dataset, at)
                raise UserError(f"{path}: other problems or another K than the other runs'; rerun the evaluations")
            arms.setdefault((run.model, run.method), {}).setdefault(run.seed, {})[dataset] = samples
        return arms

    def pass_rates(self, seed: int) -> pd.DataFrame:
        """One row per training problem: its pass rate with an untrained model, and whether the filter keeps it."""
        rates = self._parquet(self.layout.pass_rates(seed), ("correct", "samples", "rate"))
        return rates.assign(kept=self.config.pass_rates.keeps(rates["rate"]))

    def logit_steps(self) -> pd.DataFrame:
        """One row per token, theorem and step size: predicted and realized entropy change, nats."""
        return self._parquet(self.layout.logit_steps, ("theorem", "step_size", "predicted", "realised"))

    def about(self, model: str) -> dict[str, Any]:
        """The first columns of a results table."""
        return {"model": model, "model_that_ran": self.model(model).ran_with_size}

    def identified(self, frame: pd.DataFrame, model: str) -> pd.DataFrame:
        """`frame` behind the columns of `about`."""
        return pd.DataFrame(self.about(model) | dict(frame))

    def _parquet(self, path: Path, columns: Iterable[str]) -> pd.DataFrame:
        remedy = self._remedy("delete it and rerun", path)
        return read_parquet(self._existing(path), list(dict.fromkeys(columns)), remedy)

    def _existing(self, path: Path) -> Path:
        if not path.is_file():
            raise UserError(f"{path} is missing; {self._remedy('make it with', path)}")
        return path

    def _remedy(self, do: str, path: Path) -> str:
        """`do`: the command that makes the file; elsewhere than in `results` there is none, as results are copies."""
        if (self.origin or self.root).parent != Path("results"):
            return "make it or get it again"
        return f"{do}: snakemake --config scale={self.scale} -- {path}"
