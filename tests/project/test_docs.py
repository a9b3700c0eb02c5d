"""Pages of docs: what docs/lists.py writes, their links, and the hooks of the site."""

import json
import re
import runpy
import sys
import types
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import lists
from conftest import ROOT
from tables import doses, effects

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
    shown = effects.gain_shown(folders, "pass", plus, minus, effects.TOYS)
    assert shown == effects.of_claim("laptop/controls/pooled/controls.json", claim)


def test_a_list_follows_its_files(tmp_path, monkeypatch):
    """A pooled run of other parts, with another processor and another verdict."""
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


def test_all_runs_together_weigh_seeds_alike(tmp_path, monkeypatch):
    """Seeds gain 25, 50 and 75 points: a copy counts once, a run on another processor is averaged."""
    monkeypatch.setattr(effects, "REFERENCE", tmp_path)

    def write(folder: str, gains: dict[int, int]) -> None:
        rows = [
            {"model": model, "method": method, "seed": seed, "temperature": np.float32(at), "dataset": name}
            | {"problem": 0, "correct": (gain if method == "clip_v" else 0), "samples": 4}
            for model, name, at in product(effects.TOYS, ("aime24", "aime25", "dapo500"), (0.0, 0.7))
            for method, (seed, gain) in product(("grpo", "clip_b", "clip_v"), gains.items())
        ]
        (tmp_path / folder).mkdir(parents=True)
        pd.DataFrame(rows).to_parquet(tmp_path / folder / "counts.parquet")

    write("laptop/paper/a", {0: 1, 1: 2, 2: 2})
    write("laptop/controls/copy", {0: 1, 1: 2, 2: 2})
    write("laptop/paper/other", {2: 4})
    write("desk/paper/a", {0: 1, 1: 1, 2: 1})
    row = next(line for line in effects.evidence().splitlines() if "Clip_V: Avg@K" in line)
    every, small, large, below = (cell.strip() for cell in row.split("|")[2:6])
    assert (every.split()[0], small, large.split()[0]) == ("+37.5", "+50.0 [−12.1, 112.1]", "+25.0")
    assert below == "0 of 6"


@pytest.mark.parametrize(("percent", "share"), [(0, 0), (10, 40), (15, 55), (20, 70), (40, 100), (90, 100)])
def test_what_the_lowest_tokens_carry_by_hand(percent, share):
    """Four of the ten values are negative and sum to -10. The lowest 15 % are the lowest value and half of the next."""
    assert doses.carried(np.array([5.0, -1, -4, 2, 0, -3, 1, -2, 7, 1]), percent) == pytest.approx(share)


# ---------------------------------------------------------------- links
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("*/README.md"), *(ROOT / "docs").rglob("*.md")]
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


def headings(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    plain = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(page):
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in (first or second for first, second in LINK.findall(text)):
        if re.match(r"[a-z]+:|#", link) or link.startswith("api/"):
            continue
        target, _, heading = link.partition("#")
        file = (page.parent / target).resolve()
        assert file.exists(), link
        if heading and file.suffix == ".md":
            assert heading in headings(file), link


def test_a_decision_names_a_place_that_exists():
    text = (ROOT / "docs/decisions.md").read_text(encoding="utf-8")
    places = re.findall(r"`([\w/*]+\.(?:py|yaml))`|`([\w/]+/)`", text)
    assert len(places) > 30
    for place in map("".join, places):
        assert any([*ROOT.glob(place), *(ROOT / "src/entropy_dynamics").glob(place)]), place


# ---------------------------------------------------------------- hooks of the site
@pytest.fixture(scope="module")
def on_page_content():
    return runpy.run_path(str(ROOT / "docs" / "hooks" / "wide_tables.py"))["on_page_content"]


def table(columns: int) -> str:
    heads = "".join(f"<th><em>c{column}</em></th>" for column in range(columns))
    cells = [[f'<td style="text-align: right;">{row}.{column}</td>' for column in range(columns)] for row in range(2)]
    rows = "".join(f"<tr>\n{''.join(row)}</tr>" for row in cells)
    return f"<table>\n<thead>\n<tr>{heads}</tr>\n</thead>\n<tbody>{rows}</tbody>\n</table>"


def test_the_cells_of_a_wide_table_carry_the_names_of_their_columns(on_page_content):
    shown = on_page_content(f"<p>before</p>{table(7)}<p>after</p>", page=None)
    assert shown.startswith('<p>before</p><div class="listed wide"><table>')
    assert shown.endswith("</table></div><p>after</p>")
    for row in range(2):
        for column in range(7):
            assert f'<td data-label="c{column}" style="text-align: right;">{row}.{column}</td>' in shown
    assert shown.count("data-label") == 7 + 14  # the headings, by which site.css gives columns their widths


def test_the_front_page_is_the_readme_with_its_links_from_docs():
    hook = runpy.run_path(str(ROOT / "docs" / "hooks" / "front_page.py"))["on_page_markdown"]
    config = {"config_file_path": str(ROOT / "mkdocs.yml")}

    def shown(name: str) -> str:
        return hook("as it was", page=types.SimpleNamespace(file=types.SimpleNamespace(src_uri=name)), config=config)

    assert shown("theory.md") == "as it was"
    page, readme = shown("index.md"), (ROOT / "README.md").read_text()
    assert "](docs/" in readme
    assert "](docs/" not in page
    assert "](CONTRIBUTING.md)" not in page
    assert "[mathematics](theory.md)" in page
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page)
    assert all(link.startswith("https:") or (ROOT / "docs" / link).is_file() for link in links)


# Equations: what latex2mathml writes, and how it is repaired


@pytest.fixture(scope="module")
def equation():
    """What latex2mathml writes -> what is on the page. A stand-in writes it: these tests have no latex2mathml."""

    def shown(written: str) -> str:
        converter = types.ModuleType("latex2mathml.converter")
        converter.convert = lambda *_, **__: written
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(sys.modules, "latex2mathml", types.ModuleType("latex2mathml"))
            patch.setitem(sys.modules, "latex2mathml.converter", converter)
            hook = runpy.run_path(str(ROOT / "docs" / "hooks" / "equations.py"))["on_page_content"]
        return hook(r'<span class="arithmatex">\(x\)</span>')

    return shown


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("<mi>H</mi><mi>log</mi><mi>p</mi>", '<mi>H</mi><mo lspace="0.17em" rspace="0.17em">log</mo><mi>p</mi>'),
        ("<mi>i</mi><mi>&#x0007E;</mi><mi>p</mi>", "<mi>i</mi><mo>&#x0223C;</mo><mi>p</mi>"),
        ("<mo>&#x0003D;</mo><mo>&#x02212;</mo>", '<mo>&#x0003D;</mo><mo form="prefix">&#x02212;</mo>'),
        (
            '<mo stretchy="false">&#x00029;</mo><mo>&#x02212;</mo>',
            '<mo stretchy="false">&#x00029;</mo><mo>&#x02212;</mo>',
        ),
    ],
)
def test_operators_and_signs_get_their_space(equation, written, shown):
    assert equation(written) == shown
