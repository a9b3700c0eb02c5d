"""Tables from synthetic evaluations: their numbers, their forms, and evaluations that do not fit together."""

import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from entropy_dynamics.analysis.statistics import share_interval
from entropy_dynamics.cli import main
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.load import Run, load_experiment
from entropy_dynamics.results.files import write_parquet
from synthetic_results import (
    DATASETS,
    EXPERIMENTS,
    MODEL,
    ROOT,
    SCALE,
    SEEDS,
    draw,
    evaluation_frame,
    results_in,
    write_all,
    write_evaluation,
    write_models,
)

TABLES = [name for name, experiment in EXPERIMENTS.items() if experiment.spec.kind == "scores"]


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """Synthetic runs: three seeds for the tables, one for the rest. Read-only for the tests."""
    folder = tmp_path_factory.mktemp("results") / SCALE
    write_all(folder, SEEDS, names=[*TABLES, "figure1", "figure6"])
    return folder


def test_a_table_in_its_three_forms(tmp_path):
    folder = tmp_path / SCALE
    write_models(folder)
    rng, seeds = np.random.default_rng(3), {"tables": 5, "extras": 1, "pilot": 1}
    by_run = {}
    for run in load_experiment("table1", SCALE, seeds, ROOT / "experiments").runs:
        for dataset in DATASETS:
            p = {"base": 0.1, "grpo": 0.3, "clip_b": 0.8, "clip_v": 0.3}[run.method]
            by_run[run, dataset] = rng.random((20, 4)) < p
            write_evaluation(folder, run, dataset, by_run[run, dataset])
    csv, md, tex = draw("table1", folder, seeds)
    table = pd.read_csv(csv).set_index(["model", "method"])
    assert list(table.loc[MODEL].index) == ["base", "grpo", "clip_b", "clip_v"]
    row = table.loc[(MODEL, "clip_b")]
    assert (row.aime24_avg_paper, row.dapo500_pass_paper) == (19.69, 80.2)
    assert row.model_that_ran == "toy Qwen2 for Qwen2.5-7B-Instruct, 0.11 M parameters"
    # Each seed has an untrained model.
    base = [by_run[Run(MODEL, "base", seed), "aime24"].mean(axis=1) for seed in range(5)]
    low = 100 * share_interval(np.stack(base)).low
    assert table.loc[(MODEL, "base")].aime24_avg_low == pytest.approx(low, abs=1e-3)
    # Bold is what passes Holm's correction over the table's 36 differences, and nothing else.
    text = md.read_text()
    adjusted = table.filter(regex="_difference_p$").to_numpy().ravel()
    known = np.sum(~np.isnan(adjusted))
    bold = int((adjusted < 0.05).sum())
    names = table.filter(regex="_difference$").columns
    excluded = sum(((table[f"{of}_low"] > 0) | (table[f"{of}_high"] < 0)).sum() for of in names)
    assert 0 < bold < excluded
    assert f"Holm's correction for {known} comparisons" in text
    assert len(re.findall(r"\*\*[+-]", text)) == bold
    assert set(table.difference) == {"median over seeds"}
    # LaTeX says the same as Markdown.
    plain = re.sub(r"\\textbf\{(.*?)\}", r"\1", tex.read_text().replace("$-$", "-"))
    rows = [line.removesuffix(r" \\[3pt]").removesuffix(r" \\") for line in plain.splitlines() if "& " in line]
    shown = [re.split(r" ?& ", line)[1:] for line in rows[1:]]
    markdown = text.partition("Samples without")[0].replace("*", "").splitlines()
    cells = [line.strip("| ").split(" | ") for line in markdown if re.match(r"\| [^ |-]", line)]
    assert shown == [row[1:] for row in cells]
    labels = ["Base model", "median difference per seed", "the paper", "GRPO", "the paper", "Clip_B"]
    assert [row[0] for row in cells[:6]] == labels
    assert cells[6][0] == labels[1]
    assert cells[7][:2] == ["the paper", "19.69 (+2.81)"]


