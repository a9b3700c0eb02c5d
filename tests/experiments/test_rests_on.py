"""What claims rest on: facets name an independent claim."""

import re
from shutil import copytree

import pytest

from conftest import ROOT
from entropy_dynamics.experiments.claims import read_claims, read_field
from mistakes import mistake


def test_the_claims_of_the_paper_are_fewer_findings():
    claims = read_claims(ROOT / "experiments").claims
    kinds = {claim.id: claim.basis for claim in claims}
    assert kinds["sampling_law"] == "identity"
    assert kinds["entropy_held_clip_b_qwen2.5"] == "by construction"
    assert kinds["best_clip_b_qwen3"] == "facet of greedy_clip_b_qwen3"
    assert list(kinds.values()).count("independent") < len(claims) * 2 / 3


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("facet_of: pass_gain_clip_v", "names 'pass_gain_clip_v', which is no independent claim"),
        ("rests_on: chance", "rests_on is 'chance'"),
    ],
)
def test_a_facet_of_nothing_is_one_line(tmp_path, written, said):
    folder = copytree(ROOT / "experiments", tmp_path / "experiments")
    path = folder / "claims.yaml"
    text = path.read_text()
    start = text.index("- id: figure4_solved")
    changed = re.sub("facet_of: .*", written, text[start:], count=1)
    path.write_text(text[:start] + changed)
    with mistake(said):
        read_claims(folder)


def test_a_facet_of_a_claim_in_another_file():
    controls = {
        claim.id: claim.basis
        for paper in read_field(ROOT / "experiments", "controls").values()
        for claim in paper.claims
    }
    assert controls["competitive_clip_v_kl_cov"] == "facet of competitive_clip_v"  # which is in claims.yaml
    assert controls["steps_to_20_clip_b"] == "facet of learns_faster_clip_b_qwen2.5"


def test_a_facet_of_nothing_in_a_folder_is_one_line(tmp_path):
    folder = copytree(ROOT / "experiments", tmp_path / "experiments")
    path = folder / "field" / "staleness.yaml"
    path.write_text(path.read_text().replace("facet_of: field_stale_accuracy", "facet_of: field_cispo_less_entropy"))
    with mistake(
        "field: facet_of of field_stale_collapse names 'field_cispo_less_entropy', which is no independent claim"
    ):
        read_field(folder, "field")
