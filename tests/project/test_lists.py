"""What docs/lists.py writes into the pages is what files and code say."""

import importlib.util
import json

import pytest

from conftest import ROOT

spec = importlib.util.spec_from_file_location("lists", ROOT / "docs" / "lists.py")
lists = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lists)


WRITTEN = [page for page in lists.PAGES if lists.PART.search((ROOT / page).read_text(encoding="utf-8"))]


@pytest.mark.parametrize("page", WRITTEN, ids=str)
def test_the_lists_of_a_page_are_up_to_date(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert lists.written(page) == page.read_text(encoding="utf-8"), "run: python docs/lists.py"


@pytest.mark.parametrize(
    ("claim", "plus", "minus"),
    [
        ("placebo_pass_clip_b", "clip_b", "random_mask"),
        ("low_p_pass_clip_v", "clip_v", "low_p_mask_v"),
        ("half_rate_pass_clip_b", "clip_b", "grpo_half_rate"),
    ],
)
def test_a_gain_from_counts_is_the_verdicts(monkeypatch, claim, plus, minus):
    """The same quantity by the way of `restore` and `controls`."""
    monkeypatch.chdir(ROOT)
    folders = ["laptop/controls/seeds-0-4", "laptop/controls/seeds-50-54"]
    shown = lists.gain_shown(folders, "pass", plus, minus, lists.TOYS)
    assert shown == lists.of_claim("laptop/controls/pooled/controls.json", claim)


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
