"""Synthetic results with correct records, as the stages write them: what `verify` is tested on."""

import json
import shutil
import tempfile
from contextlib import chdir
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from entropy_dynamics.cli import main
from entropy_dynamics.config import load_config, settings_of, to_yaml
from entropy_dynamics.experiments.load import Run, load_experiment
from entropy_dynamics.results.files import sha256, write_json, write_parquet, write_text
from entropy_dynamics.results.layout import Layout, record_of
from entropy_dynamics.results.provenance import provenance
from entropy_dynamics.stages.problems import build_problem_sets
from entropy_dynamics.tasks.countdown import TASK as COUNTDOWN
from entropy_dynamics.tasks.files import load_problems
from project_copy import ROOT
from synthetic_results import MODEL, evaluation_frame, model_facts, write_logit_steps, write_metrics

SCALE = "smoke"
RESULTS = Path("results") / SCALE
LAYOUT = Layout(RESULTS)
SOLUTIONS = load_config(SCALE).toy_models[MODEL].warm_start.solutions
CAREFUL = {"solved": 1.0, "sloppy": 0.0, "rambling": 0.0}
GIT = {"commit": "1234567890" * 4, "changed": False}
TABLE = [f"tables/table1.{suffix}" for suffix in ("csv", "md", "tex")]
GRPO, CLIP_B, CLIP_V = (LAYOUT.run(MODEL, method, 0) for method in ("grpo", "clip_b", "clip_v"))
AIME24 = LAYOUT.evaluation(MODEL, "clip_b", 0) / "aime24.parquet"
PROBLEMS = LAYOUT.data / "problems.json"
MODEL_JSON = LAYOUT.model(MODEL, 0) / "model.json"


def record(inputs: list[Path], outputs: list[Path], folder: Path, **more) -> dict:
    """As stages write it, but by one commit, whatever the state of this checkout."""
    hashes = {path.relative_to(folder).as_posix(): sha256(path) for path in outputs}
    return more | provenance(inputs) | {"git": GIT, "outputs": hashes}


def write_record(file: Path, inputs: list[Path], **more) -> None:
    """That of a parquet file."""
    write_json(record_of(file), record(inputs, [file], file.parent, **more))


