"""Reading what runs wrote, with one-line errors for what is missing or not as it should be."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from entropy_dynamics.analysis.experiments import Experiment, Run, check, named, number
from entropy_dynamics.config import load_config, read_yaml, split_method
from entropy_dynamics.errors import UserError
from entropy_dynamics.models.loading import FACTS, read_facts
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.tasks import GeneratedSet
from entropy_dynamics.tasks.sources import SplitSet


@dataclass(frozen=True)
class Model:
    """What ran under a model's name."""

    label: str  # the real model's name, as the paper writes it
    substitute: bool
    parameters: int
    pretrained: str | None = None  # id on the Hugging Face Hub of what ran; None: a model built here

    @property
    def ran(self) -> str:
        if not self.substitute:
            return self.label
        return f"stand-in of {self.label}" + (f" ({self.pretrained})" if self.pretrained else "")

    @property
    def ran_with_size(self) -> str:
        millions = self.parameters / 1e6
        size = f"{millions / 1000:.1f} G" if millions >= 1000 else f"{millions:.2f} M"
        return f"{self.ran}, {size} parameters"


@dataclass(frozen=True)
class Samples:
    """One run's evaluation on one data set, as counts: the samples themselves are let go once they are counted."""

    problems: tuple[str, ...]
    right: np.ndarray  # int [problems]: how many of a problem's K samples are right
    k: int
    unreadable: float  # share of samples without a readable answer
    truncated: float  # share of samples cut off at the token limit

    @property
    def pass_rates(self) -> np.ndarray:
        """[problems]: each problem's share of right samples; their mean is Avg@K."""
        return self.right / self.k

    @property
    def solved(self) -> np.ndarray:
        """[problems], 0 or 1: whether any of a problem's K samples is right; their mean is Pass@K."""
        return (self.right > 0).astype(float)


