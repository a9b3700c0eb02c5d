"""The claims of the field: one file a paper, judged as the paper's own are."""

import json
import re
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

from command_line import error
from entropy_dynamics.analysis.run_data import Results
from entropy_dynamics.config import load_config
from entropy_dynamics.errors import UserError
from entropy_dynamics.experiments.claims import load_claims, read_field
from entropy_dynamics.report.summary import summary_line
from entropy_dynamics.report.verdicts import write_field
from entropy_dynamics.results.files import write_json
from entropy_dynamics.results.layout import Layout
from single_claims import write_curve
from synthetic_results import MODEL, ROOT, SCALE, SEEDS, STEPS, model_facts

SEEDS = SEEDS | {"extras": 5}
EXPERIMENTS = ROOT / "experiments"


def write(results: Path, experiments: Path = EXPERIMENTS) -> list[Path]:
    return write_field(Results(results, SCALE, SEEDS, ROOT / "configs", experiments), "field")


def test_every_claim_names_runs_that_can_be_made():
    claims = load_claims(SCALE, SEEDS, EXPERIMENTS, ROOT / "configs", folder="field")
    assert len(read_field(EXPERIMENTS, "field")) >= 15
    assert len(claims) >= 25
    for model, method in {(run.model, run.method) for claim in claims for run in claim.all_runs()}:
        load_config("laptop", model, method)
    assert {run.seed for claim in claims for run in claim.all_runs()} == set(range(5))


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    """CISPO ends with more entropy than PPO in every seed, KL-Cov with less than GRPO; the rest did not run."""
    folder = tmp_path_factory.mktemp("results") / SCALE
    write_json(Layout(folder).model(MODEL, 0) / "model.json", model_facts(MODEL))
    for seed in range(5):
        for method, entropy in (("cispo", 0.3), ("ppo_clip", 0.2), ("kl_cov", 0.1), ("grpo_off_policy", 0.2)):
            write_curve(folder, method, seed, entropy=np.linspace(0.4, entropy + 0.01 * seed, STEPS))
    return folder


def test_a_contradiction_is_settled_and_what_did_not_run_is_open(results):
    json_file, page = write(results)
    found = {one["id"]: one for one in json.loads(json_file.read_text())}
    verdicts = {name: one["verdict"] for name, one in found.items()}
    assert verdicts["field_cispo_more_entropy"] == "holds"
    assert verdicts["field_cispo_less_entropy"] == "does not hold"
    assert verdicts["field_kl_cov_entropy"] == "does not hold"
    others = {"field_cispo_more_entropy", "field_cispo_less_entropy", "field_kl_cov_entropy"}
    assert {verdict for name, verdict in verdicts.items() if name not in others} == {"inconclusive"}
    assert found["field_kl_cov_entropy"]["paper"].endswith("arXiv 2505.22617)")
    text = page.read_text()
    assert summary_line(list(found.values())) in text
    assert [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")] == [
        *(paper.paper for paper in read_field(EXPERIMENTS, "field").values()),
        "Tests",
    ]
    assert len([line for line in text.splitlines() if line.startswith("| **")]) == len(found)
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines() if line.startswith("| **")}) == 1
    assert "Not tested: Dynamic sampling and overlong shaping" in text


def test_a_new_paper_is_one_file(results, tmp_path):
    folder = copytree(EXPERIMENTS, tmp_path / "experiments")
    text = (folder / "field" / "cispo_entropy.yaml").read_text()
    (folder / "field" / "mine.yaml").write_text(text)
    with pytest.raises(UserError, match="two claims have the id 'field_cispo_more_entropy'"):
        write(results, folder)
    (folder / "field" / "mine.yaml").write_text(text.replace("id: field_", "id: my_"))
    before, after = (json.loads(write(results, each)[0].read_text()) for each in (EXPERIMENTS, folder))
    assert {one["id"] for one in after} - {one["id"] for one in before} == {
        *("my_cispo_more_entropy", "my_cispo_less_entropy")
    }


@pytest.mark.parametrize("folder", ["field", "controls"])
@pytest.mark.parametrize("scale", ["smollm2", "smollm2-words"])
def test_a_scale_without_claims_of_a_folder_is_one_line(tmp_path, capsys, folder, scale):
    (tmp_path / scale).mkdir()
    own = f"experiments/{scale}/claims.yaml: entropy-dynamics claims --scale {scale}"
    said = f"scale {scale} has no claims in experiments/{scale}/{folder}; its claims are in {own}"
    assert error(capsys, folder, "--scale", scale, "--results", tmp_path) == said
    assert not list((tmp_path / scale).iterdir())
