"""`entropy-dynamics verify` on sound, stale and missing results, and on those of other configs."""

import shutil
from pathlib import Path

import pytest

from command_line import error, set_to
from entropy_dynamics.analysis.run_data import Samples
from entropy_dynamics.cli import main
from entropy_dynamics.config import load_config
from entropy_dynamics.experiments.load import load_experiment
from recorded_results import (
    AIME24,
    CLIP_B,
    LAYOUT,
    MODEL_JSON,
    RESULTS,
    SCALE,
    TABLE,
    edit,
    edit_rows,
    flip,
    hashes,
    set_cell,
    short,
    write_evaluation,
    write_run,
    write_untrained,
)
from synthetic_results import MODEL


# Sound results
@pytest.mark.usefixtures("whole")
def test_untouched_results_are_sound_and_stay_untouched(monkeypatch, capsys):
    """A long verification names what it checks."""
    monkeypatch.setattr("entropy_dynamics.verification.findings.LOG_EVERY_SECONDS", 0.0)
    before = hashes()
    assert main(["verify", "--scale", SCALE]) == 0
    out, err = capsys.readouterr()
    shown = [line.removeprefix("checking ") for line in err.splitlines()]
    folders = ["data", "models", "pass_rates", "runs", "evaluations", "tables", "figures", "claims.json"]
    assert list(dict.fromkeys(path.partition("/")[0] for path in shown)) == folders
    assert short(AIME24) in shown
    [summary] = out.splitlines()
    assert summary.endswith("nothing wrong")
    for part in ("5 problem sets", "1 models", "180 pass rates", "3 runs", "16 evaluations", "1 tables", "2 figures"):
        assert f" {part}" in summary
    assert f" {4 * (2 * 10 * 4 + 40 * 2 + 20 * 2)} samples" in summary
    assert f" {4 * 3 * 2} scores" in summary  # four rows: avg and pass of three sets
    assert hashes() == before


@pytest.mark.usefixtures("project")
def test_results_that_were_moved_and_those_that_are_incomplete(verify):
    Path("results").rename("elsewhere")
    assert verify("elsewhere/smoke")[:2] == (0, {})
    Path("elsewhere").rename("results")
    shutil.rmtree(CLIP_B)
    shutil.rmtree(AIME24.parent)
    shutil.rmtree(RESULTS / "tables")
    (RESULTS / "runs" / MODEL / "clip_v" / ".seed1.77.partial").mkdir()
    code, findings, summary = verify()
    assert (code, findings) == (0, {})
    assert " 2 runs," in summary


# Stale and missing files
@pytest.mark.usefixtures("project")
def test_a_deleted_run_and_a_deleted_record(verify):
    shutil.rmtree(CLIP_B)
    (AIME24.with_suffix(".provenance.json")).unlink()
    _, findings, _ = verify()
    missing = [short(AIME24.with_suffix(".provenance.json")), short(CLIP_B / "policy/model.json")]
    assert list(findings) == [("missing", file) for file in missing]


@pytest.mark.usefixtures("project")
def test_an_edited_problem_makes_stale_what_was_made_from_it_and_no_more(verify):
    edit_rows(LAYOUT.problems("aime24"), set_cell("answer", "1", row=3))
    _, findings, _ = verify()
    stale = [
        run.evaluation_file(RESULTS, "aime24")
        for run in load_experiment("table1", SCALE, {"tables": 1, "extras": 1, "pilot": 1}).runs
    ]
    assert list(findings) == [
        ("modified", "data/aime24.parquet"),
        *(("stale", name) for name in sorted(map(short, stale))),
    ]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("name", "wrong", "column"),
    [
        ("solved", lambda self: (self.correct > 1).astype(float), "_pass of "),
        ("pass_rates", lambda self: self.correct / self.k + 1e-5, "_avg of "),  # a thousandth of a point
    ],
)
def test_wrong_code_of_the_tables(verify, monkeypatch, name, wrong, column):
    """The table and the redrawn one agree; the samples say otherwise."""
    monkeypatch.setattr(Samples, name, property(wrong))
    main(["draw", "table1", "--scale", SCALE])
    code, findings, _ = verify()
    assert (code, list(findings)) == (1, [("stale", TABLE[0])])
    assert column in findings["stale", TABLE[0]]