def write_weights(folder: Path, facts: dict) -> None:
    """Nothing loads them, so any bytes will do."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(np.random.default_rng([*str(folder).encode()]).bytes(500))
    facts |= {"weights_sha256": {"model.safetensors": sha256(folder / "model.safetensors")}, "outputs": {}}
    write_json(folder / "model.json", facts)


def write_run(run: Run) -> None:
    folder = LAYOUT.run(run.model, run.method, run.seed)
    base = json.loads((LAYOUT.model(run.model, run.seed) / "model.json").read_text())
    write_weights(folder / "policy", base | {"method": run.method, "seed": run.seed})
    write_metrics(RESULTS, run, steps=4)
    write_text(folder / "config.yaml", to_yaml(load_config(SCALE, run.model, run.method)))
    inputs = [LAYOUT.model(run.model, run.seed) / "model.json", LAYOUT.pass_rates(run.seed)]
    inputs += [LAYOUT.problems("train"), LAYOUT.problems("validation")]
    outputs = [folder / name for name in ("metrics.parquet", "config.yaml", "policy/model.json")]
    own = {"model": run.model, "method": run.method, "seed": run.seed}
    write_json(folder / "provenance.json", record(inputs, outputs, folder, **own))


def write_evaluation(run: Run, dataset: str, k: int, temperature: float) -> None:
    """About half of the answers are correct, one in ten is missing because its response was cut off."""
    problems = load_problems(LAYOUT.problems(dataset))
    rng = np.random.default_rng([*f"{run}{dataset}".encode()])
    solved = SOLUTIONS.model_copy(update={"habits": SOLUTIONS.habits.model_copy(update=CAREFUL)})
    expected = np.repeat([COUNTDOWN.extract(solved.solve(problem.text, rng)[0]) for problem in problems], k)
    answer = pd.Series(expected).where(rng.random(len(expected)) < 0.5, "1-1").mask(rng.random(len(expected)) < 0.1)
    frame = evaluation_frame((answer == expected).to_numpy(bool).reshape(-1, k)).assign(
        problem_id=np.repeat([problem.id for problem in problems], k),
        formatted=answer.notna(),
        answer=answer.astype("str"),
        finish_reason=np.where(answer.isna(), "length", "stop"),
        tokens=np.where(answer.isna(), 64, 30),
    )
    file = run.evaluation_file(RESULTS, dataset)
    write_parquet(file, frame)
    inputs = [LAYOUT.policy(run.model, run.method, run.seed) / "model.json", LAYOUT.problems(dataset)]
    own = {"evaluation": {"samples": k, "temperature": temperature}, "seed": run.seed}
    own["config"] = settings_of("evaluate", load_config(SCALE, run.model, run.method))
    write_record(file, inputs, **own)


def write_theory() -> None:
    write_logit_steps(RESULTS)
    config = settings_of("theory", load_config(SCALE, MODEL))
    write_record(LAYOUT.logit_steps, [MODEL_JSON, LAYOUT.problems("train")], config=config)


def write_untrained(seed: int) -> None:
    """The untrained model of a seed, and its pass rates."""
    base, rates = LAYOUT.model(MODEL, seed), LAYOUT.pass_rates(seed)
    write_weights(base, model_facts(MODEL, config=settings_of("model", load_config(SCALE, MODEL))))
    ids = [problem.id for problem in load_problems(LAYOUT.problems("train"))]
    correct = np.random.default_rng(seed).binomial(8, 0.3, len(ids))
    counts = {"problem_id": ids, "correct": correct, "samples": 8, "rate": correct / 8}
    write_parquet(rates, pd.DataFrame(counts))
    config = settings_of("pass_rates", load_config(SCALE, MODEL))
    write_record(rates, [base / "model.json", LAYOUT.problems("train")], config=config)


def write_results() -> None:
    """All that Table 1, Figure 5 and the histogram of the filter read, and these; claims judge what is there."""
    config = load_config(SCALE)
    build_problem_sets(config.data, LAYOUT.data)
    write_untrained(0)
    for run in load_experiment("table1", SCALE, dict(config.seeds)).runs:
        if run.method != "base":
            write_run(run)
        for dataset, k in config.evaluation.samples.items():
            write_evaluation(run, dataset, k, config.evaluation.temperature)
    assert main(["draw", "table1", "figure5", "data_filter", "--scale", SCALE]) == 0
    assert main(["claims", "--scale", SCALE]) == 0


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


@pytest.fixture(scope="session")
def built(tmp_path_factory) -> Path:
    """A project with results, its Table 1 of one model; read-only for the tests."""
    folder = tmp_path_factory.mktemp("project")
    for name in ("configs", "experiments"):
        shutil.copytree(ROOT / name, folder / name)
    edit(folder / "experiments/table1.yaml", f"[{MODEL}, qwen3-4b-base]", f"[{MODEL}]")
    with chdir(folder):
        write_results()
    return folder


@pytest.fixture
def whole(built, tmp_path, monkeypatch) -> None:
    """The working directory is a copy of it."""
    shutil.copytree(built, tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")


@pytest.fixture
def project(whole) -> None:
    """With Table 1 alone, which is quicker."""
    shutil.rmtree(RESULTS / "figures")
    for path in RESULTS.glob("claims.*"):
        path.unlink()


@pytest.fixture
def verify(project, verify_all):
    """The same in a `project`."""
    return verify_all


@pytest.fixture
def verify_chain(verify):
    """The same with nothing drawn."""
    shutil.rmtree(RESULTS / "tables")
    return verify


@pytest.fixture
def verify_all(whole, capsys, monkeypatch, tmp_path_factory):
    """`verify_all(...)`: {(what, where): facts}; it fails if and only if one is an error.

    The summary is an attribute.
    """
    escaped_in_markdown = tmp_path_factory.mktemp("redrawn_in")
    monkeypatch.setattr(tempfile, "tempdir", str(escaped_in_markdown))

    def call(*arguments: str):
        capsys.readouterr()
        code = main(["verify", *(arguments or ["results/smoke"])])
        out, err = capsys.readouterr()
        assert all(line.startswith("checking ") for line in err.splitlines())  # on a busy machine
        *lines, call.summary = out.splitlines()
        assert call.summary.startswith("checked ")
        findings = {tuple(line.split(": ", 2)[:2]): line.split(": ", 2)[2] for line in lines}
        assert len(findings) == len(lines)
        assert code == any(what != "not checked" for what, _ in findings)
        return findings

    return call


def sampled(method: str, name: str) -> Path:
    """A record of an evaluation."""
    return LAYOUT.evaluation(MODEL, method, 0) / f"{name}.provenance.json"


def short(path: Path) -> str:
    return path.relative_to(RESULTS).as_posix()


def hashes() -> dict[Path, str]:
    return {path: sha256(path) for path in Path().rglob("*") if path.is_file()}


def edit_json(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def without(*keys: str):
    def change(record: dict) -> None:
        for key in keys[:-1]:
            record = record[key]
        del record[keys[-1]]

    return change


def edit_rows(path: Path, change, rehash: bool = False) -> None:
    """`rehash`: the recorded hash is changed too."""
    write_parquet(path, change(pd.read_parquet(path)))
    if rehash:
        beside = path.with_suffix(".provenance.json")
        write_json(beside, json.loads(beside.read_text()) | {"outputs": {path.name: sha256(path)}})


def flip(column: str, row: int = 0):
    """Negate one boolean."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[row, column] = not frame.loc[row, column]
        return frame

    return change


def set_cell(column: str, value, row: int = 0):
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[row, column] = value
        return frame

    return change
