"""`entropy-dynamics verify` and damage: each is named, hides nothing else, and no missing line turns a check off."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from matplotlib.image import imread, imsave
from omegaconf import OmegaConf

from entropy_dynamics.cli import main
from entropy_dynamics.config import load_config
from entropy_dynamics.results.files import sha256, write_json, write_parquet
from entropy_dynamics.verification import records
from made_up import MODEL
from recorded_results import (
    AIME24,
    CLIP_B,
    LAYOUT,
    RESULTS,
    SCALE,
    TABLE,
    edit,
    edit_rows,
    flip,
    set_cell,
    short,
    write_theory,
)

DEEP = "[" * 100_000  # crashes a parser that recurses
LONG = "x" * 300  # no file system has such names
GRPO, CLIP_V = (LAYOUT.run(MODEL, method, 0) for method in ("grpo", "clip_v"))
AIME25 = AIME24.with_stem("aime25")
PROBLEMS = LAYOUT.data / "problems.json"
MODEL_JSON = LAYOUT.model(MODEL) / "model.json"


def sampled(method: str, name: str) -> Path:
    """A record of an evaluation."""
    return LAYOUT.evaluation(MODEL, method, 0) / f"{name}.provenance.json"


def edit_json(path: Path, change) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def without(*keys: str):
    def change(record: dict) -> None:
        for key in keys[:-1]:
            record = record[key]
        del record[keys[-1]]

    return change


# ---------------------------------------------------------------- damage of any kind


@pytest.mark.usefixtures("project")
def test_what_no_reader_expects_is_named_and_hides_nothing_else(verify):
    edit_rows(LAYOUT.problems("aime24"), set_cell("id", None))
    (GRPO / "config.yaml").write_text(DEEP)
    edit(CLIP_V / "config.yaml", "steps: 4\n", "steps: 4000000000000\n")
    edit_json(MODEL_JSON, lambda facts: facts["spec"].update(seed="${"))
    edit_json(PROBLEMS, lambda report: report["sets"]["train"].update(kept="\ud800\x1b[2J"))
    edit_json(sampled("grpo", "aime24"), lambda record: record.update(git={"commit": []}))
    edit_json(sampled("grpo", "aime25"), lambda record: record["inputs"].update({LONG: ""}))
    edit_json(sampled("grpo", "dapo500"), lambda record: record["outputs"].update({LONG: ""}))
    edit_rows(AIME25, flip("correct"))
    code, findings, _ = verify()
    assert code == 1
    for path, fact in {
        LAYOUT.problems("aime24"): "it cannot be checked: TypeError",
        GRPO / "config.yaml": "nested more than 50 deep",
        CLIP_V / "metrics.parquet": "its 4 rows are not the 4000000000000 steps",
        MODEL_JSON: "it cannot be checked: GrammarParseError",
        LAYOUT.problems("train"): "problems.json has \\ud800\\x1b[2J",
        sampled("grpo", "aime24"): "unhashable",
        sampled("grpo", "aime25"): "File name too long",
        sampled("grpo", "dapo500"): "File name too long",
        AIME25: "sample 0: correct is",
    }.items():
        assert fact in findings["changed by hand", short(path)]
    assert ("stale", TABLE[0]) in findings


@pytest.fixture
def untabled(project) -> None:
    shutil.rmtree(RESULTS / "tables")


@pytest.mark.usefixtures("untabled")
def test_problems_written_anew_with_other_types_or_another_index_and_the_right_hash(verify):
    files = [LAYOUT.problems(name) for name in ("aime24", "aime25")]
    edit_rows(files[0], lambda frame: frame.astype({"answer": float}))
    frame = pd.read_parquet(files[1])
    frame.index += 5
    frame.to_parquet(files[1])
    edit_json(PROBLEMS, lambda report: report["outputs"].update({file.name: sha256(file) for file in files}))
    findings = verify()[1]
    assert {findings["changed by hand", short(file)] for file in files} == {"its source gives other types or index"}


@pytest.mark.usefixtures("project")
def test_a_claims_file_or_experiment_that_is_broken_is_a_finding_beside_the_others(verify):
    (RESULTS / "claims.md").write_text("")
    edit_rows(AIME24, flip("correct"))
    Path("experiments/claims.yaml").write_text("tests: [")
    Path("experiments/table1.yaml").write_text("kind: scores\ntitle: [")
    code, findings, _ = verify()
    assert code == 1
    assert "experiments/claims.yaml: not valid YAML" in findings["another config", "claims.json"]
    assert "experiments/table1.yaml: not valid YAML" in findings["another config", TABLE[0]]
    assert ("changed by hand", short(AIME24)) in findings


@pytest.fixture
def pictures(untabled) -> list[Path]:
    main(["report", "figure5", "pass_rates", "--scale", SCALE])
    return sorted([*RESULTS.glob("figures/*.png"), *RESULTS.glob("figures/*.svg")])


def test_pictures_that_are_none_or_those_of_another_figure(verify, pictures):
    png, other_png, svg, other_svg = pictures[0], pictures[2], pictures[1], pictures[3]
    assert [path.name for path in pictures] == ["figure5.png", "figure5.svg", "pass_rates.png", "pass_rates.svg"]
    shutil.copy(png, other_png)
    png.write_bytes(b"")
    svg.write_text("<svg>hello</svg>")
    other_svg.write_text("hello")
    code, findings, _ = verify()
    assert code == 1
    assert list(findings) == [("changed by hand", short(path)) for path in pictures]
    facts = list(findings.values())
    assert all(fact.startswith("not readable as a picture: ") for fact in (facts[0], facts[3]))
    assert all(fact.startswith("its size is (") for fact in facts[1:3])


def test_pictures_of_another_matplotlib_differ_all_together(verify, pictures):
    png, other = (path for path in pictures if path.suffix == ".png")
    imsave(png, imread(png))
    code, findings, _ = verify()
    assert (code, list(findings)) == (1, [("changed by hand", short(png))])
    imsave(other, imread(other))
    code, findings, _ = verify()
    assert (code, list(findings)) == (0, [("not checked", short(png))])
    assert "1 more like it" in findings["not checked", short(png)]


# ---------------------------------------------------------------- what is not there


@pytest.mark.usefixtures("untabled")
def test_a_record_or_a_line_of_it_that_is_gone_turns_no_check_off(verify):
    write_theory()
    theory = LAYOUT.logit_steps.with_suffix(".provenance.json")
    assert verify()[:2] == (0, {})
    edit_rows(GRPO / "metrics.parquet", set_cell("entropy", 0.5))
    outputs = {"config.yaml": sha256(GRPO / "config.yaml")}
    edit_json(GRPO / "provenance.json", lambda record: record.update(outputs=outputs))
    edit_json(sampled("clip_b", "aime24"), without("outputs"))
    edit_json(sampled("clip_b", "aime25"), without("outputs", "aime25.parquet"))
    edit_json(sampled("clip_b", "dapo500"), without("config"))
    edit_json(PROBLEMS, without("outputs", "aime25.parquet"))
    edit_json(theory, without("inputs", MODEL_JSON.as_posix()))
    (CLIP_V / "config.yaml").write_text("{}")
    emptied = f"its sha256 is 44136fa355b3..., provenance.json has {digest_of_config()}...; it has no config"
    code, findings, _ = verify()
    assert code == 1
    assert findings == {
        ("changed by hand", short(path)): fact
        for path, fact in {
            PROBLEMS: "it has no hash of aime25.parquet",
            sampled("clip_b", "aime24"): "it has no hash of aime24.parquet",
            sampled("clip_b", "aime25"): "it has no hash of aime25.parquet",
            sampled("clip_b", "dapo500"): "it has no config",
            CLIP_V / "config.yaml": emptied,
            GRPO / "provenance.json": "it has no hash of metrics.parquet; it has no hash of policy/model.json",
            theory: "no model.json is among its inputs",
        }.items()
    }
    theory.unlink()
    LAYOUT.pass_rates.with_suffix(".provenance.json").unlink()
    missing = [where for what, where in verify()[1] if what == "missing"]
    assert missing == ["data/pass_rates.provenance.json", "theory/logit_steps.provenance.json"]


def digest_of_config() -> str:
    return json.loads((CLIP_V / "provenance.json").read_text())["outputs"]["config.yaml"][:12]


@pytest.mark.usefixtures("untabled")
def test_files_that_no_record_knows(verify):
    new = [LAYOUT.problems("aime26"), LAYOUT.model(MODEL) / "chat_template.jinja"]
    new += [CLIP_B / "policy" / name for name in ("additional/template.jinja", "chat_template.jinja", "config.yaml")]
    for path in [*new, CLIP_B / "policy/.DS_Store"]:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")
    code, findings, _ = verify()
    assert code == 1
    assert list(findings) == [("changed by hand", short(path)) for path in new]


# ---------------------------------------------------------------- other inputs, configs and commits


@pytest.mark.usefixtures("untabled")
def test_steps_of_a_theory_check_whose_inputs_or_rows_have_changed(verify):
    write_theory()
    write_parquet(LAYOUT.logit_steps, pd.read_parquet(LAYOUT.logit_steps).iloc[1:])
    assert list(verify()[1]) == [("changed by hand", short(LAYOUT.logit_steps))]
    write_theory()
    edit_json(MODEL_JSON, lambda facts: facts.update(parameters=5))
    assert ("stale", short(LAYOUT.logit_steps)) in verify()[1]


@pytest.mark.usefixtures("untabled")
def test_the_config_in_records_of_samples(verify):
    _, findings, _ = verify("results/smoke", "--set", "sampling.max_new_tokens=63")
    fact = "sampling.max_new_tokens is 64, today's is 63"
    samples = {("another config", short(path)) for path in RESULTS.rglob("*.provenance.json")}
    assert len(samples) == 1 + 12
    assert {findings[place] for place in samples} == {fact}


@pytest.mark.usefixtures("untabled")
def test_another_revision_of_a_pretrained_model(verify):
    name = "internlm3-8b-instruct"
    for path in (Path("configs/scale/laptop.yaml"), Path("configs/scale/smoke.yaml")):
        content = OmegaConf.load(path)
        del content.stand_ins[name]
        OmegaConf.save(content, path)
    model = load_config(SCALE, name).model
    (path := LAYOUT.model(name) / "model.json").parent.mkdir()
    (weights := path.with_name("model.safetensors")).write_bytes(b"")
    facts = {"pretrained": model.pretrained, "revision": "0" * 40, "stand_in": model.stand_in}
    write_json(path, facts | {"weights_sha256": {weights.name: sha256(weights)}})
    assert verify()[1]["another config", short(path)] == f"revision is {'0' * 40}, today's is {model.revision}"


@pytest.mark.usefixtures("untabled")
def test_of_the_hubs_problems_all_that_needs_no_network(verify):
    place = {"repository": "someone/problems", "revision": "1" * 40}
    settings = [f"data.evaluation.aime24.{key}={value}" for key, value in {"source": "hub", **place}.items()]
    settings = [part for one in settings for part in ("--set", one)]

    def of_data(*more: str) -> dict:
        findings = verify("results/smoke", *settings, *more)[1]
        other = {where: facts for (what, where), facts in findings.items() if what == "another config"}
        return {where: facts for where, facts in other.items() if where.startswith("data/")}

    entry = {"source": "hub", **place, "subset": None, "split": "train", "rows": 10}
    edit_json(PROBLEMS, lambda report: report["sets"]["aime24"].update(entry))
    assert of_data().keys() == {"data/pass_rates.provenance.json"}  # it has the whole config
    edit_json(PROBLEMS, lambda report: report["sets"]["aime24"].update(revision="2" * 40))
    edit_json(PROBLEMS, without("sets", "aime25"))
    found = of_data("--set", "data.evaluation.dapo500.size=41")
    assert found["data/aime24.parquet"] == f"revision is {'2' * 40}, today's is {'1' * 40}"
    assert found["data/dapo500.parquet"] == "rows is 40, today's is 41"
    assert found["data/problems.json"].endswith("today's are train, aime24, aime25, dapo500")
    assert "the seed is 2026, today's is 5" in of_data("--set", "data.seed=5")["data/problems.json"]


@pytest.mark.usefixtures("untabled")
def test_all_by_one_commit_that_is_not_that_of_this_code(verify, monkeypatch):
    monkeypatch.setattr(records, "commit_of_code", lambda: {"commit": "f" * 40})
    fact = "made by commit 123456789012, the code that runs here is of ffffffffffff; 15 more like it"
    assert verify()[:2] == (0, {("another commit", "data/pass_rates.provenance.json"): fact})


# ---------------------------------------------------------------- steps that read damaged results


@pytest.mark.usefixtures("project")
def test_steps_name_a_damaged_file_in_one_line(capsys):
    def fails(path: Path, command: str, fact: str, content: str | None = None) -> None:
        before = path.read_bytes()
        if content is not None:
            path.write_text(content)
        capsys.readouterr()
        assert main([*command.split(), "--scale", SCALE]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"error: {path}")
        assert fact in err
        assert err.count("\n") == 1
        path.write_bytes(before)

    facts = json.loads(MODEL_JSON.read_text())
    fails(MODEL_JSON, "report table1", "delete it", "[1]")
    fails(MODEL_JSON, "report table1", "delete it", DEEP)
    again = f"delete the file and make it again with: snakemake --config scale=smoke -- {MODEL_JSON}"
    for key, value in {"parameters": "x", "label": None, "stand_in": "no"}.items():
        fails(MODEL_JSON, "report table1", f"{key} is {value!r}; {again}", json.dumps(facts | {key: value}))
    for values in ("[1]", "scores: [", "{scores: {a: 5}, levels: {}}", DEEP):
        fails(Path("experiments/paper_values.yaml"), "report table1", "", values)
    fails(Path("configs/method/grpo.yaml"), "report figure5", "method.label has to be a text", "[1]")
    fails(Path("configs/method/grpo.yaml"), "report figure5", "not valid YAML", "method: [")
    for content in (DEEP, "a: [", "[1]"):
        config = CLIP_B / "config.yaml" if content != "[1]" else CLIP_B
        (CLIP_B / "config.yaml").write_text(content)
        capsys.readouterr()
        assert main(["train", "--scale", SCALE, "--model", MODEL, "--method", "clip_b", "--seed", "0"]) == 2
        err = capsys.readouterr().err
        assert err.startswith(f"error: {config}")
        assert err.count("\n") == 1
    table = pq.read_table(LAYOUT.pass_rates)
    notes = table.schema.metadata[b"pandas"].replace(b'"int64"', b'"int46"')
    pq.write_table(table.replace_schema_metadata({b"pandas": notes}), LAYOUT.pass_rates)
    fails(LAYOUT.pass_rates, "report pass_rates", "make it again with")
