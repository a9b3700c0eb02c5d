"""Seeds of restored results: which count, in which order, and those of several folders together."""

import json
import shlex
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from command_line import error, run
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.cli import main
from entropy_dynamics.experiments.load import Run, load_experiment
from entropy_dynamics.results.files import write_json
from entropy_dynamics.results.layout import SEEDS, Layout
from synthetic_results import MODEL, SCALE, model_facts, write_evaluation, write_metrics

SEEDS_5 = {seed: [seed, 1] for seed in range(5)}
PILOTS = {100: [7, 7], 101: [8, 8]}


def archived(folder: Path, scale: str, base: dict[int, list[int]], grpo: dict[int, list[int]], **others: dict) -> str:
    """A published folder with two problems, of which these numbers of eight samples are correct, by seed."""
    root = folder / scale
    for method, correct in {"base": base, "grpo": grpo, **others}.items():
        for seed, counts in correct.items():
            write_evaluation(root, Run(MODEL, method, seed), "aime24", np.arange(8) < np.array(counts)[:, None])
            if method != "base":
                write_metrics(root, Run(MODEL, method, seed), steps=5)
    write_json(Layout(root).model(MODEL, 0) / "model.json", model_facts(MODEL))
    assert main(["archive", str(root), str(folder / "out")]) == 0
    return str(folder / "out")


def correct_of(root: Path, method: str, seeds: Iterable[int]) -> list[list[int]]:
    results = Results(root, root.name, {})
    samples = (results.samples(Run(MODEL, method, seed), "aime24") for seed in seeds)
    return [of.correct.tolist() for of in samples]


def test_one_untrained_model_counts_for_all_seeds(tmp_path, capsys):
    """A pretrained model without a cold start is evaluated once, as seed 0, whatever the seeds of the runs are."""
    folders = [
        archived(tmp_path / str(first), "paper", {0: [3, 0]}, {first: [0, 1], first + 1: [1, 1]})
        for first in (50, 40_000)  # the second is above 16 bits
    ]
    capsys.readouterr()
    assert "seeds.tables=4" in run(capsys, "restore", *folders, "--out", root := tmp_path / "paper")
    assert correct_of(root, "base", [0]) == [[3, 0]]
    assert correct_of(root, "grpo", range(4)) == [[0, 1], [1, 1]] * 2


def test_a_seed_counts_with_its_runs_and_not_with_their_rows(tmp_path):
    """Two methods have seed 1; seed 0 has one, with two data sets more. Answers are unknown."""
    more = Run(MODEL, "grpo", 0)
    for dataset in ("aime25", "dapo500"):
        write_evaluation(tmp_path / "a" / SCALE, more, dataset, np.ones((90, 8), bool))
    one = archived(tmp_path / "a", SCALE, {}, {0: [2, 2]})
    both = archived(tmp_path / "b", SCALE, {}, {1: [0, 1]}, clip_b={1: [3, 3]})
    assert main(["restore", one, both, "--out", str(tmp_path / SCALE)]) == 0
    assert correct_of(tmp_path / SCALE, "grpo", range(2)) == [[0, 1], [2, 2]]
    restored = pd.read_parquet(more.evaluation_file(tmp_path / SCALE, "aime24"))
    assert [*restored] == ["problem_id", "sample", "correct", "answer", "finish_reason"]
    assert set(restored["answer"]) == set(restored["finish_reason"]) == {""}


def test_seeds_of_untrained_models_alone_come_last(tmp_path, capsys):
    """A stopped run has more untrained models than runs; `seeds.tables` counts the runs."""
    folders = [
        archived(tmp_path / "first", "laptop", {0: [3, 0], 1: [3, 1], 2: [3, 2]}, {0: [0, 1]}),
        archived(tmp_path / "second", "laptop", {50: [4, 0], 51: [4, 1], 52: [4, 2]}, {50: [1, 1], 51: [2, 1]}),
    ]
    capsys.readouterr()
    said = run(capsys, "restore", *folders, "--out", root := tmp_path / "laptop")
    assert "seeds.tables=3" in said
    assert correct_of(root, "grpo", range(3)) == [[0, 1], [1, 1], [2, 1]]
    assert correct_of(root, "base", range(6)) == [[3, 0], [4, 0], [4, 1], [3, 1], [3, 2], [4, 2]]


def judged(folders: list[str], root: Path, capsys) -> tuple[str, dict]:
    """The command that `restore` prints for these folders, and the entries that it writes, by id."""
    command = run(capsys, "restore", *folders, "--out", root).splitlines()[-1]
    assert main(shlex.split(command)[1:]) == 0
    return command, {entry["id"]: entry for entry in json.loads((root / "claims.json").read_text())}


def test_pilot_seeds_do_not_count_as_reported_ones(tmp_path, capsys):
    reported, piloted = (
        archived(tmp_path / name, SCALE, SEEDS_5 | more, SEEDS_5 | more, clip_b=SEEDS_5 | more)
        for name, more in (("reported", {}), ("piloted", PILOTS))
    )
    _, expected = judged([reported], tmp_path / "restored" / SCALE, capsys)
    command, entries = judged([piloted], tmp_path / "with pilots" / SCALE, capsys)
    assert command.endswith("--set seeds.first=0 --set seeds.tables=5 --set seeds.extras=5 --set seeds.pilot=2")
    assert entries == expected
    assert entries["entropy_held_clip_b_qwen2.5"]["seeds"] == 5
    assert main(["archive", str(tmp_path / "with pilots" / SCALE), str(tmp_path / "again")]) == 0
    for name in ("counts", "metrics"):
        first, again = (pd.read_parquet(Path(folder) / f"{name}.parquet") for folder in (piloted, tmp_path / "again"))
        pd.testing.assert_frame_equal(first, again)


