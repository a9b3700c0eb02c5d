"""`entropy-dynamics verify` on sound, modified, stale and missing results and on other configs.

One thing changes, and has to be named.
"""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from matplotlib.image import imread, imsave
from PIL import Image

from command_line import error, set_to
from entropy_dynamics.analysis.run_data import Samples
from entropy_dynamics.cli import main
from entropy_dynamics.config import load_config
from entropy_dynamics.experiments.load import load_experiment
from entropy_dynamics.figures import style
from entropy_dynamics.results.files import sha256
from recorded_results import (
    AIME24,
    CLIP_B,
    CLIP_V,
    GRPO,
    LAYOUT,
    MODEL_JSON,
    PROBLEMS,
    RESULTS,
    SCALE,
    TABLE,
    edit,
    edit_json,
    edit_rows,
    flip,
    hashes,
    sampled,
    set_cell,
    short,
    without,
    write_evaluation,
    write_run,
    write_theory,
    write_untrained,
)
from synthetic_results import MODEL


def only(findings: dict, expected: dict) -> None:
    """There are these findings and no others, each with its fact, or a part of it."""
    assert list(findings) == list(expected)
    for place, fact in expected.items():
        assert fact in findings[place]


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


def test_results_that_were_moved_and_those_that_are_incomplete(verify):
    Path("results").rename("elsewhere")
    assert verify("elsewhere/smoke") == {}
    Path("elsewhere").rename("results")
    shutil.rmtree(CLIP_B)
    shutil.rmtree(AIME24.parent)
    shutil.rmtree(RESULTS / "tables")
    (RESULTS / "runs" / MODEL / "clip_v" / ".seed1.77.partial").mkdir()
    assert verify() == {}
    assert " 2 runs," in verify.summary


# Modified and swapped files
def test_cells_of_a_table(verify):
    path = RESULTS / "tables/table1.csv"
    table = pd.read_csv(path, dtype=str)
    was = table.loc[2, "aime25_avg_paper"]
    table.loc[2, ["aime25_avg_paper", "dapo500_pass_low"]] = "99.1234"
    path.write_text(table.to_csv(index=False))
    fact = f"line 4: aime25_avg_paper is 99.1234, redrawn {was}"
    assert verify() == {("modified", TABLE[0]): fact}
    assert verify.summary.endswith(": 1 wrong")


def test_claims_judged_by_a_damaged_file_are_as_redrawn(verify, capsys):
    """Their reasons contain its remedy."""
    (GRPO / "metrics.parquet").write_bytes(b"no")
    assert main(["claims", "--scale", SCALE]) == 0
    assert "delete it and rerun: snakemake" in LAYOUT.judged("claims", "json").read_text()
    assert {where for _, where in verify()} == {short(GRPO), short(GRPO / "metrics.parquet")}
    assert main(["draw", "figure5", "--scale", SCALE, "--results", str(RESULTS.parent.absolute())]) == 2
    assert capsys.readouterr().err.endswith("): make it or get it again\n")


def test_text_of_a_table_and_a_deleted_file(verify):
    edit(RESULTS / "tables/table1.md", "Qwen2.5", "Qwen3.5")
    (RESULTS / "tables/table1.tex").unlink()
    facts = {("modified", "tables/table1.md"): "redrawn"}
    only(verify(), facts | {("missing", "tables/table1.tex"): "its other files are there"})


@pytest.mark.parametrize("rehash", [False, True])
def test_an_incorrect_sample_marked_correct(verify, rehash):
    edit_rows(AIME24, flip("correct"), rehash)
    findings = verify()
    assert list(findings) == [("modified", short(AIME24)), *(("stale", name) for name in TABLE)]
    facts = findings["modified", short(AIME24)]
    assert ("its sha256 is" in facts) != rehash
    assert "sample 0: correct is" in facts
    assert "1 such rows" in facts


