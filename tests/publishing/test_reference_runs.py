"""docs/reference: every published verdict and table follows from the published counts and metrics."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from conftest import ROOT
from entropy_dynamics.analysis.published_runs import RUN, parts_of, read_run
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.analysis.scores import scores_frame
from entropy_dynamics.analysis.sweeps import matched_frame
from entropy_dynamics.cli import main
from entropy_dynamics.config import load_config
from entropy_dynamics.publishing.restore import restore
from synthetic_results import MODEL

REFERENCE = ROOT / "docs" / "reference"
RUNS = {str(file.parent.relative_to(REFERENCE)): read_run(file.parent) for file in sorted(REFERENCE.rglob(RUN))}
KINDS = ("counts", "metrics")
NOT_PUBLISHED = ("unique_", "majority_")  # claims about answers, which counts do not tell


def weight(folder: str) -> int:
    return sum((part / "counts.parquet").stat().st_size for part in parts_of(REFERENCE / folder))


JUDGED = sorted((name for name, run in RUNS.items() if run.verdicts), key=weight, reverse=True)  # the longest first


@pytest.mark.parametrize("folder", JUDGED)
def test_all_verdicts_follow_from_what_is_published(folder, tmp_path, monkeypatch, capsys):
    """As a reader would: `restore`, and the command that it prints, or `controls` in its place."""
    for name in ("configs", "experiments"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    scale, judged = folder.partition("/")[0], RUNS[folder].verdicts
    assert main(["restore", str(REFERENCE / folder), "--out", f"results/{scale}"]) == 0
    _, command = capsys.readouterr().out.splitlines()
    for kind, number in judged.items():
        assert main([kind, *command.split()[2:]]) == 0
        restored, published = (
            {
                entry["id"]: entry
                for entry in json.loads(file.read_text())
                if entry["subject"] == "this run" and not entry["id"].startswith(NOT_PUBLISHED)
            }
            for file in (tmp_path / f"results/{scale}/{kind}.json", REFERENCE / folder / f"{kind}.json")
        )
        assert restored.keys() >= published.keys()
        assert sum(entry["low"] is not None for entry in published.values()) >= number
        for name, entry in published.items():
            for part in ("verdict", "rests_on"):
                assert restored[name][part] == entry[part], name
            for part in ("effect", "low", "high"):
                assert restored[name][part] == (entry[part] and pytest.approx(entry[part], rel=1e-3, abs=1e-6)), name


@pytest.mark.parametrize("folder", ["laptop/paper/seeds-0-4-xeon-amx", "laptop/extras/seeds-50-54"])
def test_ppo_dropped_the_share_of_tokens_that_the_method_drops_with_grpo(folder):
    """The protocol's strengths, by what ran; with an older, wrong one it was two thirds of that share."""
    metrics = pd.read_parquet(REFERENCE / folder / "metrics.parquet")
    dropped = metrics[metrics["model"] == MODEL].groupby("method")["clip_fraction"].mean()
    for name in ("clip_b", "clip_v"):
        assert 0.75 < dropped[f"ppo_{name}"] / dropped[name] < 1.33


def restored(folder: Path, root: Path) -> Results:
    """The results of five seeds at the scale laptop."""
    config = load_config("laptop")
    restore([folder], root / "laptop", config)
    return Results(root / "laptop", "laptop", dict(config.seeds) | {"tables": 5, "extras": 5})


def test_scores_at_matched_entropy_follow_from_what_is_published(tmp_path):
    newer = REFERENCE / "laptop/methods/seeds-0-4-opefo"
    results = restored(newer, tmp_path)
    frame = matched_frame(results.experiment("matched_entropy_opefo"), results)
    published = pd.read_csv(newer / "figures" / "matched_entropy_opefo.csv")
    columns = [name for name in frame.select_dtypes("number") if name in published]
    assert {"entropy", "avg_matched_low", "pass_matched_high"} <= set(columns)
    np.testing.assert_allclose(frame[columns], published[columns], rtol=1e-4, atol=1e-4)


METHODS = REFERENCE / "laptop/methods/seeds-50-54"


@pytest.fixture(scope="module")
def arms(tmp_path_factory):
    """Every method, on-policy, with several updates and with stale rollouts, and the tables made of these runs."""
    return restored(METHODS, tmp_path_factory.mktemp("arms"))


