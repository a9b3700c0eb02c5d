"""Fills the templates of tables, claims and the report: Markdown, LaTeX and HTML."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup, escape

from entropy_dynamics.analysis.run_data import Model

MATH = {"η": r"\eta", "Δ": r"\Delta", "−": "-", "×": r"\times"}


def fill(template: str, **values: Any) -> str:
    """The text of templates/<template>, filled with these values."""
    return (_LATEX if template.endswith(".tex") else _PAGES).get_template(template).render(values)


def _html(text: str) -> Markup:
    marked = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"Clip_([BV])\b", r"Clip<sub>\1</sub>", marked))


def _latex(text: str) -> str:
    text = re.sub(r"([%&#])", r"\\\1", text)
    text = re.sub(r"Clip_([BV])\b", r"Clip$_{\\mathcal{\1}}$", text)
    text = re.sub(r"([<>])", r"$\1$", text)
    text = re.sub(r"(?<!\$)_", r"\\_", text)
    text = re.sub(r"\bS(?:\\_(c)\b|(\*))", r"$S_\1\2$", text)
    return re.sub("(-?)([ηΔ−×])", lambda sign: f"${sign[1]}{MATH[sign[2]]}$", text)


def _power(number: float) -> str:
    """0.0006 as $6\\cdot10^{-4}$."""
    mantissa, exponent = f"{number:e}".split("e")
    return rf"${float(mantissa):g}\cdot10^{{{int(exponent)}}}$"


def _section(claim: Mapping[str, Any]) -> str:
    """The section in a claim's `place`, in italics if the claim is not the paper's."""
    named = re.search(r"(?:Sections?|Appendix) ([\w.]+)", claim["place"])
    name = named[1] if named else ""
    return rf"\emph{{{name}}}" if claim["ours"] else name


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _bounds(claimed: tuple[float | None, float | None]) -> str:
    """(0, None) as $>0$; (0.5, 2) as a range that may be broken after its dash."""
    low, high = (None if end is None else f"{end:g}" if len(f"{end:g}") < 7 else f"{end:.2g}" for end in claimed)
    if low and high:
        return rf"{low}--\allowbreak{high}"
    return f"$>{low}$" if low else f"$<{high}$"


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
_PAGES.filters |= {"power": _power, "section": _section, "bounds": _bounds, "sentence": _sentence}
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