def test_seeds_from_200_on_are_reported_ones_and_no_more_than_have_numbers(tmp_path, capsys):
    folder = archived(tmp_path / "out", "rates", {}, {seed: [0, seed - 199] for seed in (200, 201, 202)})
    said = run(capsys, "restore", folder, "--out", root := tmp_path / "rates")
    assert said.endswith("--set seeds.first=0 --set seeds.tables=3 --set seeds.extras=3\n")
    assert correct_of(root, "grpo", range(3)) == [[0, 1], [0, 2], [0, 3]]
    many = archived(tmp_path / "many", SCALE, {}, {seed: [0, 1] for seed in range(200, 301)})
    capsys.readouterr()
    said = error(capsys, "restore", many, "--out", tmp_path / SCALE)
    assert said.startswith("the folders have 101 reported seeds; restore takes 100 at most, as pilots have the numbers")
    for path in Path(many).glob("*s.parquet"):
        pd.read_parquet(path).query("seed < 300").to_parquet(path)
    assert main(["restore", many, "--out", str(tmp_path / SCALE)]) == 0


def test_the_scale_beyond_has_the_seeds_that_were_restored(tmp_path):
    """They are numbered from 0, whatever the first seed of the scale."""
    root = tmp_path / "rates-desk"
    write_json(root / SEEDS, [200, 201, 203])
    own = load_experiment("left_desk", root.name, {"first": 0, "tables": 3}, Path("experiments/rates"))
    for file in own.input_files(root):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    results = Results(tmp_path / "rates", "rates", {"first": 0, "tables": 1})
    found, _ = results.beyond(results.experiment("left"))
    assert {run.seed for run in found.runs} == {0, 1, 2}


def test_pilot_seeds_of_several_folders_are_the_same_ones(tmp_path, capsys):
    """Every replication has the pilots 100, 101, ... beside its own seeds, here also one pilot more than the config."""
    first = archived(tmp_path / "first", SCALE, {}, {0: [0, 1], 1: [0, 2]} | PILOTS | {102: [6, 6], 104: [0, 4]})
    second = archived(tmp_path / "second", SCALE, {}, {200: [0, 3]} | {100: [5, 5]})
    said = run(capsys, "restore", first, second, "--out", root := tmp_path / SCALE)
    assert "seeds.tables=4 --set seeds.extras=4 --set seeds.pilot=3" in said
    # 104 is no pilot, as 103 is not there
    assert correct_of(root, "grpo", range(4)) == [[0, 1], [0, 2], [0, 4], [0, 3]]
    assert correct_of(root, "grpo", (100, 101, 102)) == [[7, 7], [8, 8], [6, 6]]


@pytest.mark.parametrize("seeds", [range(100, 102), range(102, 107)])
def test_without_seeds_below_the_pilots_the_config_tells_their_number(tmp_path, capsys, seeds):
    folder = archived(tmp_path / "out", SCALE, {}, PILOTS | {seed: [1, 1] for seed in seeds})
    said = run(capsys, "restore", folder, "--out", tmp_path / SCALE)
    reported = "--set seeds.tables=5 --set seeds.extras=5 " if 106 in seeds else ""
    assert said.endswith(f"--set seeds.first=0 {reported}--set seeds.pilot=2\n")


@pytest.mark.parametrize("number", [1, 7])
def test_a_method_with_other_seeds_than_the_rest_changes_no_verdict(tmp_path, capsys, number):
    """Also as a method of claims: those that compare it have no verdict without seeds, all others stay."""
    other = {seed: [1, 1] for seed in range(number)}
    alike, uneven = (
        archived(tmp_path / name, SCALE, {}, SEEDS_5, clip_b=SEEDS_5, clip_v=SEEDS_5, **more)
        for name, more in (("alike", {}), ("uneven", {"kl_cov": other, "own": other}))
    )
    _, expected = judged([alike], tmp_path / "restored" / SCALE, capsys)
    command, entries = judged([uneven], tmp_path / "again" / SCALE, capsys)
    assert command.endswith("--set seeds.first=0 --set seeds.tables=5 --set seeds.extras=5")
    with_effect = {id: entry for id, entry in expected.items() if entry["effect"] is not None}
    assert len(with_effect) > 5
    assert {id: entries[id] for id in with_effect} == with_effect


def test_seeds_that_all_methods_have_come_first(tmp_path):
    """Two folders, each with ablations for two of three seeds: restored together, the group has four seeds."""
    folders = []
    for first in (0, 50):
        seeds = {first + place: [place, first // 10] for place in range(3)}
        fewer = {seed: counts for seed, counts in seeds.items() if seed < first + 2}
        folders.append(archived(tmp_path / str(first), SCALE, seeds, seeds, clip_v=fewer))
    assert main(["restore", *folders, "--out", str(tmp_path / SCALE)]) == 0
    root, both = tmp_path / SCALE, [[0, 0], [1, 0], [0, 5], [1, 5]]
    assert correct_of(root, "clip_v", range(4)) == both
    assert correct_of(root, "grpo", range(6)) == [*both, [2, 0], [2, 5]]
    assert Results(root, SCALE, {}).original(range(6)) == [0, 1, 50, 51, 2, 52]