@pytest.mark.xdist_group("arms")
@pytest.mark.parametrize("table", sorted(path.stem for path in METHODS.glob("*.csv")))
def test_tables_of_all_methods_follow_from_what_is_published(arms, table):
    frame = scores_frame(arms.experiment(table), arms)
    published = pd.read_csv(METHODS / f"{table}.csv")
    assert frame["method"].tolist() == published["method"].tolist()
    columns = [name for name in published.filter(regex="^(entropy|.*_(avg|pass)(_difference)?)$") if name in frame]
    assert {"entropy", "dapo500_pass_difference"} <= set(columns)
    np.testing.assert_allclose(frame[columns].astype(float), published[columns], rtol=1e-3, atol=1e-3)


def test_the_scores_of_smollm2_on_the_gpu_page_follow_from_what_is_published():
    """Seed 0 of an H200 beside the range of the CPU's seeds: entropy of the last five steps, Avg@16, Pass@16."""

    def scores(folder: str) -> pd.DataFrame:
        counts, metrics = (pd.read_parquet(ROOT / f"docs/reference/{folder}/{name}.parquet") for name in KINDS)
        counts = counts[np.isclose(counts["temperature"], 0.7) & (counts["dataset"] != "validation")]
        rates = {"avg": 100 * counts["correct"] / counts["samples"], "pass": 100.0 * (counts["correct"] > 0)}
        sets = counts.assign(**rates).groupby(["method", "seed", "dataset"])[list(rates)].mean()
        last = metrics[metrics["step"] >= 45].groupby(["method", "seed"])["entropy"].mean()
        return sets.groupby(["method", "seed"]).mean().assign(entropy=last)[["entropy", "avg", "pass"]]

    gpu, cpu = scores("smollm2-gpu/seed-0"), scores("smollm2/seeds-0-7")
    page, inside = (REFERENCE / "smollm2-gpu/README.md").read_text(), 0
    names = {"GRPO": "grpo", "random mask": "random_mask", "Clip_B": "clip_b", "Clip_V": "clip_v"}
    for name, method in names.items():
        assert cpu.loc[method].index.tolist() == list(range(8))
        row = re.search(rf"^\| {name} \|(.+)\|$", page, re.MULTILINE)[1]
        cells = [[float(number) for number in cell.split(" to ")] for cell in row.split("|")]
        ranges = [[column.min(), column.max()] for _, column in cpu.loc[method].items()]
        values = gpu.loc[method].loc[0]
        inside += sum(low <= value <= high for value, (low, high) in zip(values, ranges, strict=True))
        for shown, measured in zip(cells, [*([value] for value in values), *ranges], strict=True):
            assert shown == pytest.approx(measured, abs=0.0505 if measured[0] > 1 else 0.000051)
    assert inside == 10
    assert "Ten of the twelve values are in the" in page


def test_every_published_folder_says_what_it_is():
    """A folder with results has a run.yaml; scale and seeds, which its path names, are those of its files."""
    folders = {str(file.parent.relative_to(REFERENCE)) for file in REFERENCE.rglob("models.json")}
    assert folders <= RUNS.keys()
    names = [name for run in RUNS.values() for name in run.was]
    assert len(set(names)) == len(names)
    for folder, run in RUNS.items():
        parts = {str(Path(folder).parent / name) for name in run.of}
        assert {*parts, *run.same_models_as, *run.compare_with} <= RUNS.keys()
        assert run.of or run.commits, folder
        assert all(folder in RUNS[other].same_models_as for other in run.same_models_as), folder
        if folder in folders:
            assert json.loads((REFERENCE / folder / "models.json").read_text())["scale"] == folder.partition("/")[0]
            file = next(file for kind in KINDS if (file := REFERENCE / folder / f"{kind}.parquet").is_file())
            runs = pd.read_parquet(file, columns=["method", "seed"])
            seeds = set(runs.loc[runs["method"] != "base", "seed"])
            numbers = [int(number) for number in re.search(r"/seeds?-(\d+)(?:-(\d+))?", folder).groups() if number]
            assert (min(seeds), max(seeds)) == (numbers[0], numbers[-1]), folder


@pytest.mark.parametrize("command", ["restore", "compare"])
def test_the_earlier_name_of_a_folder_is_answered(command, tmp_path, capsys):
    old, new = REFERENCE / "first", REFERENCE / "laptop/paper/seeds-0-4"
    arguments = ["--out", str(tmp_path / "laptop")] if command == "restore" else [str(new)]
    assert main([command, str(old), *arguments]) == 2
    assert capsys.readouterr().err == f"error: no folder {old}: its name is {new} now\n"


def test_a_folder_that_cannot_be_restored_says_why(tmp_path, capsys):
    folder = REFERENCE / "laptop/methods/seeds-0-4"
    assert main(["restore", str(folder), "--out", str(tmp_path / "laptop")]) == 2
    assert capsys.readouterr().err.startswith(f"error: {folder} cannot be restored: its metrics were not kept")
