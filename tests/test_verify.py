"""`entropy-dynamics verify`: made-up results with right records; then one thing is changed, and has to be named."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest

from entropy_dynamics.analysis.experiments import load_experiment
from entropy_dynamics.analysis.results import Samples
from entropy_dynamics.cli import main
from entropy_dynamics.config import load_config
from entropy_dynamics.results.files import write_json
from made_up import MODEL
from recorded_results import (
    AIME24,
    CLIP_B,
    GIT,
    LAYOUT,
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
)

# ---------------------------------------------------------------- nothing is wrong


@pytest.mark.usefixtures("whole")
def test_untouched_results_are_sound_and_stay_untouched(verify):
    before = hashes()
    code, findings, summary = verify("--scale", SCALE)
    assert (code, findings) == (0, {})
    assert summary.endswith("nothing wrong")
    # 4 rows of Table 1: avg, pass, unreadable, truncated, problems, samples of 3 sets, and seeds; 3 have differences.
    assert f" {4 * (3 * 6 + 1) + 3 * 3 * 2} scores worked out from samples," in summary
    for part in (
        "4 problem sets",
        "1 models",
        "200 pass rates",
        "3 runs",
        "12 evaluations",
        "1 tables",
        "2 figures",
        "5 files of claims",
    ):
        assert f" {part}" in summary
    assert f" {4 * (2 * 10 * 4 + 40 * 2)} samples" in summary
    assert hashes() == before


@pytest.mark.usefixtures("project")
def test_results_that_were_moved_and_those_that_are_only_partly_made(verify):
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


def test_neither_torch_nor_transformers_is_imported(built):
    program = "import sys; from entropy_dynamics.cli import main; code = main(['verify', 'results/smoke']); "
    program += "print(code, [name for name in ('torch', 'transformers') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", program], cwd=built, capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "0 []"


# ---------------------------------------------------------------- one thing is changed


@pytest.mark.usefixtures("project")
def test_cells_of_a_table(verify):
    path, columns = RESULTS / "tables/table1.csv", ["aime24_avg", "aime25_avg_paper", "dapo500_pass_low"]
    table = pd.read_csv(path, dtype=str)
    facts = [f"line 4: {column} is 99.1234, its inputs give {table.loc[2, column]}" for column in columns]
    table.loc[2, columns] = "99.1234"
    path.write_text(table.to_csv(index=False))
    code, findings, summary = verify()
    assert (code, findings) == (1, {("changed by hand", TABLE[0]): "; ".join(facts)})
    assert summary.endswith(": 1 wrong")


@pytest.mark.usefixtures("project")
def test_bytes_of_a_table(verify):
    for name in TABLE[1:3]:
        edit(RESULTS / name, "Qwen2", "Qwen3")
    code, findings, _ = verify()
    assert (code, list(findings)) == (1, [("changed by hand", name) for name in TABLE[1:3]])
    for fact in findings.values():
        assert "Qwen3" in fact.partition("its inputs give")[0]
        assert "Qwen2" in fact.partition("its inputs give")[2]


@pytest.mark.usefixtures("project")
def test_a_table_that_is_gone_in_part(verify):
    (RESULTS / TABLE[2]).unlink()
    assert list(verify()[1]) == [("missing", TABLE[2])]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("rehash", [False, True])
def test_a_sample_made_right(verify, rehash):
    edit_rows(AIME24, flip("correct"), rehash)
    code, findings, _ = verify()
    assert code == 1
    assert list(findings) == [("changed by hand", short(AIME24)), *(("stale", name) for name in TABLE)]
    facts = findings["changed by hand", short(AIME24)]
    assert ("its sha256 is" in facts) != rehash
    assert "sample 0: correct is" in facts
    assert "1 such rows" in facts


@pytest.mark.usefixtures("project")
def test_rows_that_cannot_be_although_their_hash_is_right(verify):
    changes = [
        (lambda frame: frame.iloc[1:], "has 3 samples, not 4"),
        (lambda frame: frame[frame["problem_id"] != frame["problem_id"][0]], "its problems are not those of aime"),
        (set_cell("sample", 1), "sample 1: sample is 1"),
        (flip("formatted"), "formatted is"),
        (set_cell("finish_reason", "abort"), "finish_reason is abort"),
        (set_cell("tokens", 65), "tokens is 65"),
        (lambda frame: frame.assign(correct="yes"), "correct is yes"),
        (lambda frame: frame.assign(tokens="many"), "it cannot be checked: TypeError"),
    ]
    shutil.rmtree(RESULTS / "tables")
    files = [path for path in sorted(RESULTS.glob("evaluations/*/*/*/*.parquet")) if path.stem != "dapo500"]
    for (change, _), file in zip(changes, files, strict=True):
        edit_rows(file, change, rehash=True)
    code, findings, _ = verify()
    assert (code, list(findings)) == (1, [("changed by hand", short(file)) for file in files])
    for (_, fact), facts in zip(changes, findings.values(), strict=True):
        assert fact in facts


@pytest.mark.usefixtures("whole")
def test_a_metrics_file_and_what_is_drawn_from_it(verify):
    metrics = LAYOUT.run(MODEL, "grpo", 0) / "metrics.parquet"
    edit_rows(metrics, set_cell("neg_cov", -0.1, row=2))
    code, findings, _ = verify()
    assert code == 1
    named = [key for key in findings if not key[1].startswith("claims")]
    assert named == [("changed by hand", short(metrics)), ("stale", "figures/figure5.csv")]
    assert "value is" in findings["stale", "figures/figure5.csv"]
    assert {what for what, _ in findings} == {"changed by hand", "stale"}


@pytest.mark.usefixtures("whole")
def test_numbers_of_a_figure_a_claim_and_a_picture(verify):
    edit(RESULTS / "figures/figure5.csv", "neg_cov,", "neg_cof,")
    edit(RESULTS / "claims.json", '"verdict": "cannot tell"', '"verdict": "holds"')
    edit(RESULTS / "figures/pass_rates.svg", "</svg>", "<!-- --></svg>")
    code, findings, _ = verify()
    assert code == 1
    by_hand = [("changed by hand", "claims.json"), ("changed by hand", "figures/figure5.csv")]
    assert list(findings) == [*by_hand, ("changed by hand", "figures/pass_rates.svg")]
    assert (
        "not what is drawn here, where figures/figure5.svg is" in findings["changed by hand", "figures/pass_rates.svg"]
    )
    assert '\'    "verdict": "holds"' in findings[by_hand[0]]
    assert "cannot tell" in findings[by_hand[0]]


@pytest.mark.usefixtures("project")
def test_a_picture_alone_is_a_note(verify):
    main(["report", "figure5", "--scale", SCALE])
    with open(RESULTS / "figures/figure5.png", "ab") as file:
        file.write(b"\0")
    assert verify()[0] == 0


@pytest.mark.usefixtures("project")
def test_the_policy_of_another_run(verify):
    weights = "policy/model.safetensors"
    shutil.copy(LAYOUT.run(MODEL, "clip_v", 0) / weights, CLIP_B / weights)
    (CLIP_B / "policy/more.safetensors").write_bytes(b"")
    code, findings, _ = verify()
    assert code == 1
    assert list(findings) == [
        ("changed by hand", short(CLIP_B / weights)),
        ("changed by hand", short(CLIP_B / "policy/more.safetensors")),
    ]


@pytest.mark.usefixtures("project")
def test_a_whole_run_in_the_place_of_another(verify):
    shutil.rmtree(CLIP_B)
    shutil.copytree(LAYOUT.run(MODEL, "clip_v", 0), CLIP_B)
    _, findings, _ = verify()
    assert f"it is of {MODEL} clip_v seed0" in findings["changed by hand", short(CLIP_B / "provenance.json")]
    assert "method.label" in findings["another config", short(CLIP_B / "config.yaml")]
    assert ("stale", short(AIME24)) in findings  # sampled from the policy that was there


@pytest.mark.usefixtures("project")
def test_samples_of_another_method(verify):
    shutil.rmtree(RESULTS / "tables")
    other = LAYOUT.evaluation(MODEL, "clip_v", 0)
    for name in ("aime24.parquet", "aime24.provenance.json"):
        shutil.copy(other / name, AIME24.parent / name)
    _, findings, _ = verify()
    place = short(AIME24.with_suffix(".provenance.json"))
    assert list(findings) == [("changed by hand", place), ("another config", place)]
    assert findings["changed by hand", place] == f"{short(CLIP_B)}/policy/model.json is not among its inputs"
    assert "method.label is Clip_V, today's is Clip_B" in findings["another config", place]


@pytest.mark.usefixtures("project")
def test_a_config_edited_after_the_run(verify):
    edit(Path("configs/method/clip_b.yaml"), "{mu: 1.6}", "{mu: 1.7}")
    code, findings, _ = verify()
    assert code == 1
    files = [AIME24.with_name(f"{name}.provenance.json") for name in ("aime24", "aime25", "dapo500")]
    fact = "method.params.mu is 1.6, today's is 1.7"
    assert findings == {("another config", short(file)): fact for file in [*files, CLIP_B / "config.yaml"]}


@pytest.mark.usefixtures("project")
def test_the_config_that_lies_beside_a_run(verify):
    edit(CLIP_B / "config.yaml", "prompts_per_step: 4", "prompts_per_step: 40")
    _, findings, _ = verify()
    file = short(CLIP_B / "config.yaml")
    assert list(findings) == [("changed by hand", file), ("another config", file)]
    assert findings["another config", file] == "training.prompts_per_step is 40, today's is 4"


@pytest.mark.usefixtures("project")
def test_overrides_count_as_config(verify):
    settings = [
        *("training.steps=9", "evaluation.temperature=0.9", "pass_rates.low=0.3"),
        *(f"stand_ins[{MODEL}].warm_start.steps=9", "data.evaluation.aime24.terms=[3, 4]"),
    ]
    _, findings, _ = verify("results/smoke", *(part for one in settings for part in ("--set", one)))
    assert {what for what, _ in findings} == {"another config"}
    named = {where: facts for (_, where), facts in findings.items()}
    assert len(named) == 3 + 12 + 4  # runs, evaluations, the record of the pass rates, and:
    assert "keep other problems" in named["data/pass_rates.parquet"]
    assert "warm_start.steps is 250, today's is 9" in named[f"models/{MODEL}/model.json"]
    assert "terms is [7, 8], today's is [3, 4]" in named["data/aime24.parquet"]


@pytest.mark.usefixtures("project")
def test_a_table_of_more_seeds_than_the_config_has(verify):
    experiment = load_experiment("table1", SCALE, {"tables": 2})
    for run in experiment.runs:
        if run.seed == 1:
            write_run(run)
            for dataset, k in load_config(SCALE).evaluation.samples.items():
                write_evaluation(run, dataset, k, 0.7)
    main(["report", "table1", "--scale", SCALE, "--set", "seeds.tables=2"])
    code, findings, _ = verify()
    assert (code, list(findings)) == (1, [("another config", name) for name in TABLE])
    assert "--set seeds.tables=" in findings["another config", TABLE[0]]
    assert verify("results/smoke", "--set", "seeds.tables=2")[:2] == (0, {})


@pytest.mark.usefixtures("project")
def test_a_deleted_evaluation(verify):
    AIME24.unlink()
    code, findings, _ = verify()
    assert (code, list(findings)) == (1, [("missing", short(AIME24))])
    assert "tables/table1.csv was made from it" in findings["missing", short(AIME24)]
    shutil.rmtree(AIME24.parent)
    files = [short(AIME24.with_stem(name)) for name in ("aime24", "aime25", "dapo500")]
    assert list(verify()[1]) == [("missing", file) for file in files]


@pytest.mark.usefixtures("project")
def test_a_deleted_run_and_a_deleted_record(verify):
    shutil.rmtree(CLIP_B)
    (AIME24.with_suffix(".provenance.json")).unlink()
    _, findings, _ = verify()
    missing = [short(AIME24.with_suffix(".provenance.json")), short(CLIP_B / "policy/model.json")]
    assert list(findings) == [("missing", file) for file in missing]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("column", ["answer", "problem"])
def test_an_edited_problem_makes_stale_what_was_made_from_it_and_no_more(verify, column):
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[3, column] += 1 if column == "answer" else "+0"
        return frame

    edit_rows(LAYOUT.problems("aime24"), change)
    _, findings, _ = verify()
    by_hand = ("changed by hand", "data/aime24.parquet")
    stale = [run.evaluation_file(RESULTS, "aime24") for run in load_experiment("table1", SCALE, {"tables": 1}).runs]
    assert list(findings) == [by_hand, *(("stale", name) for name in sorted(map(short, stale)))]
    assert findings[by_hand].startswith("its sha256 is ")


@pytest.mark.usefixtures("project")
def test_a_model_made_again(verify):
    write_json(
        LAYOUT.model(MODEL) / "model.json", json.loads((LAYOUT.model(MODEL) / "model.json").read_text()) | {"x": 1}
    )
    _, findings, _ = verify()
    made = [short(LAYOUT.run(MODEL, method, 0)) for method in ("clip_b", "clip_v", "grpo")]
    made += [short(LAYOUT.evaluation(MODEL, "base", 0) / f"{name}.parquet") for name in ("aime24", "aime25", "dapo500")]
    assert list(findings) == [("stale", name) for name in sorted([*made, "data/pass_rates.parquet"])]


@pytest.mark.usefixtures("project")
def test_pass_rates_that_their_counts_do_not_give(verify):
    file = LAYOUT.pass_rates
    edit_rows(file, set_cell("rate", 0.51), rehash=True)
    _, findings, _ = verify()
    assert "of 8 right at rate 0.51" in findings["changed by hand", short(file)]
    assert ("stale", short(CLIP_B)) in findings


@pytest.mark.usefixtures("project")
def test_another_commit_and_changes_not_committed_are_notes(verify):
    places = {
        CLIP_B / "provenance.json": {"commit": "f" * 40},
        AIME24.with_suffix(".provenance.json"): {"changed": True},
    }
    for path, git in places.items():
        write_json(path, json.loads(path.read_text()) | {"git": GIT | git})
    code, findings, summary = verify()
    assert code == 0
    assert summary.endswith("nothing wrong")
    facts = [
        "made by commit 123456789012 with changes that were not committed",
        "made by commit ffffffffffff, most others by 123456789012",
    ]
    assert findings == {("another commit", short(path)): fact for path, fact in zip(sorted(places), facts, strict=True)}


@pytest.mark.usefixtures("project")
def test_code_of_the_tables_that_is_wrong(verify, monkeypatch):
    """The table and the one drawn anew agree; the samples say otherwise."""
    monkeypatch.setattr(Samples, "solved", property(lambda self: (self.right > 1).astype(float)))
    main(["report", "table1", "--scale", SCALE])
    code, findings, _ = verify()
    assert (code, list(findings)) == (1, [("stale", TABLE[0])])
    assert "_pass of " in findings["stale", TABLE[0]]


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("content", [b"\xff\0{", b"[1]", b'{"inputs": 3, "sets": [], "weights_sha256": "x"}'])
def test_garbage_in_any_file_is_named(verify, content):
    files = [LAYOUT.data / "problems.json", LAYOUT.model(MODEL) / "model.json", AIME24, LAYOUT.pass_rates]
    files += [CLIP_B / name for name in ("provenance.json", "metrics.parquet", "config.yaml", "policy/model.json")]
    files += [AIME24.with_suffix(".provenance.json"), RESULTS / "tables/table1.csv"]
    for path in files:
        path.write_bytes(content)
    code, findings, _ = verify()
    assert code == 1
    assert {short(path) for path in files} <= {where for _, where in findings}


@pytest.mark.usefixtures("project")
def test_damaged_notes_of_pandas_in_a_parquet_file(verify):
    """They make pandas raise a TypeError."""
    table = pq.read_table(LAYOUT.pass_rates)
    notes = table.schema.metadata[b"pandas"].replace(b'"int64"', b'"int46"')
    pq.write_table(table.replace_schema_metadata({b"pandas": notes}), LAYOUT.pass_rates)
    code, findings, _ = verify()
    assert code == 1
    assert "not readable: TypeError" in findings["changed by hand", short(LAYOUT.pass_rates)]


# ---------------------------------------------------------------- mistakes


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["results/smok"], ["unknown scale 'smok'; did you mean 'smoke'?"]),
        (["nowhere/smoke"], ["no folder nowhere/smoke; make it with: snakemake --config scale=smoke"]),
        (["empty/smoke"], ["empty/smoke holds no results"]),
        (["--scale", "laptop"], ["no folder results/laptop"]),
        (["--scale", SCALE, "--set", "training.stepz=3"], ["did you mean 'steps'?"]),
    ],
)
def test_mistakes_are_one_line(capsys, arguments, parts):
    Path("empty/smoke/logs").mkdir(parents=True)
    assert main(["verify", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err