def test_impossible_rows_although_their_hash_is_right(verify_chain):
    changes = [
        (lambda frame: frame.iloc[1:], "does not have 4 samples of every problem"),
        (lambda frame: frame[frame["problem_id"] != frame["problem_id"][0]], "4 samples of every problem"),
        (set_cell("sample", 1), "4 samples of every problem"),
        (flip("formatted"), "formatted is"),
        (lambda frame: frame.assign(correct="yes"), "correct is yes"),
    ]
    files = [path for path in sorted(RESULTS.glob("evaluations/*/*/*/*.parquet")) if path.stem.startswith("aime")]
    for (change, _), file in zip(changes, files, strict=False):
        edit_rows(file, change, rehash=True)
    wrong = zip(files, changes, strict=False)
    only(verify_chain(), {("modified", short(file)): fact for file, (_, fact) in wrong})


def test_a_metrics_file_and_what_is_drawn_from_it(verify_all):
    metrics = GRPO / "metrics.parquet"
    edit_rows(metrics, set_cell("neg_cov", -0.1, row=2))
    findings = verify_all()
    named = [key for key in findings if not key[1].startswith("claims")]
    assert named == [("modified", short(metrics)), ("stale", "figures/figure5.csv")]
    assert "value is" in findings["stale", "figures/figure5.csv"]
    assert {what for what, _ in findings} == {"modified", "stale"}


def test_numbers_of_a_figure_a_claim_and_a_picture(verify_all):
    edit(RESULTS / "figures/figure5.csv", "neg_cov,", "neg_cof,")
    edit(RESULTS / "claims.json", '"verdict": "inconclusive"', '"verdict": "holds"')
    edit(RESULTS / "figures/data_filter.svg", "</svg>", "<!-- --></svg>")
    facts = {"claims.json": "inconclusive"}
    facts |= dict.fromkeys(("figures/data_filter.svg", "figures/figure5.csv"), "redrawn")
    only(verify_all(), {("modified", name): fact for name, fact in facts.items()})


def test_pictures_by_another_matplotlib_differ_all_together(verify_chain):
    main(["draw", "figure5", "data_filter", "--scale", SCALE])
    other, png = sorted(RESULTS.glob("figures/*.png"))
    imsave(png, imread(png))
    only(verify_chain(), {("modified", short(png)): ""})
    imsave(other, imread(other))
    only(verify_chain(), {("not checked", short(other)): "(2 files)"})


def test_a_picture_of_an_earlier_version_has_more_colors(verify_chain, monkeypatch):
    main(["draw", "data_filter", "--scale", SCALE])
    with monkeypatch.context() as earlier:
        earlier.setattr(style, "with_palette", lambda png: png)
        main(["draw", "figure5", "--scale", SCALE])
    modes = {Image.open(path).mode for path in RESULTS.glob("figures/*.png")}
    assert modes == {"RGBA", "P"}
    assert verify_chain() == {}


def test_the_policy_of_another_run(verify):
    weights = "policy/model.safetensors"
    shutil.copy(CLIP_V / weights, CLIP_B / weights)
    assert list(verify()) == [("modified", short(CLIP_B / weights))]


def test_a_whole_run_in_the_place_of_another(verify):
    shutil.rmtree(CLIP_B)
    shutil.copytree(CLIP_V, CLIP_B)
    findings = verify()
    assert f"it is of {MODEL} clip_v seed0" in findings["modified", short(CLIP_B / "provenance.json")]
    assert "method.name" in findings["different config", short(CLIP_B / "config.yaml")]
    assert ("stale", short(AIME24)) in findings  # sampled from the policy that was there


def test_samples_of_another_method(verify_chain):
    other = LAYOUT.evaluation(MODEL, "clip_v", 0)
    for name in ("aime24.parquet", "aime24.provenance.json"):
        shutil.copy(other / name, AIME24.parent / name)
    place, policy = sampled("clip_b", "aime24"), f"{short(CLIP_B)}/policy/model.json"
    assert verify_chain() == {("modified", short(place)): f"{policy} is not among its inputs"}


