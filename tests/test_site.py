"""The hooks of the documentation site: what becomes of the tables of a page."""

import runpy

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
    assert shown.startswith('<p>before</p><div class="wide"><table>')
    assert shown.endswith("</table></div><p>after</p>")
    for row in range(2):
        for column in range(7):
            assert f'<td data-label="c{column}" style="text-align: right;">{row}.{column}</td>' in shown
    assert shown.count("data-label") == 14


def test_a_narrow_table_stays_as_it_is_beside_a_wide_one(on_page_content):
    shown = on_page_content(table(6) + table(7))
    assert shown.startswith(table(6))
    assert shown.count('class="wide"') == 1
