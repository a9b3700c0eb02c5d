"""The paper's claims at one scale, and the runs and files that each of them needs.

Snakemake imports this module to find the input files of its rule, so it imports nothing heavy.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

from entropy_dynamics.config import BASE, CONFIGS, Config, known_names, read_yaml
from entropy_dynamics.config.schema import FIRST_PILOT_SEED
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.claim_specs import ClaimsFile, ClaimSpec, FieldPaper, ScoreDifference, SweepTrend
from entropy_dynamics.experiments.load import (
    Run,
    Seeds,
    check_known,
    config_of,
    experiment_files,
    load_experiment,
    runs_of,
    seeds_of,
)
from entropy_dynamics.experiments.specs import SeedGroup
from entropy_dynamics.results.layout import Layout
from entropy_dynamics.sections import parse

JUDGED = {"field": "field", "controls": "controls/claims"}  # command and target -> its folder of claims


@dataclass(frozen=True)
class Claim:
    """A claim at one scale: its entry in the file, and the methods it compares, with their seeds."""

    spec: ClaimSpec
    runs: dict[str, range]
    against: dict[str, range]
    config: Config
    configs: Path = CONFIGS

    @property
    def seeds_by_method(self) -> dict[str, range]:
        return self.runs | self.against

    @property
    def weights(self) -> dict[str, float]:
        """Weight of each method in the effect; several on one side count as their mean."""
        sides = ((1, self.runs), (-1, self.against))
        return {method: sign / len(side) for sign, side in sides for method in side}

    @property
    def models(self) -> list[str]:
        model = getattr(self.spec, "model", None)
        return [model] if model else getattr(self.spec, "models", [])

    @property
    def evaluations(self) -> list[str]:
        """The data sets that the claim reads; the validation set first, if temperatures are chosen on it."""
        if not isinstance(self.spec, ScoreDifference):
            return []
        chosen = self.spec.temperature in ("best", "best_point", "matched_avg")
        return [*[self.config.training.validation_set] * chosen, *self.spec.datasets]

    @property
    def temperatures(self) -> list[float]:
        """Temperatures of the evaluations that the claim reads, ascending, as far as the scale has them."""
        evaluation = self.config.evaluation
        every = sorted({evaluation.temperature, *evaluation.temperatures})
        match getattr(self.spec, "temperature", None):
            case None:
                return [evaluation.temperature]
            case "greedy":
                return [0.0] if 0 in every else []
            case "best" | "matched_pass":
                return every
        return sorted({*filter(None, every), *evaluation.control_temperatures})

    def temperatures_of(self, run: Run) -> list[float]:
        """Those at which the claim reads a run: `temperatures`, or the paper's alone."""
        matched = self.runs if getattr(self.spec, "temperature", None) in ("matched_avg", "envelope") else ()
        return [self.config.evaluation.temperature] if run.method in (BASE, *matched) else self.temperatures

    def all_runs(self) -> list[Run]:
        """The runs of the compared methods, and the untrained models if these define the difficulty of problems."""
        by_method = self.seeds_by_method
        if getattr(self.spec, "problems", "all") != "all":
            by_method |= {BASE: max(self.seeds_by_method.values(), key=len)}
        named = product(self.models, by_method.items())
        runs = ((model, method, seed) for model, (method, seeds) in named for seed in seeds)
        return list(runs_of(runs, self.config, self.configs))

    def untrained(self, model: str) -> int:
        """The seed of the untrained model whose model.json describes the model that ran."""
        return self.config.untrained(model, min(seeds.start for seeds in self.seeds_by_method.values()))

    def files(self, results: Path, run: Run) -> list[Path]:
        """The files of a run that the claim reads."""
        if not isinstance(self.spec, ScoreDifference):
            return [run.metrics_file(results)]
        read = product(self.evaluations, map(self.config.evaluation.folder_of, self.temperatures_of(run)))
        return [run.evaluation_file(results, dataset, at) for dataset, at in read]


def read_claims(experiments: Path) -> ClaimsFile:
    """Read experiments/claims.yaml.

    Raises UserError for invalid YAML, for unknown, missing or invalid keys, and for a facet without its claim.
    """
    path = experiments / "claims.yaml"
    file = parse(ClaimsFile, read_yaml(path), str(path))
    _check_facets(file.claims, file.claims, path)
    return file


def claim_files(experiments: Path, folder: str) -> list[Path]:
    """The files of claims that the command `folder`, a key of JUDGED, judges."""
    return sorted((experiments / JUDGED[folder]).glob("*.yaml"))


def read_field(experiments: Path, folder: str) -> dict[Path, FieldPaper]:
    """Read the `claim_files`.

    Their facets may be of a claim in any of them or in claims.yaml. Raises UserError like `read_claims`, and for
    duplicate ids.
    """
    files = claim_files(experiments, folder)
    papers = {path: parse(FieldPaper, read_yaml(path), str(path)) for path in files}
    claims = [claim for paper in papers.values() for claim in paper.claims]
    ids = [claim.id for claim in claims]
    if twice := [id for id in ids if ids.count(id) > 1]:
        raise UserError(f"{experiments / JUDGED[folder]}: two claims have the id {twice[0]!r}")
    _check_facets(claims, [*claims, *read_claims(experiments).claims], experiments / JUDGED[folder])
    return papers


