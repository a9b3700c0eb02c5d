"""Filling the templates of tables, claims and the report: Markdown, LaTeX and HTML."""

import re
from collections.abc import Iterable
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from entropy_dynamics.analysis.results import Model


def fill(template: str, **values: Any) -> str:
    """The text of templates/<template> with these values."""
    return (_LATEX if template.endswith(".tex") else _PAGES).get_template(template).render(values)


def _html(text: str) -> Markup:
    return Markup(re.sub(r"Clip_([BV])\b", r"Clip<sub>\1</sub>", str(escape(text))))


def _latex(text: str) -> str:
    text = re.sub(r"([%&#])", r"\\\1", text)
    text = re.sub(r"Clip_([BV])\b", r"Clip$_{\\mathcal{\1}}$", text)
    text = re.sub(r"([<>])", r"$\1$", text)
    return re.sub(r"(?<!\$)_", r"\\_", text)


def markdown(text: str) -> str:
    """`text` with Markdown's own characters escaped."""
    return re.sub(r"([*|_])", r"\\\1", text)


_PAGES = Environment(
    loader=PackageLoader("entropy_dynamics.reporting"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_PAGES.filters |= {"html": _html, "latex": _latex, "markdown": markdown}
_LATEX = _PAGES.overlay(  # braces are LaTeX's own
    block_start_string="<%",
    block_end_string="%>",
    variable_start_string="<<",
    variable_end_string=">>",
    comment_start_string="<#",
    comment_end_string="#>",
)


def one_model(models: Iterable[Model]) -> str:
    """That intervals hold for pretrained models, of which there is one each; toy models have one for each seed."""
    return "" if all(model.toy for model in models) else "Intervals hold for the one pretrained model of each name"
