"""Fills the templates of tables, claims and the report: Markdown, LaTeX and HTML."""

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from entropy_dynamics.analysis.run_data import Model
from entropy_dynamics.analysis.statistics import ROUNDING

MATH = {"η": r"\eta", "Δ": r"\Delta", "−": "-", "×": r"\times"}


def fill(template: str, **values: Any) -> str:
    """The text of templates/<template>, filled with these values."""
    return (_LATEX if template.endswith(".tex") else _PAGES).get_template(template).render(values)


def _html(text: str) -> Markup:
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    marked = re.sub(r"\bS(?:_(?=c\b)(c)|(\*))", r"<i>S</i><sub>\1\2</sub>", marked)
    return Markup(re.sub(r"Clip_([BV])\b", r"Clip<sub>\1</sub>", marked))


def _latex(text: str) -> str:
    text = re.sub(r"([%&#])", r"\\\1", text)
    text = re.sub(r"Clip_([BV])\b", r"Clip$_{\\mathcal{\1}}$", text)
    text = re.sub(r"([<>])", r"$\1$", text)
    text = re.sub(r"(?<!\$)_", r"\\_", text)
    text = re.sub(r"\bS(?:\\_(c)\b|(\*))", r"$S_\1\2$", text)
    return re.sub("(-?)([ηΔ−×])", lambda sign: f"${sign[1]}{MATH[sign[2]]}$", text)


def in_digits(entry: Mapping[str, Any], sign: str = "-") -> str:
    """'0.00088 [0.00087, 0.00098]': the effect of an entry of claims.json and its interval, to a third of half the
    interval at least. With `sign` "+", positive effects have a sign, too."""
    effect, ends = entry["effect"], [entry[end] for end in ("low", "high") if entry[end] is not None]
    half = (ends[1] - ends[0]) / 2 if ends else 0.0
    if half <= 0:
        return f"{float(f'{effect:.2g}'):{sign}g}"
    decimals = max(0, math.ceil(-math.log10(half / 3)))
    while any(abs(end) > ROUNDING and not round(end, decimals) for end in ends):  # not 0, the threshold of most claims
        decimals += 1
    low, high = (f"{end:z.{decimals}f}" for end in ends)
    return f"{effect:{sign}z.{decimals}f} [{low}, {high}]"


def markdown(text: str) -> str:
    """`text` with Markdown's own characters escaped."""
    return re.sub(r"([*|_])", r"\\\1", text)


_PAGES = Environment(
    loader=ChoiceLoader([PackageLoader(f"entropy_dynamics.{room}") for room in ("report", "publishing")]),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_PAGES.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}
_PAGES.filters |= {"digits": in_digits, "html": _html, "latex": _latex, "markdown": markdown}
_LATEX = _PAGES.overlay(  # braces are LaTeX's own
    block_start_string="<%",
    block_end_string="%>",
    variable_start_string="<<",
    variable_end_string=">>",
    comment_start_string="<#",
    comment_end_string="#>",
)


def one_model(models: Iterable[Model]) -> str:
    """A note that intervals hold for the given pretrained models; empty for toy models, which have one per seed."""
    return "" if all(model.toy for model in models) else "Intervals hold for the one pretrained model of each name"
