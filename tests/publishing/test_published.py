"""The folder for a data repository: what a reader recomputes from it alone, its card and its checksums."""

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import yaml

from command_line import error, run
from conftest import ROOT
from entropy_dynamics.analysis.claims_json import verdicts_of
from entropy_dynamics.analysis.problem_scores import Arm, score_columns
from entropy_dynamics.analysis.run_data import Results, Samples
from entropy_dynamics.analysis.statistics import Interval, score_interval
from entropy_dynamics.cli import main
from entropy_dynamics.experiments.load import Run
from entropy_dynamics.results.files import write_json, write_parquet
from entropy_dynamics.results.layout import Layout
from fault_harness import files_in, truncate
from synthetic_results import MODEL, SCALE, model_facts, write_evaluation, write_metrics

OTHER = "qwen3-4b-base"
SETS = {"aime24": (40, 16), "dapo500": (60, 8)}


def pooled_gain(path: Path) -> Interval:
    """Clip_B's mean gain over data sets and models in Avg@K, points, from published counts at the usual temperature."""
    counts: dict[Arm, dict[int, dict[str, Samples]]] = {}
    frame = pd.read_parquet(path)
    frame = frame[np.isclose(frame["temperature"], 0.7)]
    for (model, method, seed, dataset), rows in frame.groupby(["model", "method", "seed", "dataset"]):
        samples = Samples("", rows["correct"].to_numpy(), int(rows["samples"].iloc[0]), *[np.nan] * 5)
        counts.setdefault((model, method), {}).setdefault(seed, {})[dataset] = samples
    arms = {(model, method): sign * 50 for model in (MODEL, OTHER) for method, sign in (("clip_b", 1), ("grpo", -1))}
    return score_interval(score_columns(counts, arms, "avg", dict.fromkeys(SETS, 1 / 2)))


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Three methods on two models, eight seeds; GRPO has three more, and others lie in between."""
    root, out = tmp_path_factory.mktemp("results") / SCALE, tmp_path_factory.mktemp("published")
    rng = np.random.default_rng(0)
    for dataset, (problems, samples) in SETS.items():
        rates = rng.beta(0.6, 1.2, (problems, 1))
        for model in (MODEL, OTHER):
            for method, gain, seeds in (("base", 0.0, 8), ("clip_b", 0.06, 8), ("grpo", 0.0, 11)):
                for seed in range(seeds):
                    share = (rates + gain + 0.03 * rng.standard_normal()).clip(0, 1)
                    correct = rng.random((problems, samples)) < share
                    write_evaluation(root, Run(model, method, seed), dataset, correct)
    write_evaluation(root, Run(MODEL, "grpo", 0), "aime24", np.arange(8) < [[3], [0]], temperature=1)
    for seed in range(2):
        write_metrics(root, Run(MODEL, "grpo", seed), steps=5)
        tokens = pd.DataFrame({"problem_id": ["a", "b"], "logp": [np.array([-0.5 - seed]), np.array([-1.0, -2.0])]})
        write_parquet(Layout(root).step_samples(MODEL, "grpo", seed) / "step4.parquet", tokens)
    write_json(Layout(root).model(MODEL, 0) / "model.json", model_facts(MODEL))
    for judged in ("claims", "controls"):
        write_json(root / f"{judged}.json", [])
    assert main(["archive", str(root), str(out)]) == 0
    return root, out


def interval_of_eight_seeds(counts: pd.DataFrame, method: str) -> tuple[float, float, float]:
    """Nothing of the project: the median of eight paired differences, its order statistics, and the problems."""
    counts["score"] = counts["correct"] / counts["samples"]
    wide = counts.pivot(index=["dataset", "problem", "model", "seed"], columns="method", values="score")
    gains = 100 * (wide[method] - wide["grpo"]).dropna().groupby(["dataset", "problem", "seed"]).mean().unstack()
    seeds, variance = np.zeros(8), 0.0
    for _, of_set in gains.groupby("dataset"):
        d = of_set.to_numpy() / counts["dataset"].nunique()  # [problem, seed]
        seeds += d.mean(0)
        noise = d - d.mean(0) - d.mean(1, keepdims=True) + d.mean()
        problems, t = len(d), {40: 2.0227, 60: 2.0010, 250: 1.9695, 500: 1.9647}[len(d)]
        variance += (t / 1.96) ** 2 * (d.mean(1).var(ddof=1) - (noise**2).sum() / 7 / (problems - 1) / 8) / problems
    ordered, middle = np.sort(seeds), np.median(seeds)
    # The lowest and highest of eight enclose the median with 1 - 2/256, the next with 1 - 18/256; between them by 95 %.
    share = (excess := (1 - 2 / 256 - 0.95) / (16 / 256)) * 7 / (1 + 6 * excess)
    low, high = (1 - share) * ordered[[0, -1]] + share * ordered[[1, -2]]
    problems = 1.96 * variance**0.5
    return middle, middle - np.hypot(middle - low, problems), middle + np.hypot(high - middle, problems)


@pytest.mark.parametrize(("seeds", "method"), [("0-7", "clip_b"), ("50-57", "clip_v")])
def test_a_published_verdict_from_the_published_counts_in_ten_lines(seeds, method):
    folder = ROOT / "docs/reference/desk/paper" / f"seeds-{seeds}"
    counts = pd.read_parquet(folder / "counts.parquet")
    chosen = f"0.6 < temperature < 0.8 and dataset != 'validation' and method in ('grpo', {method!r})"
    entry = verdicts_of(folder)[f"avg_gain_{method}"]
    by_hand = interval_of_eight_seeds(counts.query(chosen).copy(), method)
    assert [entry[name] for name in ("effect", "low", "high")] == pytest.approx(by_hand, abs=0.005)


def assert_same(one: Path, other: Path, *names: str) -> None:
    """Two published folders have the same tables."""
    for name in names:
        first, second = (pd.read_parquet(folder / f"{name}.parquet") for folder in (one, other))
        pd.testing.assert_frame_equal(first, second)


def test_counts_are_those_of_the_samples(published):
    root, out = published
    counts = pd.read_parquet(out / "counts.parquet").set_index(["model", "method", "seed", "dataset"]).sort_index()
    warm = counts["temperature"] == 1
    assert counts[warm]["correct"].tolist() == [3, 0]
    counts = counts[~warm]
    assert len(counts) == (40 + 60) * 2 * (8 + 8 + 11)
    samples = pd.read_parquet(Run(OTHER, "clip_b", 3).evaluation_file(root, "aime24"))
    rows = counts.loc[OTHER, "clip_b", 3, "aime24"]
    assert rows["correct"].tolist() == samples.groupby("problem_id")["correct"].sum().tolist()
    assert set(rows["samples"]) == {16}
    assert (out / "counts.parquet").stat().st_size < 20_000  # 4 bytes a row would be 21,600


def test_published_tables_are_packed(published):
    _, out = published
    counts = pd.read_parquet(out / "counts.parquet")
    order = ["dataset", "model", "problem", "method", "seed", "temperature"]
    pd.testing.assert_frame_equal(counts, counts.sort_values(order, kind="stable", ignore_index=True))
    metrics = pq.ParquetFile(out / "metrics.parquet").metadata.row_group(0)
    columns = [metrics.column(place) for place in range(metrics.num_columns)]
    floats = [column for column in columns if column.physical_type == "FLOAT"]
    assert floats
    assert all("BYTE_STREAM_SPLIT" in column.encodings for column in floats)
    assert {column.compression for column in columns} == {"ZSTD"}


def test_samples_at_the_usual_temperature_are_published_once(published, tmp_path, capsys):
    """Also where an evaluation at this temperature was also written to a folder of its own."""
    root, out = shutil.copytree(published[0], tmp_path / SCALE), tmp_path / "out"
    of_run = Layout(root).evaluation(MODEL, "grpo", 0)
    shutil.copytree(of_run, of_run / "T0.7")
    run(capsys, "archive", root, out)
    assert_same(published[1], out, "counts", "samples")
    run(capsys, "restore", out, "--out", tmp_path / "restored" / SCALE)
    (of_run / "aime24.parquet").unlink()  # tables read no other
    missing = error(capsys, "archive", root, tmp_path / "none")
    assert f"{of_run}/aime24.parquet is missing" in missing


def test_metrics_of_all_runs_are_one_table(published):
    root, out = published
    metrics = pd.read_parquet(out / "metrics.parquet")
    assert metrics["step"].tolist() == [*range(5)] * 2
    stored = pd.read_parquet(Run(MODEL, "grpo", 1).metrics_file(root))
    np.testing.assert_allclose(metrics.loc[metrics["seed"] == 1, "entropy"], stored["entropy"], rtol=1e-6)
    assert [*metrics] == ["model", "method", "seed", "step", *stored.columns.drop("step")]


def test_samples_of_all_evaluations_are_one_table(published):
    root, out = published
    samples = pd.read_parquet(out / "samples.parquet")
    counts = pd.read_parquet(out / "counts.parquet")
    assert len(samples) == counts["samples"].sum()
    keys = ["model", "method", "seed", "dataset"]
    at_07 = samples[samples["temperature"] == 0.7]
    totals = counts[counts["temperature"] < 0.9].groupby(keys)["correct"].sum()
    assert at_07.groupby(keys)["correct"].sum().to_dict() == totals.to_dict()
    stored = pd.read_parquet(Run(OTHER, "clip_b", 3).evaluation_file(root, "aime24"))
    one = at_07.query(f"model == {OTHER!r} and method == 'clip_b' and seed == 3 and dataset == 'aime24'")
    pd.testing.assert_frame_equal(one[stored.columns].reset_index(drop=True), stored)
    assert [*samples] == ["model", "method", "seed", "temperature", "dataset", *stored.columns]


def test_responses_of_training_steps_are_one_table(published):
    tokens = pd.read_parquet(published[1] / "tokens.parquet")
    assert list(tokens) == ["model", "method", "seed", "step", "problem_id", "logp"]
    identified = tokens[["seed", "step", "problem_id"]].to_numpy().tolist()
    assert identified == [[0, 4, "a"], [0, 4, "b"], [1, 4, "a"], [1, 4, "b"]]
    assert [list(logp) for logp in tokens["logp"]] == [[-0.5], [-1, -2], [-1.5], [-1, -2]]
    assert "| `tokens.parquet` | 4 |" in (published[1] / "README.md").read_text()


def test_samples_of_engines_with_and_without_log_probabilities_are_one_table(tmp_path):
    """As of rollouts of an earlier policy, whose ratios need the engine's log p, beside GRPO's."""
    root = tmp_path / SCALE
    for method in ("grpo", "clip_b@training.staleness=3", "kl_cov"):
        write_evaluation(root, Run(MODEL, method, 0), "aime24", np.arange(8) < [[3], [0]])
    file = Run(MODEL, "clip_b@training.staleness=3", 0).evaluation_file(root, "aime24")
    write_parquet(file, pd.read_parquet(file).assign(logp=-1.5))
    write_metrics(root, Run(MODEL, "grpo", 0), steps=2)
    write_json(Layout(root).model(MODEL, 0) / "model.json", model_facts(MODEL))
    assert main(["archive", str(root), str(tmp_path / "out")]) == 0
    samples = pd.read_parquet(tmp_path / "out" / "samples.parquet").groupby("method")["logp"]
    assert samples.count().to_dict() == {"clip_b@training.staleness=3": 16, "grpo": 0, "kl_cov": 0}


def test_checksums_are_those_that_sha256sum_computes(published, tmp_path):
    folder = shutil.copytree(published[1], tmp_path / "copy")
    check = ["sha256sum", "--strict", "-c", "SHA256SUMS"]
    assert subprocess.run(check, cwd=folder, capture_output=True).returncode == 0
    named = {line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
    assert files_in(folder).keys() - named == {"SHA256SUMS"}
    assert {"README.md", "LICENSE", "CITATION.cff", "counts.parquet", "claims.json", "controls.json"} <= named
    (folder / "README.md").write_text("edited")
    assert subprocess.run(check, cwd=folder, capture_output=True).returncode == 1


def test_the_data_card_describes_what_is_there(published):
    out = published[1]
    _, front, text = (out / "README.md").read_text().split("---\n", 2)
    card = yaml.safe_load(front)
    assert card["license"] == "apache-2.0"
    files = {config["config_name"]: config["data_files"] for config in card["configs"]}
    assert set(files) == {"counts", "metrics", "samples", "tokens"}
    for name, file in files.items():
        assert f"| `{file}` | {len(pd.read_parquet(out / file))} |" in text, name
    assert "| `qwen2.5-7b-instruct` | toy Qwen2 for Qwen2.5-7B-Instruct, 0.11 M parameters |" in text
    assert "| `aime24` | toy AIME24 |" in text
    assert "Of 0 claims" in text
    assert "Apache License" in (out / "LICENSE").read_text()


def test_the_ten_lines_of_the_data_card_run(published, monkeypatch, capsys):
    """What they print is the pooled gain that the claims would have."""
    monkeypatch.chdir(published[1])
    (code,) = re.findall(r"```python\n(.*?)```", (published[1] / "README.md").read_text(), re.DOTALL)
    exec(compile(code, "card", "exec"), {})
    expected = pooled_gain(published[1] / "counts.parquet").value
    assert float(capsys.readouterr().out) == pytest.approx(expected)


def test_a_doi_goes_into_the_card_and_the_citation(published, tmp_path, capsys):
    root, out = published
    assert yaml.safe_load((out / "CITATION.cff").read_text()).get("doi") is None
    for name in ("README.md", "CITATION.cff"):
        assert "--doi" in (out / name).read_text()
    refused = error(capsys, "archive", root, tmp_path, "--doi", "zenodo.7")
    assert "'zenodo.7' is not a DOI, such as 10.5281/zenodo.1234567" in refused
    assert "no DOI" not in run(capsys, "archive", root, tmp_path, "--doi", "10.5281/zenodo.7")
    assert yaml.safe_load((tmp_path / "CITATION.cff").read_text())["doi"] == "10.5281/zenodo.7"
    assert "https://doi.org/10.5281/zenodo.7" in (tmp_path / "README.md").read_text()


def test_what_was_published_comes_back(published, tmp_path, capsys):
    _, out = published
    command = run(capsys, "restore", out, "--out", tmp_path / "in results" / SCALE).splitlines()[-1]
    run(capsys, *shlex.split(command)[1:])
    restored = (tmp_path / "in results" / SCALE).rename(tmp_path / SCALE)
    assert (restored / "claims.json").is_file()
    none = f"{restored} was restored from published counts: there are no samples to verify"
    assert error(capsys, "verify", restored) == none
    run(capsys, "archive", restored, tmp_path / "again")
    assert_same(out, tmp_path / "again", "counts", "metrics")
    assert (out / "models.json").read_text() == (tmp_path / "again/models.json").read_text()


@pytest.mark.parametrize("folder", ["published", "docs/reference/laptop/paper/seeds-50-54"])
def test_a_folder_of_another_scale_is_refused(published, tmp_path, capsys, folder):
    folder, scale = (published[1], SCALE) if folder == "published" else (ROOT / folder, "laptop")
    message = f"{folder} was made at scale {scale}, not desk: restore it as {tmp_path}/{scale}"
    assert error(capsys, "restore", folder, "--out", tmp_path / "desk") == message
    assert not (tmp_path / "desk").exists()


def test_what_cannot_be_restored_is_one_line(published, tmp_path, capsys):
    out = shutil.copytree(published[1], tmp_path / "out")

    def refused(*folders: Path) -> str:
        line = error(capsys, "restore", *folders, "--out", tmp_path / SCALE)
        assert not (tmp_path / SCALE).exists()
        return line

    both = f"{out} and {published[1]} both have seed 0: one untrained model counts once"
    assert refused(out, published[1]) == both
    missing = f"No such file or directory: '{tmp_path}/none/models.json'"
    assert missing in refused(tmp_path / "none")
    counts, models = pd.read_parquet(out / "counts.parquet"), (out / "models.json").read_text()
    uneven = counts.assign(samples=np.arange(len(counts)) % 2 + 16)
    for damaged, message in (
        (counts.assign(dataset="../../escaped"), "counts.parquet: dataset should have names; get it again"),
        (counts.assign(dataset=["..", *counts["dataset"][1:]]), "counts.parquet: dataset should have names"),
        (counts.assign(seed="a"), "counts.parquet: seed should have numbers of 0 or more"),
        (counts.assign(temperature=np.inf), "counts.parquet: temperature should have numbers of 0 or more"),
        (counts.drop(columns="seed"), "counts.parquet has no column 'seed'"),
        (uneven, "counts.parquet: an evaluation lacks problems or samples"),
        (pd.concat([counts, counts[:3]]), "counts.parquet has two rows of one problem"),
        (pd.concat([counts, counts[:1].assign(correct=99)]), "counts.parquet has two rows of one problem"),
        (counts.assign(samples=0, correct=0), "counts.parquet: an evaluation lacks problems or samples"),
        (counts[counts["problem"] != 7], "counts.parquet: an evaluation lacks problems or samples"),
        (counts.assign(correct=counts["samples"] + 1), "counts.parquet: an evaluation lacks problems or samples"),
        (counts.assign(seed=counts["seed"] - 1), "seed should have numbers of 0 or more"),
    ):
        damaged.to_parquet(out / "counts.parquet")
        assert message in refused(out)
    (out / "counts.parquet").write_text("no")
    assert "): get it again" in refused(out)
    counts.to_parquet(out / "counts.parquet")
    for text, message in (
        ("[]", "it should be a mapping"),
        (json.dumps(json.loads(models)["models"]), "no value for scale"),
        (json.dumps({"scale": SCALE, "models": {"m": 5}}), "models.m is 5"),
        (models.replace(MODEL, "..", 1), "is '..'; it should match pattern"),
        ("{", "): get it again"),
    ):
        (out / "models.json").write_text(text)
        line = refused(out)
        assert "models.json" in line
        assert message in line
    (out / "models.json").write_text(models)
    assert not (tmp_path / "escaped").exists()
    (tmp_path / SCALE).mkdir()
    line = error(capsys, "restore", out, "--out", tmp_path / SCALE)
    assert "already exists; name a new folder" in line


def test_rows_may_be_in_any_order_and_seeds_in_one_of_the_files_alone(published, tmp_path):
    out = shutil.copytree(published[1], tmp_path / "out")
    pd.read_parquet(out / "counts.parquet").sample(frac=1, random_state=0).to_parquet(out / "counts.parquet")
    metrics = pd.read_parquet(out / "metrics.parquet")
    metrics.assign(seed=metrics["seed"] * 70).to_parquet(out / "metrics.parquet")
    for folder, name in ((published[1], "as it was"), (out, "shuffled")):
        assert main(["restore", str(folder), "--out", str(tmp_path / name / SCALE)]) == 0
    was, now = (
        {file.relative_to(root): pd.read_parquet(file) for file in root.rglob("evaluations/**/*.parquet")}
        for root in (tmp_path / "as it was" / SCALE, tmp_path / "shuffled" / SCALE)
    )
    assert was.keys() == now.keys()
    for file, frame in was.items():
        pd.testing.assert_frame_equal(frame, now[file])


def test_folders_of_different_models_are_not_pooled(published, tmp_path, capsys):
    out = shutil.copytree(published[1], tmp_path / "out")
    for name in ("counts", "metrics"):
        frame = pd.read_parquet(out / f"{name}.parquet")
        frame.assign(seed=frame["seed"] + 50).to_parquet(out / f"{name}.parquet")
    models = json.loads((out / "models.json").read_text())
    models["models"][MODEL]["parameters"] += 1
    (out / "models.json").write_text(json.dumps(models))
    line = error(capsys, "restore", published[1], out, "--out", tmp_path / SCALE)
    assert f"models.json has another model {MODEL!r} than a folder before" in line
    assert not (tmp_path / SCALE).exists()


def test_nothing_to_publish_is_one_line(tmp_path, capsys):
    (tmp_path / "results").mkdir()
    assert "no files" in error(capsys, "archive", tmp_path / "results", tmp_path / "out")


def test_a_folder_with_other_files_is_left_as_it_is(published, tmp_path, capsys):
    root, out = published
    (tmp_path / "README.md").write_text("mine")
    for folder in (tmp_path, root, out):
        before = sorted(folder.rglob("*"))
        line = error(capsys, "archive", root, folder)
        assert ("is in the results" if folder == root else "is not an empty folder") in line
        assert sorted(folder.rglob("*")) == before
    assert (tmp_path / "README.md").read_text() == "mine"


def test_a_folder_is_written_as_a_whole_or_not_at_all(published, tmp_path, capsys):
    results = shutil.copytree(published[0], tmp_path / SCALE)
    truncate(Layout(results).step_samples(MODEL, "grpo", 0) / "step4.parquet")
    error(capsys, "archive", results, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [results]


def test_numbers_of_problems_and_seeds_may_be_large(tmp_path):
    """More problems than 16 bits count, of which one is solved, and a seed above 32 bits."""
    root, seed, problems = tmp_path / "results" / SCALE, 3_000_000_000, 33_000
    write_evaluation(root, Run(MODEL, "grpo", seed), "aime24", np.arange(problems)[:, None] == [problems - 1])
    write_metrics(root, Run(MODEL, "grpo", seed), steps=5)
    write_json(Layout(root).model(MODEL, 0) / "model.json", model_facts(MODEL))
    assert main(["archive", str(root), str(tmp_path / "out")]) == 0
    counts, metrics = (pd.read_parquet(tmp_path / "out" / f"{name}.parquet") for name in ("counts", "metrics"))
    assert counts["problem"].tolist() == list(range(problems))
    assert set(counts["seed"]) == set(metrics["seed"]) == {seed}
    assert main(["restore", str(tmp_path / "out"), "--out", str(tmp_path / SCALE)]) == 0
    results = Results(tmp_path / SCALE, SCALE, {"tables": 1, "extras": 1, "pilot": 1})
    before = Results(root, SCALE, {}).samples(Run(MODEL, "grpo", seed), "aime24").correct
    assert before.sum() == 1
    np.testing.assert_array_equal(results.samples(Run(MODEL, "grpo", 0), "aime24").correct, before)