def test_pass_rates_that_their_counts_do_not_give(verify):
    file = LAYOUT.pass_rates(0)
    edit_rows(file, set_cell("rate", 0.51), rehash=True)
    findings = verify()
    assert "of 8 correct, rate 0.51" in findings["modified", short(file)]
    assert ("stale", short(CLIP_B)) in findings


@pytest.mark.parametrize("content", [b"\xff\0{", b'{"inputs": 3, "sets": [], "weights_sha256": "x"}'])
def test_garbage_in_any_file_is_named_and_hides_nothing_else(verify, content):
    files = [PROBLEMS, MODEL_JSON, AIME24, LAYOUT.pass_rates(0), GRPO / "provenance.json", CLIP_V / "config.yaml"]
    files += [CLIP_B / "metrics.parquet", CLIP_B / "policy/model.json", AIME24.with_suffix(".provenance.json")]
    files += [RESULTS / "tables/table1.csv"]
    for path in files:
        path.write_bytes(content)
    edit_rows(AIME24.with_stem("aime25"), flip("correct"))
    findings = verify()
    named = " ".join([*(where for _, where in findings), *findings.values()])
    assert [short(path) for path in files if short(path) not in named and short(path.parent) not in named] == []
    assert "sample 0: correct is" in findings["modified", short(AIME24.with_stem("aime25"))]


def test_a_deleted_record_or_a_line_of_it_turns_no_check_off(verify_chain):
    write_theory()
    theory = LAYOUT.logit_steps.with_suffix(".provenance.json")
    assert verify_chain() == {}
    edit_rows(GRPO / "metrics.parquet", set_cell("entropy", 0.5))
    outputs = {"config.yaml": sha256(GRPO / "config.yaml")}
    edit_json(GRPO / "provenance.json", lambda record: record.update(outputs=outputs))
    edit_json(sampled("clip_b", "aime24"), without("outputs"))
    edit_json(sampled("clip_b", "dapo500"), without("config"))
    edit_json(PROBLEMS, without("outputs", "aime25.parquet"))
    assert verify_chain() == {
        ("modified", short(path)): fact
        for path, fact in {
            PROBLEMS: "it has no hash of aime25.parquet",
            sampled("clip_b", "aime24"): "it has no hash of aime24.parquet",
            AIME24.with_stem("dapo500"): "cannot be checked: KeyError: 'config'",
            GRPO / "provenance.json": "it has no hash of metrics.parquet; it has no hash of policy/model.json",
        }.items()
    }
    theory.unlink()
    LAYOUT.pass_rates(0).with_suffix(".provenance.json").unlink()
    missing = [where for what, where in verify_chain() if what == "missing"]
    assert missing == ["pass_rates/seed0.provenance.json", "theory/logit_steps.provenance.json"]


def test_files_that_no_record_has(verify_chain):
    new = [LAYOUT.problems("aime26"), LAYOUT.model(MODEL, 0) / "chat_template.jinja"]
    new += [CLIP_B / "policy" / name for name in ("additional/template.jinja", "chat_template.jinja", "config.yaml")]
    for path in [*new, CLIP_B / "policy/.DS_Store"]:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    fact = "no record has its hash"
    assert verify_chain() == {("modified", short(path)): fact for path in new}


def test_problems_that_are_not_those_of_their_report(verify_chain):
    sets = (report := json.loads(PROBLEMS.read_text()))["sets"]
    sets["aime24"]["kept"] = 9
    sets["aime25"]["ids_sha256"] = "0" * 64
    sets["dapo500"]["dropped"]["other"] = 3
    PROBLEMS.write_text(json.dumps(report))
    findings = verify_chain()
    assert "ids_sha256 is" in findings.pop(("modified", "data/aime25.parquet"))
    rows = f"rows in problems.json is {sets['dapo500']['rows']}"
    assert findings == {
        ("modified", "data/aime24.parquet"): "kept is 10, problems.json has 9",
        ("modified", "data/dapo500.parquet"): f"{rows}, not the sum of those kept and dropped",
    }


