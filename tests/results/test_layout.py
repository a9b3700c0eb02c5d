"""Paths of results, read back: what a path says is what it was made from."""

from pathlib import Path

import pytest

from entropy_dynamics.results.layout import Layout
from entropy_dynamics.results.progress import Progress, trained_steps

LAYOUT = Layout(Path("somewhere/runs/seed9/results/smoke"))  # names of folders above do not matter
RUN = ("Toy_X.5", "clip_b@mu=1.2,apply_to=both", 12)


@pytest.mark.parametrize(
    ("path", "run", "temperature", "step"),
    [
        (LAYOUT.metrics(*RUN), RUN, None, 0),
        (LAYOUT.log("runs", *map(str, RUN)), RUN, None, 0),
        (LAYOUT.evaluation_file(*RUN, "seed3"), RUN, None, 0),
        (LAYOUT.evaluation_file(*RUN, "T1", 0.7), RUN, 0.7, 0),
        (LAYOUT.evaluation_file(*RUN, "aime24", 0.0), RUN, 0.0, 0),
        (LAYOUT.evaluation_file(*RUN, "aime24", 1e-5), RUN, 1e-5, 0),
        (LAYOUT.evaluation_file(*RUN, "T1"), RUN, None, 0),
        (LAYOUT.evaluation_file(*RUN, "T"), RUN, None, 0),
        (LAYOUT.step_samples(*RUN) / "step40.parquet", RUN, None, 40),
        (LAYOUT.facts("toy", "base", 3), ("toy", "base", 3), None, 0),
        (LAYOUT.pass_rates(7), ("", "base", 7), None, 0),
    ],
)
def test_what_a_path_says(path, run, temperature, step):
    assert LAYOUT.parse(path) == (path, run, temperature, step)


@pytest.mark.parametrize("path", [LAYOUT.problems("train"), LAYOUT.report, LAYOUT.logit_steps])
def test_a_path_of_no_run(path):
    assert LAYOUT.parse(path) is None


@pytest.mark.parametrize("scale", ["smoke", "data", "mine", "grpo"])
def test_a_recorded_name_is_where_the_results_are_now(scale):
    """Also if a model, a method or a folder has the name of the scale."""
    layout = Layout(Path("moved") / scale)
    files = [layout.problems("train"), layout.facts("mine", "base", 0), layout.facts("mine", "grpo", 0)]
    recorded = [Path("/home", scale, "results", file.relative_to("moved")) for file in files]
    assert [layout.here(file.as_posix(), scale) for file in recorded] == files
    assert layout.here("own/mine.jsonl", scale) == Path("own/mine.jsonl")


def test_finished_files_are_found_in_order(tmp_path):
    layout = Layout(tmp_path)
    made = [layout.metrics("toy", method, seed) for method in ("clip_b", "grpo") for seed in (0, 1)]
    for file in [*reversed(made), layout.run("toy", "grpo", 2) / "config.yaml"]:
        file.parent.mkdir(parents=True)
        file.touch()
    assert [place.path for place in layout.find("runs", "/metrics.parquet")] == made


def test_a_line_of_progress_is_read_as_it_was_written(tmp_path, capsys):
    """But not that of another kind of progress, in which no policy is trained."""
    Progress("warm start", 1).step(loss=2.0)
    progress = Progress("toy grpo seed 0", 2)
    progress.step(entropy=1.25, accuracy=0.5)
    progress.step(entropy=-1e-9, accuracy=0.625)  # of rounding
    (log := tmp_path / "seed0.log").write_text(f"a note\n{capsys.readouterr().err}")
    assert trained_steps(log) == [(1, 2, 1.25, 0.5), (2, 2, 0.0, 0.625)]
    assert trained_steps(tmp_path / "none.log") == []
