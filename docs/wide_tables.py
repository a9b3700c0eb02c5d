"""MkDocs hook: the cells of wide tables carry their column's name, which site.css shows where a phone lists them."""

import re

COLUMNS = 7  # at least
TABLE = re.compile(r"<table>(.*?)</table>", re.DOTALL)


def on_page_content(content: str, **_: object) -> str:
    return TABLE.sub(_labeled, content)


def _labeled(table: re.Match[str]) -> str:
    heads = [re.sub(r"<[^>]+>", "", head) for head in re.findall(r"<th\b[^>]*>(.*?)</th>", table[1], re.DOTALL)]
    if len(heads) < COLUMNS:
        return table[0]
    rows = []
    for row in table[1].split("<tr>"):
        labels = iter(heads)
        rows.append(re.sub("<td", lambda _, labels=labels: f'<td data-label="{next(labels)}"', row))
    # The theme's style is that of tables without a class of their own.
    return f'<div class="wide"><table>{"<tr>".join(rows)}</table></div>'