def test_logit_steps_of_another_model_than_the_figure_says(verify_chain):
    write_theory()
    edit_json(LAYOUT.logit_steps.with_suffix(".provenance.json"), without("inputs", MODEL_JSON.as_posix()))
    wrong = f"not of {short(MODEL_JSON)}; of another first seed: give --set seeds.first="
    assert verify_chain() == {("different config", short(LAYOUT.logit_steps)): wrong}
    Path("experiments/theory_check.yaml").write_text("kind: [")
    assert "not valid YAML" in verify_chain()["different config", short(LAYOUT.logit_steps)]


# Stale and missing files
def test_a_deleted_run_and_a_deleted_record(verify):
    shutil.rmtree(CLIP_B)
    (AIME24.with_suffix(".provenance.json")).unlink()
    missing = [short(AIME24.with_suffix(".provenance.json")), short(CLIP_B / "policy/model.json")]
    assert list(verify()) == [("missing", file) for file in missing]


def test_an_edited_problem_makes_stale_what_was_made_from_it_and_no_more(verify):
    edit_rows(LAYOUT.problems("aime24"), set_cell("answer", "1", row=3))
    runs = load_experiment("table1", SCALE, {"tables": 1, "extras": 1, "pilot": 1}).runs
    stale = sorted(short(run.evaluation_file(RESULTS, "aime24")) for run in runs)
    named = [("modified", "data/aime24.parquet"), *(("stale", name) for name in stale)]
    assert list(verify()) == named


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
    only(verify(), {("stale", TABLE[0]): column})


# Different configs
def test_a_config_edited_after_the_run_and_the_config_beside_another(verify):
    edit(Path("configs/method/clip_b.yaml"), "{mu: 2.0}", "{mu: 2.1}")
    edit(CLIP_V / "config.yaml", "prompts_per_step: 4", "prompts_per_step: 40")
    edited, beside = short(CLIP_B / "config.yaml"), short(CLIP_V / "config.yaml")
    assert "its sha256 is" in (findings := verify()).pop(("modified", beside))
    assert findings == {
        ("different config", edited): "method.params.mu 2.0 -> 2.1",
        ("different config", beside): "training.prompts_per_step 40 -> 4",
    }


def test_overrides_count_as_config(verify):
    settings = [
        *("training.steps=9", "evaluation.temperature=0.9", "pass_rates.low=0.3"),
        *(f"toy_models[{MODEL}].warm_start.steps=9", "data.evaluation.aime24.numbers=[3, 4]"),
    ]
    findings = verify("results/smoke", *set_to(settings))
    assert {what for what, _ in findings} == {"different config"}
    named = {where: facts for (_, where), facts in findings.items()}
    assert len(named) == 3 + 16 + 2  # runs, evaluations, and:
    assert "warm_start.steps 80 -> 9" in named[f"models/{MODEL}/seed0/model.json"]
    assert named["data/problems.json"] == "data.evaluation.aime24.numbers [4, 4] -> [3, 4]"


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
    fact = "seeds is 2, redrawn 1: give --set seeds.tables="
    only(verify(), {("different config", TABLE[0]): fact})
    assert verify("results/smoke", *more) == {}


def test_a_broken_experiment_or_claims_file_is_a_finding_beside_the_others(verify):
    main(["claims", "--scale", SCALE])
    edit_rows(AIME24, flip("correct"))
    Path("experiments/claims.yaml").write_text("tests: [")
    Path("experiments/table1.yaml").write_text("kind: scores\ntitle: [")
    findings = verify()
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
    ("path", "content"), [(MODEL_JSON, "[1]"), (Path("experiments/paper_values.yaml"), "scores: [")]
)
def test_a_report_names_a_file_with_other_content(capsys, path, content):
    path.write_text(content)
    assert error(capsys, "draw", "table1", "--scale", SCALE).startswith(str(path))
