"""The hooks of the documentation site: what becomes of the tables of a page."""

import re
import runpy
import sys
import types

import pytest

from project_copy import ROOT


@pytest.fixture(scope="module")
def on_page_content():
    return runpy.run_path(str(ROOT / "docs" / "wide_tables.py"))["on_page_content"]


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
    hook = runpy.run_path(str(ROOT / "docs" / "front_page.py"))["on_page_markdown"]
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
            hook = runpy.run_path(str(ROOT / "docs" / "equations.py"))["on_page_content"]
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
