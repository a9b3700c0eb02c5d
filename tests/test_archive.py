"""`entropy-dynamics archive`: an RO-Crate that `verify` accepts in another place."""

import json
import os
import zipfile
from pathlib import Path

import pytest

from entropy_dynamics.cli import main
from entropy_dynamics.results.files import sha256
from recorded_results import AIME24, MODEL_JSON, PROBLEMS, RESULTS, short

WORKING = ("checkpoints", "failures", "logs", "shards")

pytestmark = pytest.mark.usefixtures("project")


def unpacked(tmp_path: Path, *arguments: str) -> Path:
    """What someone else has after unzipping the archive."""
    assert main(["archive", str(RESULTS), *arguments]) == 0
    with zipfile.ZipFile(RESULTS.with_suffix(".zip")) as archive:
        archive.extractall(tmp_path / "elsewhere" / RESULTS.name)
    return tmp_path / "elsewhere" / RESULTS.name


def test_an_unpacked_archive_is_as_sound_as_the_original_and_names_its_policies_as_left_out(verify, tmp_path):
    for name in WORKING:
        (RESULTS / name / "runs").mkdir(parents=True)
        (RESULTS / name / "runs" / "file").write_text("working file")
    code, findings, _ = verify()
    folder = unpacked(tmp_path)
    left_out = {
        ("not checked", "models/qwen2.5-7b-instruct/seed0/model.safetensors"): "left out of the archive; 3 more like it"
    }
    assert verify(str(folder))[:2] == (code, findings | left_out)
    assert not list(folder.rglob("*.safetensors"))
    assert not [name for name in WORKING if (folder / name).exists()]


def test_with_policies_nothing_is_left_out(verify, tmp_path):
    folder = unpacked(tmp_path, "--policies")
    assert verify(str(folder))[:2] == verify()[:2]
    assert {path.relative_to(folder) for path in folder.rglob("*.safetensors")} == {
        path.relative_to(RESULTS) for path in RESULTS.rglob("*.safetensors")
    }


@pytest.mark.parametrize("file", [AIME24, MODEL_JSON], ids=["samples", "description of a model"])
def test_what_was_modified_or_lost_on_the_way_is_named(verify, tmp_path, file):
    folder = unpacked(tmp_path)
    with open(folder / short(file), "r+b") as content:  # one bit
        first = content.read(1)[0]
        content.seek(0)
        content.write(bytes([first ^ 1]))
    code, findings, _ = verify(str(folder))
    assert code == 1
    assert ("modified", short(file)) in findings
    (folder / short(file)).unlink()
    assert ("missing", short(file)) in verify(str(folder))[1]


def test_the_metadata_has_what_the_standard_requires(tmp_path):
    """RO-Crate 1.1, "Root Data Entity" and "Data Entities"; Process Run Crate 0.5."""
    folder = unpacked(tmp_path)
    document = json.loads((folder / "ro-crate-metadata.json").read_text())
    graph = {entity["@id"]: entity for entity in document["@graph"]}
    assert len(graph) == len(document["@graph"])
    assert document["@context"][0] == "https://w3id.org/ro/crate/1.1/context"
    descriptor, root = graph["ro-crate-metadata.json"], graph["./"]
    assert (descriptor["@type"], descriptor["about"]) == ("CreativeWork", {"@id": "./"})
    assert descriptor["conformsTo"] == {"@id": "https://w3id.org/ro/crate/1.1"}
    assert {"name", "description", "datePublished", "license"} <= root.keys()
    parts = {part["@id"] for part in root["hasPart"]}
    assert parts | {"ro-crate-metadata.json"} == {
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    }
    assert all(graph[name]["@type"] == "File" for name in parts)
    assert all(graph[name]["sha256"] == sha256(folder / name) for name in parts)
    (action,) = (entity for entity in graph.values() if entity["@type"] == "CreateAction")
    assert [graph[one["@id"]]["@type"] for one in action["instrument"]] == ["SoftwareApplication"]
    assert {one["@id"] for one in (*action["object"], *action["result"])} == parts
    assert any(name.endswith("clip_b/seed0/config.yaml") for name in parts)


def test_an_archive_does_not_hold_an_earlier_one(capsys):
    target = RESULTS / "archive.zip"
    sizes = []
    for _ in range(2):
        assert main(["archive", str(RESULTS), "--out", str(target)]) == 0
        with zipfile.ZipFile(target) as archive:
            sizes.append(len(archive.namelist()))
            assert target.name not in archive.namelist()
    assert sizes[0] == sizes[1]


def test_folders_elsewhere_and_files_of_1970_are_packed(verify, tmp_path):
    moved = (RESULTS / "evaluations").rename(tmp_path / "scratch")
    (RESULTS / "evaluations").symlink_to(moved)
    os.utime(PROBLEMS, (0, 0))
    assert verify(str(unpacked(tmp_path)))[0] == 0


@pytest.mark.parametrize(
    ("target", "said"),
    [("none", "is not a file but a broken link or a device"), (".", "is a link to a folder that contains it")],
)
def test_a_link_that_leads_nowhere_or_in_a_circle_is_named(target, said, capsys):
    (RESULTS / "tables" / "link").symlink_to(RESULTS.absolute() / target)
    assert main(["archive", str(RESULTS)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {RESULTS}/tables/link {said}")
    assert not RESULTS.with_suffix(".zip").exists()


@pytest.mark.parametrize("damage", [lambda old: old[:-20], lambda old: old[:40] + bytes(200) + old[240:]])
@pytest.mark.parametrize("name", ["provenance.json", "problems.json", "metrics.parquet", "aime24.parquet"])
def test_a_damaged_file_is_named(capsys, name, damage):
    file = next(RESULTS.rglob(name))
    file.write_bytes(damage(file.read_bytes()))
    assert main(["archive", str(RESULTS)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {file} is damaged (")
    assert err.count("\n") == 1
    assert not RESULTS.with_suffix(".zip").exists()


def test_a_folder_without_results_is_refused(capsys):
    assert main(["archive", "configs"]) == 2
    assert (
        capsys.readouterr().err
        == "error: configs holds no results; the folder of a scale is needed, such as results/laptop\n"
    )