def _check_facets(claims: Iterable[ClaimSpec], known: Iterable[ClaimSpec], where: Path) -> None:
    independent = {claim.id for claim in known if claim.basis == "independent"}
    for claim in claims:
        if claim.facet_of and claim.facet_of not in independent:
            of = f"facet_of of {claim.id} names {claim.facet_of!r}"
            raise UserError(f"{where}: {of}, which is no independent claim")


def sweep_files(experiments: Path) -> list[Path]:
    """The files of the experiments that define the parameter values of claims."""
    sweeps = (spec.sweep for spec in read_claims(experiments).claims if isinstance(spec, SweepTrend))
    files = experiment_files(experiments)
    return [files[name] for name in dict.fromkeys(sweeps) if name in files]  # `load_claims` refuses other names


def load_claims(
    scale: str, seeds: Seeds, experiments: Path | None = None, configs: Path = CONFIGS, *, folder: str | None = None
) -> list[Claim]:
    """All claims of the paper, or those that the command `folder` judges, at one scale.

    Raises UserError like `read_claims`, and for an unknown model, method or data set.
    """
    config = config_of(scale, configs)
    experiments = experiments or Path(config.experiments_folder)
    if folder:
        entries = {path: paper.claims for path, paper in read_field(experiments, folder).items()}
    else:
        entries = {experiments / "claims.yaml": read_claims(experiments).claims}
    models, methods = known_names("model", configs), known_names("method", configs)
    claims = []
    for path, spec in ((path, spec) for path, specs in entries.items() for spec in specs):
        where = f"{path}: claim {spec.id}"
        runs, against = spec.runs, getattr(spec, "against", {})
        check_known(where, "method", [method.partition("@")[0] for method in (*runs, *against)], methods)
        if isinstance(spec, SweepTrend):
            runs = _swept(spec, where, scale, seeds, experiments, configs)
        ours, others = ({name: seeds_of(of, seeds) for name, of in side.items()} for side in (runs, against))
        claim = Claim(spec, ours, others, config, configs)
        check_known(where, "model", claim.models, models)
        check_known(where, "evaluation set", claim.evaluations, config.data.evaluation)
        claims.append(claim)
    return claims


def _swept(spec: SweepTrend, where: str, *settings: Any) -> dict[str, SeedGroup]:
    """{'clip_b@mu=1.2': 'extras', ...}: the values of the sweep at this scale, ascending."""
    [(swept, group)] = spec.runs.items()
    try:
        runs = load_experiment(spec.sweep, *settings).runs
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    methods = {run.method for run in runs if run.method.startswith(f"{swept}=")}
    if not methods:
        raise UserError(f"{where}: {spec.sweep} has no runs {swept}=...")
    return dict.fromkeys(sorted(methods, key=swept_value), group)


def swept_value(method: str) -> float:
    """1.2 for 'clip_b@mu=1.2'."""
    return float(method.rpartition("=")[2])


def seeds_by_group(config: Config, runs: Iterable[Run]) -> dict[str, int]:
    """The number of seeds of each group in `runs`, trained with seeds from 0 on: that which most claims have.

    A group without complete claims has as many seeds as the other, `pilot` none.
    """
    seeds = {run.path: run.seed for run in runs}
    pilots = {seed for seed in seeds.values() if seed >= FIRST_PILOT_SEED}
    reported = Counter(path[:2] for path, seed in seeds.items() if seed not in pilots)
    found: dict[str, Counter[int]] = {"tables": Counter(), "extras": Counter()}
    for claim in _grouped_claims(config) if len(set(reported.values())) > 1 else ():
        if claim.keys() <= reported.keys():
            for group, numbers in found.items():
                have = [reported[arm] for arm, of_arm in claim.items() if of_arm == group]
                numbers.update([min(have)] if have else [])
    every = found["tables"] or found["extras"] or Counter(reported.values())
    most = {name: max((of or every).items(), key=lambda item: item[::-1])[0] for name, of in found.items() if every}
    return most | ({"pilot": len(pilots)} if pilots else {})


def _grouped_claims(config: Config) -> Iterator[dict[tuple[str, str], str]]:
    """Yield, for each claim of all folders, the seed group of every (model, method)."""
    numbers = {"tables": 1, "extras": 2, "pilot": 1}  # so that the last seed of a method tells its group
    groups = {0: "tables", 1: "extras", FIRST_PILOT_SEED: "pilot"}
    for claim in chain.from_iterable(load_claims(config.scale, numbers, folder=folder) for folder in (None, *JUDGED)):
        last = dict(sorted((run.path[:2], run.seed) for run in claim.all_runs() if run.method != BASE))
        yield {arm: groups[seed] for arm, seed in last.items()}


def input_files(results: Path, claims: Iterable[Claim]) -> list[Path]:
    """The files in results/<scale> from which the claims are judged, for the models of the scale."""
    needed = [(claim, run) for claim in claims for run in claim.all_runs() if run.model in claim.config.models]
    facts = [Layout(results).facts(run.model, BASE, claim.untrained(run.model)) for claim, run in needed]
    files = [file for claim, run in needed for file in claim.files(results, run)]
    return list(dict.fromkeys([*facts, *files]))
