"""The workflow as a user runs it: the whole smoke scale in a copy of the project, then what reruns and what not."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pandas as pd
import pytest
from safetensors.numpy import load_file

from project_copy import SNAKEMAKE, snakemake
from unsafe import unsafe_files


def planned(project: Path, *arguments: str) -> dict[str, int]:
    """What a dry run would do: rule -> jobs."""
    run = snakemake(project, *arguments, "--dry-run")
    assert run.returncode == 0, run.stderr
    stats = re.search(r"Job stats:\njob +count\n[- ]+\n(.*?)\n\n", run.stdout + run.stderr, re.DOTALL)
    if stats is None:
        return {}
    return {name: int(count) for name, count in (line.split() for line in stats[1].splitlines()) if name != "total"}


@pytest.fixture(scope="module")
def project(tmp_path_factory, smoke_project) -> Path:
    return shutil.copytree(smoke_project, tmp_path_factory.mktemp("workflow") / "project")


@pytest.fixture(scope="module")
def results(project) -> Path:
    return project / "results" / "smoke"


def test_every_table_and_figure_is_there(results):
    for name in ["table1", "table3", "table4"]:
        for suffix in (".csv", ".md", ".tex", ".html"):
            assert (results / "tables" / f"{name}{suffix}").stat().st_size > 0
    for name in ["data_filter", "theory_check", *(f"figure{number}" for number in range(1, 7))]:
        for suffix in (".png", ".svg", ".csv"):
            assert (results / "figures" / f"{name}{suffix}").stat().st_size > 0
    assert not list(results.rglob("*.partial"))


def test_every_written_file_is_of_a_kind_that_runs_nothing(results):
    assert unsafe_files(results) == []


def test_what_was_made_is_what_its_records_say(project, results):
    done = subprocess.run(
        [SNAKEMAKE.with_name("entropy-dynamics"), "verify", "results/smoke"],
        cwd=project,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith("nothing wrong")


def test_every_claim_gets_a_verdict_and_one_seed_never_looks_sure(results):
    claims = [claim for claim in json.loads((results / "claims.json").read_text()) if claim["subject"] == "this run"]
    assert len(claims) >= 15
    assert {claim["verdict"] for claim in claims} <= {"holds", "does not hold", "inconclusive"}
    by_id = {claim["id"]: claim for claim in claims}
    assert by_id["theorem2_slope"]["verdict"] == "holds"  # needs no training
    scores = [claim for claim in claims if "seed" in claim["reason"] and claim["id"].startswith(("gain", "clip_"))]
    assert all(claim["verdict"] == "inconclusive" for claim in scores)


def test_table1_says_what_the_samples_say(results):
    table = pd.read_csv(results / "tables" / "table1.csv").set_index(["model", "method"])
    assert set(table.index) == {
        (model, method)
        for model in ("qwen2.5-7b-instruct", "qwen3-4b-base")
        for method in ("base", "grpo", "clip_b", "clip_v")
    }
    samples = pd.read_parquet(results / "evaluations/qwen3-4b-base/clip_v/seed0/dapo500.parquet")
    row = table.loc[("qwen3-4b-base", "clip_v")]
    assert row["dapo500_avg"] == pytest.approx(100 * samples["correct"].mean(), abs=0.01)
    assert row["dapo500_pass"] == pytest.approx(100 * samples.groupby("problem_id")["correct"].any().mean(), abs=0.01)
    assert row["dapo500_avg_paper"] == 50.95
    assert (table["dapo500_avg_low"] <= table["dapo500_avg"]).all()
    assert (table["dapo500_avg"] <= table["dapo500_avg_high"]).all()


def test_a_run_really_trained_and_says_what_it_was(results):
    run = results / "runs/qwen2.5-7b-instruct/clip_b/seed0"
    metrics = pd.read_parquet(run / "metrics.parquet")
    assert metrics["step"].tolist() == [0, 1, 2, 3]
    assert (metrics["grad_norm"] > 0).any()
    before = load_file(results / "models/qwen2.5-7b-instruct/model.safetensors")
    after = load_file(run / "policy/model.safetensors")
    assert before.keys() == after.keys()
    assert any((before[name] != after[name]).any() for name in before)
    provenance = json.loads((run / "provenance.json").read_text())
    assert {"git", "packages", "hardware", "inputs"} <= provenance.keys()
    assert "results/smoke/data/pass_rates.parquet" in provenance["inputs"]
    assert "mu: 1." in (run / "config.yaml").read_text()


def test_the_kept_problems_are_those_with_a_rate_in_between(results):
    rates = pd.read_parquet(results / "data/pass_rates.parquet")
    between = (rates["rate"] > 0.0) & (rates["rate"] < 1.0)
    assert (rates["kept"] == between).all()
    assert ((rates["reason"] == "") == rates["kept"]).all()


def test_no_problem_is_in_two_sets(results):
    sets = [pd.read_parquet(results / f"data/{name}.parquet") for name in ("train", "dapo500", "aime24", "aime25")]
    sums = [tuple(sorted(text.split("+"))) for one in sets for text in one["problem"]]
    assert len(sums) == len(set(sums))


def test_a_second_call_has_nothing_to_do(project):
    assert planned(project) == {}


def test_editing_one_method_reruns_only_that_method(project):
    path = project / "configs/method/clip_v.yaml"
    before = path.read_text()
    path.write_text(before.replace("max_frac: 0.05", "max_frac: 0.04"))
    try:
        jobs = planned(project)
    finally:
        path.write_text(before)
    assert jobs["train"] == 2 + 2  # both models of Table 1, and the sweep of Figure 2
    assert "base_model" not in jobs
    assert "problems" not in jobs
    assert planned(project) == {}  # reverted: nothing to do


def test_a_scales_file_selects_it(project):
    run = snakemake(project, "--configfile", "configs/scale/smoke.yaml", "--config", "scale=smoke", "--dry-run")
    assert run.returncode == 0, run.stderr
    assert "Nothing to be done" in run.stdout + run.stderr


def test_more_seeds_keep_what_is_there(project):
    jobs = planned(project, "table1", "--config", "scale=smoke", "seeds=2")
    assert jobs["train"] == 6  # seed 1 of three methods on two models
    assert planned(project, "figure1", "--config", "scale=smoke", "extra_seeds=2")["train"] == 9


def test_one_ablation_is_a_target_of_its_own(project):
    target = "results/smoke/runs/qwen2.5-7b-instruct/s_star_keep_pos_gt/seed7/metrics.parquet"
    assert planned(project, target) == {"train": 1}


def test_a_table_asks_only_for_its_own_runs(project):
    jobs = planned(project, "table1", "--forceall")
    assert jobs["train"] == 6
    assert jobs["evaluate"] == 8
    assert not [name for name in jobs if name.startswith("figure")]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--config", "scale=smok"], "did you mean 'smoke'"),
        (["--config", "scal=smoke"], "scal"),
        (["--config", "scale=smoke", "seeds=0"], "seeds"),
        (["--configfile", "copy.yaml", "--config", "scale=smoke"], "training differs from configs/scale/smoke.yaml"),
    ],
)
def test_a_wrong_selection_is_named(project, arguments, expected):
    text = (project / "configs/scale/smoke.yaml").read_text()
    (project / "copy.yaml").write_text(text.replace("prompts_per_step: 4", "prompts_per_step: 5"))
    run = snakemake(project, *arguments, "--dry-run")
    assert run.returncode != 0
    assert expected in run.stdout + run.stderr
