"""MkDocs hook: equations become MathML, which browsers render without a script."""

import html
import re

from latex2mathml.converter import convert

FUNCTION = '<mo lspace="0.17em" rspace="0.17em">log</mo>'  # as a name, it would touch its argument
EQUATION = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **_: object) -> str:
    def mathml(match: re.Match[str]) -> str:
        equation = convert(html.unescape(match[3]), display="block" if match[2] == "[" else "inline")
        return equation.replace("<mi>log</mi>", FUNCTION)

    return EQUATION.sub(mathml, content)