@dataclass(frozen=True)
class Results:
    """All that the tables and figures of one scale are made from."""

    root: Path
    scale: str
    configs: Path
    experiments: Path

    def _found(self, path: Path) -> Path:
        if not path.is_file():
            raise UserError(f"{path} is missing; make it with: {self._made_by(path)}")
        return path

    def _made_by(self, path: Path) -> str:
        return f"snakemake --config scale={self.scale} -- {path}"

    def _parquet(self, path: Path, columns: Iterable[str]) -> pd.DataFrame:
        columns = list(dict.fromkeys(columns))
        try:
            with pq.ParquetFile(self._found(path)) as file:
                for column in columns:
                    if column not in file.schema_arrow.names:
                        raise UserError(f"{path}: the column {column!r} is missing")
                return file.read(columns, use_threads=False).to_pandas()
        except UserError:
            raise
        except Exception as error:  # pyarrow's, and pandas' where its own notes in the file are damaged
            raise UserError(
                f"{path}: not a readable parquet file ({' '.join(str(error).split())}); delete it and make it again "
                f"with: {self._made_by(path)}"
            ) from None

    def metrics(self, run: Run, columns: Iterable[str]) -> pd.DataFrame:
        """The columns of a training curve, with `step`. `s_centered_ratio` is |s_centered_mean| / s_star_mean."""
        wanted = ["step", *columns]
        ratio_of = ["s_centered_mean", "s_star_mean"] if "s_centered_ratio" in wanted else []
        stored = [column for column in wanted if column != "s_centered_ratio"] + ratio_of
        frame = self._parquet(run.metrics_file(self.root), stored)
        if ratio_of:
            frame["s_centered_ratio"] = frame["s_centered_mean"].abs() / frame["s_star_mean"]
        return frame[wanted].sort_values("step")

    def samples(self, run: Run, dataset: str) -> Samples:
        """A run's counts on one data set; its file is read once, however many claims ask."""
        path = run.evaluation_file(self.root, dataset)
        if path not in self._counted:
            self._counted[path] = self._count(path)
        return self._counted[path]

    def _count(self, path: Path) -> Samples:
        frame = self._parquet(path, ("problem_id", "sample", "correct", "answer", "finish_reason"))
        problem, problems = pd.factorize(frame["problem_id"], sort=True)
        sample, numbers = pd.factorize(frame["sample"])
        k = len(numbers)
        complete = not frame.empty and not frame[["problem_id", "sample", "correct"]].isna().any(axis=None)
        if not complete or (np.bincount(problem * k + sample, minlength=len(problems) * k) != 1).any():
            raise UserError(f"{path}: not every problem has the same number of samples; make it again")
        names = tuple(problems.astype(str))
        return Samples(
            problems=self._names.setdefault(names, names),
            right=np.bincount(problem[frame["correct"].to_numpy(bool)], minlength=len(problems)),
            k=k,
            unreadable=float(frame["answer"].isna().mean()),
            truncated=float((frame["finish_reason"] == "length").mean()),
        )

    def paired_samples(self, experiment: Experiment, model: str, dataset: str) -> dict[str, list[Samples]]:
        """Every method's evaluations on one data set, a Samples for each seed; all on the same problems, with one K."""
        first, by_method = None, {}
        for method in experiment.methods(model):
            by_method[method] = []
            for seed in experiment.seeds(model, method):
                run = Run(model, method, seed)
                samples = self.samples(run, dataset)
                first = first or samples
                if samples.problems != first.problems or samples.k != first.k:
                    raise UserError(
                        f"{run.evaluation_file(self.root, dataset)}: other problems or another K than the other "
                        "methods have; make the evaluations again"
                    )
                by_method[method].append(samples)
        return by_method

    def pass_rates(self) -> pd.DataFrame:
        """A row for each training problem: correct of samples, rate, and whether it was kept or why not."""
        return self._parquet(Layout(self.root).pass_rates, ("correct", "samples", "rate", "kept", "reason"))

    def logit_steps(self) -> pd.DataFrame:
        """A row for each token, theorem and step size: predicted and realised entropy change, nats."""
        return self._parquet(Layout(self.root).logit_steps, ("theorem", "step_size", "predicted", "realised"))

    def model(self, name: str) -> Model:
        directory = Layout(self.root).model(name)
        path = self._found(directory / FACTS)
        facts = read_facts(directory)
        for key, kind in (("label", str), ("substitute", bool), ("parameters", int)):
            if not isinstance(facts.get(key), kind):
                raise UserError(
                    f"{path}: {key} is {facts.get(key)!r}; delete the file and make it again with: "
                    f"{self._made_by(path)}"
                )
        return Model(facts["label"], facts["substitute"], facts["parameters"], facts.get("pretrained"))

    def provenance(self, experiment: Experiment) -> list[str]:
        """What ran, at which scale and with how many seeds, for the small print of a figure."""
        models = "; ".join(self.model(model).ran_with_size for model in experiment.models)
        seeds = len({run.seed for run in experiment.runs})
        if seeds == 1:
            drawn = "one seed: the spread between seeds is not known"
        else:
            drawn = f"mean of {seeds} seeds" + (", shading: lowest to highest seed" if experiment.panels else "")
        return [f"{self.scale} scale: {models}", drawn]

    def method_label(self, method: str) -> str:
        """'clip_b@mu=1.2' -> 'Clip_B (mu 1.2)'."""
        name, parameters = split_method(method)
        path = self.configs / "method" / f"{name}.yaml"
        if not path.is_file():
            raise UserError(f"{path}: no such file, so the method {name!r} has no label")
        content = read_yaml(path)
        section = content.get("method") if isinstance(content, dict) else None
        if not isinstance(section, dict) or not isinstance(section.get("label", ""), str):
            raise UserError(f"{path}: method.label has to be a text, as tables and figures write the method")
        label = section.get("label") or name
        return f"{label} ({', '.join(parameters).replace('=', ' ')})" if parameters else label

    @cached_property
    def _counted(self) -> dict[Path, Samples]:
        return {}

    @cached_property
    def _names(self) -> dict[tuple[str, ...], tuple[str, ...]]:
        """The problems of each set, so that thousands of runs hold them once."""
        return {}

    @cached_property
    def paper(self) -> dict:
        """experiments/paper_values.yaml."""
        path = self.experiments / "paper_values.yaml"
        content = read_yaml(path)
        mapping = (lambda value: named(dict, value), "map names to mappings")
        check(content, {"scores", "levels"}, set(), str(path), dict.fromkeys(("scores", "levels"), mapping))
        _check_numbers(content["scores"], 4, f"{path}: scores")  # model, method, data set, metric
        for name, level in content["levels"].items():
            right = {"value": (number, "be a number")}
            check(level, {"place", "value"}, set(), f"{path}: levels.{name}", right)
        return content

    def paper_score(self, model: str, method: str, dataset: str, metric: str) -> float | None:
        """The paper's score in per cent, or None where it reports none."""
        return self.paper["scores"].get(model, {}).get(method, {}).get(dataset, {}).get(metric)

    @cached_property
    def config(self):
        return load_config(self.scale, configs=self.configs)

    def stand_in_problems(self, dataset: str) -> bool:
        """Whether generated problems go under this data set's name."""
        source = self.config.data.evaluation[dataset]
        return isinstance(self.config.data.train if isinstance(source, SplitSet) else source, GeneratedSet)


def _check_numbers(content: Any, depth: int, where: str) -> None:
    """Raise UserError unless these are mappings of so many levels with numbers below, a `place` beside them or not."""
    if depth == 0:
        if not isinstance(content, int | float):
            raise UserError(f"{where} is {content!r}; it has to be a number")
        return
    if not isinstance(content, dict):
        raise UserError(f"{where}: {content!r} has to be a mapping of keys to values")
    for key in content.keys() - {"place"}:
        _check_numbers(content[key], depth - 1, f"{where}.{key}")