def test_a_table_has_the_seeds_whose_runs_are_all_there(results, tmp_path):
    folder = shutil.copytree(results, tmp_path / SCALE)
    whole = pd.read_csv(draw("table1", folder, SEEDS)[0]).set_index(["model", "method"])
    Run(MODEL, "clip_b", 1).evaluation_file(folder, "aime25").unlink()
    csv, md, _ = draw("table1", folder, SEEDS)
    part = pd.read_csv(csv).set_index(["model", "method"])
    assert (set(whole.seeds), set(part.seeds)) == ({3}, {2})
    assert "over 2 of 3 seeds and over problems" in md.read_text()
    assert part.loc[(MODEL, "grpo")].aime24_avg_low != whole.loc[(MODEL, "grpo")].aime24_avg_low  # of every method
    shutil.rmtree(Run(MODEL, "grpo", 2).evaluation_file(folder, "aime25").parent)
    caption = draw("table1", folder, SEEDS)[1].read_text()
    assert "none for one seed of a trained one, 1 of 3 seeds so far)" in caption
    assert "Holm" not in caption  # one seed is compared nowhere
    Run(MODEL, "clip_v", 0).evaluation_file(folder, "aime24").unlink()
    with pytest.raises(UserError, match=" is missing; "):
        draw("table1", folder, SEEDS)


def test_draw_says_what_lacks_runs(tmp_path, capsys):
    folder = tmp_path / SCALE
    write_all(folder, SEEDS, names=["table1"])
    Run(MODEL, "grpo", 1).evaluation_file(folder, "aime25").unlink()
    options = ["--scale", SCALE, "--results", str(tmp_path), "--set", "seeds.tables=3", "--set", "seeds.extras=1"]
    assert main(["draw", "table1", *options]) == 0
    assert capsys.readouterr().err == "table1: 2 of 3 seeds, as the others lack runs\n"
    assert main(["draw", *options]) == 0  # everything that has runs
    said = capsys.readouterr().err.splitlines()
    assert "table1: 2 of 3 seeds, as the others lack runs" in said
    assert "figure1" in said[-1].removeprefix("left out, as runs are missing: ").split(", ")
    assert (folder / "figures" / "pass_at_k.png").is_file()


def test_a_toy_model_never_goes_under_the_real_name(results):
    _, md, tex = draw("table1", results, SEEDS)
    for text in (md.read_text(), tex.read_text()):
        assert "Qwen2.5-7B-Instruct" in text
        assert not re.search(r"(?<!toy Qwen2 for )(?<!toy )Qwen", text)
        assert "toy DAPO500 (60 problems" in text
        assert not re.search(r"(?<!toy )(AIME2|DAPO5)", text)
    for name in ("figure1", "figure6"):
        assert pd.read_csv(draw(name, results, SEEDS)[2]).model_that_ran.str.startswith("toy Qwen2 for ").all()


def test_evaluations_on_other_problems_are_not_paired(results, tmp_path):
    shutil.copytree(results, tmp_path / SCALE)
    run = Run(MODEL, "clip_b", 0)
    write_evaluation(tmp_path / SCALE, run, "aime24", np.ones((29, 32), dtype=bool))
    said = "clip_b/seed0/aime24.parquet: other problems or another K than the other runs'"
    with pytest.raises(UserError, match=said):
        draw("table1", tmp_path / SCALE, SEEDS)
    whole = evaluation_frame(np.ones((30, 32), dtype=bool))
    twice = pd.concat([whole.iloc[1:], whole.iloc[-1:]])
    unknown = whole.assign(correct=whole["correct"].astype("boolean").mask(whole["sample"] == 3))
    for frame in (whole.iloc[:-1], twice, unknown.astype({"sample": "Int64"})):
        write_parquet(run.evaluation_file(tmp_path / SCALE, "aime24"), frame)
        with pytest.raises(UserError, match="not every problem has the same number of samples"):
            draw("table1", tmp_path / SCALE, SEEDS)


def test_samples_are_counted_whatever_their_order(tmp_path):
    correct = np.array([[True, False, True], [False, False, False], [True, True, True]])
    run, columns = Run(MODEL, "grpo", 0), evaluation_frame(correct).sample(frac=1, random_state=1)
    write_parquet(run.evaluation_file(tmp_path, "aime24"), columns.assign(more="unread"))
    samples = results_in(tmp_path).samples(run, "aime24")
    assert (samples.correct.tolist(), samples.k) == ([2, 0, 3], 3)
    assert samples.pass_rates == pytest.approx([2 / 3, 0, 1])
    assert samples.solved.tolist() == [1, 0, 1]
    assert (samples.unreadable, samples.truncated) == pytest.approx((1 / 3, 1 / 3))  # evaluation_frame: one of three
