"""The workflow as a user runs it: the whole smoke scale in a copy of the project, and what reruns after a change."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml
from snakemake.common import NOTHING_TO_BE_DONE_MSG

from command_line import output
from conftest import MODEL
from entropy_dynamics.config import load_config
from entropy_dynamics.experiments.load import experiment_files, load_experiment
from project_copy import ROOT, copy_project, snakemake

TABLES = ("table1", "table3", "table4")
FIGURES = ("data_filter", "theory_check", "corollary4", *(f"figure{number}" for number in range(1, 7)))


def dry_run(project: Path, *arguments: str) -> tuple[dict[str, int], dict[str, str]]:
    """The jobs of a dry run, rule -> count; and the jobs of each cause, as it shows them."""
    run = snakemake(project, *arguments, "--dry-run")
    assert run.returncode == 0, run.stderr
    stats = re.search(r"Job stats:\njob +count\n[- ]+\n(.*?)\n\n(.*)", run.stdout + run.stderr, re.DOTALL)
    if stats is None:
        assert NOTHING_TO_BE_DONE_MSG in run.stderr
        return {}, {}
    jobs = {name: int(count) for name, count in (line.split() for line in stats[1].splitlines()) if name != "total"}
    causes = dict(line.rsplit(": ", 1) for line in stats[2].splitlines())
    total = sum(count for name, count in jobs.items() if name not in {"default", "further"})  # targets without files
    assert causes.pop("in all").startswith(f"{total} job{'s' * (total > 1)}")
    return jobs, causes


def planned(project: Path, *arguments: str) -> dict[str, int]:
    return dry_run(project, *arguments)[0]


@pytest.fixture(scope="module")
def project(tmp_path_factory, smoke_project) -> Path:
    return shutil.copytree(smoke_project, tmp_path_factory.mktemp("workflow") / "project")


@pytest.fixture(scope="module")
def results(project) -> Path:
    return project / "results" / "smoke"


def test_results_pass_verification(project, monkeypatch, capsys):
    monkeypatch.chdir(project)
    assert output(capsys, "verify", "results/smoke")[0].endswith("nothing wrong\n")


def test_every_job_is_recorded(results):
    jobs = [json.loads(line) for line in (results / "logs/jobs.jsonl").read_text().splitlines()]
    assert [job["rule"] for job in jobs].count("train") == len(list(results.glob("runs/*/*/seed*/metrics.parquet")))
    assert all(job["seconds"] > 0 for job in jobs)


def test_table1_and_its_figures_come_first_and_each_table_follows_its_runs(project):
    """By priority: in which order jobs finish depends on the cores, too."""
    shown = snakemake(project, "--forceall", "--dry-run", "--verbose")
    pattern = r"^rule (\w+):.*?\n    jobid: \d+\n(.*?)    resources: "
    jobs = re.findall(pattern, shown.stdout + shown.stderr, re.MULTILINE | re.DOTALL)
    priorities = {
        (rule, *re.findall(r"(?:model|method|seed)=([^,\n]+)", details)): int(re.search(r"priority: (\d+)", details)[1])
        for rule, details in jobs
        if "priority: " in details
    }
    runs = {job[1:]: priority for job, priority in priorities.items() if job[0] == "train"}
    assert len(runs) > 20
    results = {name for (name,) in (job for job in priorities if len(job) == 1)} - {"pass_rates"}
    assert results >= {"table1", "figure6", "figure1"}
    assert min(priorities[name,] for name in results) > max(runs.values())
    further = [priority for job, priority in priorities.items() if job[0] == "temperatures"]
    of_table1 = [runs[job[1:]] for job in priorities if job[0] == "temperatures" if job[1:] in runs]
    assert 0 < max(further) < min(of_table1)
    seeds = dict(load_config("smoke", configs=project / "configs").seeds)
    for name, count in (("table1", 6), ("figure6", 0), ("figure1", 8)):
        needed = {
            (run.model, run.method, str(run.seed))
            for run in load_experiment(name, "smoke", seeds, project / "experiments").runs
        }
        first = [runs.pop(run) for run in needed & runs.keys()]
        assert len(first) == count  # what those before leave
        assert all(priority > max(runs.values()) for priority in first)


def test_the_scheduler_does_not_poll(project, results):
    for name in TABLES:
        (results / "tables" / f"{name}.md").unlink()
    run = snakemake(project, *TABLES, "--cores", "1", "--verbose")
    assert run.returncode == 0, run.stderr
    log = max((project / ".snakemake/log").iterdir(), key=lambda path: path.stat().st_mtime)
    assert log.read_text().count("Ready jobs") == len(TABLES)  # with timers it is one per second


def test_a_second_call_has_nothing_to_do(project):
    assert planned(project) == {}


@contextmanager
def edited(project: Path, *edits: tuple[str, str, str]) -> Iterator[None]:
    """(file, old, new): an empty `old` appends."""
    files = {project / name: (project / name).read_text() for name, _, _ in edits}
    try:
        for name, old, new in edits:
            text = (project / name).read_text()
            assert old in text
            (project / name).write_text(text.replace(old, new) if old else text + new)
        yield
    finally:
        for path, text in files.items():
            path.write_text(text)


ALL_RUNS = {"train": 25, "temperatures": 11}  # at the smoke scale; some are evaluated at further temperatures
NOTES = ("Using ", "Assuming ", "Building ", "host: ")  # by Snakemake, before it reads the workflow
DRAWN = {"claims", "report", "default", "frontier", *TABLES, *FIGURES}
CLAIM = "  - <<: *grpo\n    id: sampling_law_paper\n"
NEW_CLAIM = CLAIM.replace("paper", "again")


@pytest.mark.parametrize(
    ("edits", "needed", "why"),
    [
        (
            [
                *((f"configs/{name}.yaml", "", "\n# a comment\n") for name in ("base", "scale/laptop", "scale/smoke")),
                *((f"configs/{name}.yaml", "", "\n# a comment\n") for name in (f"model/{MODEL}", "method/clip_b")),
                ("configs/scale/laptop.yaml", "distill-llama-8b, ", ""),  # one model more or less
                ("configs/machine.yaml", "overrides: []", "training: {tokens_per_micro_batch: 2000, keep_steps: [2]}"),
            ],
            {},
            {},
        ),
        (
            [
                ("configs/scale/smoke.yaml", "experiments: [table1", "experiments: [gains, table1"),
                ("experiments/claims.yaml", CLAIM, NEW_CLAIM + CLAIM),
            ],
            {"gains": 1, "claims": 1, "report": 1},
            {"not there yet": "2 jobs", "experiments/claims.yaml has changed": "2 jobs"},
        ),
        (
            [("configs/scale/smoke.yaml", "extras: 1", "extras: 2")],
            {"model": 1, "pass_rates": 1, "train": 13},
            {"not there yet": "13 of them training runs", "seeds.extras=1 -> seeds.extras=2": "15 jobs"},
        ),
        (
            [("configs/method/clip_v.yaml", "max_frac: 0.05", "max_frac: 0.04")],
            {"train": 2 + 3, "temperatures": 2},
            {"method.params.max_frac 0.05 -> 0.04": "5 of them training runs"},
        ),
        (
            [("configs/method/clip_v.yaml", "label: Clip_V", "label: Clip V")],
            {"table1": 1},
            {"'Clip_V' -> 'Clip V'": r"^\d+ jobs"},
        ),
        (
            [("configs/scale/smoke.yaml", "low: 0.0", "low: 0.01")],
            ALL_RUNS,
            {"pass_rates.low 0.0 -> 0.01": "25 of them training runs", "0.0 -> 0.01": "2 jobs"},
        ),
        (
            [("configs/scale/smoke.yaml", "aime24: 4,", "aime24: 5,")],
            {"evaluate": 2} | ALL_RUNS,
            {"evaluation.samples.aime24 4 -> 5": "25 of them training runs"},
        ),
        (
            [("configs/scale/smoke.yaml", "train: {size: 240}", "train: {size: 250}")],
            {"problems": 1, "model": 2, "pass_rates": 1, "evaluate": 2, "theory": 1} | ALL_RUNS,
            {"data.train.size 240 -> 250": "25 of them training runs"},
        ),
    ],
    ids=["nothing", "table and claim", "seed", "method", "label", "filter", "evaluation", "problems"],
)
def test_an_edit_reruns_what_uses_the_setting(project, edits, needed, why):
    with edited(project, *edits):
        jobs, causes = dry_run(project)
    assert len(causes) == len(why)
    for (named, repeated), (cause, said) in zip(sorted(causes.items()), sorted(why.items()), strict=True):
        assert named == cause
        assert re.search(rf"{said}  (< 1|\d+) min$", repeated)
    assert {name: count for name, count in jobs.items() if name not in DRAWN - needed.keys()} == needed
    if not needed:
        assert jobs == {}


def test_an_edited_method_reruns_its_own_runs_and_an_edited_comment_none(project, results, tmp_path):
    source = shutil.copytree(ROOT / "src", tmp_path / "src")
    file = source / "entropy_dynamics" / "methods" / "clip_b.py"
    text = file.read_text()

    def reruns(edited: str) -> set[str]:
        file.write_text(edited)
        command = [sys.executable, "-m", "snakemake", "--dry-run", "--verbose", "--config", "scale=smoke"]
        environment = os.environ | {"PYTHONPATH": str(source)}
        run = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        jobs = re.findall(r"^rule train:.*?method=([^,\n]+)", run.stdout + run.stderr, re.MULTILINE | re.DOTALL)
        assert ("\nmade by another version of methods.clip_b: " in run.stderr) == bool(jobs)
        return set(jobs)

    assert reruns(f"{text}\n# a comment\n") == set()
    of_clip_b = {path.parent.name for path in results.glob("runs/*/*clip_b*/seed*")}
    assert reruns(text.replace("0.0, mask.float())", "0.5, mask.float())")) == of_clip_b


def test_more_seeds_keep_existing_runs(project):
    jobs = planned(project, "table1", "--config", "scale=smoke", "seeds=2")
    assert jobs["train"] == 6  # seed 1 of three methods on two models
    assert planned(project, "figure1", "--config", "scale=smoke", "extra_seeds=2")["train"] == 9


def test_a_single_run_is_a_target(project):
    target = "results/smoke/runs/qwen2.5-7b-instruct/s_star_keep_pos_gt/seed7/metrics.parquet"
    assert planned(project, target) == {"model": 1, "pass_rates": 1, "train": 1}  # the seed's own untrained model


def test_the_policy_of_an_earlier_step_waits_for_the_longer_run(project):
    """Unless that has finished without leaving it; without `keep_steps`, a shorter run is a run of its own."""
    finished, new = (f"results/smoke/runs/{MODEL}/grpo@training.steps=2/seed{seed}/metrics.parquet" for seed in (0, 7))
    untrained = {"model": 1, "pass_rates": 1}
    assert planned(project, new) == untrained | {"train": 1}
    with edited(project, ("configs/machine.yaml", "overrides: []", "training: {keep_steps: [2]}")):
        assert planned(project, new) == untrained | {"train": 2}
        assert planned(project, finished) == {"train": 1}


def test_a_table_needs_only_its_own_runs(project):
    jobs = planned(project, "table1", "--forceall")
    assert jobs["train"] == 6
    assert jobs["evaluate"] == 2  # the untrained models; a run evaluates its own policy
    assert not [name for name in jobs if name.startswith("figure")]


def test_a_name_may_have_numbers_capitals_and_hyphens(tmp_path):
    project = copy_project(tmp_path)
    shutil.copy(project / "experiments/figure3.yaml", project / "experiments/ablation1.yaml")
    assert planned(project, "ablation1")["ablation1"] == 1
    configs = project / "configs"
    shutil.copy(configs / "method/clip_b.yaml", configs / "method/My-Clip.yaml")
    model = (configs / "model/toy-32.yaml").read_text()
    (configs / "model/Toy_X.yaml").write_text(model.replace("name: toy-32", "name: Toy_X"))
    toys = {"Toy_X": yaml.safe_load((configs / "scale/laptop.yaml").read_text())["toy_models"]["toy-32"]}
    scale = {"extends": "laptop", "scale": "My-Scale", "models": [MODEL, "Toy_X"], "toy_models": toys}
    (configs / "scale/My-Scale.yaml").write_text(yaml.safe_dump(scale))
    target = "results/My-Scale/runs/Toy_X/My-Clip/seed0/metrics.parquet"
    assert planned(project, target, "--config", "scale=My-Scale")["train"] == 1


def test_each_job_requests_the_nodes_and_threads_of_its_own_model(tmp_path):
    project = copy_project(tmp_path)
    machine = "{for: {scale: paper, model: qwen2.5-14b-instruct}, hardware: {nodes: 2, ranks: 16}}"
    (project / "configs/machine.yaml").write_text(f"overrides: [{machine}]\n")
    runs = [f"results/paper/runs/{model}/grpo/seed0/metrics.parquet" for model in ("qwen2.5-14b-instruct", MODEL)]
    run = snakemake(project, *runs, "--dry-run", "--verbose", "--cores", "64", "--config", "scale=paper")
    assert run.returncode == 0, run.stderr
    pattern = r"^rule train:.*?model=([^,]+).*?threads: (\d+)\n +resources: (.*?)$"
    jobs = re.findall(pattern, run.stdout + run.stderr, re.MULTILINE | re.DOTALL)
    threads = {model: int(count) for model, count, _ in jobs}
    requested = {model: dict(entry.split("=", 1) for entry in text.split(", ")) for model, _, text in jobs}
    several = requested["qwen2.5-14b-instruct"]
    assert (several["gpu"], several["nodes"], several["mpi"], several["tasks"]) == ("16", "2", "srun", "2")
    assert several["slurm_extra"] == "--gpus-per-node=8"
    assert (requested[MODEL]["gpu"], requested[MODEL]["nodes"]) == ("4", "1")
    assert not {"mpi", "tasks", "slurm_extra"} & requested[MODEL].keys()
    assert threads["qwen2.5-14b-instruct"] == 2 * threads[MODEL] > 0  # 8 ranks on a node, and 4


def the_error(run) -> str:
    """The one line that a mistake gets, besides Snakemake's notes."""
    lines = [line for line in (run.stdout + run.stderr).splitlines() if not line.startswith(NOTES)]
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0].removeprefix("error: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "scale=smoke", "seeds=0"], "seeds is 0; it should be greater than 0"),
        (["--configfile", "copy.yaml", "--config", "scale=smoke"], "--config: unknown key "),
        (["--config", "scale=typo"], "engine: unknown name 'nativ'; did you mean 'native'"),
        (["--config", "scale=smoke", "seeds="], "--config: seeds is None; it should be a valid integer"),
        (["--config", "scale=deleted"], "unknown table or figure 'figure5'; did you mean 'figure"),
        ([f"results/smoke/runs/{MODEL}/clipb/seed0/metrics.parquet"], "unknown method 'clipb'; did you mean 'clip_b'?"),
        (["results/smoke/tables/tabel1.md"], "did you mean 'results/smoke/tables/table1.md'?"),
        ([f"results/smoke/runs/{MODEL}/grpo/seed00/metrics.parquet"], "no rule makes"),
        (["results/laptop/tables/table1.md"], "of another scale than smoke: add --config scale=laptop"),
    ],
)
def test_a_wrong_selection_is_named_before_anything_runs(tmp_path, arguments, message):
    project = copy_project(tmp_path)
    text = (project / "configs/scale/smoke.yaml").read_text()
    (project / "copy.yaml").write_text(text.replace("prompts_per_step: 4", "prompts_per_step: 5"))
    scales = {"typo": "engine: {name: nativ}", "deleted": "experiments: [figure5]"}
    for name, line in scales.items():
        (project / f"configs/scale/{name}.yaml").write_text(f"extends: laptop\nscale: {name}\n{line}\n")
    if "scale=deleted" in arguments:
        (project / "experiments/figure5.yaml").unlink()
    run = snakemake(project, *arguments)
    assert run.returncode != 0
    assert message in the_error(run)
    assert not (project / "results").exists()


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("experiments/table1", "kind: scores", "kind: score", "unknown kind 'score'; did you mean 'scores'?"),
        ("experiments/claims", "sweep: figure2", "sweep: figure", "claim mu_entropy_clip_b: unknown table"),
        ("configs/method/clip_b", "label: Clip_B\n", "", ""),
    ],
)
def test_a_broken_file_is_one_line(tmp_path, name, old, new, message):
    project = copy_project(tmp_path)
    with edited(project, (f"{name}.yaml", old, new)):
        run = snakemake(project, "--config", "scale=smoke", "--quiet", "--dry-run")
    assert run.returncode != 0
    assert the_error(run).startswith(f"{name}.yaml: {message}")


def test_every_table_figure_and_folder_is_a_target(project):
    folders = {path.name for path in (project / "experiments").iterdir() if path.is_dir()}
    folders -= {path.parent.name for path in (project / "experiments").glob("*/claims.yaml")}  # of other scales
    assert folders == {"further", "extras", "methods", "ladder", "controls", "field"}
    targets = {"all", "paper", "tables", "figures", "claims", "report", *folders}
    assert targets | {*experiment_files(project / "experiments")} <= {*snakemake(project, "--list").stdout.split()}
    drawn = {*planned(project, "further", "--config", "scale=laptop")} & {*experiment_files(project / "experiments")}
    assert drawn == {path.stem for path in (project / "experiments/further").iterdir()}