# Different configs
@pytest.mark.usefixtures("project")
def test_a_config_edited_after_the_run(verify):
    edit(Path("configs/method/clip_b.yaml"), "{mu: 2.0}", "{mu: 2.1}")
    code, findings, _ = verify()
    assert code == 1
    assert findings == {("different config", short(CLIP_B / "config.yaml")): "method.params.mu 2.0 -> 2.1"}


@pytest.mark.usefixtures("project")
def test_the_config_beside_a_run(verify):
    edit(CLIP_B / "config.yaml", "prompts_per_step: 4", "prompts_per_step: 40")
    _, findings, _ = verify()
    file = short(CLIP_B / "config.yaml")
    assert list(findings) == [("modified", file), ("different config", file)]
    assert findings["different config", file] == "training.prompts_per_step 40 -> 4"


@pytest.mark.usefixtures("project")
def test_overrides_count_as_config(verify):
    settings = [
        *("training.steps=9", "evaluation.temperature=0.9", "pass_rates.low=0.3"),
        *(f"toy_models[{MODEL}].warm_start.steps=9", "data.evaluation.aime24.numbers=[3, 4]"),
    ]
    _, findings, _ = verify("results/smoke", *set_to(settings))
    assert {what for what, _ in findings} == {"different config"}
    named = {where: facts for (_, where), facts in findings.items()}
    assert len(named) == 3 + 16 + 2  # runs, evaluations, and:
    assert "warm_start.steps 80 -> 9" in named[f"models/{MODEL}/seed0/model.json"]
    assert named["data/problems.json"] == "data.evaluation.aime24.numbers [4, 4] -> [3, 4]"


@pytest.mark.usefixtures("project")
def test_a_table_of_more_seeds_than_the_config_has(verify):
    more = ("--set", "seeds.tables=2")
    for run in load_experiment("table1", SCALE, {"tables": 2, "extras": 1, "pilot": 1}).runs:
        if run.seed == 1:
            if run.method == "base":
                write_untrained(1)
            else:
                write_run(run)
            for dataset, k in load_config(SCALE).evaluation.samples.items():
                write_evaluation(run, dataset, k, 0.7)
    main(["draw", "table1", "--scale", SCALE, *more])
    code, findings, _ = verify()
    assert (code, list(findings)) == (1, [("different config", TABLE[0])])
    assert "seeds is 2, redrawn 1: give --set seeds.tables=" in findings["different config", TABLE[0]]
    assert verify("results/smoke", *more)[:2] == (0, {})


@pytest.mark.usefixtures("project")
def test_a_broken_experiment_or_claims_file_is_a_finding_beside_the_others(verify):
    main(["claims", "--scale", SCALE])
    edit_rows(AIME24, flip("correct"))
    Path("experiments/claims.yaml").write_text("tests: [")
    Path("experiments/table1.yaml").write_text("kind: scores\ntitle: [")
    code, findings, _ = verify()
    assert code == 1
    assert "experiments/claims.yaml: not valid YAML" in findings["different config", "claims.json"]
    assert "experiments/table1.yaml: not valid YAML" in findings["different config", TABLE[0]]
    assert ("modified", short(AIME24)) in findings


# Mistakes
@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["results/smok"], "unknown scale 'smok'; did you mean 'smoke'?"),
        (["empty/smoke", "--results", "results"], "verify takes the folder empty/smoke or --results results, not both"),
        (["nowhere/smoke"], "no folder nowhere/smoke; make it with: snakemake --config scale=smoke"),
        (["empty/smoke"], "empty/smoke contains no results"),
        (["--scale", SCALE, "--set", "training.stepz=3"], "did you mean 'steps'?"),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, part):
    Path("empty/smoke/logs").mkdir(parents=True)
    assert part in error(capsys, "verify", *arguments)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("path", "content", "command"),
    [
        (MODEL_JSON, "[1]", "draw table1"),
        (Path("experiments/paper_values.yaml"), "scores: [", "draw table1"),
    ],
)
def test_a_report_names_a_file_with_other_content(capsys, path, content, command):
    path.write_text(content)
    capsys.readouterr()
    assert error(capsys, *command.split(), "--scale", SCALE).startswith(str(path))
