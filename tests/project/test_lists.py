"""The generated lists of published runs and of experiments say what their files say."""

import importlib.util
import json

import pytest

from conftest import ROOT

spec = importlib.util.spec_from_file_location("lists", ROOT / "docs" / "lists.py")
lists = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lists)


@pytest.mark.parametrize("page", [lists.REFERENCE / "README.md", lists.EXPERIMENTS / "README.md"], ids=str)
def test_the_lists_of_a_page_are_up_to_date(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert lists.written(page) == page.read_text(encoding="utf-8"), "run: python docs/lists.py"


def test_a_list_follows_its_files(tmp_path, monkeypatch):
    """A pooled run of other parts, with another processor and another verdict."""
    monkeypatch.chdir(ROOT)
    name = "laptop/controls/pooled"
    reference = tmp_path / "reference"
    for part in ("pooled", "seeds-0-4", "seeds-50-54"):
        (folder := reference / f"laptop/controls/{part}").mkdir(parents=True)
        for file in ("run.yaml", "controls.json", "counts.parquet", "models.json"):
            if (source := lists.REFERENCE / f"laptop/controls/{part}/{file}").is_file():
                (folder / file).write_bytes(source.read_bytes())
    monkeypatch.setattr(lists, "REFERENCE", reference)
    of_pooled = next(row for row in lists.published_runs().splitlines() if "controls-both" in row)
    assert "| 0 to 4, 50 to 54 |" in of_pooled
    assert ": 14, 3, 6 |" in of_pooled
    verdicts = json.loads((reference / name / "controls.json").read_text())
    next(entry for entry in verdicts if entry["verdict"] == "holds")["verdict"] = "inconclusive"
    (reference / name / "controls.json").write_text(json.dumps(verdicts))
    (reference / name / "run.yaml").write_text("was: [x]\nshows: it\nof: [seeds-50-54]\nprocessor: Z80\n")
    row = next(row for row in lists.published_runs().splitlines() if "[x]" in row)
    assert "| 50 to 54 | Z80 |" in row
    assert ": 13, 3, 7 |" in row
