"""MkDocs hook: cells of tables that a phone shows as lists carry their column's name, which site.css shows there."""

import html
import re

COLUMNS = 7  # a table with at least so many columns is wide
PROSE = 60  # characters of a cell that would be a tall, thin column on a phone, beside two others
CELL = re.compile(r"<t[hd]\b")
TABLE = re.compile(r"<table>(.*?)</table>", re.DOTALL)


def on_page_content(content: str, **_: object) -> str:
    return TABLE.sub(_labeled, content)


def _labeled(table: re.Match[str]) -> str:
    heads, cells = (_texts(tag, table[1]) for tag in ("th", "td"))
    wide = len(heads) >= COLUMNS
    if not wide and (len(heads) < 3 or max(map(len, cells), default=0) < PROSE):
        return table[0]
    rows = []
    for row in re.split(r"(?=<tr\b)", table[1]):
        labels = iter(heads)
        rows.append(CELL.sub(lambda cell, labels=labels: f'{cell[0]} data-label="{html.escape(next(labels))}"', row))
    # The theme's style is that of tables without a class of their own.
    return f'<div class="{"listed wide" if wide else "listed"}"><table>{"".join(rows)}</table></div>'


def _texts(tag: str, table: str) -> list[str]:
    """The cells of a table without their markup."""
    cells = re.findall(rf"<{tag}\b[^>]*>(.*?)</{tag}>", table, re.DOTALL)
    return [html.unescape(re.sub(r"<[^>]+>", "", cell)) for cell in cells]
