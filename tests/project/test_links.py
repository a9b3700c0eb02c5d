"""Links in README, CONTRIBUTING and the pages of docs, as read in the repository: files and headings exist."""

import re
from pathlib import Path

import pytest

from conftest import ROOT

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
